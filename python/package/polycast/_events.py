"""Events of a running transfer, and the report at its end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from polycast.errors import PolycastError, TimedOut


@dataclass(frozen=True)
class Receiver:
    """One receiver in a report."""

    name: str
    verified: bool
    seconds: float = 0.0
    patched_bytes: int = 0
    spared_bytes: int = 0
    fabric: str = ""
    slow: bool = False
    rate_bps: float = 0.0
    reason: str | None = None
    error: str | None = None
    kind: str | None = None


@dataclass(frozen=True)
class Report:
    """Report of a transfer: the document of `polycast send --json` and `polycast cast --json`, which `document` holds in full."""

    bytes: int
    seconds: float
    goodput_bps: float
    fabric: str
    sent_bytes: int
    patched_bytes: int
    sealed: bool
    receivers: tuple[Receiver, ...]
    document: dict[str, Any] = field(repr=False, compare=False)

    @property
    def complete(self) -> bool:
        """True if every receiver has verified every byte."""
        return all(receiver.verified for receiver in self.receivers)

    @staticmethod
    def of(document: dict[str, Any]) -> Report:
        """Builds a report from its JSON document. Fields that this version does not know are in `document` only."""
        known = Receiver.__dataclass_fields__
        receivers = tuple(
            Receiver(**{name: value for name, value in one.items() if name in known}) for one in document["receivers"]
        )
        return Report(
            bytes=document["bytes"],
            seconds=document["seconds"],
            goodput_bps=document["goodput_bps"],
            fabric=document["fabric"],
            sent_bytes=document["sent_bytes"],
            patched_bytes=document["patched_bytes"],
            sealed=document.get("sealed", False),
            receivers=receivers,
            document=document,
        )


@dataclass(frozen=True)
class Waiting:
    """The transfer is waiting for a path."""

    before: int | None = None
    estimate_ms: int | None = None


@dataclass(frozen=True)
class Granted:
    """The transfer has a path, to these receivers."""

    fabric: str
    receivers: tuple[str, ...]


@dataclass(frozen=True)
class Progress:
    """Progress of the transfer: verified bytes by receiver name."""

    bytes: int
    seconds: float
    received: dict[str, int]


@dataclass(frozen=True)
class Finished:
    """The transfer has ended."""

    report: Report


Event: TypeAlias = Waiting | Granted | Progress | Finished


def event_of(text: str) -> Event:
    """Builds an event from the extension's JSON."""
    document = json.loads(text)
    match document.pop("event"):
        case "waiting":
            return Waiting(**document)
        case "granted":
            return Granted(document["fabric"], tuple(document["receivers"]))
        case "progress":
            received = {one["name"]: one["bytes"] for one in document["receivers"]}
            return Progress(document["bytes"], document["seconds"], received)
        case "finished":
            return Finished(Report.of(document["report"]))
        case other:
            raise AssertionError(f"the extension gives an event '{other}'")


# Begin of the message of a wait that was too short, in src/connection.rs. The agent's own time limits have other messages.
_NOTHING_YET = "nothing has come in this time"


def nothing_yet(error: PolycastError) -> bool:
    """Returns true if a wait was too short, which ends nothing."""
    return isinstance(error, TimedOut) and str(error).startswith(_NOTHING_YET)


class _Source(Protocol):
    def next(self, timeout: float | None) -> str | None: ...


class Ending:
    """The error that has ended a stream of events. After one, the stream itself says only that it has ended, as it does after the last
    event."""

    def __init__(self) -> None:
        self._error: PolycastError | None = None

    def next(self, events: _Source, timeout: float | None) -> str | None:
        """Returns the next event, or `None` after the last. Raises the error that has ended the events, each time."""
        if self._error is not None:
            raise self._error
        try:
            return events.next(timeout)
        except PolycastError as error:
            if not nothing_yet(error):
                self._error = error
            raise
