// A spine switch (Orca, section 3.5 and Algorithm 3): three clocks, one packet a clock.
//
//   1  takes the label apart and reads which bucket of the filter each link down has, for the label's core
//   2  looks those buckets up in the label's filter, and reads the set of entries where the session's would be
//   3  compares the entries with the session and decides the ports
//
// A label with the leafs of pods has them as they are: in the slot of the switch's pod, which is the first for the source's pod
// and then one for each pod of the label before its own. Where there is no such slot, the packet goes to the leaf that
// the label names for this, as a label that asks for a spine label (`out_asks`). A spine label names the leafs itself.
//
// A link down is used if it is common to all spines of the tree, or if its bucket is set and no entry of the session
// blocks it. A packet from below also goes up, by the port that the label names. A label that names a port up that the
// switch does not have is dropped: `out_valid` without a port.
//
// The entries are a table of sets with WAYS places each; `set_of` says which set a session belongs to. The controller
// keeps a copy of the table and says which place it writes. A write acts between the packets before and behind it; one
// in the same clock as a packet acts behind it. A reset keeps the entries: the controller that starts a switch anew
// writes every place that it does not know to be free.
//
// Bitmaps count ports from the left: bit 0 is port 0.
`default_nettype none

module orca_spine #(
    parameter LEAF_DOWN = 24,    // hosts of a leaf
    parameter LEAF_UP = 24,      // spines of a pod
    parameter SPINE_DOWN = 24,   // leafs of a pod
    parameter SPINE_UP = 24,     // cores of a spine, 0 where there are none
    parameter CORE_DOWN = 48,    // pods, 0 where there are no cores
    parameter FILTER_BITS = 69,
    parameter POD = 0,           // the switch's own
    parameter SESSION_BITS = 32,
    parameter SET_BITS = 8,      // the table has 2 ** SET_BITS sets
    parameter WAYS = 4,          // a power of two, at least 2
    // Follow from the others.
    parameter SOURCE_BITS = $clog2(LEAF_UP) + $clog2(SPINE_UP) + SPINE_DOWN + FILTER_BITS + CORE_DOWN,
    parameter LABEL_BITS = 8 * (((LEAF_DOWN > SOURCE_BITS ? LEAF_DOWN : SOURCE_BITS) + 8) / 8),
    parameter BUCKET_BITS = FILTER_BITS == 1 ? 1 : $clog2(FILTER_BITS),
    parameter UP_PORTS = SPINE_UP == 0 ? 1 : SPINE_UP,
    parameter UP_BITS = $clog2(UP_PORTS) == 0 ? 1 : $clog2(UP_PORTS)
) (
    input wire clk,
    input wire reset,

    // The bucket of every link down under a core: written once, when the switch starts.
    input wire row_write,
    input wire [UP_BITS-1:0] row_core,
    input wire [SPINE_DOWN*BUCKET_BITS-1:0] row_buckets,   // link 0 in the lowest bits

    // An entry: the links that a session must not use. One without links is free.
    input wire entry_write,
    input wire [$clog2(WAYS)-1:0] entry_way,
    input wire [SESSION_BITS-1:0] entry_session,
    input wire [0:SPINE_DOWN-1] entry_blocked,

    input wire in_valid,
    input wire in_from_above,
    input wire [SESSION_BITS-1:0] in_session,
    input wire [1:0] in_kind,
    input wire [0:LABEL_BITS-1] in_label,

    output reg out_valid,
    output reg [0:SPINE_DOWN-1] out_down,
    output reg [0:SPINE_DOWN-1] out_asks,    // by this port with the kind 2 in its header
    output reg [0:UP_PORTS-1] out_up
);
    `include "label.vh"
    localparam ENTRY_BITS = SESSION_BITS + SPINE_DOWN;
    localparam FOLDS = (SESSION_BITS + SET_BITS - 1) / SET_BITS;

    // The set of a session: its number folded to SET_BITS by exclusive or.
    function [SET_BITS-1:0] set_of(input [SESSION_BITS-1:0] session);
        reg [FOLDS*SET_BITS-1:0] padded;
        integer fold;
        begin
            padded = session;
            set_of = 0;
            for (fold = 0; fold < FOLDS; fold = fold + 1)
                set_of = set_of ^ padded[fold*SET_BITS +: SET_BITS];
        end
    endfunction

    reg [SPINE_DOWN*BUCKET_BITS-1:0] rows [0:UP_PORTS-1];

    // Clock 1.
    wire [UP_BITS-1:0] in_up = SPINE_UP_BITS == 0 ? 0 : in_label[SPINE_UP_AT +: UP_BITS];
    reg valid_1, above_1, known_1;
    reg [1:0] kind_1;
    reg [0:LABEL_BITS-1] label_1;
    // The slot of this pod.
    reg [8:0] slot, slot_1;
    integer lower;
    always @* begin
        slot = in_from_above ? 1 : 0;
        if (in_from_above && CORE_DOWN > POD)
            for (lower = 0; lower < POD; lower = lower + 1)
                slot = slot + in_label[POD_CORE_AT + lower];
    end

    reg [UP_BITS-1:0] up_1;
    reg [SESSION_BITS-1:0] session_1;
    reg [0:SPINE_DOWN-1] common_1;
    reg [0:FILTER_BITS-1] filter_1;
    reg [SPINE_DOWN*BUCKET_BITS-1:0] buckets_1;
    reg write_1;
    reg [$clog2(WAYS)-1:0] write_way_1;
    reg [SESSION_BITS-1:0] write_session_1;
    reg [0:SPINE_DOWN-1] write_blocked_1;

    always @(posedge clk) begin
        valid_1 <= in_valid & ~reset;
        above_1 <= in_from_above;
        kind_1 <= in_kind;
        label_1 <= in_label;
        slot_1 <= slot;
        known_1 <= in_up < UP_PORTS;
        up_1 <= in_up;
        session_1 <= in_session;
        common_1 <= in_label[COMMON_AT +: SPINE_DOWN];
        filter_1 <= in_label[FILTER_AT +: FILTER_BITS];
        buckets_1 <= rows[in_up];
        if (row_write) rows[row_core] <= row_buckets;
        write_1 <= entry_write & ~reset;
        write_way_1 <= entry_way;
        write_session_1 <= entry_session;
        write_blocked_1 <= entry_blocked;
    end

    // Clock 2.
    reg valid_2, known_2;
    reg [UP_BITS-1:0] up_2;
    reg [SESSION_BITS-1:0] session_2;
    reg [0:SPINE_DOWN-1] common_2;
    reg [0:SPINE_DOWN-1] hits_2;
    wire [SET_BITS-1:0] set_1 = set_of(session_1);
    integer link, at;

    // A label without a filter.
    localparam ASKED_BITS = ASKS_BITS == 0 ? 1 : ASKS_BITS;
    wire [ASKED_BITS-1:0] asked = ASKS_BITS == 0 ? 0 : label_1[ASKS_AT +: ASKED_BITS];
    wire is_asking = kind_1 == KIND_PODS && slot_1 >= SLOTS;
    reg [0:SPINE_DOWN-1] asks_2;
    reg goes_up_2;
    reg [0:SPINE_DOWN-1] named;
    always @* begin
        named = 0;
        case (kind_1)
            KIND_FILTER: named = common_1;
            KIND_PODS:
                for (at = 0; at < SLOTS; at = at + 1)
                    if (slot_1 == at) named = label_1[SLOTS_AT + at*SPINE_DOWN +: SPINE_DOWN];
            KIND_SPINE: if (!above_1) named = label_1[LEAFS_AT +: SPINE_DOWN];
            default: named = 0;
        endcase
    end

    always @(posedge clk) begin
        valid_2 <= valid_1 & ~reset;
        // A spine label names no port up, and a label may ask only a leaf that there is.
        known_2 <= kind_1 == KIND_SPINE || (known_1 && !(is_asking && asked >= SPINE_DOWN));
        goes_up_2 <= !above_1 && (kind_1 == KIND_FILTER || kind_1 == KIND_PODS);
        up_2 <= up_1;
        session_2 <= session_1;
        common_2 <= named;
        for (link = 0; link < SPINE_DOWN; link = link + 1) begin
            hits_2[link] <= kind_1 == KIND_FILTER && filter_1[buckets_1[link*BUCKET_BITS +: BUCKET_BITS]];
            asks_2[link] <= is_asking && asked == link;
        end
    end

    wire [ENTRY_BITS*WAYS-1:0] entries_2;
    genvar way;
    generate
        for (way = 0; way < WAYS; way = way + 1) begin : table_of
            reg [ENTRY_BITS-1:0] entries [0:(1<<SET_BITS)-1];
            reg [ENTRY_BITS-1:0] entry_2;
            integer set;
            initial for (set = 0; set < (1 << SET_BITS); set = set + 1) entries[set] = 0;
            always @(posedge clk) begin
                entry_2 <= entries[set_1];
                if (write_1 && write_way_1 == way)
                    entries[set_of(write_session_1)] <= {write_session_1, write_blocked_1};
            end
            assign entries_2[way*ENTRY_BITS +: ENTRY_BITS] = entry_2;
        end
    endgenerate

    // Clock 3.
    reg [0:SPINE_DOWN-1] blocked;
    integer place;
    always @* begin
        blocked = 0;
        for (place = 0; place < WAYS; place = place + 1)
            if (entries_2[place*ENTRY_BITS + SPINE_DOWN +: SESSION_BITS] == session_2)
                blocked = blocked | entries_2[place*ENTRY_BITS +: SPINE_DOWN];
    end

    integer port;
    always @(posedge clk) begin
        out_valid <= valid_2 & ~reset;
        out_down <= valid_2 && known_2 ? common_2 | (hits_2 & ~blocked) : 0;
        out_asks <= valid_2 && known_2 ? asks_2 : 0;
        for (port = 0; port < UP_PORTS; port = port + 1)
            out_up[port] <= valid_2 && known_2 && SPINE_UP != 0 && goes_up_2 && up_2 == port;
    end
endmodule

`default_nettype wire
