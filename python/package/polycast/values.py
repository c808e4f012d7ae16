"""Python values as objects: pickled, with the bytes of arrays beside the pickle, so that they are not copied.

Only for values of one's own processes: a host that can send such an object can run code where it is unpacked. A broadcast value is
therefore compared, before it is unpacked, with the hashes that its source has sent over Ray's or Dask's own connections.
"""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from polycast.errors import Invalid, NotContiguous

if TYPE_CHECKING:
    from polycast._agent import Agent
    from typing_extensions import Buffer

_MARK = b"polycast value 1"
# Alignment of buffers, for vector instructions.
_ALIGNED = 64


def pack(value: Any) -> list[Buffer]:
    """Returns the parts of an object that holds a value. Raises `NotContiguous` for an array whose bytes are not contiguous."""
    buffers: list[memoryview] = []

    def beside(buffer: pickle.PickleBuffer) -> None:
        try:
            buffers.append(buffer.raw())
        except BufferError:
            raise NotContiguous("an array's bytes do not lie one behind the other: numpy.ascontiguousarray(array)") from None

    pickled = pickle.dumps(value, protocol=5, buffer_callback=beside)
    lengths = [len(pickled), *(buffer.nbytes for buffer in buffers)]
    head = _MARK + len(lengths).to_bytes(8, "little") + b"".join(length.to_bytes(8, "little") for length in lengths)
    parts: list[Buffer] = [head, pickled]
    at = len(head) + len(pickled)
    for buffer in buffers:
        parts += [bytes(-at % _ALIGNED), buffer]
        at += -at % _ALIGNED + buffer.nbytes
    return parts


@dataclass(frozen=True)
class Known:
    """Facts about a broadcast object that its source knows and receivers compare: the root hash of the whole object, as agents report it,
    and the SHA-256 of its first bytes, the table of lengths and the pickle. Only these bytes can run code, and receivers hash them
    themselves."""

    begin: int
    sha256: str
    # Empty if no agent has computed it.
    root: str = ""

    @staticmethod
    def of(parts: list[Buffer]) -> Known:
        """Builds a `Known` from the parts that `pack` returns."""
        digest, begin = hashlib.sha256(), 0
        for part in parts[:2]:
            digest.update(part)
            begin += memoryview(part).nbytes
        return Known(begin, digest.hexdigest())

    def and_root(self, root: str) -> Known:
        """Returns a copy with the root hash that the agent has reported since."""
        return replace(self, root=root)


def unpack_broadcast(agent: Agent, data_id: int, known: Known, timeout: float | None = None) -> Any:
    """Returns the value of the object that was broadcast, and of no other with its number here. Raises `Invalid` if the hashes differ."""
    view = agent._map_only(data_id, known.root, timeout)
    # No byte of it is read before.
    if hashlib.sha256(view[: known.begin]).hexdigest() != known.sha256:
        raise Invalid(f"object {data_id} is not what was broadcast: its first {known.begin} bytes are others, and it is not unpacked")
    return unpack(view)


def unpack(view: memoryview) -> Any:
    """Returns the value. Its arrays are read-only views of the object. Raises `Invalid` if the object holds none."""
    wrong = "the object has no Python value"
    if bytes(view[: len(_MARK)]) != _MARK:
        raise Invalid(f"{wrong}: it was not made by polycast.values")
    at = len(_MARK) + 8
    count = int.from_bytes(view[len(_MARK) : at], "little")
    if not 1 <= count <= (view.nbytes - at) // 8:
        raise Invalid(f"{wrong}: its table of lengths is longer than the object")
    lengths = [int.from_bytes(view[at + 8 * i : at + 8 * i + 8], "little") for i in range(count)]
    at += 8 * count
    places = []
    for length in lengths:
        places.append(slice(at, at + length))
        at += length
        if at > view.nbytes:
            raise Invalid(f"{wrong}: it is shorter than its table of lengths says")
        at += -at % _ALIGNED
    pickled, *buffers = (view[place] for place in places)
    return pickle.loads(pickled, buffers=buffers)
