// SPDX-License-Identifier: Apache-2.0
//
// A spine switch (Orca, section 3.5 and Algorithm 3). Ports 0 to SPINE_DOWN - 1 lead to leafs, the others to cores.
//
// A link down is used if it is common to all spines of the tree, or if its bucket of the label's filter is set and no
// entry of the session blocks it. A label with the leafs of pods has them as they are: in the slot of the switch's
// pod, which is the first for the source's pod and then one for each pod of the label before its own. Where there is
// no such slot, the packet goes to the leaf that the label names for this, as a label that asks for a spine label. A
// spine label names the leafs itself. A packet from below also goes up, by the port that the label names, unless it is
// a spine label. A packet whose label names a port that the switch does not have is dropped.
//
// The controller writes the default action of `here` and all of `buckets` once, when the switch starts, and `entries`
// for sessions. Bitmaps have port 0 leftmost.

#include "label.p4"

// A spine without cores has a port up by which nothing comes.
#if SPINE_UP == 0
#define UP_PORTS 1
#else
#define UP_PORTS SPINE_UP
#endif
#define PORT_BITS 9
// The lower half of every pair, four and eight bits.
#define PAIRS 0x55555555555555555555555555555555
#define FOURS 0x33333333333333333333333333333333
#define EIGHTS 0x0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f

struct metadata_t {
    // Copies go to the leafs named, and where the bits say so to others.
    bit<1> is_copied;
    bit<1> has_filter;
    bit<1> goes_up;
    bit<1> is_asking;
    // The port up, counted from the first of them, and the leaf that is asked.
    bit<PORT_BITS> up;
    bit<PORT_BITS> asked;
    bit<SPINE_DOWN> named;
    bit<SPINE_DOWN> blocked;
    bit<FILTER_BITS> filter;
    // The bucket of the link to a leaf, FILTER_BITS where it has none.
    bit<16> bucket;
    bit<16> pod;
}

#include "orca.p4"

control SpineIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Screen() screen;

    action set_pod(bit<16> pod) {
        meta.pod = pod;
    }

    // The switch's own pod.
    table here {
        actions = { set_pod; }
        default_action = set_pod(0);
    }

    action block(bit<SPINE_DOWN> links) {
        meta.blocked = links;
    }

    action block_none() {
        meta.blocked = 0;
    }

    // Entries: the links that a session must not use though the filter names them.
    table entries {
        key = { hdr.orca.session: exact; }
        actions = { block; block_none; }
        default_action = block_none();
        size = 1024;
    }

    apply {
        bit<1> is_labelled;
        meta.is_copied = 0;
        meta.has_filter = 0;
        meta.goes_up = 0;
        meta.is_asking = 0;
        meta.up = 0;
        meta.asked = 0;
        meta.named = 0;
        screen.apply(hdr, standard, SPINE_DOWN + UP_PORTS, is_labelled);
        if (is_labelled == 1) {
            bit<1> is_from_below = 0;
            if (standard.ingress_port < SPINE_DOWN) {
                is_from_below = 1;
            }
#if SPINE_UP_BITS > 0
            meta.up = (bit<PORT_BITS>) FIELD(SPINE_UP_AT, SPINE_UP_BITS);
#endif
#if SPINE_UP > 0
            if (hdr.orca.kind == KIND_FILTER || hdr.orca.kind == KIND_PODS) {
                meta.goes_up = is_from_below;
            }
#endif
            meta.is_copied = 1;
            standard.mcast_grp = ALL_PORTS;
            if (hdr.orca.kind == KIND_SPINE && is_from_below == 1) {
                meta.named = FIELD(LEAFS_AT, SPINE_DOWN);
            } else if (hdr.orca.kind == KIND_ASKS || hdr.orca.kind == KIND_SPINE || meta.up >= UP_PORTS) {
                mark_to_drop(standard);
            } else if (hdr.orca.kind == KIND_FILTER) {
                entries.apply();
                meta.has_filter = 1;
                meta.named = FIELD(COMMON_AT, SPINE_DOWN);
                meta.filter = FIELD(FILTER_AT, FILTER_BITS);
            } else {
                here.apply();
                bit<16> slot = 0;
                if (is_from_below == 0) {
                    slot = 1;
#if CORE_DOWN > 0
                    // And one for each pod of the label before this one: its ones are counted in pairs, fours and so
                    // on.
                    bit<128> pods = (bit<128>) FIELD(POD_CORE_AT, CORE_DOWN);
                    pods = pods >> (bit<8>) (CORE_DOWN - meta.pod);
                    pods = (pods & PAIRS) + ((pods >> 1) & PAIRS);
                    pods = (pods & FOURS) + ((pods >> 2) & FOURS);
                    pods = (pods & EIGHTS) + ((pods >> 4) & EIGHTS);
                    pods = pods + (pods >> 8);
                    pods = pods + (pods >> 16);
                    pods = pods + (pods >> 32);
                    pods = pods + (pods >> 64);
                    slot = slot + (bit<16>) pods[7:0];
#endif
                }
                if (slot < SLOTS) {
                    bit<LABEL_BITS> at_slot = hdr.label.bits << (bit<8>) (SLOTS_AT + slot * SPINE_DOWN);
                    meta.named = at_slot[LABEL_BITS - 1:LABEL_BITS - SPINE_DOWN];
                } else {
                    meta.is_asking = 1;
#if ASKS_BITS > 0
                    meta.asked = (bit<PORT_BITS>) FIELD(ASKS_AT, ASKS_BITS);
#endif
                    if (meta.asked >= SPINE_DOWN) {
                        mark_to_drop(standard);
                    }
                }
            }
        }
    }
}

control SpineEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action in_bucket(bit<16> bucket) {
        meta.bucket = bucket;
    }

    action in_no_bucket() {
        meta.bucket = FILTER_BITS;
    }

    // The bucket of the filter that a link down has under a core: by the port down, and the label's port up.
    table buckets {
        key = {
            standard.egress_port: exact;
            meta.up: exact;
        }
        actions = { in_bucket; in_no_bucket; }
        default_action = in_no_bucket();
        size = 16384;
    }

    apply {
        if (meta.is_copied == 1) {
            bit<1> leaves = 0;
            if (standard.egress_port >= SPINE_DOWN) {
                if (standard.egress_port == SPINE_DOWN + meta.up) {
                    leaves = meta.goes_up;
                }
            } else {
                leaves = BIT_BEHIND(meta.named, SPINE_DOWN, standard.egress_port);
                if (meta.has_filter == 1 && BIT_BEHIND(meta.blocked, SPINE_DOWN, standard.egress_port) == 0) {
                    buckets.apply();
                    leaves = leaves | BIT_BEHIND(meta.filter, FILTER_BITS, meta.bucket);
                }
                if (meta.is_asking == 1 && standard.egress_port == meta.asked) {
                    leaves = 1;
                    hdr.orca.kind = KIND_ASKS;
                    if (hdr.udp.checksum != 0) {
                        // The word with the kind grows by 0x0100, so its complement sum falls by that (RFC 1624).
                        bit<17> sum = (bit<17>) ~hdr.udp.checksum + (bit<17>) ((KIND_ASKS - KIND_PODS) ++ 8w0);
                        hdr.udp.checksum = ~(sum[15:0] + (bit<16>) sum[16:16]);
                        if (hdr.udp.checksum == 0) {
                            hdr.udp.checksum = 0xffff;
                        }
                    }
                }
            }
            if (leaves == 0) {
                mark_to_drop(standard);
            }
        }
    }
}

V1Switch(OrcaParser(), NoSums(), SpineIngress(), SpineEgress(), NoSums(), OrcaDeparser()) main;
