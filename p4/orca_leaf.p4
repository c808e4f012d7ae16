// SPDX-License-Identifier: Apache-2.0
//
// A leaf switch (Orca, section 3.5): no state of sessions. Ports 0 to LEAF_DOWN - 1 lead to servers, the others to
// spines.
//
// From above, a packet goes to the next active agent of the rack. From below, a source label goes up by the port that
// it names, and a leaf label goes to the hosts that it names if it comes from a port with an agent of the rack, active
// or not: no other host may name hosts. So it is with a spine label, which names the leafs of a pod and goes up; a
// label that asks for one does not come from below.
//
// The controller of the leaf writes the default action of `agents`. Bitmaps have port 0 leftmost.

#include "label.p4"

struct metadata_t {
    // Copies go to the servers named.
    bit<1> is_copied;
    bit<LEAF_DOWN> named;
    bit<LEAF_DOWN> active;
    bit<LEAF_DOWN> rack;
}

#include "orca.p4"

control LeafIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Screen() screen;
    // The agent that had the last packet: a bitmap of one port, or none.
    register<bit<LEAF_DOWN>>(1) served_agent;
    // When the agent at a port sent a label of its own last, in microseconds of the switch: a sign of life.
    register<bit<48>>(LEAF_DOWN) relabelled;

    // Ports of the active agents, and of all agents of the rack.
    action set_agents(bit<LEAF_DOWN> active, bit<LEAF_DOWN> rack) {
        meta.active = active;
        meta.rack = rack;
    }

    table agents {
        actions = { set_agents; }
        default_action = set_agents(0, 0);
    }

    apply {
        bit<1> is_labelled;
        meta.is_copied = 0;
        screen.apply(hdr, standard, LEAF_DOWN + LEAF_UP, is_labelled);
        if (is_labelled == 1) {
            agents.apply();
            if (standard.ingress_port >= LEAF_DOWN) {
                bit<LEAF_DOWN> served;
                served_agent.read(served, 0);
                // The active agents behind that one, or all of them.
                bit<LEAF_DOWN> next = meta.active & (served - 1);
                if (next == 0) {
                    next = meta.active;
                }
                // The first of these: ones from there on, less those behind it.
                bit<LEAF_DOWN> ones = next | (next >> 1);
#if LEAF_DOWN > 2
                ones = ones | (ones >> 2);
#endif
#if LEAF_DOWN > 4
                ones = ones | (ones >> 4);
#endif
#if LEAF_DOWN > 8
                ones = ones | (ones >> 8);
#endif
#if LEAF_DOWN > 16
                ones = ones | (ones >> 16);
#endif
#if LEAF_DOWN > 32
                ones = ones | (ones >> 32);
#endif
#if LEAF_DOWN > 64
                ones = ones | (ones >> 64);
#endif
                meta.named = ones & ~(ones >> 1);
                if (meta.named == 0) {
                    mark_to_drop(standard);
                } else {
                    served_agent.write(0, meta.named);
                    meta.is_copied = 1;
                    standard.mcast_grp = ALL_PORTS;
                }
            } else {
                bit<1> is_agent = BIT_BEHIND(meta.rack, LEAF_DOWN, standard.ingress_port);
                bit<1> leaf_status = FIELD(0, 1);
                bit<9> up = 0;
#if LEAF_UP_BITS > 0
                up = (bit<9>) FIELD(LEAF_UP_AT, LEAF_UP_BITS);
#endif
                if (is_agent == 0 && (leaf_status == 1 || hdr.orca.kind == KIND_SPINE)) {
                    mark_to_drop(standard);
                } else if (leaf_status == 1) {
                    meta.named = FIELD(1, LEAF_DOWN);
                    meta.is_copied = 1;
                    standard.mcast_grp = ALL_PORTS;
                    relabelled.write((bit<32>) standard.ingress_port, standard.ingress_global_timestamp);
                } else if (hdr.orca.kind == KIND_ASKS || up >= LEAF_UP) {
                    mark_to_drop(standard);
                } else {
                    standard.egress_spec = LEAF_DOWN + up;
                    if (hdr.orca.kind == KIND_SPINE) {
                        relabelled.write((bit<32>) standard.ingress_port, standard.ingress_global_timestamp);
                    }
                }
            }
        }
    }
}

control LeafEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (meta.is_copied == 1) {
            // Nothing is behind the servers of a bitmap that is shifted by the number of a port up.
            if (BIT_BEHIND(meta.named, LEAF_DOWN, standard.egress_port) == 0) {
                mark_to_drop(standard);
            }
        }
    }
}

V1Switch(OrcaParser(), NoSums(), LeafIngress(), LeafEgress(), NoSums(), OrcaDeparser()) main;
