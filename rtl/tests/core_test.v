// Drives a core with the lines of a file and compares every output; see ../README.md for the lines.
`default_nettype none

module core_test #(
    parameter LEAF_DOWN = 24, LEAF_UP = 24, SPINE_DOWN = 24, SPINE_UP = 24, CORE_DOWN = 48, FILTER_BITS = 69,
    parameter LABEL_BITS = 152
);
    reg clk = 0, reset = 1, in_valid = 0;
    reg [1:0] in_kind = 0;
    reg [0:LABEL_BITS-1] in_label = 0;
    wire out_valid;
    wire [0:CORE_DOWN-1] out_down;

    orca_core #(
        .LEAF_DOWN(LEAF_DOWN), .LEAF_UP(LEAF_UP), .SPINE_DOWN(SPINE_DOWN), .SPINE_UP(SPINE_UP),
        .CORE_DOWN(CORE_DOWN), .FILTER_BITS(FILTER_BITS)
    ) core (
        .clk(clk), .reset(reset), .in_valid(in_valid), .in_kind(in_kind), .in_label(in_label), .out_valid(out_valid),
        .out_down(out_down)
    );

    // What the outputs have to be after the next clock.
    reg expected_valid = 0;
    reg [0:CORE_DOWN-1] expected_down = 0;

    integer file, fields, line = 0, compared = 0, wrong = 0;
    reg [8*256-1:0] path;

    always #5 clk = ~clk;

    initial begin
        if ($bits(in_label) != $bits(core.in_label)) $fatal(1, "the label has %0d bits", $bits(core.in_label));
        if (!$value$plusargs("vectors=%s", path)) $fatal(1, "name the file of vectors: +vectors=FILE");
        file = $fopen(path, "r");
        if (file == 0) $fatal(1, "the file of vectors cannot be opened");
        repeat (2) @(negedge clk);
        reset = 0;
        fields = 5;
        while (fields == 5) begin
            fields = $fscanf(file, "%h %h %h %h %h\n", in_valid, in_kind, in_label, expected_valid, expected_down);
            if (fields == 5) begin
                line = line + 1;
                @(negedge clk);
                compared = compared + 1;
                if ({out_valid, out_down} !== {expected_valid, expected_down}) begin
                    wrong = wrong + 1;
                    $display("line %0d: valid %b down %h, expected %b %h", line, out_valid, out_down,
                        expected_valid, expected_down);
                end
            end
        end
        $display("compared %0d wrong %0d", compared, wrong);
        $finish;
    end
endmodule
