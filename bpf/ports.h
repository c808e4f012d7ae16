/* SPDX-License-Identifier: Apache-2.0
 *
 * The ports of a switch: PORTS_MAX at most, which is defined before this file is included.
 */
#pragma once

#include "packet.h"

/* A port by the interface that a packet came in by. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} port_of SEC(".maps");
