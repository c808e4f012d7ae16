/* SPDX-License-Identifier: Apache-2.0
 *
 * The fast path of a Datacast node (Datacast, section 6) at the ingress of its ports: packets that the node only passes on
 * never reach user space. These are data that have not come to the end of their route, and interests at a node that they
 * mark as non-branching. A batch of segments (GSO) is passed on as a whole, if all of its packets leave by the same port.
 *
 * Whatever is in any way out of the ordinary goes to the node's socket: there protocol::pull::Forwarder decides, drops and
 * counts. A test holds that both do the same.
 */
#define PORTS_MAX 128

#include "ports.h"

#define HEADER_LEN 56
#define ROUTE_AT 6
#define HOPS_MAX 14
#define NEXT_AT 20
#define SEGMENTS_MAX 64

#define FORMAT_VERSION 3
#define INTEREST 1
#define DATA 2
#define FRESH 1
#define AGAIN 2
#define NEXT 4
#define END 8
#define NON_BRANCHING 0x80

#define NOBODY 0xffffffff

/* One end of a link: addresses and ports in network order. */
struct link {
	__u32 interface;
	__u32 local_ip;
	__u32 peer_ip;
	__u16 local_port;
	__u16 peer_port;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS_MAX);
	__type(key, __u32);
	__type(value, struct link);
} links SEC(".maps");

/* Packets passed on. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} passed SEC(".maps");

const volatile __u32 ports = 0;
/* The longest route that the node takes. */
const volatile __u32 hops_most = HOPS_MAX;

struct batch {
	struct __sk_buff *skb;
	/* Bytes of UDP payload, and of each packet in it but the last. */
	__u32 len;
	__u32 segment_len;
	__u32 came_by;
	/* The port that all packets so far leave by. */
	__u32 port;
	__u32 packets;
	__u32 failed;
};

/* The port by which a well-formed packet leaves that is only to be passed on. */
static __always_inline __u32 way(const __u8 *header, __u32 payload_len)
{
	__u32 kind = header[1], flags = header[2], position = header[4], hops = header[5];
	__u32 next = 0;
	__u8 hop = 0;

	if (header[0] != FORMAT_VERSION || !hops || hops > hops_most || hops > HOPS_MAX ||
	    position >= hops)
		return NOBODY;
	for (__u32 i = 0; i < HOPS_MAX; i++) {
		if (i >= hops && header[ROUTE_AT + i])
			return NOBODY;
		if (i == position)
			hop = header[ROUTE_AT + i];
	}
	for (__u32 i = 0; i < 4; i++)
		next |= header[NEXT_AT + i];
	if (!(flags & NEXT) && next)
		return NOBODY;
	if (kind == INTEREST) {
		if ((flags & ~FRESH) || payload_len || !(hop & NON_BRANCHING))
			return NOBODY;
	} else if (kind == DATA) {
		__u32 follows = flags & ~AGAIN;

		if (follows && follows != NEXT && follows != END)
			return NOBODY;
	} else {
		return NOBODY;
	}
	return hop & ~NON_BRANCHING & 0xff;
}

/* Looks at one packet of a batch; 1 ends the loop. */
static long look(__u32 index, struct batch *batch)
{
	__u32 at = index * batch->segment_len;
	__u8 header[HEADER_LEN];
	__u32 len, port;

	if (at >= batch->len)
		return 1;
	len = batch->len - at;
	if (len > batch->segment_len)
		len = batch->segment_len;
	if (len < HEADER_LEN || bpf_skb_load_bytes(batch->skb, HEADER_AT + at, header, HEADER_LEN))
		goto failed;
	port = way(header, len - HEADER_LEN);
	if (port >= ports || port == batch->came_by || (batch->port != NOBODY && port != batch->port))
		goto failed;
	batch->port = port;
	batch->packets += 1;
	return 0;
failed:
	batch->failed = 1;
	return 1;
}

/* Puts another word of 16 bits in the place of one that the UDP checksum covers. */
static __always_inline int change(struct __sk_buff *skb, __u32 at, __u16 from, __u16 to)
{
	return bpf_l4_csum_replace(skb, UDP_CHECKSUM_AT, from, to, BPF_F_MARK_MANGLED_0 | sizeof(to)) ||
	       bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
}

/* Takes one packet of a batch a step on; 1 ends the loop. */
static long step(__u32 index, struct batch *batch)
{
	__u32 at = index * batch->segment_len;
	__u8 front[ROUTE_AT + HOPS_MAX];
	__u16 from, to;
	__u32 position;

	if (at >= batch->len)
		return 1;
	at += HEADER_AT;
	if (bpf_skb_load_bytes(batch->skb, at, front, sizeof(front)))
		goto failed;
	position = front[4];
	if (position >= HOPS_MAX)
		goto failed;
	if (front[1] == INTEREST) {
		/* An interest turns its route round while it travels. */
		__u32 word = position & ~1u;

		from = front[ROUTE_AT + word] | front[ROUTE_AT + word + 1] << 8;
		to = NON_BRANCHING | batch->came_by;
		to = position & 1 ? (from & 0x00ff) | to << 8 : (from & 0xff00) | to;
		if (change(batch->skb, at + ROUTE_AT + word, from, to))
			goto failed;
	}
	from = front[4] | front[5] << 8;
	if (change(batch->skb, at + 4, from, from + 1))
		goto failed;
	return 0;
failed:
	batch->failed = 1;
	return 1;
}

/* Sends the datagram from our end of the other link to its other end. */
static __always_inline int readdress(struct __sk_buff *skb, const struct link *from, const struct link *to)
{
	__u64 address = BPF_F_MARK_MANGLED_0 | BPF_F_PSEUDO_HDR | 4;

	if (bpf_l3_csum_replace(skb, IP_CHECKSUM_AT, from->peer_ip, to->local_ip, 4) ||
	    bpf_l4_csum_replace(skb, UDP_CHECKSUM_AT, from->peer_ip, to->local_ip, address) ||
	    bpf_skb_store_bytes(skb, IP_AT + 12, &to->local_ip, 4, 0) ||
	    bpf_l3_csum_replace(skb, IP_CHECKSUM_AT, from->local_ip, to->peer_ip, 4) ||
	    bpf_l4_csum_replace(skb, UDP_CHECKSUM_AT, from->local_ip, to->peer_ip, address) ||
	    bpf_skb_store_bytes(skb, IP_AT + 16, &to->peer_ip, 4, 0))
		return 1;
	return change(skb, UDP_AT, from->peer_port, to->local_port) ||
	       change(skb, UDP_AT + 2, from->local_port, to->peer_port);
}

/* Bytes of UDP payload, if it is a datagram from the neighbour to the node. */
static __always_inline __u32 payload_len(struct __sk_buff *skb, const struct link *link)
{
	__u8 front[HEADER_AT];
	__u32 source, target, total, udp_len;
	__u16 source_port, target_port;

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, 0, front, sizeof(front)))
		return 0;
	__builtin_memcpy(&source, front + IP_AT + 12, 4);
	__builtin_memcpy(&target, front + IP_AT + 16, 4);
	__builtin_memcpy(&source_port, front + UDP_AT, 2);
	__builtin_memcpy(&target_port, front + UDP_AT + 2, 2);
	total = front[IP_AT + 2] << 8 | front[IP_AT + 3];
	udp_len = front[UDP_AT + 4] << 8 | front[UDP_AT + 5];
	/* No options, not a fragment. */
	if (front[IP_AT] != 0x45 || front[IP_AT + 9] != IPPROTO_UDP || (front[IP_AT + 6] & 0x3f) || front[IP_AT + 7])
		return 0;
	if (source != link->peer_ip || target != link->local_ip || source_port != link->peer_port ||
	    target_port != link->local_port)
		return 0;
	if (skb->len != IP_AT + total || total != udp_len + IP_LEN || udp_len <= UDP_LEN)
		return 0;
	return udp_len - 8;
}

SEC("classifier")
int datacast(struct __sk_buff *skb)
{
	__u32 interface = skb->ifindex, zero = 0;
	__u32 *came_by = bpf_map_lookup_elem(&port_of, &interface);
	struct batch batch = { .skb = skb, .port = NOBODY };
	const struct link *from, *to;
	__u64 *count;

	if (!came_by)
		return TC_ACT_OK;
	from = bpf_map_lookup_elem(&links, came_by);
	if (!from)
		return TC_ACT_OK;
	batch.came_by = *came_by;
	batch.len = payload_len(skb, from);
	batch.segment_len = skb->gso_size ? skb->gso_size : batch.len;
	if (!batch.len || batch.segment_len < HEADER_LEN || batch.len > SEGMENTS_MAX * batch.segment_len)
		return TC_ACT_OK;
	bpf_loop(SEGMENTS_MAX, look, &batch, 0);
	if (batch.failed || batch.port >= ports)
		return TC_ACT_OK;
	to = bpf_map_lookup_elem(&links, &batch.port);
	if (!to || !to->interface)
		return TC_ACT_OK;
	bpf_loop(SEGMENTS_MAX, step, &batch, 0);
	/* Halfway through there is no way back: it is lost, as on a bad link. */
	if (batch.failed || readdress(skb, from, to))
		return TC_ACT_SHOT;
	count = bpf_map_lookup_elem(&passed, &zero);
	if (count)
		*count += batch.packets;
	return bpf_redirect_neigh(to->interface, NULL, 0, 0);
}

char _license[] SEC("license") = "Apache-2.0";
