"""The display at a terminal while a command runs."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest
from conftest import HANG_S, PACKAGING, Cluster, program

COLUMNS = 80
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


def test_the_echo_of_ctrl_c_has_room_beside_the_display(tmp_path: Path) -> None:
    """The terminal echoes it where the cursor is. In a line of its own it would leave the display there for good."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    command = [program(), "accept", "lusab-babad-gutih-tugad", "--interface", "lo", "--out", str(tmp_path / "x")]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={"TERM": "xterm"}) as process:
        os.close(theirs)
        try:
            shown, began = b"", time.monotonic()
            while shown.count(b"looking for an offer on lo") < 3:
                assert time.monotonic() - began < HANG_S, shown
                assert select.select([ours], [], [], HANG_S)[0], shown
                shown += os.read(ours, 65_536)
            lines = [len(ESCAPES.sub(b"", line).decode(errors="ignore")) for line in shown.split(b"\r")[:-1]]
            assert max(lines) <= COLUMNS - len("^C") - 1, shown
        finally:
            process.kill()
            os.close(ours)


def shown(columns: int, *arguments: str) -> list[str]:
    """The lines that a command leaves on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with subprocess.Popen([program(), *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env={"TERM": "xterm"}) as process:
        os.close(theirs)
        said, ends = b"", time.monotonic() + HANG_S
        while time.monotonic() < ends and select.select([ours], [], [], HANG_S)[0]:
            try:
                said += os.read(ours, 65_536)
            except OSError:
                # The program has ended.
                break
        process.kill()
        os.close(ours)
    lines = ESCAPES.sub(b"", said).decode().replace("\r\n", "\n").split("\n")
    # Only the last of what was drawn in a line is left of it.
    return [line.split("\r")[-1] for line in lines]


def is_folded(lines: list[str]) -> bool:
    """Whether a row of a table goes on elsewhere than in its last column."""
    last = None
    for line in lines:
        if line.startswith(("NAME ", "way ", "from ")):
            last = line.rindex("  ") + 2
        elif not line or line.startswith(("copies: ", "?: ")):
            last = None
        elif last is not None and line.startswith(" ") and len(line) - len(line.lstrip()) != last:
            return True
    return False


SCENARIO = str(PACKAGING.parent / "docs/scenarios/transfers.toml")
AT_AN_AGENT = [
    ["nodes"],
    ["status"],
    ["status", "--manager"],
    ["send", SCENARIO, "--to", "all", "--as", "scenario"],
    ["ls"],
    ["publish", "policy", SCENARIO],
    ["why", "scenario"],
    ["group", "create", "a-group", "--to", "gpu-0001"],
    ["group", "ls"],
    ["send", SCENARIO, "--to", "nobody"],
]
ALONE = [
    ["--help"],
    ["plan", "trees", "--help"],
    ["plan", "trees"],
    ["doctor", "--interface", "lo"],
    ["plan", "advise", "--hosts", "512", "--rack", "32", "--rate", "400g", "--object", "140GB", "--groups", "4"],
    ["plan", "cost", "--tors", "16", "--rate", "100g"],
    ["plan", "trees", "--topology", "bcube:4,2", "--source", "0", "--receivers", "2,4,9"],
    ["plan", "label", "--topology", "fat-tree:8,3", "--source", "0", "--receivers", "5,60,90"],
    ["plan", "shufflecast", "--p", "2", "--tors", "15"],
    ["simulate", SCENARIO],
]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_and_rows_fit_the_terminal(short_folder: Path, columns: int) -> None:
    cluster = Cluster(short_folder, ["gpu-0000", "gpu-0001"], "")
    try:
        local = [[*command, "--socket", cluster.socket("gpu-0000")] for command in AT_AN_AGENT]
        for command in local + ALONE:
            lines = shown(columns, *command)
            # A hash is one word.
            wide = [line for line in lines if len(line) > columns and not line.startswith("BLAKE3 ")]
            assert (wide, is_folded(lines)) == ([], False), "\n".join([str(command), *lines])
        socket = cluster.socket("gpu-0001")
        waits = shown(columns, "subscribe", "policy", "--once", "--into", str(short_folder / "into"), "--socket", socket)
        assert len([line for line in waits if "policy version 1" in line]) == 1, waits
    finally:
        cluster.end()
