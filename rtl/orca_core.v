// A core switch (Orca, section 3.5): one clock, and no state at all. The label names the pods; its kind says where.
//
// Bitmaps count ports from the left: bit 0 is port 0.
`default_nettype none

module orca_core #(
    parameter LEAF_DOWN = 24,    // hosts of a leaf
    parameter LEAF_UP = 24,      // spines of a pod
    parameter SPINE_DOWN = 24,   // leafs of a pod
    parameter SPINE_UP = 24,     // cores of a spine
    parameter CORE_DOWN = 48,    // pods
    parameter FILTER_BITS = 69,
    // Follow from the others.
    parameter SOURCE_BITS = $clog2(LEAF_UP) + $clog2(SPINE_UP) + SPINE_DOWN + FILTER_BITS + CORE_DOWN,
    parameter LABEL_BITS = 8 * (((LEAF_DOWN > SOURCE_BITS ? LEAF_DOWN : SOURCE_BITS) + 8) / 8)
) (
    input wire clk,
    input wire reset,

    input wire in_valid,
    input wire [1:0] in_kind,
    input wire [0:LABEL_BITS-1] in_label,

    output reg out_valid,
    output reg [0:CORE_DOWN-1] out_down
);
    `include "label.vh"

    always @(posedge clk) begin
        out_valid <= in_valid & ~reset;
        out_down <= 0;
        if (in_valid)
            case (in_kind)
                KIND_FILTER: out_down <= in_label[CORE_AT +: CORE_DOWN];
                KIND_PODS: out_down <= in_label[POD_CORE_AT +: CORE_DOWN];
                default: out_down <= 0;
            endcase
    end
endmodule

`default_nettype wire
