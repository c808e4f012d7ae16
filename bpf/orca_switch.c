/* SPDX-License-Identifier: Apache-2.0
 *
 * A leaf, spine or core switch of Orca (section 3.5, Algorithm 3) at the ingress of its ports. It forwards labelled
 * packets as protocol::switch does, which a test holds, and takes programs' packets to the addresses that it has doors for;
 * everything else goes on to the host's own stack.
 */
#define PORTS_MAX 256

#include "orca.h"
#include "ports.h"

enum { LEAF, SPINE, CORE };

#define DOWN_MAX 128
#define AGENTS_MAX 16

const volatile __u32 layer = 0;
/* Ports: down first, then up. */
const volatile __u32 down_ports = 0;
const volatile __u32 up_ports = 0;
/* Where the fields of a label begin, in bits, and how wide they are. */
const volatile __u32 leaf_up_bits = 0;
const volatile __u32 spine_up_at = 0;
const volatile __u32 spine_up_bits = 0;
const volatile __u32 common_at = 0;
const volatile __u32 filter_at = 0;
const volatile __u32 core_at = 0;
/* The same of labels with the leafs of pods: the core's ports down, the leaf to ask, the slots, a spine label's leafs. */
const volatile __u32 pods_core_at = 0;
const volatile __u32 asks_at = 0;
const volatile __u32 asks_bits = 0;
const volatile __u32 slots_at = 0;
const volatile __u32 leafs_at = 0;
/* How many slots there are, and the spine's pod. */
const volatile __u32 slots = 0;
const volatile __u32 pod = 0;

/* A port's interface; 0 where there is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} interface_of SEC(".maps");

/* Bit n of word w of the rack stands for port 32 w + n. */
struct agents {
	__u32 count;
	__u32 ports[AGENTS_MAX];
	__u32 rack[DOWN_MAX / 32];
};

/* A leaf's active agents, which are handed packets, and the ports of all agents of its rack, which may name hosts: who was
 * active a moment ago still sends what it was handed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct agents);
} rack SEC(".maps");

/* How many packets agents were given so far. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} turn SEC(".maps");

/* When an agent at a port of a leaf sent a relabelled packet last, by the monotonic clock in nanoseconds; 0 for never. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DOWN_MAX);
	__type(key, __u32);
	__type(value, __u64);
} relabelled SEC(".maps");

struct buckets {
	__u16 of_port[DOWN_MAX];
};

/* A spine's buckets of the filter, by the label's port up. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct buckets);
} filter SEC(".maps");

/* Bit n of word w stands for port 64 w + n. */
struct ports {
	__u64 words[DOWN_MAX / 64];
};

/* A spine's entries: the ports that the filter names wrongly, by session. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ports);
} entries SEC(".maps");

/* What a leaf knows of a session to whose address programs send packets without a label, by session: the hosts whose packets
 * it takes (bit n of word w stands for port 32 w + n), and the header that it puts before each. */
struct door {
	__u32 hosts[DOWN_MAX / 32];
	struct header header;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct door);
} doors SEC(".maps");

/* The copies of one packet: each goes out when the next one is known, so that the last one needs no copy. */
struct copies {
	__u32 last;
	__u32 count;
};

static __always_inline void copy_to(struct __sk_buff *skb, struct copies *copies, __u32 port)
{
	__u32 *interface = bpf_map_lookup_elem(&interface_of, &port);

	if (!interface || !*interface) {
		add(NO_PORT, 1);
		return;
	}
	if (copies->last)
		bpf_clone_redirect(skb, copies->last, 0);
	copies->last = *interface;
	copies->count += 1;
}

static __always_inline int finish(const struct copies *copies)
{
	if (!copies->last)
		return TC_ACT_SHOT;
	add(COPIES, copies->count);
	return bpf_redirect(copies->last, 0);
}

/* Whether an agent of this rack is at a port, active or not. */
static __always_inline int is_agent(const struct agents *agents, __u32 port)
{
	__u32 word = port / 32;

	return word < DOWN_MAX / 32 && agents->rack[word] >> (port % 32) & 1;
}

/* Notes that the agent at a port lives. */
static __always_inline void note_life(__u32 port)
{
	__u64 *at = bpf_map_lookup_elem(&relabelled, &port);

	if (at)
		*at = bpf_ktime_get_ns();
}

/* The bytes that are between the IP header and the program's own UDP header while a packet without a label is under way: a UDP
 * header, and ours. */
static __always_inline __u32 wrap_len(void)
{
	return UDP_LEN + FIXED_LEN + padded_label_len();
}

/* Makes a packet longer or shorter by so many bytes behind its IP header. */
static __always_inline long resize(struct __sk_buff *skb, __s32 by)
{
	__be16 old_len, new_len;

	if (bpf_skb_load_bytes(skb, IP_AT + 2, &old_len, sizeof(old_len)))
		return -1;
	if (bpf_ntohs(old_len) + by > 0xffff)
		return -1;
	new_len = bpf_htons(bpf_ntohs(old_len) + by);
	if (bpf_skb_adjust_room(skb, by, BPF_ADJ_ROOM_NET, 0) ||
	    bpf_skb_store_bytes(skb, IP_AT + 2, &new_len, sizeof(new_len), 0))
		return -1;
	return bpf_l3_csum_replace(skb, IP_CHECKSUM_AT, old_len, new_len, sizeof(new_len));
}

/* Takes out what was put before a program's packet. */
static __always_inline long unwrap(struct __sk_buff *skb)
{
	/* Leafs wrap no packet that is still to be cut. */
	if (skb->gso_size || skb->len < UDP_AT + wrap_len() + UDP_LEN)
		return -1;
	return resize(skb, -(__s32)wrap_len());
}

/* Puts a header before a program's packet. Of the outer UDP header only the port and the length are read. */
static __always_inline long wrap(struct __sk_buff *skb, const struct door *door, const __u8 *front)
{
	/* By the IP header: a short frame is padded. */
	__u32 udp_len = (front[IP_AT + 2] << 8 | front[IP_AT + 3]) - IP_LEN + wrap_len();
	__u32 len = FIXED_LEN + padded_label_len();
	__u8 udp[UDP_LEN] = { front[UDP_AT], front[UDP_AT + 1], udp_port >> 8, udp_port, udp_len >> 8, udp_len };

	if (skb->gso_size || len > sizeof(door->header) || len <= FIXED_LEN || resize(skb, wrap_len()))
		return -1;
	if (bpf_skb_store_bytes(skb, UDP_AT, udp, sizeof(udp), 0))
		return -1;
	return bpf_skb_store_bytes(skb, HEADER_AT, &door->header, len, 0);
}

/* A packet without a label: a leaf takes it if it goes to the address of a session that has a door here. */
static __always_inline int plain(struct __sk_buff *skb)
{
	struct copies copies = {};
	__u8 front[HEADER_AT];
	__u32 session, interface = skb->ifindex, *port, up;
	const struct door *door;

	if (layer != LEAF || bpf_skb_load_bytes(skb, 0, front, sizeof(front)))
		return TC_ACT_OK;
	if (front[12] != 0x08 || front[13] != 0x00 || front[ETHERNET_LEN] >> 4 != 4 ||
	    front[ETHERNET_LEN + 9] != IPPROTO_UDP)
		return TC_ACT_OK;
	__builtin_memcpy(&session, front + IP_AT + 16, sizeof(session));
	door = bpf_map_lookup_elem(&doors, &session);
	if (!door)
		return TC_ACT_OK;
	port = bpf_map_lookup_elem(&port_of, &interface);
	if (!port)
		return fault(NO_PORT);
	/* None comes from above: other leafs put labels before theirs. */
	if (*port >= down_ports || *port >= DOWN_MAX || !(door->hosts[*port / 32] >> (*port % 32) & 1))
		return fault(NOT_A_SOURCE);
	add(PACKETS, 1);
	/* A part of a datagram has no port, and options would move it. */
	if (front[ETHERNET_LEN] != 0x45 || (front[ETHERNET_LEN + 6] & 0x3f) || front[ETHERNET_LEN + 7] ||
	    wrap(skb, door, front))
		return fault(MALFORMED);
	up = field(&door->header, 1, leaf_up_bits);
	if (up >= up_ports)
		return fault(NO_PORT);
	copy_to(skb, &copies, down_ports + up);
	return finish(&copies);
}

static __always_inline int leaf(struct __sk_buff *skb, const struct header *header, __u32 port)
{
	struct copies copies = {};
	__u32 zero = 0, session = header->session;
	const struct agents *agents = bpf_map_lookup_elem(&rack, &zero);

	if (!agents)
		return fault(NO_AGENT);
	if (port >= down_ports) {
		__u32 *next = bpf_map_lookup_elem(&turn, &zero);
		__u32 at;

		if (!next || !agents->count)
			return fault(NO_AGENT);
		at = __sync_fetch_and_add(next, 1) % agents->count;
		if (at >= AGENTS_MAX)
			return fault(NO_AGENT);
		copy_to(skb, &copies, agents->ports[at]);
		return finish(&copies);
	}
	if (!bit(header, 0)) {
		__u32 up = field(header, 1, leaf_up_bits);

		/* Only agents name the leafs of a pod, and nobody on a server asks them. */
		if (header->kind == KIND_SPINE && !is_agent(agents, port))
			return fault(NOT_AN_AGENT);
		if (header->kind == KIND_ASKS)
			return fault(KIND);
		if (up >= up_ports)
			return fault(NO_PORT);
		if (header->kind == KIND_SPINE)
			note_life(port);
		copy_to(skb, &copies, down_ports + up);
		return finish(&copies);
	}
	if (!is_agent(agents, port))
		return fault(NOT_AN_AGENT);
	note_life(port);
	if (bpf_map_lookup_elem(&doors, &session) && unwrap(skb))
		return fault(MALFORMED);
	for (__u32 host = 0; host < DOWN_MAX; host++) {
		if (host >= down_ports)
			break;
		if (bit(header, 1 + host))
			copy_to(skb, &copies, host);
	}
	return finish(&copies);
}

static __always_inline int spine(struct __sk_buff *skb, const struct header *header, __u32 port)
{
	struct copies copies = {};
	__u32 up = field(header, spine_up_at, spine_up_bits);
	__u32 row = up_ports ? up : 0;
	__u32 session = header->session;
	const struct buckets *buckets;
	const struct ports *blocked;
	struct ports left_out = {};

	if (up_ports && up >= up_ports)
		return fault(NO_PORT);
	buckets = bpf_map_lookup_elem(&filter, &row);
	if (!buckets)
		return fault(NO_PORT);
	blocked = bpf_map_lookup_elem(&entries, &session);
	if (blocked)
		left_out = *blocked;
	if (port < down_ports && up_ports)
		copy_to(skb, &copies, down_ports + up);
	for (__u32 leaf = 0; leaf < DOWN_MAX; leaf++) {
		__u64 hit;

		if (leaf >= down_ports)
			break;
		/* One branch a port: the kernel's verifier follows all of them. */
		hit = bit(header, filter_at + buckets->of_port[leaf]) & ~(left_out.words[leaf / 64] >> (leaf % 64));
		if ((hit | bit(header, common_at + leaf)) & 1)
			copy_to(skb, &copies, leaf);
	}
	return finish(&copies);
}

/* Copies to the ports down whose bits are set from here on. */
static __always_inline int copy_down(struct __sk_buff *skb, const struct header *header, struct copies *copies, __u32 at)
{
	for (__u32 down = 0; down < DOWN_MAX; down++) {
		if (down >= down_ports)
			break;
		if (bit(header, at + down))
			copy_to(skb, copies, down);
	}
	return finish(copies);
}

/* Has all datagrams of a packet ask an agent for the pod's spine label. */
static __always_inline long mark_asks(struct __sk_buff *skb)
{
	__u32 segments = segments_of(skb), size = skb->gso_size;
	__u8 kind = KIND_ASKS;

	if (segments <= 1) {
		if (bpf_skb_store_bytes(skb, HEADER_AT + KIND_AT, &kind, 1, 0))
			return -1;
		return bpf_l4_csum_replace(skb, UDP_CHECKSUM_AT, bpf_htons(KIND_PODS << 8), bpf_htons(KIND_ASKS << 8),
					   BPF_F_MARK_MANGLED_0 | 2);
	}
	/* What the kernel has not cut yet has no check sums yet. */
	for (__u32 i = 0; i < SEGMENTS_MAX; i++) {
		if (i >= segments)
			return 0;
		if (bpf_skb_store_bytes(skb, HEADER_AT + KIND_AT + i * size, &kind, 1, 0))
			return -1;
	}
	return segments <= SEGMENTS_MAX ? 0 : -1;
}

/* A spine whose packet has no filter: it looks up nothing. */
static __always_inline int spine_of_pods(struct __sk_buff *skb, const struct header *header, __u32 port)
{
	struct copies copies = {};
	__u32 up = field(header, spine_up_at, spine_up_bits);
	__u32 asked, slot = 0;

	if (header->kind == KIND_SPINE && port < down_ports)
		return copy_down(skb, header, &copies, leafs_at);
	if (header->kind != KIND_PODS)
		return fault(KIND);
	if (up_ports && up >= up_ports)
		return fault(NO_PORT);
	if (port >= down_ports) {
		/* The source's pod has the first slot; the others have theirs in rising order. */
		slot = 1;
		for (__u32 before = 0; before < DOWN_MAX; before++) {
			if (before >= pod)
				break;
			slot += bit(header, pods_core_at + before);
		}
	}
	asked = field(header, asks_at, asks_bits);
	if (slot >= slots && asked >= down_ports)
		return fault(NO_PORT);
	if (port < down_ports && up_ports)
		copy_to(skb, &copies, down_ports + up);
	if (slot < slots)
		return copy_down(skb, header, &copies, slots_at + slot * down_ports);
	/* What goes up stays as it is. */
	if (copies.last)
		bpf_clone_redirect(skb, copies.last, 0);
	copies.last = 0;
	if (mark_asks(skb)) {
		/* What went up went. */
		add(COPIES, copies.count);
		return fault(MALFORMED);
	}
	copy_to(skb, &copies, asked);
	return finish(&copies);
}

static __always_inline int core(struct __sk_buff *skb, const struct header *header)
{
	struct copies copies = {};

	switch (header->kind) {
	case KIND_FILTER:
		return copy_down(skb, header, &copies, core_at);
	case KIND_PODS:
		return copy_down(skb, header, &copies, pods_core_at);
	default:
		return fault(KIND);
	}
}

/* Sends a neighbour's question back as its answer; answers are for this switch's own controller. */
static __always_inline int probe(struct __sk_buff *skb, const struct header *header)
{
	__u8 answer = 1;

	if (header->label_len)
		return TC_ACT_OK;
	if (bpf_skb_store_bytes(skb, HEADER_AT + 1, &answer, 1, 0))
		return fault(MALFORMED);
	return bpf_redirect(skb->ifindex, 0);
}

SEC("classifier")
int orca_switch(struct __sk_buff *skb)
{
	struct header header;
	__u32 interface = skb->ifindex;
	__u32 *port;
	int kind = read_header(skb, &header);

	switch (kind) {
	case NOT_OURS:
		return plain(skb);
	case FAULTY:
		return TC_ACT_SHOT;
	}
	port = bpf_map_lookup_elem(&port_of, &interface);
	if (!port)
		return fault(NO_PORT);
	if (kind == PROBE)
		return probe(skb, &header);
	add(PACKETS, 1);
	switch (layer) {
	case LEAF:
		return leaf(skb, &header, *port);
	case SPINE:
		return header.kind ? spine_of_pods(skb, &header, *port) : spine(skb, &header, *port);
	default:
		return core(skb, &header);
	}
}

char _license[] SEC("license") = "Apache-2.0";
