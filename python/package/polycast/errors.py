"""What can go wrong, a class for each kind of refusal. Every text says what was wrong and what to do."""

from __future__ import annotations


class PolycastError(Exception):
    """What all of them are. `kind` is the agent's word for it, as in docs/api.md."""

    kind = "internal"


class NotRegistered(PolycastError):
    """The agent does not know this process any more; a new `Agent` registers it again."""


class ObjectUnknown(PolycastError):
    """There is no such object here."""


class ObjectTaken(PolycastError):
    """There is an object of this number already."""


class ObjectBusy(PolycastError):
    """The object is being sent or received."""


class ReceiverUnknown(PolycastError):
    """The manager knows no agent of this name."""


class ReceiverTwice(PolycastError):
    """A receiver is named twice, or is the source itself."""


class NoReceivers(PolycastError):
    """There is no one to send to."""


class RequestUnknown(PolycastError):
    """The object is not being sent."""


class ManagerUnreachable(PolycastError):
    """The agent does not reach its manager."""


class Denied(PolycastError):
    """The manager lends no path."""


class PathError(PolycastError):
    """The file or folder cannot be read."""


class StoreFull(PolycastError):
    """There is no room: in the agent's store, or on the disk where the object was to go."""


class TimedOut(PolycastError, TimeoutError):
    """It took longer than was allowed."""


class TransferFailed(PolycastError):
    """The transfer failed as a whole, or a receiver has not got everything: `report`, where there is one, names it."""

    report: object | None = None


class Cancelled(PolycastError):
    """It was cancelled."""


class Full(PolycastError):
    """A limit of the agent is reached."""


class VersionMismatch(PolycastError):
    """The agent and this package are of different versions."""


class Invalid(PolycastError, ValueError):
    """The request makes no sense."""


class AgentNotRunning(PolycastError, ConnectionError):
    """No agent listens on the socket."""


class SocketPermission(PolycastError, PermissionError):
    """The agent's socket does not let this user in."""


class AgentLost(PolycastError, ConnectionError):
    """The agent went away during the call."""


class Closed(PolycastError):
    """The `Agent` was closed."""


class NotContiguous(PolycastError, BufferError):
    """The buffer's bytes do not lie one behind the other."""


class WeightsMismatch(PolycastError, ValueError):
    """Weights are not those of the module that is to have them: a name or a shape is another one."""


class TopicTaken(PolycastError):
    """The topic belongs to another application."""


class OriginFailed(PolycastError):
    """The bytes of an object could not be got, or are not those that its key names."""


class NotAllowed(PolycastError):
    """The manager's policy does not allow it."""


class UnsupportedType(PolycastError, TypeError):
    """Values of this type cannot be sent."""


class ProgramMissing(PolycastError, FileNotFoundError):
    """The program `polycast` is not there."""


class RendezvousLost(PolycastError, ConnectionError):
    """The place where the processes of a job meet does not answer any more."""


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


# What is said behind the agent's words.
_ADVICE: dict[type[PolycastError], str] = {
    AgentNotRunning: ", or use Agent.embedded(), which starts one for this process",
    VersionMismatch: " (pip install a polycast of the agent's version)",
}


def of_kind(kind: str, message: str) -> PolycastError:
    """The exception of a kind; one that this version does not know is a plain `PolycastError`."""
    made = _KINDS.get(kind, PolycastError)
    advice = _ADVICE.get(made, "")
    # What another process has said has it already.
    error = made(message if message.endswith(advice) else message + advice)
    error.kind = kind
    return error


def kind_of(error: BaseException) -> str:
    """The kind of an exception, by which `of_kind` makes one like it."""
    if isinstance(error, PolycastError) and error.kind != PolycastError.kind:
        return error.kind
    return next((kind for kind, made in _KINDS.items() if type(error) is made), PolycastError.kind)
