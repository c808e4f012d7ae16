"""Client of this host's agent: objects, transfers, and embedded agents that end with the script."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from polycast import _native
from polycast._events import Ending, Event, Finished, Report, event_of
from polycast._program import StrPath, complete, one_or_more, path_text, place, run_any, run_json
from polycast._progress import bar_shown, shown
from polycast._renamed import deadline_is_timeout
from polycast.errors import (
    AgentLost,
    AgentNotRunning,
    Closed,
    Invalid,
    NotContiguous,
    ObjectBusy,
    ObjectUnknown,
    PolycastError,
    TimedOut,
    TransferFailed,
    UnsupportedType,
    of_kind,
)

if TYPE_CHECKING:
    import uuid
    from pathlib import Path

    import numpy
    from typing_extensions import Buffer

    from polycast._embedded import Embedded

# Prefix of the system's name for memory that `add_buffer` has created. The object's number follows it.
_MEMORY = "/memfd:polycast-"
# Type codes of buffers, as in `struct` and PEP 3118, that denote pointers.
_POINTERS = frozenset("OPz&")
# Path by which an agent refers to such memory.
_DESCRIPTOR = re.compile(r"/proc/\d+/fd/\d+")
# Largest number of bytes that are copied or sent to the agent at once.
PIECE_MAX = 1 << 20
# Time that an embedded agent may take to join its manager. After it the agent is returned all the same.
JOINS_WITHIN_S = 10.0
# Interval between polls for an object by name: the agent reports numbers only.
LOOK_S = 0.1
# Reason that a cancelled subscription gives.
_CANCELLED = "it was cancelled"
SLOW = Literal["catch-up", "wait", "drop"]


@dataclass(frozen=True)
class Object:
    """An object on this host. `path` is the file that holds its bytes or, if `form` is `directory`, the folder itself."""

    app: str
    data_id: int
    name: str
    kind: str
    state: str
    length: int
    verified_bytes: int
    root: str
    path: str
    form: str
    mode: int
    # Socket of the agent that has the object.
    socket: str = field(default="", repr=False, compare=False)

    @staticmethod
    def of(text: str, socket: str) -> Object:
        """Builds an object from the agent's JSON."""
        return Object(**json.loads(text), socket=socket)

    def map(self, writable_copy: bool = False) -> memoryview:
        """Maps the bytes without copying them. With `writable_copy` the view may be written to: only pages that are written take memory,
        and other processes do not see the changes. A view stays valid even if the object is deleted. Raises `Invalid` unless `form` is
        `bytes`."""
        self._refuse_what_has_no_file()
        with opened(self.path, self.data_id) as file:
            return self._mapped(file, writable_copy)

    def _mapped(self, file: BinaryIO, writable_copy: bool = False) -> memoryview:
        """Maps the bytes of an open file."""
        if self.length == 0:
            return memoryview(b"")
        import mmap

        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable_copy else 0)
        flags = mmap.MAP_PRIVATE if writable_copy else mmap.MAP_SHARED
        return memoryview(mmap.mmap(file.fileno(), self.length, flags=flags, prot=protection))

    def numpy(self, dtype: Any = "u1", shape: int | tuple[int, ...] = -1) -> numpy.ndarray[Any, Any]:
        """Returns the bytes as a read-only array, without copying them."""
        import numpy

        return numpy.frombuffer(self.map(), dtype=dtype).reshape(shape)

    def open(self) -> BinaryIO:
        """Opens the bytes as a read-only file; a received folder is a tar stream. The file stays readable even if the object is deleted."""
        self._refuse_what_has_no_file()
        return opened(self.path, self.data_id)

    def _refuse_what_has_no_file(self) -> None:
        """Raises `Invalid` unless `path` is a file with the bytes."""
        if self.state == "receiving":
            raise Invalid(f"{self.name} is still being received: read({self.data_id}) waits until it is here")
        if not self.path:
            # The agent is another user's, or the path is no text.
            copies = f"`polycast get {called(self.app, self.data_id)} --socket={self.socket} --out PATH`"
            raise Invalid(f"this user gets no path to {self.name} from its agent: {copies} copies it")
        if self.form != "bytes":
            raise Invalid(f"{self.name} is a folder at {self.path}: open the files in it")

    def save(self, path: StrPath, *, force: bool = False) -> None:
        """Copies a file to `path`, with its sender's permissions less those that the umask withholds. The copy appears there only once it
        is complete. An existing file is kept and raises `PathError`, unless `force` replaces it. Use `extract` for a folder."""
        import shutil

        if self.kind != "file":
            raise Invalid(f"{self.name} is a {self.kind} of files: extract(PATH) puts them there")
        target = os.path.abspath(path_text(path))
        if os.path.lexists(target) and not force:
            raise of_kind("path", f"{target} is there already: say force=True to replace it")
        try:
            with self.open() as source, created(_beside(target), self.mode) as part:
                try:
                    # The agent's copy must not change, so the two share no bytes.
                    shutil.copyfileobj(source, part, PIECE_MAX)
                    part.flush()
                    os.fsync(part.fileno())
                    os.replace(part.name, target)
                except BaseException:
                    os.unlink(part.name)
                    raise
        except OSError as error:
            if isinstance(error, PolycastError):
                raise
            kind = "store-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "path"
            raise of_kind(kind, f"cannot write {target}: {error.strerror}") from None

    def extract(self, path: StrPath, *, force: bool = False) -> None:
        """Writes a folder to `path`, as `polycast get --out` does. It appears there only once it is complete. An existing one is kept and
        raises `PathError`, unless `force` replaces it."""
        if self.kind == "file":
            raise Invalid(f"{self.name} is a file: save(PATH) copies it there")
        run_json(["get", called(self.app, self.data_id), f"--socket={self.socket}", *place(None, path_text(path), False, force)])


def called(app: str, data_id: int) -> str:
    """Returns an object's identifier as the program takes it: the number alone for the default application."""
    import uuid

    return f"{uuid.UUID(app)}/{data_id}" if int(app, 16) else str(data_id)


def unnamed(name: str, timeout: float | None) -> PolycastError:
    """Builds the exception for a name that no object has."""
    if timeout is None:
        return of_kind("object-unknown", f"there is no object called {name} here: timeout= waits for one that is sent")
    return of_kind("timed-out", f"no object called {name} came here within {timeout:g} s")


def until(timeout: float | None) -> float | None:
    """Returns the end of a wait that begins now, or `None` without a limit."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise UnsupportedType(f"timeout={timeout!r} has the type {type(timeout).__name__}: give seconds, or None")
    if not 0 <= timeout < math.inf:
        raise Invalid(f"{timeout} is no time in seconds: give None to wait without a limit")
    return time.monotonic() + timeout


def opened(path: str, data_id: int) -> BinaryIO:
    """Opens the file of an object, and raises `ObjectUnknown` if it no longer holds that object. Memory of a process is addressed by the
    number of its descriptor, which may by now belong to another object or to any file."""
    if not path:
        raise Invalid(f"this user gets no path to object {data_id} from its agent: `polycast get` copies it")
    gone = ObjectUnknown(f"object {data_id} was deleted meanwhile: read it again, or take the version after it")
    is_descriptor = _DESCRIPTOR.fullmatch(path) is not None

    def is_it(there: str) -> bool:
        return os.readlink(there).split()[0] == f"{_MEMORY}{data_id}"

    try:
        # Opening another file could block without end.
        if is_descriptor and not is_it(path):
            raise gone
        file = open(path, "rb")
    except FileNotFoundError:
        raise gone from None
    if is_descriptor and not is_it(f"/proc/self/fd/{file.fileno()}"):
        file.close()
        raise gone
    return file


def _beside(path: str) -> str:
    """Returns a new name in the folder of a path, for a file that is renamed to it."""
    import uuid

    return os.path.join(os.path.dirname(path), f".polycast-{uuid.uuid4().hex}")


def created(path: str, mode: int) -> BinaryIO:
    """Creates a file with the permissions that its sender gave it (0: the usual ones). The kernel takes away those that this process's
    umask or the folder's ACL withholds: the sender does not decide for this host."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, mode & 0o777 or 0o666)

    return open(path, "xb", opener=opener)


@dataclass(frozen=True)
class Part:
    """Verified bytes of an object, as pairs of offset and length. `path` is the file that holds them at these offsets; its other bytes are
    not valid yet. Open it once: it stays the same file when it is renamed."""

    path: str
    length: int
    verified: tuple[tuple[int, int], ...]
    complete: bool


class Watch(Iterator[Part]):
    """Verified bytes of an object as they arrive, each reported once. The iteration ends after the last of them."""

    def __init__(self, events: _native.Watching) -> None:
        self._events = events
        self._ending = Ending()

    def __next__(self) -> Part:
        part = self.next()
        if part is None:
            raise StopIteration
        return part

    def next(self, timeout: float | None = None) -> Part | None:
        """Returns the next verified bytes, or `None` once all requested bytes have been reported. Raises `TimedOut` if none arrive within
        `timeout` seconds. Another error ends the calls, and is raised by each further one."""
        text = self._ending.next(self._events, timeout)
        if text is None:
            return None
        document = json.loads(text)
        verified = tuple((at, length) for at, length in document["verified"])
        return Part(document["path"], document["length"], verified, document["complete"])

    def cancel(self) -> None:
        """Stops watching."""
        self._events.cancel()


@dataclass(frozen=True)
class SetFile:
    """A file of a set, which is an object of its own with this number. `here` is true once every byte has arrived; `path` is then its
    location."""

    name: str
    data_id: int
    length: int
    root: str
    mode: int
    here: bool
    path: str


class Files(Iterator[SetFile]):
    """Files of a set that have bytes, each as soon as it has arrived and is verified. `names` grows as the agent reports them: it is
    complete once the last file was returned, and may be incomplete before."""

    def __init__(self, events: _native.Files) -> None:
        self._events = events
        self._ending = Ending()
        self._ready: list[SetFile] = []
        self._known: set[str] = set()
        self.names: list[str] = []

    def __next__(self) -> SetFile:
        file = self.next()
        if file is None:
            raise StopIteration
        return file

    def next(self, timeout: float | None = None) -> SetFile | None:
        """Returns the next file, or `None` after the last. Raises `TimedOut` if none arrives within `timeout` seconds. Another error ends
        the files, and is raised by each further call."""
        ends = until(timeout)
        while not self._ready:
            text = self._ending.next(self._events, None if ends is None else max(0.0, ends - time.monotonic()))
            if text is None:
                return None
            for entry in json.loads(text)["files"]:
                name = os.fsdecode(bytes.fromhex(entry["name"]))
                file = SetFile(**{**entry, "name": name})
                if name not in self._known:
                    self._known.add(name)
                    self.names.append(name)
                if file.here:
                    self._ready.append(file)
        return self._ready.pop(0)

    def cancel(self) -> None:
        """Ends the iteration."""
        self._events.cancel()


@dataclass(frozen=True)
class Status:
    """Status of the agent, and the agents that its manager knows."""

    name: str
    control_address: str
    manager: str
    manager_connected: bool
    manager_error: str
    store: str
    store_used_bytes: int
    peers: tuple[str, ...]
    lost: tuple[str, ...]


class Transfer(Iterator[Event]):
    """A transfer: iterate over its events, or wait for its end with `result`. Dropping this object before the end cancels the transfer,
    unless it is detached."""

    def __init__(self, sending: _native.Sending) -> None:
        self._sending = sending
        self._ending = Ending()
        self._report: Report | None = None

    def __next__(self) -> Event:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def next(self, timeout: float | None = None) -> Event | None:
        """Returns the next event, or `None` after the last. Raises `TimedOut` if none arrives within `timeout` seconds. Another error ends
        the events, and is raised by each further call."""
        text = self._ending.next(self._sending, timeout)
        event = None if text is None else event_of(text)
        if isinstance(event, Finished):
            self._report = event.report
        return event

    def result(self, timeout: float | None = None, *, progress: bool = False) -> Report:
        """Waits for the end and returns the report. Raises `TransferFailed` if a receiver lacks bytes; the exception's `report` lists all
        receivers. Raises `TimedOut` after `timeout` seconds. `progress` shows on standard error how far the slowest receiver is: a tqdm
        bar, or a line for every tenth if tqdm is not installed."""
        ends = until(timeout)
        with shown(progress) as show:
            while self._report is None:
                left = None if ends is None else max(0.0, ends - time.monotonic())
                event = self.next(left)
                if event is None:
                    break
                show(event)
        if self._report is None:
            raise TransferFailed("the transfer was cancelled")
        return complete(self._report)

    def cancel(self) -> None:
        """Ends the transfer, unless it is detached or other callers watch it. Receivers keep the bytes that they have verified."""
        self._sending.cancel()


@dataclass(frozen=True)
class Published:
    """Result of publishing a version: the agents that have it, and those that lack it, each with the reason
    in one sentence; `kinds` has the kind of each of these failures, as the errors of this package have it."""

    version: int
    have: tuple[str, ...]
    missing: dict[str, str]
    sent_bytes: int = 0
    spared_bytes: int = 0
    coded_bytes: int = 0
    kinds: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """A version of a topic. A committed version has reached this host and every subscriber that is alive and able. `object` is None while
    the version is only announced."""

    version: int
    committed: bool
    object: Object | None


class Versions(Iterator[Version]):
    """Committed versions of a topic from the latest one on, each once it has arrived here. Dropping this object ends the subscription."""

    def __init__(self, events: _native.Versions, staged: bool, topic: str, socket: str) -> None:
        self._events, self._staged, self._topic, self._socket = events, staged, topic, socket
        self._closed = ""

    def __next__(self) -> Version:
        version = None if self._closed == _CANCELLED else self.next()
        if version is None:
            raise StopIteration
        return version

    def next(self, timeout: float | None = None) -> Version | None:
        """Returns the next version, or `None` if the subscription is cancelled during the call. Raises `TimedOut` if none arrives within
        `timeout` seconds, and `Closed` if the subscription had ended before."""
        ends = until(timeout)
        while True:
            if self._closed:
                raise Closed(f"the subscription to '{self._topic}' is over, {self._closed}: subscribe again")
            left = None if ends is None else max(0.0, ends - time.monotonic())
            text = self._events.next(left)
            if text is None:
                if self._closed in ("", _CANCELLED):
                    self._closed = self._closed or "the agent ended"
                    return None
                continue
            document = json.loads(text)
            if document["committed"] or self._staged:
                found = document["object"]
                there = Object(**found, socket=self._socket) if found else None
                return Version(document["version"], document["committed"], there)

    def cancel(self) -> None:
        """Ends the subscription."""
        self._end(_CANCELLED)

    def _end(self, why: str) -> None:
        self._closed = self._closed or why
        self._events.cancel()


class Agent:
    """The agent on this host, with this process registered at it.

    `socket` is the agent's socket (default: POLYCAST_SOCKET, or the user's own agent). `app` is the application: all its processes give the
    same UUID, and its objects have numbers of their own.
    """

    def __init__(self, socket: StrPath | None = None, app: uuid.UUID | str | None = None) -> None:
        where = path_text(socket) if socket is not None else os.environ.get("POLYCAST_SOCKET")
        self._app = _application(app)
        self.socket = where or os.fspath(_native.default_socket())
        """Socket of the agent. Other processes of this host find the agent by it: `POLYCAST_SOCKET`."""
        self._native: _native.Connection | None = _native.Connection(self.socket, self._app)
        # Objects created from buffers: the process that created each, and the descriptor of its memory.
        self._memory: dict[int, tuple[int, int]] = {}
        self._names: dict[int, str] = {}
        self._published: dict[str, int] = {}
        # Superseded versions that a call is still reading, to be deleted later.
        self._superseded: list[int] = []
        self._subscriptions: weakref.WeakSet[Versions] = weakref.WeakSet()
        self._embedded: Embedded | None = None

    @classmethod
    def embedded(
        cls,
        manager: str | None = None,
        *,
        name: str | None = None,
        listen: str | None = None,
        interface: str | None = None,
        key_file: StrPath | None = None,
        store: StrPath | None = None,
        config: StrPath | None = None,
        app: uuid.UUID | str | None = None,
    ) -> Agent:
        """Starts an agent that ends with this process. The host needs no daemon.

        Without `manager`, a manager is started too, on this machine's loopback: other processes on this machine join with
        `Agent.embedded(manager=first.manager)`. With `listen`, an address and port of this machine such as `10.0.0.1:7400` (port 0: any),
        other machines can join too: they give this manager and their own interface. All agents and the manager then need the cluster's key.
        `config` is a settings file for the agent; arguments of this call override it. Returns once the agent has joined, or after ten
        seconds if the manager does not answer. Raises `AgentNotRunning` if the agent or the manager does not start.
        """
        from polycast._embedded import Embedded

        embedded = Embedded(manager, name=name, listen=listen, interface=interface, key_file=key_file, store=store, config=config)
        try:
            agent = cls(embedded.socket, app)
        except BaseException:
            embedded.close()
            raise
        agent._embedded = embedded
        # Once it has joined, other hosts can address it. Without its manager it still serves this host.
        until = time.monotonic() + JOINS_WITHIN_S
        while not agent.status().manager_connected and time.monotonic() < until:
            time.sleep(0.01)
        return agent

    @property
    def name(self) -> str:
        """Name of the agent in the cluster."""
        return self._connection.agent_name()

    @property
    def manager(self) -> str:
        """Address of the manager."""
        return self.status().manager

    @property
    def _connection(self) -> _native.Connection:
        if self._native is None:
            raise Closed("the Agent was closed: make another one")
        return self._native

    def add(
        self,
        data_id: int,
        path: StrPath | Sequence[StrPath],
        *,
        name: str = "",
        exclude: str | Sequence[str] = (),
        files: bool = False,
        follow: bool = False,
    ) -> Object:
        """Adds a file, a folder, or several as one folder called `name`, as object `data_id`. Nothing is copied, so the files must not
        change until `delete`. With `files` a folder becomes a set: each of its files is an object of its own, usable before the others have
        arrived, and not sent to hosts that already have it. All files are read once for that. `follow` replaces links in a folder with the
        files and folders that they lead to."""
        paths = path if isinstance(path, Iterable) and not isinstance(path, str | bytes | os.PathLike) else [path]
        texts = [path_text(one) for one in paths]
        left_out = one_or_more("exclude", exclude)
        added = Object.of(self._connection.add(data_id, texts, name, left_out, files, follow), self.socket)
        self._names[data_id] = added.name
        return added

    def put(
        self,
        path: StrPath | Sequence[StrPath],
        name: str | None = None,
        *,
        files: bool = False,
        exclude: str | Sequence[str] = (),
    ) -> Object:
        """Adds like `add`, with a random number, which is `data_id` of the result. Once the object has been sent to other agents, `get`
        finds it there by `name` (default: its name here)."""
        import uuid

        # 53 bits, the longest number that JSON and JavaScript hold.
        return self.add((uuid.uuid4().int >> 75) or 1, path, name=name or "", exclude=exclude, files=files)

    def get(
        self,
        name: str,
        into: StrPath | None = None,
        *,
        out: StrPath | None = None,
        timeout: float | None = None,
        update: bool = False,
        force: bool = False,
        progress: bool = False,
    ) -> Path:
        """Copies the newest object called `name`, a file or a folder, into the folder `into` under that name (default: the working
        directory), or to the path `out`, as `polycast get` does. Returns the path of the copy.

        Waits for an object that is still being received. If there is no object of that name, raises `ObjectUnknown`, or waits `timeout`
        seconds for one and then raises `TimedOut`. An existing path is kept and raises `PathError`; `update` replaces only the differences,
        and `force` all of it. `progress` shows on standard error how much of an object that is being received has arrived.
        """
        ends, where = until(timeout), place(into, out, update, force)
        while (data_id := self._called(name)) is None:
            if ends is None or time.monotonic() >= ends:
                raise unnamed(name, timeout)
            time.sleep(LOOK_S)
        with bar_shown(progress) as bar:
            while (found := self._read_within(data_id, ends, LOOK_S if progress else None)) is None:
                for coming in (one for one in self.list() if one.data_id == data_id):
                    bar(coming.verified_bytes, coming.length)
            bar(found.length, found.length)
        return self._copied(data_id, into, where)

    def _read_within(self, data_id: int, ends: float | None, slice_s: float | None) -> Object | None:
        """Returns the object once it has arrived. Raises `TimedOut` at the time `ends`, and returns `None` after `slice_s` seconds."""
        left = None if ends is None else max(0.0, ends - time.monotonic())
        is_last = slice_s is None or (left is not None and left <= slice_s)
        try:
            return self.read(data_id, left if is_last else slice_s, known_only=True)
        except TimedOut:
            if is_last:
                raise
            return None

    def _called(self, name: str) -> int | None:
        """Returns the number of the newest object called `name` on this host, or `None`."""
        if not isinstance(name, str):
            raise UnsupportedType(f"{name!r} has the type {type(name).__name__}: an object's name is a text; read() takes its number")
        found = [one.data_id for one in self.list() if one.name == name]
        if len(found) <= 1:
            return found[0] if found else None
        # Only the program reports the times of arrival. An object that is still arriving is newer than any that has arrived.
        listed = {one["object"]: one for one in run_any(["ls", f"--socket={self.socket}"])}
        known = [(one, listed[self._id_of(one)]) for one in found if self._id_of(one) in listed]
        if not known:
            return None
        return max(known, key=lambda one: (one[1]["state"] == "receiving", one[1]["since_unix_ms"]))[0]

    def _id_of(self, data_id: int) -> str:
        """Returns the program's identifier of an object of this application."""
        return called(self._app.hex(), data_id)

    def _copied(self, data_id: int, into: StrPath | None, where: Sequence[str]) -> Path:
        import contextlib
        from pathlib import Path

        # `polycast get` creates this folder for a file, but not for a folder. The program reports any problem with it.
        if into is not None:
            with contextlib.suppress(OSError):
                os.mkdir(into)
        return Path(run_json(["get", self._id_of(data_id), f"--socket={self.socket}", *where])["path"])

    def add_buffer(self, data_id: int, buffer: Buffer, *, name: str = "") -> Object:
        """Adds a copy of a buffer's bytes (`bytes`, `memoryview`, a numpy array) as object `data_id`. The copy stays in memory until
        `delete` or `close`. Raises `UnsupportedType` or `NotContiguous` if the buffer cannot be copied."""
        return self.add_parts(data_id, [buffer], name=name)

    def add_parts(self, data_id: int, parts: Iterable[Buffer], *, name: str = "") -> Object:
        """Adds several buffers, one after the other, as one object. Each is requested once the one before it has been written."""

        def write(memory: int) -> None:
            for part in parts:
                view = _bytes_of(part)
                while view.nbytes:
                    view = view[os.write(memory, view) :]

        return self._add_written(data_id, write, name)

    def _add_written(self, data_id: int, write: Callable[[int], None], name: str) -> Object:
        """Adds an object in memory. `write` receives the file to write to."""
        memory = os.memfd_create(f"polycast-{data_id}")
        try:
            write(memory)
            path = f"/proc/{os.getpid()}/fd/{memory}"
            text = self._connection.add(data_id, [path], name or f"object-{data_id}", [], False, False)
            added = Object.of(text, self.socket)
        except BaseException:
            os.close(memory)
            raise
        self._let_go(data_id)
        self._memory[data_id] = (os.getpid(), memory)
        self._names[data_id] = added.name
        return added

    @deadline_is_timeout
    def send(
        self,
        data_id: int,
        to: str | Sequence[str],
        *,
        timeout: float | None = None,
        slow: SLOW = "catch-up",
        detached: bool = False,
    ) -> Transfer:
        """Starts sending an object to the named agents, one or several, or to `"all"` that the manager knows. The transfer ends after
        `timeout` seconds; receivers that have the whole object by then keep it."""
        names = None if to == "all" else one_or_more("to", to)
        called = self._names.get(data_id, f"object-{data_id}")
        return Transfer(self._connection.send(data_id, called, names, timeout, slow, detached))

    def _send_to_the_end(self, data_id: int, to: Sequence[str], timeout: float) -> Report:
        """Sends an object and waits for the report. An interrupted call ends the transfer."""
        transfer = self.send(data_id, to, timeout=timeout)
        try:
            return transfer.result()
        except BaseException:
            # Otherwise the exception would keep the transfer alive for as long as something refers to it.
            transfer.cancel()
            raise

    def read(self, data_id: int, timeout: float | None = None, known_only: bool = False) -> Object:
        """Waits until every byte of an object has arrived and is verified. With `known_only`, an object that is not even on its way raises
        `ObjectUnknown` at once."""
        return self._read(data_id, timeout, known_only, None)

    def _read(self, data_id: int, timeout: float | None, known_only: bool, cancel: _native.Cancel | None) -> Object:
        return Object.of(self._connection.read(data_id, timeout, known_only, cancel), self.socket)

    def _map_only(self, data_id: int, root: str, timeout: float | None) -> memoryview:
        """Maps the object with this number and this root hash (empty: any), and no other. Another object may take its place between the
        agent's answer and the opening of the file. The agent is therefore asked again once the file is open, and must name the same file,
        which keeps its bytes while it is open."""
        path = self._read_only(data_id, root, timeout, False).path
        with opened(path, data_id) as file:
            found = self._read_only(data_id, root, timeout, True)
            with opened(found.path, data_id) as named:
                if not os.path.samestat(os.fstat(file.fileno()), os.fstat(named.fileno())):
                    raise ObjectUnknown(f"object {data_id} was replaced meanwhile: read it again")
            return found._mapped(file)

    def _read_only(self, data_id: int, root: str, timeout: float | None, known_only: bool) -> Object:
        found = self.read(data_id, timeout, known_only)
        if not found.path:
            found._refuse_what_has_no_file()
        if found.form != "bytes" or (root and found.root != root):
            what = f"its root hash is {found.root or 'not known'}" if found.form == "bytes" else "it is a folder"
            raise Invalid(f"object {data_id} is not what was broadcast: {what}, and that of the value is {root or 'not known'}")
        return found

    def fetch(
        self,
        wanted: str | int,
        *,
        timeout: float | None = None,
        fill: Callable[[], Iterable[bytes]] | None = None,
        length: int | None = None,
        name: str = "",
    ) -> Object:
        """Gets an object by its key (`sha256:HEX`, `git:HEX`, or KIND:TEXT) or its number, from any agent that has it. Calls for the same
        object at nearly the same time are served together.

        If no agent has it, exactly one of the callers that gave `fill` is asked for it: its `fill()` yields the bytes in pieces, and all
        other callers get them from there. The bytes are checked against a `sha256:` key. Raises `ValueError` for `fill` with a number.
        """
        events = self._fetching(wanted, fill is not None, timeout)
        return self._fetched(events, wanted, fill, length, name)

    def _fetching(self, wanted: str | int, can_fill: bool, timeout: float | None) -> _native.Fetching:
        key, number = (wanted, 0) if isinstance(wanted, str) else (None, wanted)
        if can_fill and key is None:
            raise ValueError("fill() brings what a key names: fetch it by its key, a text, and not by a number")
        return self._connection.fetch(key, number, can_fill, timeout)

    def _fetched(
        self,
        events: _native.Fetching,
        wanted: str | int,
        fill: Callable[[], Iterable[bytes]] | None = None,
        length: int | None = None,
        name: str = "",
    ) -> Object:
        try:
            while (text := events.next(None)) is not None:
                document = json.loads(text)
                if document["event"] == "object":
                    return Object(**document["object"], socket=self.socket)
                if document["event"] == "fill" and fill is not None and isinstance(wanted, str):
                    self._fill(wanted, fill, length, name)
        except BaseException:
            events.cancel()
            raise
        raise AgentLost("the agent ended before the object was here")

    def _fill(self, key: str, fill: Callable[[], Iterable[bytes]], length: int | None, name: str) -> None:
        filling = self._connection.fill(key, length, name)
        try:
            for piece in fill():
                view = memoryview(piece).cast("B")
                pieces = (view[at : at + PIECE_MAX] for at in range(0, view.nbytes, PIECE_MAX))
                if not all(filling.write(bytes(one)) for one in pieces):
                    break
        except BaseException as error:
            try:
                filling.finish(said_by(error))
            except PolycastError:
                # The agent reports that the object was not filled, which is correct.
                pass
            raise
        filling.finish(None)

    @deadline_is_timeout
    def publish(
        self, topic: str, data_id: int, *, version: int | None = None, timeout: float | None = None
    ) -> Published:
        """Publishes an object of this host as a new version of a topic. Returns once the version is committed: every subscriber that is
        alive and able has it. Version numbers only rise; the default is one above the last that this agent knows."""
        return self._publish(topic, data_id, version, timeout, None)

    def _publish(
        self, topic: str, data_id: int, version: int | None, timeout: float | None, cancel: _native.Cancel | None
    ) -> Published:
        document = json.loads(self._connection.publish(topic, version, data_id, timeout, cancel))
        return Published(
            document["version"],
            tuple(document["have"]),
            document["missing"],
            document["sent_bytes"],
            document["spared_bytes"],
            document["coded_bytes"],
            document["kinds"],
        )

    def subscribe(self, topic: str, *, staged: bool = False) -> Versions:
        """Subscribes to a topic and returns its versions, from the latest one on. With `staged`, versions that are about to arrive are
        reported too."""
        versions = Versions(self._connection.subscribe(topic), staged, topic, self.socket)
        self._subscriptions.add(versions)
        return versions

    def watch(
        self, data_id: int, ranges: Iterable[tuple[int, int]] = (), *, timeout: float | None = None
    ) -> Watch:
        """Watches the verified bytes of an object as they arrive: all of them, or those in `ranges`, pairs of offset and length. The object
        need not be on its way yet. `timeout` is for the whole watch, in seconds."""
        return Watch(self._connection.watch(data_id, list(ranges), timeout))

    def files(self, data_id: int, timeout: float | None = None) -> Files:
        """Returns the files of a set, each as soon as it has arrived. The set need not be on its way yet."""
        return Files(self._connection.files(data_id, timeout))

    def delete(self, data_id: int) -> None:
        """Deletes an object here. Received bytes are deleted; a file or folder that was added by its path stays in place."""
        try:
            self._connection.delete(data_id)
        except ObjectUnknown:
            # Another process has deleted it, and its memory is still this process's.
            self._let_go(data_id)
            raise
        self._let_go(data_id)

    def remove(self, data_id: int, at: str | Sequence[str] = "all") -> dict[str, str]:
        """Removes an object at the named agents, or at `"all"` including this one. Returns the agents that still have it, each with the
        reason."""
        names = None if at == "all" else one_or_more("at", at)
        left = dict(self._connection.remove(data_id, names))
        if (names is None or self.name in names) and self.name not in left:
            self._let_go(data_id)
        return left

    def withdraw(self, data_id: int) -> None:
        """Ends the transfers of an object."""
        self._connection.withdraw(data_id)

    def list(self, all_applications: bool = False) -> list[Object]:
        """Lists this application's objects on this host, or with `all_applications` those of all."""
        return [Object.of(text, self.socket) for text in self._connection.objects(all_applications)]

    def status(self) -> Status:
        """Returns the status of the agent, its manager and its peers."""
        document: Mapping[str, Any] = json.loads(self._connection.status())
        lists = {name: tuple(document[name]) for name in ("peers", "lost")}
        return Status(**{**document, **lists})

    def close(self) -> None:
        """Ends the registration and an embedded agent, and deletes the buffers that this process has added."""
        native, self._native = self._native, None
        for versions in list(self._subscriptions):
            versions._end("its Agent was closed")
        try:
            if native is not None:
                self._delete_own(native)
                native.close()
        finally:
            for data_id in list(self._memory):
                self._let_go(data_id)
            if self._embedded is not None:
                self._embedded.close()
                self._embedded = None

    def _delete_own(self, native: _native.Connection) -> None:
        """Deletes the objects that this process has created from buffers. A forked process also has the entries of its parent, and skips
        them."""
        process = os.getpid()
        for data_id, (owner, _) in list(self._memory.items()):
            if owner != process:
                continue
            try:
                native.delete(data_id)
            except (AgentLost, AgentNotRunning):
                return
            except PolycastError:
                # It is being sent, or has already been deleted.
                continue

    def _forget(self, data_id: int) -> None:
        """Deletes an object that is no longer used here, or tries again later if a call is still reading it. Another process of this
        application may have deleted it first. Views stay valid. If the agent has ended, its error is raised, and the memory is freed."""
        kept = []
        wanted = list(dict.fromkeys([*self._superseded, data_id]))
        for one in wanted:
            try:
                self.delete(one)
            except ObjectUnknown:
                pass
            except ObjectBusy:
                kept.append(one)
            except (AgentLost, AgentNotRunning):
                for each in wanted:
                    self._let_go(each)
                raise
        self._superseded = kept

    def _forget_within(self, data_id: int, patience_s: float) -> None:
        """Deletes an object whose transfer has just been cancelled. Errors of the agent are dropped, so that they do not replace the
        original one."""
        until_s = time.monotonic() + patience_s
        try:
            self._forget(data_id)
            while data_id in self._superseded and time.monotonic() < until_s:
                time.sleep(0.02)
                self._forget(data_id)
        except PolycastError:
            self._let_go(data_id)

    def _let_go(self, data_id: int) -> None:
        """Forgets an object that is not at the agent any more, and frees its memory."""
        self._names.pop(data_id, None)
        made = self._memory.pop(data_id, None)
        if made is not None:
            os.close(made[1])

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _application(app: uuid.UUID | str | None) -> bytes:
    """Returns an application's UUID as the agent takes it."""
    import uuid

    if app is None:
        return bytes(16)
    if not isinstance(app, uuid.UUID | str):
        raise UnsupportedType(f"app={app!r} has the type {type(app).__name__}: give a uuid.UUID, or its text")
    try:
        return app.bytes if isinstance(app, uuid.UUID) else uuid.UUID(app).bytes
    except ValueError:
        raise Invalid(f"app={app!r} is no UUID: uuid.uuid5(uuid.NAMESPACE_DNS, 'a name of yours') makes one") from None


def said_by(error: BaseException) -> str:
    """Returns the text of an exception, in a form that can be sent."""
    try:
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:
        said = type(error).__name__
    # File names may contain bytes that are not text.
    return said.encode("utf-8", "backslashreplace").decode()


def _bytes_of(buffer: Buffer) -> memoryview:
    """Views a buffer's bytes in order, without copying them."""
    try:
        view = memoryview(buffer)
    except TypeError:
        raise UnsupportedType(
            f"a {type(buffer).__name__} has no bytes to send: give bytes, a memoryview or a numpy array"
        ) from None
    except ValueError as error:
        # numpy's dates and small floats have bytes, but no type code.
        raise UnsupportedType(
            f"the bytes of a {type(buffer).__name__} cannot be taken ({error}): give array.view('u1')"
        ) from None
    # Text between two colons is the name of a field.
    if _POINTERS.intersection(re.sub(":[^:]*:", "", view.format)):
        raise UnsupportedType(
            f"the {type(buffer).__name__} has places in this process's memory, which mean nothing elsewhere: give an array of numbers"
        )
    if not view.c_contiguous:
        raise NotContiguous("the buffer's bytes do not lie one behind the other: send numpy.ascontiguousarray(array)")
    if view.nbytes == 0:
        return memoryview(b"")
    if view.ndim == view.itemsize == 1:
        # Memory of C is not marked as native and cannot be cast.
        return view
    return view.cast("B")
