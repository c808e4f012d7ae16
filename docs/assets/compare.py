#!/usr/bin/env python3
"""Measures `polycast lab compare` and draws the bars of README: the time until the last of eight hosts has a file.

The first command measures and draws, the second draws again what was measured. Measuring needs root, and what `lab compare` runs:
polycast-research beside the program, sshd, scp, rsync, NFS-Ganesha with libnfs, and aria2. A machine that does something else at the same time is named in the picture.

    sudo python3 docs/assets/compare.py target/release/polycast
    python3 docs/assets/compare.py
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DATA, PICTURE = FOLDER / "compare.json", FOLDER / "compare.svg"
LAB = "bridge:9,rate=500mbit"
RATE_BPS = 500_000_000
SIZE_MIB = 256
ROUNDS = 3
WAYS = "scp,rsync,nfs,bittorrent"
# Share of the processors' time that is idle before the first round: with less the machine was not quiet. The load average says what was
# minutes ago.
IDLE_MIN = 0.9
IDLE_OVER_S = 3
NAMES = {
    "polycast": "Polycast",
    "scp": "scp to each, at once",
    "rsync": "rsync to each, at once",
    "nfs": "copy from NFS",
    "bittorrent": "BitTorrent (aria2)",
}
# In pixels.
WIDTH, LEFT, RIGHT, TOP, BAR, STEP = 900, 190, 90, 62, 24, 36


def idle_share() -> float:
    """How much of the processors' time nothing has used, over some seconds."""

    def spent() -> tuple[int, int]:
        times = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return times[3] + times[4], sum(times)

    idle_before, all_before = spent()
    time.sleep(IDLE_OVER_S)
    idle, all_ = spent()
    return (idle - idle_before) / (all_ - all_before)


def measure(program: Path) -> dict[str, Any]:
    """Delivers by all ways in turn, and notes what ran where."""
    idle = idle_share()
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="model-", suffix=".bin") as file:
        with open("/dev/urandom", "rb") as random:
            for _ in range(SIZE_MIB):
                file.write(random.read(1 << 20))
        file.flush()
        words = ["lab", "compare", LAB, file.name, "--with", WAYS, "--rounds", str(ROUNDS), "--json"]
        ran = subprocess.run([program, *words], stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        sys.exit(f"polycast lab compare ended with status {ran.returncode}")
    words[3] = "FILE"
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "command": " ".join(["polycast", *words]),
        "version": version.split(" (")[0].strip(),
        "commit": commit(),
        "day": datetime.date.today().isoformat(),
        "processor": models[0].split(":")[1].strip() if models else "unknown",
        "cores": os.cpu_count(),
        "idle_before": round(idle, 3),
        "compared": json.loads(ran.stdout),
    }


def commit() -> str:
    """The commit of this checkout, which is taken to be that of the program; with a mark where sources have changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", FOLDER, *words], check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/crates")
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def draw(data: dict[str, Any]) -> str:
    """A bar for each way: the median, and a thin line from the fastest round to the slowest."""
    compared = data["compared"]
    taken: dict[str, list[float]] = {}
    for row in compared["runs"]:
        if not row["verified"]:
            sys.exit(f"{row['way']} did not deliver in round {row['round']}: measure again")
        taken.setdefault(row["way"], []).append(row["seconds"])
    bars = sorted(taken.items(), key=lambda item: statistics.median(item[1]))
    most = max(max(seconds) for _, seconds in bars)
    ideal = compared["bytes"] * 8 / RATE_BPS

    def x(seconds: float) -> float:
        return LEFT + seconds / most * (WIDTH - LEFT - RIGHT)

    receivers, mib = len(compared["receivers"]), compared["bytes"] >> 20
    bottom = TOP + STEP * len(bars)
    parts = [
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{bottom + 57}" rx="6"/>',
        f'<text class="head" x="16" y="28">Seconds until the last of {receivers} hosts has a file of {mib} MiB</text>',
        f'<line class="ideal" x1="{x(ideal):.1f}" y1="{TOP - 16}" x2="{x(ideal):.1f}" y2="{bottom}"/>',
        f'<text class="small" x="{x(ideal) + 5:.1f}" y="{TOP - 7}">one copy at the rate of a link: {ideal:.1f} s</text>',
    ]
    for number, (way, seconds) in enumerate(bars):
        y, median = TOP + STEP * number + (STEP - BAR) / 2, statistics.median(seconds)
        middle = y + BAR / 2
        kind = "ours" if way == "polycast" else "theirs"
        parts += [
            f'<text class="name" x="{LEFT - 10}" y="{middle + 5:.1f}">{escape(NAMES[way])}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y:.1f}" width="{x(median) - LEFT:.1f}" height="{BAR}" rx="3"/>',
            f'<line class="range" x1="{x(min(seconds)):.1f}" y1="{middle}" x2="{x(max(seconds)):.1f}" y2="{middle}"/>',
            f'<text class="value" x="{x(max(seconds)) + 8:.1f}" y="{middle + 5:.1f}">{median:.1f} s</text>',
        ]
    rounds = len(bars[0][1])
    where = f"{data['version']} at commit {data['commit']}, {data['day']}, {data['cores']} cores ({data['processor']})"
    idle = data["idle_before"]
    loaded = "" if idle >= IDLE_MIN else f"NOT A QUIET MACHINE, {idle:.0%} idle: measure again. "
    parts += [
        f'<text class="small" x="16" y="{bottom + 24}">Medians of {rounds} rounds; thin lines from the fastest to the slowest.'
        f" Links of {RATE_BPS // 1_000_000} Mbit/s between namespaces of one machine.</text>",
        f'<text class="small" x="16" y="{bottom + 42}">{loaded}{escape(where)}</text>',
    ]
    style = (
        "text{font:14px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#e6edf3}"
        ".card{fill:#0d1117;stroke:#484f58}.head{font-size:16px;font-weight:600}.name{text-anchor:end}"
        ".value{font-weight:600}.small{font-size:12px;fill:#9198a1}.ours{fill:#3fb950}.theirs{fill:#57606a}"
        ".range{stroke:#e6edf3;stroke-width:1.5}.ideal{stroke:#9198a1;stroke-dasharray:3 3}"
    )
    what = ", ".join(f"{NAMES[way]} {statistics.median(seconds):.1f} s" for way, seconds in bars)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 58}" role="img">\n'
        f"<title>Until the last of {receivers} hosts has {mib} MiB: {escape(what)}</title>\n<style>{style}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("program", nargs="?", type=Path, help="the program to measure; without it, only draw")
    options = about.parse_args()
    if options.program:
        data = measure(options.program.resolve())
        part = DATA.with_suffix(".part")
        part.write_text(json.dumps(data, indent=1) + "\n")
        part.replace(DATA)
    if not DATA.is_file():
        sys.exit(f"there is no {DATA.name} yet: name the program to measure")
    PICTURE.write_text(draw(json.loads(DATA.read_text())))
    print(PICTURE)


if __name__ == "__main__":
    main()
