#!/usr/bin/env python3
"""Records one `polycast offer` and eight `polycast accept`, and draws what their terminals show as an animated SVG.

Nine hosts are network namespaces on one bridge, each with a host name and a pseudo terminal of its own. Every command is run as it
is shown, in real time; only the typing is added. It needs root, `ip` and `tc` (iproute2), and pyte (`pip install pyte`).

    sudo python3 docs/assets/record.py target/release/polycast docs/assets/offer.svg
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import selectors
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import pyte

RECEIVERS = 8
COLUMNS = 2
WIDE = 128  # Columns of the source's terminal.
NARROW = 62  # Columns of a receiver's.
TALL = 18  # Lines of the source's terminal.
SHORT = 5  # Lines of a receiver's.
TICK_S = 0.125
TYPING_S = 0.03
HOLD_S = 5.0  # How long the last picture stays before the first one comes again.
GIVE_UP_S = 120.0

# In pixels.
CELL, LINE, PAD, TITLE, GAP = 7.2, 16, 10, 20, 10
COLORS = {
    "black": "#484f58", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341", "blue": "#79c0ff",
    "magenta": "#d2a8ff", "cyan": "#a5d6ff", "white": "#c9d1d9", "default": "#e6edf3",
}  # fmt: skip

Run = tuple[str, str, bool]
Row = tuple[Run, ...]
# A terminal, where it is drawn (x and y), how wide and how high.
Box = tuple["Pane", float, float, float, float]


@dataclass
class Pane:
    """A terminal: the program that runs in it, and what each of its lines shows from which tick on."""

    host: str
    columns: int
    lines: int
    process: subprocess.Popen[bytes] | None = None
    master: int = -1
    typed: str = ""
    shown: list[list[tuple[int, Row]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.screen = pyte.Screen(self.columns, self.lines)
        self.screen.set_mode(pyte.modes.LNM)
        self.stream = pyte.ByteStream(self.screen)
        self.shown = [[] for _ in range(self.lines)]

    def start(self, command: list[str], folder: Path, program: Path, **environment: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", self.lines, self.columns, 0, 0))
        script = 'hostname "$1"; shift; exec "$@"'
        inside = ["unshare", "--uts", "sh", "-c", script, "sh", self.host, *command]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.host, *inside],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={
                **os.environ,
                "PATH": f"{program.parent}:{os.environ['PATH']}",
                "TERM": "xterm-256color",
                **environment,
            },
        )
        os.close(slave)

    def text(self) -> str:
        return "\n".join(self.screen.display)

    def look(self, tick: int) -> None:
        """Notes the lines that have changed."""
        for number, changes in enumerate(self.shown):
            row = runs(self.screen, number)
            if (changes[-1][1] if changes else ()) != row:
                changes.append((tick, row))


def runs(screen: pyte.Screen, number: int) -> Row:
    """A line as stretches of one color."""
    found: list[Run] = []
    line = screen.buffer[number]
    for column in range(screen.columns):
        char = line[column]
        if found and found[-1][1:] == (char.fg, char.bold):
            found[-1] = (found[-1][0] + char.data, *found[-1][1:])
        else:
            found.append((char.data, char.fg, char.bold))
    while found and not found[-1][0].strip():
        found.pop()
    if found:
        found[-1] = (found[-1][0].rstrip(), *found[-1][1:])
    return tuple(found)


def build(hosts: list[str], rate: str) -> None:
    """Makes the hosts, and a bridge between them; all of it ends with this process."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    Path("/run/netns").mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)
    ip("link", "add", "switch", "type", "bridge", "mcast_snooping", "0")
    ip("link", "set", "switch", "up")
    for number, host in enumerate(hosts, start=1):
        ip("netns", "add", host)
        ip("link", "add", f"to-{host}", "type", "veth", "peer", "name", "eth0", "netns", host)
        ip("link", "set", f"to-{host}", "master", "switch", "up")
        for words in (
            ["addr", "add", f"10.0.0.{number}/24", "dev", "eth0"],
            ["link", "set", "lo", "up"],
            ["link", "set", "eth0", "up"],
            ["route", "add", "default", "dev", "eth0"],
        ):
            ip("-n", host, *words)
        shape = ["root", "tbf", "rate", rate, "burst", "256k", "limit", "1m"]
        subprocess.run(["tc", "-n", host, "qdisc", "add", "dev", "eth0", *shape], check=True)
        subprocess.run(["tc", "qdisc", "add", "dev", f"to-{host}", *shape], check=True)


class Recorder:
    """Reads all terminals, and looks at them once a tick."""

    def __init__(self, panes: list[Pane]) -> None:
        self.panes = panes
        self.begun = time.monotonic()
        self.tick = 0
        self.selector = selectors.DefaultSelector()

    def watch(self, pane: Pane) -> None:
        self.selector.register(pane.master, selectors.EVENT_READ, pane)

    def wait(self, until: float) -> None:
        """Goes on for so many seconds of the recording's time."""
        while (now := time.monotonic() - self.begun) < until:
            due = (self.tick + 1) * TICK_S
            for key, _ in self.selector.select(max(0.0, min(due, until) - now)):
                try:
                    heard = os.read(key.fd, 65536)
                except OSError:  # The program has ended.
                    heard = b""
                if heard:
                    key.data.stream.feed(heard)
                else:
                    self.selector.unregister(key.fd)
            if time.monotonic() - self.begun >= due:
                self.tick += 1
                for pane in self.panes:
                    pane.look(self.tick)

    def now(self) -> float:
        return time.monotonic() - self.begun

    def type(self, pane: Pane, command: str, typing_s: float) -> None:
        pane.stream.feed(b"\x1b[32m$\x1b[0m ")
        for letter in command:
            self.wait(self.now() + typing_s)
            pane.stream.feed(letter.encode())
        self.wait(self.now() + 0.3)
        pane.stream.feed(b"\r\n")

    def wait_for(self, pane: Pane, pattern: str) -> str:
        """What the first group of the pattern matches, as soon as the terminal shows it."""
        begun = self.now()
        while not (found := re.search(pattern, pane.text())):
            ended = pane.process is not None and pane.process.poll() is not None
            if ended or self.now() - begun > GIVE_UP_S:
                sys.exit(f"{pane.host} never showed /{pattern}/, but:\n{pane.text().strip()}")
            self.wait(self.now() + TICK_S)
        return found[1]

    def wait_for_ends(self) -> None:
        begun = self.now()
        running = [pane.process for pane in self.panes if pane.process]
        while any(process.poll() is None for process in running):
            if self.now() - begun > GIVE_UP_S:
                sys.exit(f"not all had ended after {GIVE_UP_S:.0f} s")
            self.wait(self.now() + TICK_S)
        self.wait(self.now() + 2 * TICK_S)
        for pane in self.panes:
            if pane.process and pane.process.returncode:
                sys.exit(f"{pane.host} ended with {pane.process.returncode}:\n{pane.text().strip()}")


def record(program: Path, size_mib: int, rate: str) -> tuple[list[Pane], int]:
    """Runs it; gives the terminals, and how many ticks it took."""
    hosts = [f"gpu{number}" for number in range(RECEIVERS + 1)]
    build(hosts, rate)
    panes = [Pane(hosts[0], WIDE, TALL), *(Pane(host, NARROW, SHORT) for host in hosts[1:])]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        folders = [Path(scratch) / host for host in hosts]
        for folder in folders:
            folder.mkdir()
        with open("/dev/urandom", "rb") as random, open(folders[0] / "model.bin", "wb") as file:
            for _ in range(size_mib):
                file.write(random.read(1 << 20))
        recorder = Recorder(panes)
        command = f"polycast offer model.bin --receivers {RECEIVERS}"
        recorder.type(panes[0], command, TYPING_S)
        panes[0].start(command.split(), folders[0], program)
        recorder.watch(panes[0])
        code = recorder.wait_for(panes[0], r"accept ([a-z]+-[a-z-]+)")
        recorder.wait(recorder.now() + 0.3)
        for pane, folder in zip(panes[1:], folders[1:]):
            command = f"polycast accept {code}"
            if pane is panes[1]:
                recorder.type(pane, command, TYPING_S / 3)  # A source that waits for 3 s explains itself.
            else:
                pane.stream.feed(f"\x1b[32m$\x1b[0m {command}\r\n".encode())
            pane.start(command.split(), folder, program)
            recorder.watch(pane)
            recorder.wait(recorder.now() + 0.25)
        recorder.wait_for_ends()
        first = (folders[0] / "model.bin").read_bytes()
        for pane, folder in zip(panes[1:], folders[1:]):
            if (folder / "model.bin").read_bytes() != first:
                sys.exit(f"{pane.host} has another file")
    return panes, recorder.tick


def size(pane: Pane) -> tuple[float, float]:
    """How wide and high a terminal is."""
    return 2 * PAD + pane.columns * CELL, TITLE + pane.lines * LINE + PAD


def place(panes: list[Pane]) -> list[Box]:
    """The first terminal above, and the others below it in columns."""
    width, top = size(panes[0])
    step = (width + GAP) / COLUMNS
    boxes = [(panes[0], 0.0, 0.0, width, top)]
    for number, pane in enumerate(panes[1:]):
        small = size(pane)[1]
        x, y = (number % COLUMNS) * step, top + GAP + (number // COLUMNS) * (small + GAP)
        boxes.append((pane, x, y, step - GAP, small))
    return boxes


def draw(panes: list[Pane], ticks: int, what: str) -> str:
    """The terminals as an SVG that shows what they showed, when they showed it; without animation it shows their end."""
    total = ticks + round(HOLD_S / TICK_S)
    places: dict[tuple[int, int], str] = {}
    body = []
    boxes = place(panes)
    width, height = boxes[0][3], boxes[-1][2] + boxes[-1][4]
    for pane, x, y, wide, tall in boxes:
        body.append(f'<rect class="w" x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{wide - 1:.1f}" height="{tall - 1:.1f}" rx="6"/>')
        body.append(f'<text class="t" x="{x + PAD:.1f}" y="{y + 14:.1f}">{pane.host}</text>')
        for number, changes in enumerate(pane.shown):
            baseline = y + TITLE + 13 + number * LINE
            for at, (tick, row) in enumerate(changes):
                end = changes[at + 1][0] if at + 1 < len(changes) else total
                if not row:
                    continue
                if (tick, end) == (0, total):
                    body.append(line(row, x + PAD, baseline))
                    continue
                name = places.setdefault((tick, end), f"f{len(places)}")
                body.append(f'<g class="{name}">{line(row, x + PAD, baseline)}</g>')
    frames = []
    for (tick, end), name in places.items():
        stays = end == total
        steps = "0%{visibility:hidden}" + f"{100 * tick / total:.2f}%{{visibility:visible}}"
        if not stays:
            steps += f"{100 * end / total:.2f}%{{visibility:hidden}}"
        at_end = "visible" if stays else "hidden"
        frames.append(f"@keyframes {name}{{{steps}}}.{name}{{visibility:{at_end};animation-name:{name}}}")
    style = (
        "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
        f".w{{fill:#0d1117;stroke:#484f58}}.t{{fill:#8b949e}}"
        f"g{{animation-duration:{total * TICK_S:.3f}s;animation-iteration-count:infinite;animation-timing-function:step-end}}"
        "@media (prefers-reduced-motion:reduce){g{animation:none!important}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">\n'
        f"<title>{what}</title>\n<style>{style}{''.join(frames)}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def line(row: Row, x: float, y: float) -> str:
    """One line of a terminal, each stretch as wide as its letters are in a terminal."""
    parts, column = [], 0
    for text, color, bold in row:
        plain = color.removeprefix("bright")
        fill = COLORS.get(plain, f"#{color}" if re.fullmatch("[0-9a-f]{6}", color) else COLORS["default"])
        if text.strip():
            weight = ' font-weight="bold"' if bold else ""
            place = f'x="{x + column * CELL:.1f}" y="{y:.1f}" textLength="{len(text) * CELL:.1f}"'
            parts.append(f'<text {place} fill="{fill}"{weight}>{escape(text)}</text>')
        column += len(text)
    return "".join(parts)


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("program", type=Path, help="the program to record")
    about.add_argument("picture", type=Path, help="the SVG to write")
    about.add_argument("--size", type=int, default=512, help="the object's length in MiB [default: 512]")
    about.add_argument("--rate", default="1gbit", help="the rate of each host's link, as tc takes it [default: 1gbit]")
    about.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = about.parse_args()
    if os.geteuid() != 0:
        sys.exit("namespaces belong to root: run it with sudo")
    missing = [name for name in ("ip", "tc", "unshare", "hostname") if not shutil.which(name)]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)} (Debian: iproute2, util-linux, hostname)")
    if options.program.name != "polycast" or not options.program.is_file():
        sys.exit(f"{options.program} is no program called polycast: build one with cargo build --release")
    if not options.inside:
        os.execvp("unshare", ["unshare", "--mount", "--net", sys.executable, *sys.argv, "--inside"])
    panes, ticks = record(options.program.resolve(), options.size, options.rate)
    what = f"One polycast offer and {RECEIVERS} polycast accept, in {RECEIVERS + 1} terminals"
    part = options.picture.with_suffix(".part")
    part.write_text(draw(panes, ticks, what))
    part.replace(options.picture)
    print(f"{options.picture}: {options.picture.stat().st_size >> 10} KiB, {ticks * TICK_S:.1f} s")


if __name__ == "__main__":
    main()
