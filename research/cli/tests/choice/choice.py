#!/usr/bin/env python3
"""What the manager estimates that each fabric of a lab takes, what it took, and which one it chooses.

As root:  choice.py target/release/polycast [--lab SPEC] [--sizes BYTES,..] [--groups N,..] [--runs N]

Brings the lab up once. For every size and group the choice is left to the manager first, and then each fabric is asked for by
name (`send --fabric NAME --or-fail`). Estimates are those of the first run and of the last: the manager learns of every transfer, and
switches go on to hold circuits, so that a later run of the same group has them at once. Times are `took_s` of the report: from the grant to
the end of the transfer, medians.
Prints a table in Markdown, and with --json FILE all that was read.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

LAB = "blast:racks=8,hosts=1,next=ip-multicast,circuit-ms=100,core=40mbit,choose=time"
FABRICS = ["ocs", "ip-multicast", "tcp-chain"]


def call(*command):
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}: {ran.stderr.strip() or ran.stdout.strip()}")
    return ran.stdout


class Lab:
    """A lab that is up, and the objects that were sent in it."""

    def __init__(self, program, spec):
        self.program, self.name, self.sent = program, f"choice{os.getpid()}", 0
        call(program, "lab", "up", spec, "--name", self.name)

    def polycast(self, *arguments):
        """Runs the program at the source."""
        out = call(self.program, "lab", "exec", self.name, "h0", "--", self.program, *arguments, "--json")
        return json.loads(out)

    def send(self, path, receivers, fabric=None):
        """Delivers a file, and takes it away everywhere; gives the report."""
        self.sent += 1
        wish = ["--fabric", fabric, "--or-fail"] if fabric else []
        report = self.polycast("send", path, "--to", ",".join(receivers), "--id", str(self.sent), *wish)
        missed = [receiver["name"] for receiver in report["receivers"] if not receiver["verified"]]
        if missed:
            sys.exit(f"{fabric}: {missed} did not get {path}")
        self.polycast("rm", str(self.sent), "--to", "all")
        return report

    def down(self):
        subprocess.run([self.program, "lab", "down", self.name], capture_output=True)


def seconds(value):
    if value is None:
        return ""
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def size_text(size):
    for unit, text in [(10**6, "MB"), (10**3, "KB")]:
        if size >= unit:
            return f"{size // unit} {text}"
    return f"{size} B"


def measure(lab, sizes, groups, runs):
    """All reports, by size, group and fabric; the manager's own choice is under None."""
    found = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for run in range(runs):
            for size in sizes:
                for group in groups:
                    receivers = [f"h{number}" for number in range(1, group + 1)]
                    for fabric in [None, *FABRICS]:
                        # Fresh bytes each time: no host has a part of them already.
                        path = os.path.join(folder, "object")
                        with open(path, "wb") as file:
                            file.write(os.urandom(size))
                        report = lab.send(path, receivers, fabric)
                        found.setdefault((size, group, fabric), []).append(report)
                        print(f"run {run + 1}: {size_text(size)} to {group}, {fabric or 'choice'}: {report['fabric']}, estimated "
                              f"{seconds(report.get('estimate_s'))}, took {seconds(report['took_s'])}", file=sys.stderr)
    return found


def table(found, sizes, groups):
    heads = "".join(f" {fabric}: estimated first, last; took |" for fabric in FABRICS)
    lines = [f"| object | receivers |{heads} chosen first, last | passed over, last |", "| --- " * (4 + len(FABRICS)) + "|"]
    for size in sizes:
        for group in groups:
            cells = []
            for fabric in FABRICS:
                reports = found[size, group, fabric]
                took = statistics.median(report["took_s"] for report in reports)
                first, last = reports[0]["estimate_s"], reports[-1]["estimate_s"]
                cells.append(f"{seconds(first)}, {seconds(last)}; {seconds(took)}")
            chosen = found[size, group, None]
            passed = "; ".join(f"{one['fabric']}: {one['why']}" for one in chosen[-1]["passed_over"])
            cells += [f"{chosen[0]['fabric']}, {chosen[-1]['fabric']}", passed]
            lines.append(f"| {size_text(size)} | {group} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--lab", default=LAB)
    parser.add_argument("--sizes", default="100000,10000000,100000000")
    parser.add_argument("--groups", default="1,3,7")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    sizes, groups = ([int(number) for number in text.split(",")] for text in (given.sizes, given.groups))
    lab = Lab(os.path.abspath(given.program), given.lab)
    try:
        found = measure(lab, sizes, groups, given.runs)
    finally:
        lab.down()
    print(table(found, sizes, groups))
    if given.json:
        rows = [{"bytes": size, "receivers": group, "wish": fabric, "reports": reports}
                for (size, group, fabric), reports in found.items()]
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
