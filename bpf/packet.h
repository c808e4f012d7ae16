/* SPDX-License-Identifier: Apache-2.0
 *
 * What all kernel programs share: where the headers of an IPv4 UDP packet without options lie in an Ethernet frame.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETHERNET_LEN 14
#define IP_LEN 20
#define UDP_LEN 8
#define IP_AT ETHERNET_LEN
#define UDP_AT (IP_AT + IP_LEN)
#define HEADER_AT (UDP_AT + UDP_LEN)
#define IP_CHECKSUM_AT (IP_AT + 10)
#define UDP_CHECKSUM_AT (UDP_AT + 6)
