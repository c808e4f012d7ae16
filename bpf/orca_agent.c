/* SPDX-License-Identifier: Apache-2.0
 *
 * A rack's agent (Orca, section 3.5) at the ingress of its server's interface: it puts the leaf label of the session in
 * place of the source label, or its pod's spine label where a spine asks for it, and sends the packet back to the leaf. Sessions that the kernel's map does not hold go to
 * user space, by an interface of its own, and come back by it.
 */
#include "orca.h"

/* leafStatus and a bit for each of up to 128 hosts, rounded up to 4 bytes; the rest of a leaf label is zero. So it is with
 * spine labels: leafStatus, the port up, and a bit for each of up to 128 leafs. */
#define LEAF_LABEL_LEN 20

/* Whether this server is an agent of its rack, and the interface to user space; 0 without one. */
struct role {
	__u32 is_agent;
	__u32 slow_interface;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct role);
} role SEC(".maps");

struct leaf_label {
	__u8 bytes[LEAF_LABEL_LEN];
};

/* The leaf labels of the sessions that were active last. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct leaf_label);
} labels SEC(".maps");

/* The spine labels that this rack keeps for its pod, likewise. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct leaf_label);
} spine_labels SEC(".maps");

/* Where the packets go that come back from user space. */
const volatile __u32 wire_interface = 0;

/* Puts a header with another label in. The check sum follows, where the packet has one already. */
static __always_inline long put(struct __sk_buff *skb, struct header *old, struct header *new, __u32 len)
{
	__s64 change = bpf_csum_diff((__be32 *)old, len, (__be32 *)new, len, 0);

	if (change < 0)
		return change;
	if (bpf_skb_store_bytes(skb, HEADER_AT, new, len, 0))
		return -1;
	return bpf_l4_csum_replace(skb, UDP_CHECKSUM_AT, 0, change, BPF_F_MARK_MANGLED_0);
}

/* Puts a header into all datagrams of a packet that the kernel has not cut yet; their check sums do not exist yet. */
static __always_inline long put_each(struct __sk_buff *skb, __u32 segments, struct header *new, __u32 len)
{
	__u32 size = skb->gso_size;

	for (__u32 i = 0; i < SEGMENTS_MAX; i++) {
		__u32 at = HEADER_AT + i * size;

		if (i >= segments)
			return 0;
		if (bpf_skb_store_bytes(skb, at, new, len, 0))
			return -1;
	}
	return segments <= SEGMENTS_MAX ? 0 : -1;
}

SEC("classifier")
int orca_agent(struct __sk_buff *skb)
{
	struct header header, relabelled;
	__u32 zero = 0, session, segments, len = FIXED_LEN + padded_label_len();
	__u8 kind = KIND_FILTER;
	const struct leaf_label *label;
	const struct role *mine;

	switch (read_header(skb, &header)) {
	case NOT_OURS:
		return TC_ACT_OK;
	case FAULTY:
		return TC_ACT_SHOT;
	case PROBE:
		/* Servers are not asked: their agents' heartbeats tell. */
		return fault(VERSION);
	}
	/* For the receivers on this server. */
	if (header.label[0] & LEAF_STATUS)
		return TC_ACT_OK;
	mine = bpf_map_lookup_elem(&role, &zero);
	if (!mine || !mine->is_agent)
		return fault(STRAY);
	session = header.session;
	if (header.kind == KIND_ASKS) {
		kind = KIND_SPINE;
		label = bpf_map_lookup_elem(&spine_labels, &session);
	} else {
		label = bpf_map_lookup_elem(&labels, &session);
	}
	if (!label) {
		if (!mine->slow_interface)
			return fault(UNKNOWN_SESSION);
		return bpf_redirect(mine->slow_interface, 0);
	}
	__builtin_memset(&relabelled, 0, sizeof(relabelled));
	__builtin_memcpy(&relabelled, &header, FIXED_LEN);
	relabelled.kind = kind;
	__builtin_memcpy(relabelled.label, label->bytes, LEAF_LABEL_LEN);
	if (len > sizeof(header) || len <= FIXED_LEN)
		return fault(LABEL_LENGTH);
	segments = segments_of(skb);
	if (segments > 1 ? put_each(skb, segments, &relabelled, len) : put(skb, &header, &relabelled, len))
		return fault(MALFORMED);
	add(PACKETS, 1);
	return bpf_redirect(skb->ifindex, 0);
}

/* At the interface to user space: what comes from there goes to the leaf. */
SEC("classifier")
int orca_return(struct __sk_buff *skb)
{
	struct header header;

	if (read_header(skb, &header) != OURS)
		return TC_ACT_SHOT;
	return bpf_redirect(wire_interface, 0);
}

char _license[] SEC("license") = "Apache-2.0";
