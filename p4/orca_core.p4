// SPDX-License-Identifier: Apache-2.0
//
// A core switch (Orca, section 3.5): no state at all. The label names the pods; its kind says where. Port n leads to
// pod n.

#include "label.p4"

struct metadata_t {
    // Copies go to the pods named.
    bit<1> is_copied;
    bit<CORE_DOWN> named;
}

#include "orca.p4"

control CoreIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Screen() screen;

    apply {
        bit<1> is_labelled;
        meta.is_copied = 0;
        screen.apply(hdr, standard, CORE_DOWN, is_labelled);
        if (is_labelled == 1) {
            meta.is_copied = 1;
            standard.mcast_grp = ALL_PORTS;
            if (hdr.orca.kind == KIND_FILTER) {
                meta.named = FIELD(CORE_AT, CORE_DOWN);
            } else if (hdr.orca.kind == KIND_PODS) {
                meta.named = FIELD(POD_CORE_AT, CORE_DOWN);
            } else {
                mark_to_drop(standard);
            }
        }
    }
}

control CoreEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (meta.is_copied == 1 && BIT_BEHIND(meta.named, CORE_DOWN, standard.egress_port) == 0) {
            mark_to_drop(standard);
        }
    }
}

V1Switch(OrcaParser(), NoSums(), CoreIngress(), CoreEgress(), NoSums(), OrcaDeparser()) main;
