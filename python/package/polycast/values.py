"""Python values as objects: pickled, with the bytes of arrays beside the pickle, so that they are not copied.

Only for values of one's own processes: a host that can send such an object can run code where it is unpacked. What is broadcast is therefore
compared with the hash that its source has told by Ray's or Dask's own connections, before it is unpacked.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from polycast.errors import Invalid, NotContiguous

if TYPE_CHECKING:
    from polycast._agent import Object
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


def unpack_broadcast(found: Object, root: str) -> Any:
    """The value of an object that was broadcast with this root hash, and of no other one that has its number here."""
    if root and found.root != root:
        raise Invalid(f"object {found.data_id} is not what was broadcast: its root hash is {found.root}, and that of the value is {root}")
    return unpack(found.map())


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
