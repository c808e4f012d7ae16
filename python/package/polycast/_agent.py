"""The agent on this host: objects, transfers, and agents that live as long as a script."""

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
from polycast._events import Event, Finished, Report, event_of
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

# What the system calls memory that `add_buffer` has made, before the object's number.
_MEMORY = "/memfd:polycast-"
# Types of a buffer, in the words of Python's `struct` and of PEP 3118, that are pointers.
_POINTERS = frozenset("OPz&")
# Where an agent says that such memory is.
_DESCRIPTOR = re.compile(r"/proc/\d+/fd/\d+")
# The most bytes in one piece of an object that is filled.
PIECE_MAX = 1 << 20
# How long an embedded agent may take to join its manager before it is given back all the same.
JOINS_WITHIN_S = 10.0
# How often it is looked whether an object of a name has come: the agent tells of numbers only.
LOOK_S = 0.1
# Why a subscription is over.
_CANCELLED = "it was cancelled"
SLOW = Literal["catch-up", "wait", "drop"]


@dataclass(frozen=True)
class Object:
    """An object on this host. `path` is a file with its bytes, or, where `form` is `directory`, the folder itself."""

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
    # The agent that has it.
    socket: str = field(default="", repr=False, compare=False)

    @staticmethod
    def of(text: str, socket: str) -> Object:
        """From the JSON that an agent gives."""
        return Object(**json.loads(text), socket=socket)

    def map(self, writable_copy: bool = False) -> memoryview:
        """The bytes, mapped and not copied. A writable copy takes memory for the pages that are written only, and is not
        seen by others. The bytes stay there as long as a view of them, also when the object is deleted meanwhile."""
        if self.form != "bytes":
            raise Invalid(f"{self.name} is a folder at {self.path}: open the files in it")
        with opened(self.path, self.data_id) as file:
            return self._mapped(file, writable_copy)

    def _mapped(self, file: BinaryIO, writable_copy: bool = False) -> memoryview:
        """The bytes, in a file that is open."""
        if self.length == 0:
            return memoryview(b"")
        import mmap

        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable_copy else 0)
        flags = mmap.MAP_PRIVATE if writable_copy else mmap.MAP_SHARED
        return memoryview(mmap.mmap(file.fileno(), self.length, flags=flags, prot=protection))

    def numpy(self, dtype: Any = "u1", shape: int | tuple[int, ...] = -1) -> numpy.ndarray[Any, Any]:
        """The bytes as an array that is read only and has no copy of them."""
        import numpy

        return numpy.frombuffer(self.map(), dtype=dtype).reshape(shape)

    def open(self) -> BinaryIO:
        """The bytes as a file that is read only; those of a received folder are a tar stream. It stays readable when the object is deleted
        meanwhile."""
        if self.form != "bytes":
            raise Invalid(f"{self.name} is a folder at {self.path}: open the files in it")
        return opened(self.path, self.data_id)

    def save(self, path: StrPath, *, force: bool = False) -> None:
        """Copies the bytes of a file to a path. Nothing is there before all of it is, and what is there already stays, unless `force`
        replaces it. A folder is put somewhere by `extract`."""
        import shutil
        import tempfile

        if self.kind != "file":
            raise Invalid(f"{self.name} is a {self.kind} of files: extract(PATH) puts them there")
        target = os.path.abspath(path_text(path))
        if os.path.lexists(target) and not force:
            raise of_kind("path", f"{target} is there already: say force=True to replace it")
        try:
            with self.open() as source, tempfile.NamedTemporaryFile(dir=os.path.dirname(target), delete=False) as part:
                try:
                    # The agent's copy has to stay as it is, so that no byte is shared with it.
                    shutil.copyfileobj(source, part, PIECE_MAX)
                    os.fchmod(part.fileno(), self.mode & 0o777 or 0o644)
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
        """Makes a path the folder that this object is, as `polycast get --out` does. Nothing is there before all of it is, and what is there
        already stays, unless `force` replaces it."""
        if self.kind == "file":
            raise Invalid(f"{self.name} is a file: save(PATH) copies it there")
        run_json(["get", called(self.app, self.data_id), f"--socket={self.socket}", *place(None, path, False, force)])


def called(app: str, data_id: int) -> str:
    """An object as the program calls it: that of the usual application by its number alone."""
    import uuid

    return f"{uuid.UUID(app)}/{data_id}" if int(app, 16) else str(data_id)


def unnamed(name: str, timeout: float | None) -> PolycastError:
    """What is raised where there is no object of a name."""
    if timeout is None:
        return of_kind("object-unknown", f"there is no object called {name} here: timeout= waits for one that is sent")
    return of_kind("timed-out", f"no object called {name} came here within {timeout:g} s")


def until(timeout: float | None) -> float | None:
    """When a wait ends that begins now."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise UnsupportedType(f"timeout={timeout!r} has the type {type(timeout).__name__}: give seconds, or None")
    if not 0 <= timeout < math.inf:
        raise Invalid(f"{timeout} is no time in seconds: give None to wait without a limit")
    return time.monotonic() + timeout


def opened(path: str, data_id: int) -> BinaryIO:
    """The file that has an object, where it still has this one. Memory of a process is named by the number of its descriptor, which may be
    another object's by now, or any file's."""
    gone = ObjectUnknown(f"object {data_id} was deleted meanwhile: read it again, or take the version after it")
    is_descriptor = _DESCRIPTOR.fullmatch(path) is not None

    def is_it(there: str) -> bool:
        return os.readlink(there).split()[0] == f"{_MEMORY}{data_id}"

    try:
        # Opening what it may be now could wait without an end.
        if is_descriptor and not is_it(path):
            raise gone
        file = open(path, "rb")
    except FileNotFoundError:
        raise gone from None
    if is_descriptor and not is_it(f"/proc/self/fd/{file.fileno()}"):
        file.close()
        raise gone
    return file


@dataclass(frozen=True)
class Part:
    """Bytes of an object that are verified: pairs of where they begin and how many they are. `path` is the file that has them at these places;
    its other bytes mean nothing yet. Open it once: it is the same file when it gets another name."""

    path: str
    length: int
    verified: tuple[tuple[int, int], ...]
    complete: bool


class Watch(Iterator[Part]):
    """The verified bytes of an object as they come, each named once; after the last the iteration ends."""

    def __init__(self, events: _native.Watching) -> None:
        self._events = events

    def __next__(self) -> Part:
        part = self.next()
        if part is None:
            raise StopIteration
        return part

    def next(self, timeout: float | None = None) -> Part | None:
        """The next ones, `None` when all that was wanted has been named. Raises `TimedOut` when none come in time."""
        text = self._events.next(timeout)
        if text is None:
            return None
        document = json.loads(text)
        verified = tuple((at, length) for at, length in document["verified"])
        return Part(document["path"], document["length"], verified, document["complete"])

    def cancel(self) -> None:
        """Ends it."""
        self._events.cancel()


@dataclass(frozen=True)
class SetFile:
    """A file of a set: an object of its own with this number. `here` says whether every byte of it is; then `path` is where."""

    name: str
    data_id: int
    length: int
    root: str
    mode: int
    here: bool
    path: str


class Files(Iterator[SetFile]):
    """The files of a set that have bytes, each as soon as it is here and verified. `names` grows as they are told
    of: it has those of all once the last was given, and may have fewer before."""

    def __init__(self, events: _native.Files) -> None:
        self._events = events
        self._ready: list[SetFile] = []
        self._known: set[str] = set()
        self.names: list[str] = []

    def __next__(self) -> SetFile:
        file = self.next()
        if file is None:
            raise StopIteration
        return file

    def next(self, timeout: float | None = None) -> SetFile | None:
        """The next one, `None` after the last. Raises `TimedOut` when none comes in time."""
        ends = until(timeout)
        while not self._ready:
            text = self._events.next(None if ends is None else max(0.0, ends - time.monotonic()))
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
        """Ends it."""
        self._events.cancel()


@dataclass(frozen=True)
class Status:
    """The agent and those whom its manager knows."""

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
    """A transfer: iterate over its events, or wait for its end with `result`. Letting go of it before the end cancels it
    unless it is detached."""

    def __init__(self, sending: _native.Sending) -> None:
        self._sending = sending
        self._report: Report | None = None

    def __next__(self) -> Event:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def next(self, timeout: float | None = None) -> Event | None:
        """The next event, `None` after the last one. Raises `TimedOut` when none comes in time."""
        text = self._sending.next(timeout)
        event = None if text is None else event_of(text)
        if isinstance(event, Finished):
            self._report = event.report
        return event

    def result(self, timeout: float | None = None, *, progress: bool = False) -> Report:
        """Waits for the end. Raises `TransferFailed` where a receiver has not got everything; the exception's `report` has
        the others. `progress` shows on standard error how far the slowest receiver is: a bar of tqdm, or a line now and then where
        that is not installed."""
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
        """Ends the transfer, unless others watch it or it is detached. Receivers keep what they have verified."""
        self._sending.cancel()


@dataclass(frozen=True)
class Published:
    """What a version came to: the agents that have it, and those that have not, with the reason."""

    version: int
    have: tuple[str, ...]
    missing: dict[str, str]
    sent_bytes: int = 0
    spared_bytes: int = 0
    coded_bytes: int = 0


@dataclass(frozen=True)
class Version:
    """A version of a topic. A committed one is here and at all subscribers that live and can; `object` is None where it is
    only known what will come."""

    version: int
    committed: bool
    object: Object | None


class Versions(Iterator[Version]):
    """The committed versions of a topic from the last one on, each once it is here. Letting go of it ends the
    subscription."""

    def __init__(self, events: _native.Versions, staged: bool, topic: str, socket: str) -> None:
        self._events, self._staged, self._topic, self._socket = events, staged, topic, socket
        self._closed = ""

    def __next__(self) -> Version:
        version = None if self._closed == _CANCELLED else self.next()
        if version is None:
            raise StopIteration
        return version

    def next(self, timeout: float | None = None) -> Version | None:
        """The next version; `None` when the subscription is cancelled meanwhile. Raises `TimedOut` when none comes in time,
        and `Closed` when it was over before."""
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
    """The agent on this host, and this process registered at it.

    `socket` is where the agent listens (default: POLYCAST_SOCKET, or the user's own agent); `app` is the application, which all of its processes name:
    their objects are theirs.
    """

    def __init__(self, socket: StrPath | None = None, app: uuid.UUID | str | None = None) -> None:
        where = path_text(socket) if socket is not None else os.environ.get("POLYCAST_SOCKET")
        self._app = _application(app)
        self.socket = where or os.fspath(_native.default_socket())
        """Where the agent listens. Other processes of this host find it there: `POLYCAST_SOCKET`."""
        self._native: _native.Connection | None = _native.Connection(self.socket, self._app)
        # Objects that were made of buffers: the process that did so, and the descriptor of their memory.
        self._memory: dict[int, tuple[int, int]] = {}
        self._names: dict[int, str] = {}
        self._published: dict[str, int] = {}
        # Versions that went while a call was still getting them.
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
        """Starts an agent for this process, which ends with it; no daemon need run on this host.

        Without `manager` a manager is started too, on this machine's loopback: others on this machine join by
        `Agent.embedded(manager=first.manager)`. With `listen`, an address and port of this machine such as `10.0.0.1:7400` (port 0: any), other
        machines join it too. They name this manager and their interface, and all name the cluster's key. `config` is a file with settings for the agent, which what is said here overrides. It returns when the
        agent has joined; where the manager does not answer, after ten seconds.
        """
        from polycast._embedded import Embedded

        embedded = Embedded(manager, name=name, listen=listen, interface=interface, key_file=key_file, store=store, config=config)
        try:
            agent = cls(embedded.socket, app)
        except BaseException:
            embedded.close()
            raise
        agent._embedded = embedded
        # Others can name it from now on. Without its manager it serves this host all the same.
        until = time.monotonic() + JOINS_WITHIN_S
        while not agent.status().manager_connected and time.monotonic() < until:
            time.sleep(0.01)
        return agent

    @property
    def name(self) -> str:
        """The agent's name in the cluster."""
        return self._connection.agent_name()

    @property
    def manager(self) -> str:
        """Where the manager is."""
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
        """Makes a file, a folder, or several as one folder of this name, known as object `data_id`. Nothing is copied: what
        lies there must not change until `delete`. With `files` a folder becomes a set: each file of it is an object of its own, usable before
        the others are there, and not sent where it is already; all are read once for that. With `follow` what links in a folder
        lead to is taken in their place."""
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
        """As `add`, with a number that is drawn: it is `data_id` of the result. Others ask for `name` (default: as it is called here) with
        `get`, once it has been sent to their agents."""
        import uuid

        # No longer than numbers of JSON and JavaScript hold.
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
        """Puts the newest object of this name, a file or a folder, into the folder `into` under that name (default: the working directory),
        or makes it `out`, as `polycast get` does. Gives where it is.

        One that is being received is waited for. What is not even on its way raises `ObjectUnknown`, unless `timeout` says for how many
        seconds it is waited for. What is there already stays, and raises `PathError`; `update` keeps what is equal, and `force` replaces it.
        `progress` shows on standard error how much of one that is being received is here.
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
        """The object, once it is here. Waits until a moment, or `None` comes after a slice of the time."""
        left = None if ends is None else max(0.0, ends - time.monotonic())
        is_last = slice_s is None or (left is not None and left <= slice_s)
        try:
            return self.read(data_id, left if is_last else slice_s, known_only=True)
        except TimedOut:
            if is_last:
                raise
            return None

    def _called(self, name: str) -> int | None:
        """The number of the newest object of a name here."""
        if not isinstance(name, str):
            raise UnsupportedType(f"{name!r} has the type {type(name).__name__}: an object's name is a text; read() takes its number")
        found = [one.data_id for one in self.list() if one.name == name]
        if len(found) <= 1:
            return found[0] if found else None
        # Only the program says since when they are here. One that is coming is newer than any that is.
        listed = {one["object"]: one for one in run_any(["ls", f"--socket={self.socket}"])}
        known = [(one, listed[self._id_of(one)]) for one in found if self._id_of(one) in listed]
        if not known:
            return None
        return max(known, key=lambda one: (one[1]["state"] == "receiving", one[1]["since_unix_ms"]))[0]

    def _id_of(self, data_id: int) -> str:
        """An object of this application, as the program calls it."""
        return called(self._app.hex(), data_id)

    def _copied(self, data_id: int, into: StrPath | None, where: Sequence[str]) -> Path:
        import contextlib
        from pathlib import Path

        # `polycast get` makes this folder for a file, and not for a folder. What is wrong with it is the program's to say.
        if into is not None:
            with contextlib.suppress(OSError):
                os.mkdir(into)
        return Path(run_json(["get", self._id_of(data_id), f"--socket={self.socket}", *where])["path"])

    def add_buffer(self, data_id: int, buffer: Buffer, *, name: str = "") -> Object:
        """Makes a copy of a buffer's bytes (`bytes`, `memoryview`, a numpy array) known as object `data_id`. The copy is in
        memory until `delete` or `close`."""
        return self.add_parts(data_id, [buffer], name=name)

    def add_parts(self, data_id: int, parts: Iterable[Buffer], *, name: str = "") -> Object:
        """The same for several buffers, one behind the other. Each is asked for when the one before it is written."""

        def write(memory: int) -> None:
            for part in parts:
                view = _bytes_of(part)
                while view.nbytes:
                    view = view[os.write(memory, view) :]

        return self._add_written(data_id, write, name)

    def _add_written(self, data_id: int, write: Callable[[int], None], name: str) -> Object:
        """An object in memory: `write` is given the file that it writes to."""
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
        """Begins to send an object to the agents of these names, to the one of this name, or to `"all"` that the manager knows. It ends after
        `timeout` seconds; receivers that have the object by then keep it."""
        names = None if to == "all" else one_or_more("to", to)
        called = self._names.get(data_id, f"object-{data_id}")
        return Transfer(self._connection.send(data_id, called, names, timeout, slow, detached))

    def _send_to_the_end(self, data_id: int, to: Sequence[str], timeout: float) -> Report:
        """The same; where the call is interrupted, the transfer ends."""
        transfer = self.send(data_id, to, timeout=timeout)
        try:
            return transfer.result()
        except BaseException:
            # The exception keeps it as long as something looks at that.
            transfer.cancel()
            raise

    def read(self, data_id: int, timeout: float | None = None, known_only: bool = False) -> Object:
        """Waits until every byte of an object is here and verified. With `known_only` one that is not even on its way
        raises `ObjectUnknown` at once."""
        return self._read(data_id, timeout, known_only, None)

    def _read(self, data_id: int, timeout: float | None, known_only: bool, cancel: _native.Cancel | None) -> Object:
        return Object.of(self._connection.read(data_id, timeout, known_only, cancel), self.socket)

    def _map_only(self, data_id: int, root: str, timeout: float | None) -> memoryview:
        """The bytes of the object of this number that has this root hash (empty: any), and of no other one. Another may get its place between
        the agent's answer and the opening of the file. So the agent is asked again when that is open, and what it names then has to be the
        same file, which keeps its bytes as long as it is open."""
        path = self._read_only(data_id, root, timeout, False).path
        with opened(path, data_id) as file:
            found = self._read_only(data_id, root, timeout, True)
            with opened(found.path, data_id) as named:
                if not os.path.samestat(os.fstat(file.fileno()), os.fstat(named.fileno())):
                    raise ObjectUnknown(f"object {data_id} was replaced meanwhile: read it again")
            return found._mapped(file)

    def _read_only(self, data_id: int, root: str, timeout: float | None, known_only: bool) -> Object:
        found = self.read(data_id, timeout, known_only)
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
        """An object by its key (`sha256:HEX`, `git:HEX`, or KIND:TEXT) or its number, from whichever agent has it. Those who
        ask for the same at nearly the same time are served together.

        Where no agent has it, exactly one of those who gave `fill` is told to get it: `fill()` gives its bytes in pieces, and
        all others have them from this one. A `sha256:` key is checked against the bytes.
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
                # The agent says that it was not filled, which is so.
                pass
            raise
        filling.finish(None)

    @deadline_is_timeout
    def publish(
        self, topic: str, data_id: int, *, version: int | None = None, timeout: float | None = None
    ) -> Published:
        """Gives all subscribers of a topic a new version, an object that is here. Returns when it is committed: all have it
        that live and can. Versions only rise; without one it is one above the last that this agent knows."""
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
        )

    def subscribe(self, topic: str, *, staged: bool = False) -> Versions:
        """The versions of a topic, from the last one on. With `staged` also when one is about to come."""
        versions = Versions(self._connection.subscribe(topic), staged, topic, self.socket)
        self._subscriptions.add(versions)
        return versions

    def watch(
        self, data_id: int, ranges: Iterable[tuple[int, int]] = (), *, timeout: float | None = None
    ) -> Watch:
        """The verified bytes of an object as they come, of all of it or of these ranges: pairs of where one begins and how many bytes it
        has. It need not be on its way yet. `timeout` is for all of it."""
        return Watch(self._connection.watch(data_id, list(ranges), timeout))

    def files(self, data_id: int, timeout: float | None = None) -> Files:
        """The files of a set, each as soon as it is here. The set need not be on its way yet."""
        return Files(self._connection.files(data_id, timeout))

    def delete(self, data_id: int) -> None:
        """Forgets an object here. Received bytes go; what was added by its path stays where it is."""
        self._connection.delete(data_id)
        self._let_go(data_id)

    def remove(self, data_id: int, at: str | Sequence[str] = "all") -> dict[str, str]:
        """Removes an object at other agents, at the one of this name, or at `"all"` with this one. Gives those that still have it, and why."""
        names = None if at == "all" else one_or_more("at", at)
        return dict(self._connection.remove(data_id, names))

    def withdraw(self, data_id: int) -> None:
        """Ends the transfers of an object."""
        self._connection.withdraw(data_id)

    def list(self, all_applications: bool = False) -> list[Object]:
        """The objects here."""
        return [Object.of(text, self.socket) for text in self._connection.objects(all_applications)]

    def status(self) -> Status:
        """The agent, its manager and its peers."""
        document: Mapping[str, Any] = json.loads(self._connection.status())
        lists = {name: tuple(document[name]) for name in ("peers", "lost")}
        return Status(**{**document, **lists})

    def close(self) -> None:
        """Ends the registration, and an embedded agent; buffers that this process has added are let go."""
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
        """Deletes what this process has made of buffers. A process that was forked has copies of what is not its own."""
        process = os.getpid()
        for data_id, (owner, _) in list(self._memory.items()):
            if owner != process:
                continue
            try:
                native.delete(data_id)
            except (AgentLost, AgentNotRunning):
                return
            except PolycastError:
                # It is being sent, or has been deleted.
                continue

    def _forget(self, data_id: int) -> None:
        """Deletes an object that is not used here any more, or does so later where a call is still getting it. Another
        process of this application may have been faster. Views stay."""
        kept = []
        for one in dict.fromkeys([*self._superseded, data_id]):
            try:
                self.delete(one)
            except ObjectUnknown:
                self._let_go(one)
            except ObjectBusy:
                kept.append(one)
        self._superseded = kept

    def _forget_within(self, data_id: int, patience_s: float) -> None:
        """The same for an object whose transfer has just been cancelled. What the agent says does not take the place of why it was."""
        until_s = time.monotonic() + patience_s
        try:
            self._forget(data_id)
            while data_id in self._superseded and time.monotonic() < until_s:
                time.sleep(0.02)
                self._forget(data_id)
        except PolycastError:
            self._let_go(data_id)

    def _let_go(self, data_id: int) -> None:
        made = self._memory.pop(data_id, None)
        if made is not None:
            os.close(made[1])

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _application(app: uuid.UUID | str | None) -> bytes:
    """An application's name, as the agent takes it."""
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
    """What an exception says, as text that can be sent."""
    try:
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:
        said = type(error).__name__
    # Names of files may have what is no text.
    return said.encode("utf-8", "backslashreplace").decode()


def _bytes_of(buffer: Buffer) -> memoryview:
    """A buffer's bytes one behind the other, not copied."""
    try:
        view = memoryview(buffer)
    except TypeError:
        raise UnsupportedType(
            f"a {type(buffer).__name__} has no bytes to send: give bytes, a memoryview or a numpy array"
        ) from None
    except ValueError as error:
        # Dates and small floats of numpy have bytes, and no word for their type.
        raise UnsupportedType(
            f"the bytes of a {type(buffer).__name__} cannot be taken ({error}): give array.view('u1')"
        ) from None
    # What is between two colons is the name of a field.
    if _POINTERS.intersection(re.sub(":[^:]*:", "", view.format)):
        raise UnsupportedType(
            f"the {type(buffer).__name__} has places in this process's memory, which mean nothing elsewhere: give an array of numbers"
        )
    if not view.c_contiguous:
        raise NotContiguous("the buffer's bytes do not lie one behind the other: send numpy.ascontiguousarray(array)")
    if view.nbytes == 0:
        return memoryview(b"")
    if view.ndim == view.itemsize == 1:
        # Memory of C is not called native and cannot be cast.
        return view
    return view.cast("B")
