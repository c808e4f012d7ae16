"""Named tensors as one object, in the format of safetensors: numpy arrays and torch tensors.

The header lists the tensors in the order in which a model uses them, so that the first layers arrive first. Their bytes are copied only
once, into the agent's memory; on a receiver they are views of the host's verified copy.
"""

from __future__ import annotations

import bisect
import json
import math
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from polycast._agent import Agent, Object, Published, Version, Watch, opened
from polycast._renamed import deadline_is_timeout
from polycast._taking import BITS, TORCH_OF, Taken, numpy_dtype_of, take
from polycast.errors import AgentLost, Invalid, ObjectUnknown, UnsupportedType

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Names of tensors that share the bytes of another one, which alone is in the file.
_TIED = "polycast.tied"
_HEADER_BYTES_MAX = 100_000_000
# Offset of the bytes in a file whose header is written last.
_HEADER_ROOM = 1 << 20
# Largest number of dimensions of a tensor, which is numpy's.
_SIDES_MAX = 64
# Alignment of the first tensor, for vector instructions.
_ALIGNED = 64


def use_order(names: Iterable[str]) -> list[str]:
    """Returns the names in the order in which a model uses them: names with a number by the outermost one (`layers.3.experts.7` is of layer
    3), names in front of the first of them before it, and the rest at the end."""
    before: list[str] = []
    layers: list[tuple[int, str]] = []
    behind: list[str] = []
    for name in names:
        if number := re.search(r"(?:^|\.)(\d+)(?:\.|$)", name):
            layers.append((int(number.group(1)), name))
        else:
            (behind if layers else before).append(name)
    layers.sort(key=lambda layer: layer[0])
    return [*before, *(name for _, name in layers), *behind]


def pack(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Iterator[Buffer]:
    """Returns the parts of an object that holds these tensors: a header, and the bytes of each. Raises at once if a tensor cannot be sent.
    A torch tensor outside this machine's memory comes in pieces, and each part is valid until the next one is requested."""
    header: dict[str, Any] = {}
    taken: list[Taken] = []
    tied: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    at = 0
    for name in use_order(tensors):
        one = take(name, tensors[name])
        if one.identity is not None and one.identity in seen:
            tied[name] = seen[one.identity]
            continue
        if one.identity is not None:
            seen[one.identity] = name
        header[name] = _entry(one, at)
        at += one.nbytes
        taken.append(one)
    text = _text(header, metadata, tied)
    return _parts(text + b" " * (-len(text) % _ALIGNED), taken)


def _parts(text: bytes, taken: Iterable[Taken]) -> Iterator[Buffer]:
    yield (len(text) - 8).to_bytes(8, "little") + text[8:]
    for one in taken:
        yield from one.parts()


def _entry(one: Taken, at: int) -> dict[str, Any]:
    return {"dtype": one.word, "shape": one.shape, "data_offsets": [at, at + one.nbytes]}


def _text(header: Mapping[str, Any], metadata: Mapping[str, str] | None, tied: Mapping[str, str]) -> bytes:
    """Returns the header, after eight bytes for its length."""
    said = dict(metadata or {})
    for key, value in said.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise Invalid(f"metadata={{{key!r}: {value!r}}} is not text on both sides, which the format wants")
    if tied:
        said[_TIED] = json.dumps(tied)
    if said:
        header = {"__metadata__": said, **header}
    return bytes(8) + json.dumps(header, separators=(",", ":")).encode()


def _write_as_they_come(memory: int, tensors: Iterable[tuple[str, Any]], metadata: Mapping[str, str] | None) -> None:
    """Writes tensors one at a time, each before the next one is requested. Their order is kept, and none are taken for tied: a tensor may
    have the address of an earlier one that has gone."""
    header: dict[str, Any] = {}
    at = 0
    for name, tensor in tensors:
        if name in header:
            raise Invalid(f"there are two tensors of the name '{name}'")
        one = take(name, tensor)
        header[name] = _entry(one, at)
        written = 0
        for part in one.parts():
            written += _write_at(memory, memoryview(part), _HEADER_ROOM + at + written)
        at += one.nbytes
    text = _text(header, metadata, {})
    if len(text) > _HEADER_ROOM:
        raise Invalid(f"the header of {len(header)} tensors has {len(text)} bytes: give them as a dict, which may have more")
    text += b" " * (_HEADER_ROOM - len(text))
    _write_at(memory, memoryview((len(text) - 8).to_bytes(8, "little") + text[8:]), 0)


def _write_at(memory: int, view: memoryview, at: int) -> int:
    """Writes all bytes at an offset, and returns their number."""
    length = view.nbytes
    while view.nbytes:
        written = os.pwrite(memory, view, at)
        view, at = view[written:], at + written
    return length


def header_of(view: memoryview) -> tuple[dict[str, Any], int]:
    """Returns the header of an object with tensors, and the offset of the bytes. Raises `Invalid` for any other object."""
    length = int.from_bytes(view[:8], "little")
    if view.nbytes < 8 or not 0 < length <= min(_HEADER_BYTES_MAX, view.nbytes - 8):
        raise Invalid("the object has no tensors: it does not begin with a safetensors header")
    try:
        header = json.loads(bytes(view[8 : 8 + length]).decode(), object_pairs_hook=_without_twice)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the object has no tensors: its header is no JSON that can be used ({error})") from None
    if not isinstance(header, dict):
        raise Invalid("the object has no tensors: its header is no table of names")
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Invalid("the object has no tensors: the metadata in its header is no table of texts")
    return header, 8 + length


def _without_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name is there twice")
    return made


def unpack(view: memoryview, framework: str = "numpy") -> dict[str, Any]:
    """Returns the tensors of an object, as views of its bytes: `numpy` arrays, or tensors of `torch`."""
    return dict(each(view, framework))


def each(view: memoryview, framework: str = "numpy") -> Iterator[tuple[str, Any]]:
    """Yields an object's tensors one by one, in the order of their bytes; those that share the bytes of another one come last. Checks the
    header first, and raises `Invalid` if it is wrong."""
    if framework not in ("numpy", "torch"):
        raise Invalid(f"'{framework}' is no framework that tensors can be of: numpy or torch")
    header, begin = header_of(view)
    metadata = header.pop("__metadata__", {})
    body = view[begin:]
    places = {name: _place(name, entry, body.nbytes) for name, entry in header.items()}
    if framework == "numpy":
        _refuse_what_numpy_has_not(places)
    tied = _tied(metadata, places)
    ordered = sorted(places, key=lambda name: places[name][2])
    # A generator of its own, so that errors reach the caller of this function and not the code that takes the first tensor.
    return ((name, _made(framework, name, body, *places[first])) for name, first in [*((name, name) for name in ordered), *tied])


def _made(framework: str, name: str, body: memoryview, word: str, shape: list[int], begin: int, end: int) -> Any:
    """Returns a view of a tensor's bytes."""
    try:
        return (_torch_view if framework == "torch" else _numpy_view)(body, word, shape, begin, end)
    except (ValueError, RuntimeError) as error:
        raise Invalid(f"{framework} cannot make '{name}' of the shape that the header says: {error}") from None


def _tied(metadata: Any, tensors: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the names that share a tensor's bytes, and checks them: the header comes from another host."""
    try:
        tied = json.loads(metadata.get(_TIED, "{}"))
        pairs = [(name, first) for name, first in tied.items() if first in tensors]
    except (AttributeError, TypeError, ValueError, RecursionError):
        raise Invalid("the header's metadata says nothing that can be used of tied tensors") from None
    if len(pairs) != len(tied):
        raise Invalid("the header ties a name to a tensor that is not there")
    if any(name in tensors for name, _ in pairs):
        raise Invalid("the header ties a name that has a tensor of its own")
    return pairs


def _place(name: str, entry: Any, room: int) -> tuple[str, list[int], int, int]:
    """Returns a tensor's type, shape and place, and checks them: the header comes from another host."""
    try:
        word, shape, (begin, end) = entry["dtype"], list(entry["shape"]), entry["data_offsets"]
        bits = BITS[word]
    except (KeyError, TypeError, ValueError):
        raise Invalid(f"the header says nothing that can be used of '{name}'") from None
    if len(shape) > _SIDES_MAX or not all(type(side) is int and 0 <= side < 1 << 63 for side in (*shape, begin, end)):
        raise Invalid(f"the header says nothing that can be used of '{name}'")
    wanted_bits = math.prod(shape) * bits
    if word == "F4" and (not shape or shape[-1] % 2):
        raise Invalid(f"the header says that '{name}' has half a byte")
    if not 0 <= begin <= end <= room or (end - begin) * 8 != wanted_bits:
        raise Invalid(f"the header says that '{name}' is where it cannot be")
    return word, shape, begin, end


def _refuse_what_numpy_has_not(places: Mapping[str, tuple[str, list[int], int, int]]) -> None:
    for name, (word, *_) in places.items():
        numpy_dtype_of(name, word)


def _torch_view(body: memoryview, word: str, shape: list[int], begin: int, end: int) -> Any:
    import torch

    dtype = getattr(torch, TORCH_OF[word])
    if word == "F4":
        shape = [*shape[:-1], shape[-1] // 2]
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(body[begin:end], dtype=torch.uint8)
    if flat.data_ptr() % max(1, BITS[word] // 8):
        # The address is not aligned, and torch takes for granted that its numbers are.
        flat = flat.clone()
    return flat.view(dtype).reshape(shape)


def _numpy_view(body: memoryview, word: str, shape: list[int], begin: int, end: int) -> Any:
    import numpy

    return numpy.frombuffer(body[begin:end], dtype=numpy_dtype_of("it", word)).reshape(shape)


def each_version(versions: Iterable[Version]) -> Iterator[tuple[int, int]]:
    """Yields the numbers of versions and of their objects, each once, though a version is reported both when it is announced and when it is
    committed. A publisher may give an abandoned number to another object."""
    last = (0, 0)
    for version in versions:
        if version.object is None:
            continue
        this = (version.version, version.object.data_id)
        if this[0] > last[0] or (this[0] == last[0] and this != last):
            last = this
            yield this


def arriving(
    agent: Agent, data_id: int, framework: str = "numpy", *, timeout: float | None = None
) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of an object that is arriving or here, each as soon as all of its bytes are verified: in the order of their bytes,
    which is the order of use. Tensors that share the bytes of another one come last.

    Tensors that were yielded stay valid even if the transfer fails afterwards, which raises. numpy's arrays are views of the host's copy.
    So are torch's tensors, which may be written to: only this process sees the changes.
    """
    if framework not in ("numpy", "torch"):
        raise Invalid(f"'{framework}' is no framework that tensors can be of: numpy or torch")
    return _as_they_come(
        _Arriving(agent.watch(data_id, timeout=timeout), lambda: agent.read(data_id, timeout=timeout).path, data_id), framework
    )


def _as_they_come(coming: _Arriving, framework: str) -> Iterator[tuple[str, Any]]:
    try:
        coming.await_bytes(0, 8)
        begin = 8 + int.from_bytes(coming.bytes_of(0, 8), "little")
        if begin > min(_HEADER_BYTES_MAX + 8, coming.length):
            raise Invalid("the object has no tensors: it does not begin with a safetensors header")
        coming.await_bytes(0, begin)
        header, _ = header_of(coming.bytes_of(0, begin))
        metadata = header.pop("__metadata__", {})
        places = {name: _place(name, entry, coming.length - begin) for name, entry in header.items()}
        if framework == "numpy":
            _refuse_what_numpy_has_not(places)
        tied = _tied(metadata, places)
        made: dict[str, Any] = {}
        for name in sorted(places, key=lambda name: places[name][2]):
            word, shape, first, last = places[name]
            coming.await_bytes(begin + first, begin + last)
            body = coming.bytes_of(begin + first, begin + last, own=framework == "torch")
            made[name] = _made(framework, name, body, word, shape, 0, last - first)
            yield name, made[name]
        for name, first_name in tied:
            yield name, made[first_name]
    finally:
        coming.close()


class _Arriving:
    """An object with some verified bytes."""

    def __init__(self, watch: Watch, find: Callable[[], str], data_id: int) -> None:
        self._watch, self._data_id = watch, data_id
        # Returns the path of the complete object.
        self._find = find
        self._file: int | None = None
        # The whole file, mapped as the host's copy and as this process's own.
        self._mapped: dict[bool, memoryview] = {}
        # Bounds of the verified ranges, in order and never adjacent.
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.length = 0

    def await_bytes(self, begin: int, end: int) -> None:
        """Waits until all bytes from `begin` to `end` are verified."""
        while not self._has(begin, end):
            part = self._watch.next()
            if part is None:
                if self._file is not None and end > self.length:
                    raise Invalid(f"the object has {self.length} bytes, and {end} are to be read")
                raise AgentLost("the agent ended before the object was here")
            if self._file is None:
                try:
                    file = opened(part.path, self._data_id)
                except ObjectUnknown:
                    # By now it has its own name.
                    file = opened(self._find(), self._data_id)
                with file:
                    self._file = os.dup(file.fileno())
                self.length = part.length
            for at, length in part.verified:
                self._add(at, at + length)

    def _has(self, begin: int, end: int) -> bool:
        at = bisect.bisect_right(self._begins, begin) - 1
        return begin == end or (at >= 0 and self._ends[at] >= end)

    def _add(self, begin: int, end: int) -> None:
        first = bisect.bisect_left(self._ends, begin)
        last = bisect.bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]

    def bytes_of(self, begin: int, end: int, own: bool = False) -> memoryview:
        """Returns verified bytes. With `own` they may be written to, and only this process sees the changes."""
        if begin == end or self._file is None:
            return memoryview(b"")
        if own not in self._mapped:
            flags = mmap.MAP_PRIVATE if own else mmap.MAP_SHARED
            protection = mmap.PROT_READ | mmap.PROT_WRITE if own else mmap.PROT_READ
            self._mapped[own] = memoryview(mmap.mmap(self._file, self.length, flags, protection))
        mapped = self._mapped[own]
        if own:
            self._copy_edges(self._file, mapped, begin, end)
        return mapped[begin:end]

    @staticmethod
    def _copy_edges(file: int, mapped: memoryview, begin: int, end: int) -> None:
        """Copies the bytes of the first and of the last page: a page that was written to, for another tensor in it, does not show what the
        file gets later."""
        inner = min(end, -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE)
        outer = max(inner, end - end % mmap.PAGESIZE)
        for first, last in ((begin, inner), (outer, end)):
            if first < last:
                mapped[first:last] = os.pread(file, last - first, first)

    def close(self) -> None:
        self._watch.cancel()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def add(
    agent: Agent,
    data_id: int,
    tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
    *,
    name: str = "",
    metadata: Mapping[str, str] | None = None,
) -> Object:
    """Adds tensors as one object, ready to be sent, with one copy of their bytes, from any device. Pairs in place of a dict are taken one
    at a time, and need not all exist at once."""
    name = name or f"tensors-{data_id}.safetensors"
    if isinstance(tensors, Mapping):
        return agent.add_parts(data_id, pack(tensors, metadata), name=name)
    return agent._add_written(data_id, lambda memory: _write_as_they_come(memory, tensors, metadata), name)


@deadline_is_timeout
def publish(
    agent: Agent,
    topic: str,
    tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
    *,
    version: int | None = None,
    timeout: float | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Published:
    """Publishes these tensors as a new version of a topic, and returns once it is committed. The previous version is deleted at this agent;
    subscribers remove versions that they no longer use."""
    import uuid

    data_id = uuid.uuid4().int >> 65
    add(agent, data_id, tensors, metadata=metadata)
    try:
        published = agent.publish(topic, data_id, version=version, timeout=timeout)
    except BaseException:
        agent._forget(data_id)
        raise
    before = agent._published.get(topic)
    agent._published[topic] = data_id
    if before is not None:
        agent._forget(before)
    return published


def of(found: Object, framework: str = "numpy") -> dict[str, Any]:
    """Returns the tensors of an object that is here. Tensors of torch are mapped copy-on-write, since torch has none that are read-only:
    only this process sees the changes."""
    return unpack(found.map(writable_copy=framework == "torch"), framework)
