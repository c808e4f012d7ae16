"""Python values as objects: pickled, with the bytes of arrays beside the pickle, so that they are not copied.

Only for values of one's own processes: a host that can send such an object can run code where it is unpacked. What is broadcast is therefore
compared with the hashes that its source has told by Ray's or Dask's own connections, before it is unpacked.
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
# Where buffers begin, so that vector instructions find them aligned.
_ALIGNED = 64


def pack(value: Any) -> list[Buffer]:
    """The parts of the object that has a value."""
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
    """What the source of a broadcast knows of its object, and receivers compare: the root hash of all of it, as agents tell it, and the SHA-256
    of its first bytes, the table of lengths and the pickle. Only these can run anything, and receivers hash them by themselves."""

    begin: int
    sha256: str
    # Empty where no agent has computed it.
    root: str = ""

    @staticmethod
    def of(parts: list[Buffer]) -> Known:
        """From the parts that `pack` gives."""
        digest, begin = hashlib.sha256(), 0
        for part in parts[:2]:
            digest.update(part)
            begin += memoryview(part).nbytes
        return Known(begin, digest.hexdigest())

    def and_root(self, root: str) -> Known:
        """The same, with what the agent has said since."""
        return replace(self, root=root)


def unpack_broadcast(agent: Agent, data_id: int, known: Known, timeout: float | None = None) -> Any:
    """The value of the object that was broadcast, and of no other one that has its number here."""
    view = agent._map_only(data_id, known.root, timeout)
    # Nothing of it is looked at before.
    if hashlib.sha256(view[: known.begin]).hexdigest() != known.sha256:
        raise Invalid(f"object {data_id} is not what was broadcast: its first {known.begin} bytes are others, and it is not unpacked")
    return unpack(view)


def unpack(view: memoryview) -> Any:
    """The value; its arrays are views of the object, read only."""
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
