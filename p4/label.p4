// SPDX-License-Identifier: Apache-2.0
//
// Where the fields of a label lie (Orca, section 3.3), from the ports of the network's switches. Bit 0 is the most
// significant bit of the label's first byte. The defaults are those of fat-tree(48, 3) with labels of 19 bytes;
// another network is given by `-D` to the compiler.

#ifndef LEAF_DOWN
#define LEAF_DOWN 24    // hosts of a leaf
#endif
#ifndef LEAF_UP
#define LEAF_UP 24      // spines of a pod
#endif
#ifndef SPINE_DOWN
#define SPINE_DOWN 24   // leafs of a pod
#endif
#ifndef SPINE_UP
#define SPINE_UP 24     // cores of a spine, 0 where there are none
#endif
#ifndef CORE_DOWN
#define CORE_DOWN 48    // pods, 0 where there are no cores
#endif
#ifndef FILTER_BITS
#define FILTER_BITS 69
#endif

// The bits that number the ports up of leafs and of spines, and the leafs of a pod.
#if LEAF_UP <= 1
#define LEAF_UP_BITS 0
#elif LEAF_UP <= 2
#define LEAF_UP_BITS 1
#elif LEAF_UP <= 4
#define LEAF_UP_BITS 2
#elif LEAF_UP <= 8
#define LEAF_UP_BITS 3
#elif LEAF_UP <= 16
#define LEAF_UP_BITS 4
#elif LEAF_UP <= 32
#define LEAF_UP_BITS 5
#elif LEAF_UP <= 64
#define LEAF_UP_BITS 6
#else
#define LEAF_UP_BITS 7
#endif
#if SPINE_UP <= 1
#define SPINE_UP_BITS 0
#elif SPINE_UP <= 2
#define SPINE_UP_BITS 1
#elif SPINE_UP <= 4
#define SPINE_UP_BITS 2
#elif SPINE_UP <= 8
#define SPINE_UP_BITS 3
#elif SPINE_UP <= 16
#define SPINE_UP_BITS 4
#elif SPINE_UP <= 32
#define SPINE_UP_BITS 5
#elif SPINE_UP <= 64
#define SPINE_UP_BITS 6
#else
#define SPINE_UP_BITS 7
#endif
#if SPINE_DOWN <= 1
#define ASKS_BITS 0
#elif SPINE_DOWN <= 2
#define ASKS_BITS 1
#elif SPINE_DOWN <= 4
#define ASKS_BITS 2
#elif SPINE_DOWN <= 8
#define ASKS_BITS 3
#elif SPINE_DOWN <= 16
#define ASKS_BITS 4
#elif SPINE_DOWN <= 32
#define ASKS_BITS 5
#elif SPINE_DOWN <= 64
#define ASKS_BITS 6
#else
#define ASKS_BITS 7
#endif

#define LEAF_UP_AT 1
#define SPINE_UP_AT (LEAF_UP_AT + LEAF_UP_BITS)
#define COMMON_AT (SPINE_UP_AT + SPINE_UP_BITS)
#define FILTER_AT (COMMON_AT + SPINE_DOWN)
#define CORE_AT (FILTER_AT + FILTER_BITS)
#define SOURCE_BITS (CORE_AT + CORE_DOWN - 1)

// The bytes of every label of the network, and those with zeros up to a multiple of four.
#ifndef LABEL_LEN
#if LEAF_DOWN > SOURCE_BITS
#define LABEL_LEN ((LEAF_DOWN + 8) / 8)
#else
#define LABEL_LEN ((SOURCE_BITS + 8) / 8)
#endif
#endif
#define LABEL_BITS (8 * LABEL_LEN)
#define PADDING_BITS ((32 - LABEL_BITS % 32) % 32)

// Labels with the leafs of pods have these fields behind the spine's port up, and spine labels have leafs behind the
// leaf's.
#define POD_CORE_AT COMMON_AT
#define ASKS_AT (POD_CORE_AT + CORE_DOWN)
#define SLOTS_AT (ASKS_AT + ASKS_BITS)
#define SLOTS ((LABEL_BITS - SLOTS_AT) / SPINE_DOWN)
#define LEAFS_AT (LEAF_UP_AT + LEAF_UP_BITS)

// A field of the label, and the bit of a bitmap behind `n` others: bitmaps have port 0 leftmost. BMv2 shifts by
// numbers of 8 bits.
#if LABEL_BITS > 255
#error "These programs take labels of at most 31 bytes."
#endif
#define FIELD(at, width) hdr.label.bits[LABEL_BITS - 1 - (at):LABEL_BITS - (at) - (width)]
#define BIT_BEHIND(bitmap, width, n) ((bitmap) << (bit<8>) (n))[(width) - 1:(width) - 1]
