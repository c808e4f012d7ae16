"""Named tensors as one object, in the format of safetensors: numpy arrays and torch tensors.

The header has the tensors in the order in which a model uses them, so that the first layers come first. Nothing but the
copy into the agent's memory is made of their bytes; on a receiver they are views of the host's verified copy.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from polycast._agent import Agent, Object, Published
from polycast.errors import Invalid, NotContiguous, UnsupportedType

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The names of types in the header, and their bits: those of numpy, and those that only torch has.
_NUMPY = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64",
}
_TORCH = {
    **{name: word for name, word in _NUMPY.items()},
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}
_NUMPY_OF = {word: name for name, word in _NUMPY.items()}
_TORCH_OF = {word: name for name, word in _TORCH.items()}
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8, "F16": 2, "F32": 4,
    "F64": 8, "C64": 8, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}
# Names of tensors that share their bytes with another one, which alone is in the file.
_TIED = "polycast.tied"
_HEADER_BYTES_MAX = 100_000_000


def use_order(names: Iterable[str]) -> list[str]:
    """The names in the order in which a model uses them: those with a number by the outermost one (`layers.3.experts.7` is
    of layer 3), what came before the first of them before, and the rest behind."""
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


def pack(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> list[Buffer]:
    """The parts of the object that has these tensors: a header, and the bytes of each."""
    header: dict[str, Any] = {}
    parts: list[Buffer] = []
    tied: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    at = 0
    for name in use_order(tensors):
        if name == "__metadata__":
            raise Invalid("no tensor can be called '__metadata__': the format has that name for itself")
        word, shape, part, identity = _taken(name, tensors[name])
        if identity is not None and identity in seen:
            tied[name] = seen[identity]
            continue
        if identity is not None:
            seen[identity] = name
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [at, at + part.nbytes]}
        at += part.nbytes
        parts.append(part)
    said = dict(metadata or {})
    if tied:
        said[_TIED] = json.dumps(tied)
    if said:
        header = {"__metadata__": said, **header}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *parts]


def _taken(name: str, tensor: Any) -> tuple[str, list[int], memoryview, tuple[Any, ...] | None]:
    """A tensor's type, shape and bytes, and what two tensors have in common that share them."""
    is_torch = hasattr(tensor, "data_ptr")
    dtype = getattr(tensor, "dtype", "")
    kind = str(dtype).removeprefix("torch.") if is_torch else getattr(dtype, "name", "")
    word = (_TORCH if is_torch else _NUMPY).get(kind)
    if word is None:
        known = ", ".join(_TORCH if is_torch else _NUMPY)
        what = f"'{name}' is of type {kind or type(tensor).__name__}"
        raise UnsupportedType(f"{what}, which cannot be sent: convert it to one of {known}")
    shape = [int(side) for side in tensor.shape]
    if is_torch:
        if not tensor.is_contiguous():
            raise NotContiguous(f"'{name}' is not contiguous: send tensor.contiguous()")
        import torch

        here = tensor.detach().cpu()
        identity = (tensor.data_ptr(), word, tuple(shape)) if tensor.numel() else None
        flat = here.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
        return word, shape, memoryview(flat.numpy()), identity
    if not tensor.flags.c_contiguous:
        raise NotContiguous(f"'{name}' is not contiguous: send numpy.ascontiguousarray(array)")
    if tensor.dtype.byteorder == ">":
        raise UnsupportedType(f"'{name}' has its bytes in the other order: send array.astype(array.dtype.newbyteorder('<'))")
    where = tensor.__array_interface__["data"][0]
    identity = (where, word, tuple(shape)) if tensor.size else None
    return word, shape, memoryview(tensor.reshape(-1).view("u1")), identity


def header_of(view: memoryview) -> tuple[dict[str, Any], int]:
    """The header of an object with tensors, and where the bytes begin."""
    length = int.from_bytes(view[:8], "little")
    if view.nbytes < 8 or not 0 < length <= min(_HEADER_BYTES_MAX, view.nbytes - 8):
        raise Invalid("the object has no tensors: it does not begin with a safetensors header")
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
    except ValueError as error:
        raise Invalid(f"the object has no tensors: its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise Invalid("the object has no tensors: its header is no table of names")
    return header, 8 + length


def unpack(view: memoryview, framework: str = "numpy") -> dict[str, Any]:
    """The tensors of an object, as views of its bytes: `numpy` arrays, or tensors of `torch`."""
    if framework not in ("numpy", "torch"):
        raise Invalid(f"'{framework}' is no framework that tensors can be of: numpy or torch")
    header, begin = header_of(view)
    metadata = header.pop("__metadata__", {})
    body = view[begin:]
    tensors = {name: _view(name, entry, body, framework) for name, entry in header.items()}
    for name, first in _tied(metadata, tensors):
        tensors[name] = tensors[first]
    return tensors


def _tied(metadata: Any, tensors: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The names that share a tensor's bytes, as the header says; it comes from others."""
    try:
        tied = json.loads(metadata.get(_TIED, "{}"))
        pairs = [(name, first) for name, first in tied.items() if first in tensors]
    except (AttributeError, TypeError, ValueError):
        raise Invalid("the header's metadata says nothing that can be used of tied tensors") from None
    if len(pairs) != len(tied):
        raise Invalid("the header ties a name to a tensor that is not there")
    return pairs


def _view(name: str, entry: Any, body: memoryview, framework: str) -> Any:
    try:
        word, shape, (begin, end) = entry["dtype"], list(entry["shape"]), entry["data_offsets"]
        wanted = math.prod(shape) * _BYTES[word]
    except (KeyError, TypeError, ValueError):
        raise Invalid(f"the header says nothing that can be used of '{name}'") from None
    if not all(type(side) is int and side >= 0 for side in (*shape, begin, end)):
        raise Invalid(f"the header says nothing that can be used of '{name}'")
    if not 0 <= begin <= end <= body.nbytes or end - begin != wanted:
        raise Invalid(f"the header says that '{name}' is where it cannot be")
    if framework == "torch":
        import torch

        dtype = getattr(torch, _TORCH_OF[word])
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(body[begin:end], dtype=torch.uint8).view(dtype).reshape(shape)
    import numpy

    if word not in _NUMPY_OF:
        raise UnsupportedType(f"'{name}' is of type {word}, which numpy has not: ask for framework='torch'")
    return numpy.frombuffer(body[begin:end], dtype=_NUMPY_OF[word]).reshape(shape)


def add(
    agent: Agent, data_id: int, tensors: Mapping[str, Any], *, name: str = "", metadata: Mapping[str, str] | None = None
) -> Object:
    """Makes tensors known as one object, to be sent: one copy of their bytes, from wherever they are."""
    return agent.add_parts(data_id, pack(tensors, metadata), name=name or f"tensors-{data_id}.safetensors")


def publish(
    agent: Agent,
    topic: str,
    tensors: Mapping[str, Any],
    *,
    version: int | None = None,
    deadline: float | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Published:
    """Gives all subscribers of a topic these tensors as a new version; returns when it is committed. The version before goes
    from this agent; subscribers remove what they do not use any more."""
    import uuid

    data_id = uuid.uuid4().int >> 65
    add(agent, data_id, tensors, metadata=metadata)
    try:
        published = agent.publish(topic, data_id, version=version, deadline=deadline)
    except BaseException:
        agent.delete(data_id)
        raise
    before = agent._published.get(topic)
    agent._published[topic] = data_id
    if before is not None:
        agent.delete(before)
    return published


def of(found: Object, framework: str = "numpy") -> dict[str, Any]:
    """The tensors of an object that is here. Those of torch are mapped copy-on-write, since torch knows none that are read
    only: what is written to them is seen by this process alone."""
    return unpack(found.map(writable_copy=framework == "torch"), framework)
