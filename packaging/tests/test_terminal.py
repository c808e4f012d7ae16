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

from conftest import HANG_S, program

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
