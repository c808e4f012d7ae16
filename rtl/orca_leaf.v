// A leaf switch (Orca, section 3.5): one clock from a packet's label to its ports, and no state of sessions.
//
// From above, a packet goes to the next active agent of the rack. From below, a source label goes up by the port that
// it names, and a leaf label goes to the hosts that it names if it comes from a port with an agent of the rack, active or
// not: no other host may name hosts. So it is with a spine label, which names the leafs of a pod and goes up; a label that asks
// for one does not come from below. A packet with no port to go to is dropped: `out_valid` without a port. The controller
// of the leaf writes which ports have agents, and which of them are active.
//
// Bitmaps count ports from the left: bit 0 is port 0.
`default_nettype none

module orca_leaf #(
    parameter LEAF_DOWN = 24,    // hosts of a leaf
    parameter LEAF_UP = 24,      // spines of a pod
    parameter SPINE_DOWN = 24,   // leafs of a pod
    parameter SPINE_UP = 24,     // cores of a spine, 0 where there are none
    parameter CORE_DOWN = 48,    // pods, 0 where there are no cores
    parameter FILTER_BITS = 69,
    // Follow from the others.
    parameter SOURCE_BITS = $clog2(LEAF_UP) + $clog2(SPINE_UP) + SPINE_DOWN + FILTER_BITS + CORE_DOWN,
    parameter LABEL_BITS = 8 * (((LEAF_DOWN > SOURCE_BITS ? LEAF_DOWN : SOURCE_BITS) + 8) / 8)
) (
    input wire clk,
    input wire reset,

    input wire agents_write,
    input wire [0:LEAF_DOWN-1] agents,         // the active ones
    input wire [0:LEAF_DOWN-1] rack_agents,    // all of the rack

    input wire in_valid,
    input wire in_from_above,
    input wire [0:LEAF_DOWN-1] in_port,    // the one below that the packet came in by; none from above
    input wire [1:0] in_kind,
    input wire [0:LABEL_BITS-1] in_label,

    output reg out_valid,
    output reg [0:LEAF_DOWN-1] out_down,
    output reg [0:LEAF_UP-1] out_up
);
    `include "label.vh"
    localparam PORT_BITS = LEAF_UP_BITS == 0 ? 1 : LEAF_UP_BITS;

    // The active agents, and the one that had the last packet.
    reg [0:LEAF_DOWN-1] active;
    reg [0:LEAF_DOWN-1] served;
    // All agents of the rack.
    reg [0:LEAF_DOWN-1] rack;

    // The first port of a bitmap.
    function [0:LEAF_DOWN-1] first(input [0:LEAF_DOWN-1] ports);
        integer port;
        begin
            first = 0;
            for (port = LEAF_DOWN - 1; port >= 0; port = port - 1)
                if (ports[port]) begin
                    first = 0;
                    first[port] = 1'b1;
                end
        end
    endfunction

    // The ports behind the one of a bitmap.
    function [0:LEAF_DOWN-1] behind(input [0:LEAF_DOWN-1] one);
        integer port;
        begin
            behind[0] = 1'b0;
            for (port = 1; port < LEAF_DOWN; port = port + 1)
                behind[port] = behind[port - 1] | one[port - 1];
        end
    endfunction

    wire [0:LEAF_DOWN-1] waiting = active & behind(served);
    wire [0:LEAF_DOWN-1] agent = first(waiting != 0 ? waiting : active);

    wire leaf_status = in_label[0];
    wire [PORT_BITS-1:0] up_port = LEAF_UP_BITS == 0 ? 0 : in_label[LEAF_UP_AT +: PORT_BITS];
    integer port;

    always @(posedge clk) begin
        out_valid <= in_valid & ~reset;
        out_down <= 0;
        out_up <= 0;
        if (in_valid) begin
            if (in_from_above) begin
                out_down <= agent;
                if (agent != 0) served <= agent;
            end else if (leaf_status) begin
                if ((rack & in_port) != 0) out_down <= in_label[1 +: LEAF_DOWN];
            end else if (in_kind != KIND_ASKS && (in_kind != KIND_SPINE || (rack & in_port) != 0))
                for (port = 0; port < LEAF_UP; port = port + 1)
                    out_up[port] <= up_port == port;
        end
        if (agents_write) begin
            active <= agents;
            rack <= rack_agents;
        end
        if (reset) begin
            active <= 0;
            rack <= 0;
            served <= 0;
        end
    end
endmodule

`default_nettype wire
