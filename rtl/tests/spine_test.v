// Drives a spine with the lines of a file and compares every output; see ../README.md for the lines.
`default_nettype none

module spine_test #(
    parameter LEAF_DOWN = 24, LEAF_UP = 24, SPINE_DOWN = 24, SPINE_UP = 24, CORE_DOWN = 48, FILTER_BITS = 69,
    parameter LABEL_BITS = 152, BUCKET_BITS = 7, UP_PORTS = 24, SET_BITS = 8, POD = 0
);
    // A packet's ports are there three clocks after its label.
    localparam CLOCKS = 3;
    localparam OUT_BITS = 1 + 2 * SPINE_DOWN + UP_PORTS;

    reg clk = 0, reset = 1;
    reg row_write = 0, entry_write = 0, in_valid = 0, in_from_above = 0;
    reg [7:0] row_core = 0;
    reg [SPINE_DOWN*BUCKET_BITS-1:0] row_buckets = 0;
    reg [1:0] entry_way = 0;
    reg [31:0] entry_session = 0, in_session = 0;
    reg [0:SPINE_DOWN-1] entry_blocked = 0;
    reg [1:0] in_kind = 0;
    reg [0:LABEL_BITS-1] in_label = 0;
    wire out_valid;
    wire [0:SPINE_DOWN-1] out_down, out_asks;
    wire [0:UP_PORTS-1] out_up;

    orca_spine #(
        .LEAF_DOWN(LEAF_DOWN), .LEAF_UP(LEAF_UP), .SPINE_DOWN(SPINE_DOWN), .SPINE_UP(SPINE_UP),
        .CORE_DOWN(CORE_DOWN), .FILTER_BITS(FILTER_BITS), .SET_BITS(SET_BITS), .POD(POD)
    ) spine (
        .clk(clk), .reset(reset), .row_write(row_write), .row_core(row_core[0 +: $bits(spine.row_core)]),
        .row_buckets(row_buckets), .entry_write(entry_write), .entry_way(entry_way),
        .entry_session(entry_session), .entry_blocked(entry_blocked), .in_valid(in_valid),
        .in_from_above(in_from_above), .in_session(in_session), .in_kind(in_kind), .in_label(in_label),
        .out_valid(out_valid), .out_down(out_down), .out_asks(out_asks), .out_up(out_up)
    );

    // What the outputs have to be after the next clock, and after those that follow.
    reg [OUT_BITS-1:0] expected [0:CLOCKS-1];
    reg expected_valid;
    reg [0:SPINE_DOWN-1] expected_down, expected_asks;
    reg [0:UP_PORTS-1] expected_up;

    integer file, fields, line = 0, compared = 0, wrong = 0, at;
    reg [8*256-1:0] path;

    always #5 clk = ~clk;

    initial begin
        if ($bits(in_label) != $bits(spine.in_label)) $fatal(1, "the label has %0d bits", $bits(spine.in_label));
        if ($bits(row_buckets) != $bits(spine.row_buckets)) $fatal(1, "wrong BUCKET_BITS");
        if ($bits(out_up) != $bits(spine.out_up)) $fatal(1, "wrong UP_PORTS");
        if (!$value$plusargs("vectors=%s", path)) $fatal(1, "name the file of vectors: +vectors=FILE");
        file = $fopen(path, "r");
        if (file == 0) $fatal(1, "the file of vectors cannot be opened");
        for (at = 0; at < CLOCKS; at = at + 1) expected[at] = 0;
        // Nothing may be left in the pipeline of what came before.
        repeat (CLOCKS + 1) @(negedge clk);
        reset = 0;
        fields = 16;
        while (fields == 16) begin
            fields = $fscanf(file, "%h %h %h %h %h %h %h %h %h %h %h %h %h %h %h %h\n", row_write, row_core, row_buckets,
                entry_write, entry_way, entry_session, entry_blocked, in_valid, in_from_above, in_session,
                in_kind, in_label, expected_valid, expected_down, expected_asks, expected_up);
            if (fields == 16) begin
                line = line + 1;
                expected[CLOCKS-1] = {expected_valid, expected_down, expected_asks, expected_up};
                @(negedge clk);
                compared = compared + 1;
                if ({out_valid, out_down, out_asks, out_up} !== expected[0]) begin
                    wrong = wrong + 1;
                    $display("line %0d: valid %b down %h asks %h up %h, expected %h", line - CLOCKS + 1, out_valid,
                        out_down, out_asks, out_up, expected[0]);
                end
                for (at = 0; at < CLOCKS - 1; at = at + 1) expected[at] = expected[at + 1];
            end
        end
        $display("compared %0d wrong %0d", compared, wrong);
        $finish;
    end
endmodule
