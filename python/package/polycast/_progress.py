"""Progress of a transfer on standard error: a tqdm bar, or a line for every tenth if tqdm is not installed."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from polycast._events import Event, Finished, Progress

_TENTHS = 10


@contextlib.contextmanager
def shown(is_wanted: bool) -> Iterator[Callable[[Event], None]]:
    """Yields a function that takes each event of a transfer and shows its progress."""
    with bar_shown(is_wanted) as bar:

        def show(event: Event) -> None:
            if isinstance(event, Progress) and event.received:
                bar(min(event.received.values()), event.bytes)
            elif isinstance(event, Finished) and event.report.complete:
                bar(event.report.bytes, event.report.bytes)

        yield show


@contextlib.contextmanager
def bar_shown(is_wanted: bool) -> Iterator[Bar]:
    """Yields a bar that ends with the block, or one that shows nothing if none was requested."""
    bar: Bar = bar_of_bytes() if is_wanted else lambda done, length, spared=0: None
    try:
        yield bar
    finally:
        bar(None, 0)


class Bar(Protocol):
    """Takes the number of bytes that are done, or `None` at the end, the total, and how many of those that are done did not travel."""

    def __call__(self, done: int | None, length: int, spared: int = 0) -> None: ...


def bar_of_bytes() -> Bar:
    """Returns a bar that appears with its first bytes."""
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return _Lines()
    made: Any = None

    def show(done: int | None, length: int, spared: int = 0) -> None:
        nonlocal made
        if done is None:
            if made is not None:
                made.close()
            return
        if made is None:
            made = tqdm(total=length, initial=spared, unit="B", unit_scale=True, unit_divisor=1024, desc="polycast")
        # What was there before has no rate.
        jump = spared - made.initial
        made.initial, made.n, made.last_print_n = spared, made.n + jump, made.last_print_n + jump
        made.update(done - made.n)

    return show


class _Lines:
    """Lines in place of a bar."""

    def __init__(self) -> None:
        self._tenths = -1

    def __call__(self, done: int | None, length: int, spared: int = 0) -> None:
        if done is None:
            return
        tenths = _TENTHS * done // length if length else _TENTHS
        if tenths > self._tenths:
            self._tenths = tenths
            print(f"polycast: {done:,} of {length:,} bytes, {tenths * 100 // _TENTHS} %", file=sys.stderr, flush=True)
