"""Pipes that end programs together with this process, even if it is killed: no other process holds their write ends."""

from __future__ import annotations

import os
import threading

# Write ends of this process.
_OUTPUTS: set[int] = set()
# No process is forked while a program starts or a pipe is created or closed: the fork would hold pipe ends that it does not know of, and
# keep the program alive or the reader of its output waiting.
STARTS = threading.RLock()


def make() -> tuple[int, int]:
    """Creates a pipe. Returns the end that a program holds, and this process's end."""
    with STARTS:
        held, output = os.pipe()
        _OUTPUTS.add(output)
    return held, output


def close(output: int) -> None:
    """Closes this process's end."""
    with STARTS:
        _OUTPUTS.discard(output)
        os.close(output)


def _after_fork() -> None:
    for output in _OUTPUTS:
        os.close(output)
    _OUTPUTS.clear()
    STARTS.release()


os.register_at_fork(before=STARTS.acquire, after_in_parent=STARTS.release, after_in_child=_after_fork)
