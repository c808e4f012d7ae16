"""Exceptions of the package, a class for each kind of error. Every message states what was wrong and what to do."""

from __future__ import annotations


class PolycastError(Exception):
    """Base class of all exceptions of the package. `kind` is the agent's word for the error, as in docs/api.md."""

    kind = "internal"


class NotRegistered(PolycastError):
    """The agent no longer knows this process. A new `Agent` registers it again."""


class ObjectUnknown(PolycastError):
    """The object does not exist on this host."""


class ObjectTaken(PolycastError):
    """An object with this number already exists."""


class ObjectBusy(PolycastError):
    """The object is being sent or received."""


class ReceiverUnknown(PolycastError):
    """The manager knows no agent of this name."""


class ReceiverTwice(PolycastError):
    """A receiver is named twice, or is the source itself."""


class NoReceivers(PolycastError):
    """The transfer has no receivers."""


class RequestUnknown(PolycastError):
    """The object is not being sent."""


class ManagerUnreachable(PolycastError):
    """The agent cannot reach its manager."""


class Denied(PolycastError):
    """The manager grants no path."""


class PathError(PolycastError):
    """The file or folder cannot be read or written, or already exists."""


class StoreFull(PolycastError):
    """The agent's store, or the disk that the object was to go to, is full."""


class TimedOut(PolycastError, TimeoutError):
    """The call took longer than allowed."""


class TransferFailed(PolycastError):
    """The transfer failed as a whole, or a receiver lacks bytes: `report`, if there is one, names it."""

    report: object | None = None


class Cancelled(PolycastError):
    """The operation was cancelled."""


class Full(PolycastError):
    """A limit of the agent is reached."""


class VersionMismatch(PolycastError):
    """The agent and this package have different versions."""


class Invalid(PolycastError, ValueError):
    """The request is not valid."""


class AgentNotRunning(PolycastError, ConnectionError):
    """No agent listens on the socket."""


class SocketPermission(PolycastError, PermissionError):
    """The agent's socket does not admit this user."""


class AgentLost(PolycastError, ConnectionError):
    """The agent ended during the call."""


class Closed(PolycastError):
    """The `Agent`, subscription or group was closed, or belongs to another process."""


class NotContiguous(PolycastError, BufferError):
    """The buffer's bytes are not contiguous."""


class WeightsMismatch(PolycastError, ValueError):
    """The weights do not fit the module: a name or a shape differs."""


class TopicTaken(PolycastError):
    """The topic belongs to another application."""


class OriginFailed(PolycastError):
    """The bytes of an object could not be fetched, or do not match its key."""


class NotAllowed(PolycastError):
    """The manager's policy does not allow the request."""


class UnsupportedType(PolycastError, TypeError):
    """Values of this type cannot be sent."""


class ProgramMissing(PolycastError, FileNotFoundError):
    """The program `polycast` was not found."""


class RendezvousLost(PolycastError, ConnectionError):
    """The place where the processes of a job meet no longer answers."""


def _word(name: str) -> str:
    return "".join("-" * (at > 0) + c.lower() if c.isupper() else c for at, c in enumerate(name))


_KINDS: dict[str, type[PolycastError]] = {
    _word(one.__name__): one
    for one in (
        NotRegistered, ObjectUnknown, ObjectTaken, ObjectBusy, ReceiverUnknown, ReceiverTwice, NoReceivers,
        RequestUnknown, ManagerUnreachable, Denied, StoreFull, TimedOut, TransferFailed, Cancelled, Full, Invalid,
        AgentLost, Closed, NotContiguous, UnsupportedType, ProgramMissing, WeightsMismatch, TopicTaken, OriginFailed,
        NotAllowed, SocketPermission, RendezvousLost,
    )
} | {"path": PathError, "version": VersionMismatch, "agent-unreachable": AgentNotRunning}


# Advice that follows the agent's message.
_ADVICE: dict[type[PolycastError], str] = {
    AgentNotRunning: ", or use Agent.embedded(), which starts one for this process",
    VersionMismatch: " (pip install a polycast of the agent's version)",
}


def of_kind(kind: str, message: str) -> PolycastError:
    """Builds the exception of a kind. A kind that this version does not know gives a plain `PolycastError`."""
    made = _KINDS.get(kind, PolycastError)
    advice = _ADVICE.get(made, "")
    # A message from another process already contains the advice.
    error = made(message if message.endswith(advice) else message + advice)
    error.kind = kind
    return error


def kind_of(error: BaseException) -> str:
    """Returns the kind of an exception, from which `of_kind` builds one like it."""
    if isinstance(error, PolycastError) and error.kind != PolycastError.kind:
        return error.kind
    return next((kind for kind, made in _KINDS.items() if type(error) is made), PolycastError.kind)
