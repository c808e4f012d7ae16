// Where the fields of a label lie (Orca, section 3.3), from the ports of the network's switches.
// Bit 0 is the most significant bit of the label's first byte. Included inside a module that has the parameters.
localparam LEAF_UP_BITS = $clog2(LEAF_UP);
localparam SPINE_UP_BITS = $clog2(SPINE_UP);
localparam LEAF_UP_AT = 1;
localparam SPINE_UP_AT = LEAF_UP_AT + LEAF_UP_BITS;
localparam COMMON_AT = SPINE_UP_AT + SPINE_UP_BITS;
localparam FILTER_AT = COMMON_AT + SPINE_DOWN;
localparam CORE_AT = FILTER_AT + FILTER_BITS;
