"""Versions of topics as files, for programs that read through fsspec: pandas, pyarrow, torch.distributed.checkpoint.

    pandas.read_parquet("polycast://TOPIC@VERSION/PATH")

The file is read where the agent has it. Without `@VERSION` it is the last version; of a version that has been published as one file PATH is
empty or its name. A version that is not the last one any more cannot be opened anew; files of it that are open stay.
"""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from fsspec.spec import AbstractFileSystem

from polycast._agent import Agent, Object, Version, Versions
from polycast.errors import TimedOut

__all__ = ["PolycastFileSystem"]


@dataclass(frozen=True)
class _Entry:
    size: int
    open: Callable[[], BinaryIO]


class _Stretch(io.RawIOBase):
    """Bytes of a file from one place on, as a file of their own."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if at < 0:
            raise OSError("a place before the beginning")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._at))
        piece = os.pread(self._file.fileno(), length, self._begin + self._at)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _Topic:
    """A topic, and the files of its last version."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent, self._name = agent, name
        self._versions: Versions = agent.subscribe(name)
        self._last: Version | None = None
        self._files: dict[str, _Entry] = {}

    def files(self, version: int | None, timeout: float) -> dict[str, _Entry]:
        """The files of a version; one that is still to come is waited for."""
        while True:
            is_enough = self._last is not None and (version is None or self._last.version >= version)
            try:
                # What has been published meanwhile is the last one.
                found = self._versions.next(0.0 if is_enough else timeout)
            except TimedOut:
                if is_enough:
                    break
                raise
            if found is None or found.object is None:
                raise FileNotFoundError(f"the subscription to {self._name} is over")
            self._last, self._files = found, _files_of(self._agent, found.object)
        assert self._last is not None
        if version is not None and self._last.version != version:
            raise FileNotFoundError(f"{self._name} has version {self._last.version} by now, and {version} cannot be opened any more")
        return self._files


def _files_of(agent: Agent, there: Object) -> dict[str, _Entry]:
    if there.kind == "file":
        return {"": _Entry(there.length, there.open), there.name: _Entry(there.length, there.open)}
    if there.kind == "set":
        return {one.name: _at(one.path, one.length) for one in agent.files(there.data_id)}
    if there.form == "directory":
        found = {}
        for folder, _, names in os.walk(there.path):
            for path in (os.path.join(folder, name) for name in names):
                if os.path.isfile(path):
                    found[os.path.relpath(path, there.path)] = _at(path, os.path.getsize(path))
        return found
    # The stream of a folder. What is open stays where the agent makes room.
    stream = open(there.path, "rb")  # noqa: SIM115
    with tarfile.open(fileobj=stream, mode="r:") as members:
        return {one.name.removeprefix("./"): _part(stream, one.offset_data, one.size) for one in members if one.isreg()}


def _at(path: str, size: int) -> _Entry:
    return _Entry(size, lambda: open(path, "rb"))


def _part(stream: BinaryIO, begin: int, size: int) -> _Entry:
    return _Entry(size, lambda: io.BufferedReader(_Stretch(stream, begin, size)))


class PolycastFileSystem(AbstractFileSystem):
    """Files of versions of topics, to read. `socket` is the agent's (default: as for `Agent`), and `timeout` how many seconds a version is
    waited for that is still to come."""

    protocol = "polycast"

    def __init__(self, socket: str | None = None, timeout: float = 60.0, **options: Any) -> None:
        super().__init__(**options)
        self._socket, self._timeout = socket, timeout
        self._lock = threading.Lock()
        self._agent: Agent | None = None
        self._topics: dict[str, _Topic] = {}

    def _files(self, place: str) -> dict[str, _Entry]:
        topic, _, version = place.partition("@")
        if version and not version.isdecimal():
            raise ValueError(f"{version} is no version: write polycast://TOPIC@VERSION/PATH")
        with self._lock:
            self._agent = self._agent or Agent(self._socket)
            if topic not in self._topics:
                self._topics[topic] = _Topic(self._agent, topic)
            return self._topics[topic].files(int(version) if version else None, self._timeout)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """The files and folders directly in a folder, or the file itself."""
        path = self._strip_protocol(path)
        place, _, inner = path.partition("/")
        files = self._files(place)
        if inner in files:
            found = [self._info(path, files[inner].size)]
        else:
            above = f"{inner}/" if inner else ""
            inside: dict[str, dict[str, Any]] = {}
            for name, entry in files.items():
                rest = name.removeprefix(above)
                if name.startswith(above) and rest:
                    one, _, more = rest.partition("/")
                    inside[one] = self._info(f"{place}/{above}{one}", None if more else entry.size)
            if not inside:
                raise FileNotFoundError(path)
            found = list(inside.values())
        return found if detail else [one["name"] for one in found]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """What there is at a path."""
        path = self._strip_protocol(path)
        place, _, inner = path.partition("/")
        files = self._files(place)
        if inner in files:
            return self._info(path, files[inner].size)
        if any(name.startswith(f"{inner}/" if inner else "") for name in files):
            return self._info(path, None)
        raise FileNotFoundError(path)

    @staticmethod
    def _info(name: str, size: int | None) -> dict[str, Any]:
        return {"name": name, "size": size or 0, "type": "directory" if size is None else "file"}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> BinaryIO:
        if mode != "rb":
            raise ValueError("versions are read only: publish another one")
        place, _, inner = self._strip_protocol(path).partition("/")
        entry = self._files(place).get(inner)
        if entry is None:
            raise FileNotFoundError(path)
        return entry.open()
