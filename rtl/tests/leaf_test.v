// Drives a leaf with the lines of a file and compares every output; see ../README.md for the lines.
`default_nettype none

module leaf_test #(
    parameter LEAF_DOWN = 24, LEAF_UP = 24, SPINE_DOWN = 24, SPINE_UP = 24, CORE_DOWN = 48, FILTER_BITS = 69,
    parameter LABEL_BITS = 152
);
    reg clk = 0, reset = 1;
    reg agents_write = 0, in_valid = 0, in_from_above = 0;
    reg [0:LEAF_DOWN-1] agents = 0, rack_agents = 0, in_port = 0;
    reg [1:0] in_kind = 0;
    reg [0:LABEL_BITS-1] in_label = 0;
    wire out_valid;
    wire [0:LEAF_DOWN-1] out_down;
    wire [0:LEAF_UP-1] out_up;

    orca_leaf #(
        .LEAF_DOWN(LEAF_DOWN), .LEAF_UP(LEAF_UP), .SPINE_DOWN(SPINE_DOWN), .SPINE_UP(SPINE_UP),
        .CORE_DOWN(CORE_DOWN), .FILTER_BITS(FILTER_BITS)
    ) leaf (
        .clk(clk), .reset(reset), .agents_write(agents_write), .agents(agents), .rack_agents(rack_agents),
        .in_valid(in_valid), .in_from_above(in_from_above), .in_port(in_port), .in_kind(in_kind), .in_label(in_label),
        .out_valid(out_valid),
        .out_down(out_down), .out_up(out_up)
    );

    // What the outputs have to be after the next clock.
    reg expected_valid = 0;
    reg [0:LEAF_DOWN-1] expected_down = 0;
    reg [0:LEAF_UP-1] expected_up = 0;

    integer file, fields, line = 0, compared = 0, wrong = 0;
    reg [8*256-1:0] path;

    always #5 clk = ~clk;

    initial begin
        if ($bits(in_label) != $bits(leaf.in_label)) $fatal(1, "the label has %0d bits", $bits(leaf.in_label));
        if (!$value$plusargs("vectors=%s", path)) $fatal(1, "name the file of vectors: +vectors=FILE");
        file = $fopen(path, "r");
        if (file == 0) $fatal(1, "the file of vectors cannot be opened");
        repeat (2) @(negedge clk);
        reset = 0;
        fields = 11;
        while (fields == 11) begin
            fields = $fscanf(file, "%h %h %h %h %h %h %h %h %h %h %h\n", agents_write, agents, rack_agents,
                in_valid, in_from_above, in_port, in_kind, in_label, expected_valid, expected_down, expected_up);
            if (fields == 11) begin
                line = line + 1;
                @(negedge clk);
                compared = compared + 1;
                if ({out_valid, out_down, out_up} !== {expected_valid, expected_down, expected_up}) begin
                    wrong = wrong + 1;
                    $display("line %0d: valid %b down %h up %h, expected %b %h %h", line, out_valid, out_down,
                        out_up, expected_valid, expected_down, expected_up);
                end
            end
        end
        $display("compared %0d wrong %0d", compared, wrong);
        $finish;
    end
endmodule
