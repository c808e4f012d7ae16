// SPDX-License-Identifier: Apache-2.0
//
// What Orca's switches share: the layout of a labelled packet (docs/protocol.md, "Labelled packets"), the checks
// before a label is believed, and answers to probes. Included by a program that has included `label.p4`.

#include <core.p4>
#include <v1model.p4>

// The network's UDP port, and the port of the switch by which its own processor gets what is no labelled packet.
#ifndef ORCA_PORT
#define ORCA_PORT 7474
#endif
#ifndef CPU_PORT
#define CPU_PORT 510
#endif
// The multicast group of all ports, those down first: which of the copies leave is decided at the egress of each.
#define ALL_PORTS 1

const bit<8> VERSION = 3;
// In place of the version: a probe, whose second byte says whether it is an answer.
const bit<8> PROBE = 0x83;

const bit<8> KIND_FILTER = 0;
const bit<8> KIND_PODS = 1;
const bit<8> KIND_ASKS = 2;
const bit<8> KIND_SPINE = 3;

header ethernet_h {
    bit<48> destination;
    bit<48> source;
    bit<16> protocol;
}

header ipv4_h {
    bit<8> version_and_length;
    bit<8> service;
    bit<16> length;
    bit<16> identification;
    bit<2> flags;
    bit<1> more_fragments;
    bit<13> fragment_at;
    bit<8> hops;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> source;
    bit<32> destination;
}

header udp_h {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

header orca_h {
    bit<8> version;
    bit<8> label_len;
    bit<8> kind;
    bit<8> zero;
    bit<32> session;
}

header label_h {
    bit<LABEL_BITS> bits;
#if PADDING_BITS > 0
    bit<PADDING_BITS> padding;
#endif
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    orca_h orca;
    label_h label;
}

parser OrcaParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.protocol) {
            0x0800: ipv4;
            default: accept;
        }
    }
    // Options and fragments would hide the port: hosts do not send labelled packets so.
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version_and_length, hdr.ipv4.protocol, hdr.ipv4.more_fragments,
            hdr.ipv4.fragment_at) {
            (0x45, 17, 0, 0): udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.destination) {
            ORCA_PORT: front;
            default: accept;
        }
    }
    state front {
        packet.extract(hdr.orca);
        transition select(hdr.orca.version, hdr.orca.label_len) {
            (VERSION, LABEL_LEN): label;
            default: accept;
        }
    }
    state label {
        packet.extract(hdr.label);
        transition accept;
    }
}

// Leaves labelled packets to the switch, and disposes of all others.
control Screen(
    inout headers_t hdr, inout standard_metadata_t standard, in bit<9> ports, out bit<1> is_labelled) {
    apply {
        is_labelled = 0;
        if (standard.ingress_port >= ports) {
            mark_to_drop(standard);
        } else if (standard.parser_error != error.NoError) {
            // A frame that ends within a header.
            mark_to_drop(standard);
        } else if (!hdr.orca.isValid()) {
            standard.egress_spec = CPU_PORT;
        } else if (hdr.orca.version == PROBE) {
            // A neighbour's question goes back as its answer; answers are for the switch's own processor.
            if (hdr.orca.label_len == 0) {
                hdr.orca.label_len = 1;
                standard.egress_spec = standard.ingress_port;
            } else {
                standard.egress_spec = CPU_PORT;
            }
        } else if (!hdr.label.isValid() || hdr.orca.zero != 0 || hdr.orca.kind > KIND_SPINE) {
            mark_to_drop(standard);
#if PADDING_BITS > 0
        } else if (hdr.label.padding != 0) {
            mark_to_drop(standard);
#endif
        } else {
            is_labelled = 1;
        }
    }
}

// No sums are made anew: only a spine changes a labelled packet, and mends the sum of UDP itself.
control NoSums(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control OrcaDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.orca);
        packet.emit(hdr.label);
    }
}
