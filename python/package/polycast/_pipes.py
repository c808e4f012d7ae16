"""Pipes by which programs end with this process, also where that is killed: no other process has their writing ends."""

from __future__ import annotations

import os
import threading

# This process's ends.
_OUTPUTS: set[int] = set()
# No process is forked while a program starts or a pipe is made or closed: it would have ends of pipes that it does not know of, and keep the
# program alive, or the reader of what the program says waiting.
STARTS = threading.RLock()


def make() -> tuple[int, int]:
    """A pipe: the end that a program holds, and this process's."""
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
