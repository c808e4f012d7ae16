/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel programs of Orca share: the packet's layout (docs/protocol.md, "Labelled packets") and the counters.
 * Bits of a label count from the most significant bit of its first byte.
 */
#pragma once

#include "packet.h"

/* Version, length of the label, kind of the label, a zero byte, session. */
#define FIXED_LEN 8
#define KIND_AT 2
#define FORMAT_VERSION 3
/* In place of the version: a probe, whose second byte says whether it is an answer. */
#define PROBE_MARK (0x80 | FORMAT_VERSION)
/* The longest label, rounded up to 4 bytes. */
#define LABEL_LEN_MAX 164
#define LEAF_STATUS 0x80
/* Datagrams in one packet that the kernel has not cut yet. */
#define SEGMENTS_MAX 128

/* What a label is: types::LabelKind. */
enum {
	KIND_FILTER,
	KIND_PODS,
	KIND_ASKS,
	KIND_SPINE,
	KINDS,
};

/* The counters, in the order of wire::label::Fault; the last two are no faults. */
enum {
	MALFORMED,
	VERSION,
	LABEL_LENGTH,
	NO_PORT,
	NOT_AN_AGENT,
	NO_AGENT,
	UNKNOWN_SESSION,
	STRAY,
	KIND,
	NOT_A_SOURCE,
	PACKETS,
	COPIES,
	COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* The network's UDP port, and the bytes of its labels. */
const volatile __u32 udp_port = 0;
const volatile __u32 label_len = 0;

static __always_inline void add(__u32 counter, __u64 count)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		*value += count;
}

/* Drops the packet and counts why. */
static __always_inline int fault(__u32 why)
{
	add(why, 1);
	return TC_ACT_SHOT;
}

static __always_inline __u32 padded_label_len(void)
{
	return (label_len + 3) & ~3u;
}

/* The packet's header as far as the label's end. */
struct header {
	__u8 version;
	__u8 label_len;
	__u8 kind;
	__u8 zero;
	__be32 session;
	__u8 label[LABEL_LEN_MAX];
};

enum { NOT_OURS, OURS, FAULTY, PROBE };

/* Reads the header of a labelled packet. FAULTY packets are counted already; of a PROBE only the first 8 bytes are read. */
static __always_inline int read_header(struct __sk_buff *skb, struct header *header)
{
	__u8 front[HEADER_AT];
	__u32 len = FIXED_LEN + padded_label_len();

	if (bpf_skb_load_bytes(skb, 0, front, sizeof(front)))
		return NOT_OURS;
	/* IPv4 over Ethernet, UDP, to our port. */
	if (front[12] != 0x08 || front[13] != 0x00 || front[ETHERNET_LEN] >> 4 != 4 ||
	    front[ETHERNET_LEN + 9] != IPPROTO_UDP)
		return NOT_OURS;
	/* Options and fragments would hide the port: hosts do not send labelled packets so. */
	if (front[ETHERNET_LEN] != 0x45 || (front[ETHERNET_LEN + 6] & 0x3f) || front[ETHERNET_LEN + 7])
		return NOT_OURS;
	if (front[UDP_AT + 2] != (udp_port >> 8 & 0xff) || front[UDP_AT + 3] != (udp_port & 0xff))
		return NOT_OURS;
	if (bpf_skb_load_bytes(skb, HEADER_AT, header, FIXED_LEN)) {
		add(MALFORMED, 1);
		return FAULTY;
	}
	if (header->version == PROBE_MARK)
		return PROBE;
	if (header->version != FORMAT_VERSION) {
		add(VERSION, 1);
		return FAULTY;
	}
	if (header->label_len != label_len) {
		add(LABEL_LENGTH, 1);
		return FAULTY;
	}
	if (header->zero || header->kind >= KINDS || len > sizeof(*header) || len <= FIXED_LEN ||
	    bpf_skb_load_bytes(skb, HEADER_AT, header, len)) {
		add(MALFORMED, 1);
		return FAULTY;
	}
	for (__u32 i = 0; i < 3; i++) {
		__u32 at = label_len + i;

		if (at < padded_label_len() && at < LABEL_LEN_MAX && header->label[at]) {
			add(MALFORMED, 1);
			return FAULTY;
		}
	}
	return OURS;
}

/* Datagrams in a packet. By their length: what comes from a virtual machine may not say how many there are. */
static __always_inline __u32 segments_of(struct __sk_buff *skb)
{
	__u32 size = skb->gso_size;

	if (!size || skb->len <= HEADER_AT)
		return 1;
	return (skb->len - HEADER_AT + size - 1) / size;
}

static __always_inline __u32 bit(const struct header *header, __u32 at)
{
	__u32 byte = at >> 3;

	if (byte >= LABEL_LEN_MAX)
		return 0;
	return header->label[byte] >> (7 - (at & 7)) & 1;
}

/* A number of up to 16 bits. */
static __always_inline __u32 field(const struct header *header, __u32 at, __u32 width)
{
	__u32 value = 0;

	for (__u32 i = 0; i < 16; i++) {
		if (i >= width)
			break;
		value = value << 1 | bit(header, at + i);
	}
	return value;
}
