// Where the fields of a label lie (Orca, section 3.3), from the ports of the network's switches.
// Bit 0 is the most significant bit of the label's first byte. Included inside a module that has the parameters.
localparam LEAF_UP_BITS = $clog2(LEAF_UP);
localparam SPINE_UP_BITS = $clog2(SPINE_UP);
localparam LEAF_UP_AT = 1;
localparam SPINE_UP_AT = LEAF_UP_AT + LEAF_UP_BITS;
localparam COMMON_AT = SPINE_UP_AT + SPINE_UP_BITS;
localparam FILTER_AT = COMMON_AT + SPINE_DOWN;
localparam CORE_AT = FILTER_AT + FILTER_BITS;
// What a label is stands beside it in the packet's header. Labels with the leafs of pods have these fields behind the spine's
// port up, and spine labels have leafs behind the leaf's.
localparam [1:0] KIND_FILTER = 0, KIND_PODS = 1, KIND_ASKS = 2, KIND_SPINE = 3;
localparam POD_CORE_AT = SPINE_UP_AT + SPINE_UP_BITS;
localparam ASKS_BITS = $clog2(SPINE_DOWN);
localparam ASKS_AT = POD_CORE_AT + CORE_DOWN;
localparam SLOTS_AT = ASKS_AT + ASKS_BITS;
localparam SLOTS = (LABEL_BITS - SLOTS_AT) / SPINE_DOWN;
localparam LEAFS_AT = LEAF_UP_AT + LEAF_UP_BITS;
