"""Bytes of a tensor of any library: numpy, torch, and other kinds of arrays (JAX, CuPy).

Tensors in this machine's memory are not copied, and torch tensors elsewhere come in pieces: they need no copy of their own length here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polycast import _gpu
from polycast.errors import Invalid, NotContiguous, UnsupportedType

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Names of types in the header: those of numpy, those that the package ml_dtypes adds to it, as JAX does, and those of torch.
NUMPY = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64",
}  # fmt: skip
_ML = {
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
# A byte holds two values of float4 here, and one in the package's arrays.
TORCH = {**NUMPY, **_ML, "float4_e2m1fn_x2": "F4"}
TORCH_OF = {word: name for name, word in TORCH.items()}
_NUMPY_OF = {word: name for name, word in NUMPY.items()}
_ML_OF = {word: name for name, word in _ML.items()}
BITS = {
    "F4": 4, "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "F16": 16,
    "F32": 32, "F64": 64, "C64": 64, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """A tensor: its type and shape in the header, its length in bytes, an identity that tensors with shared bytes have in common, and its
    bytes in parts, which are read only when they are written. Each part is valid until the next one is requested."""

    word: str
    shape: list[int]
    nbytes: int
    identity: tuple[Any, ...] | None
    parts: Callable[[], Iterator[Buffer]]


def numpy_dtype_of(name: str, word: str) -> Any:
    """Returns numpy's type for a word of the header. The small kinds of float need the package ml_dtypes, which comes with JAX."""
    import numpy

    if word in _NUMPY_OF:
        return numpy.dtype(_NUMPY_OF[word])
    if word in _ML_OF:
        try:
            import ml_dtypes
        except ImportError:
            pass
        else:
            return numpy.dtype(getattr(ml_dtypes, _ML_OF[word]))
    more = ", or install ml_dtypes" if word in _ML_OF else ""
    raise UnsupportedType(f"'{name}' is of type {word}, which numpy has not: ask for framework='torch'{more}")


def take(name: str, tensor: Any) -> Taken:
    """Describes a tensor for sending, and raises if it cannot be sent."""
    if name == "__metadata__":
        raise Invalid("no tensor can be called '__metadata__': the format has that name for itself")
    is_torch = hasattr(tensor, "data_ptr")
    dtype = getattr(tensor, "dtype", "")
    kind = str(dtype).removeprefix("torch.") if is_torch else getattr(dtype, "name", "")
    known = TORCH if is_torch else {**NUMPY, **_ML}
    word = known.get(kind)
    if word is None:
        what = f"'{name}' is of type {kind or type(tensor).__name__}"
        raise UnsupportedType(f"{what}, which cannot be sent: convert it to one of {', '.join(known)}")
    if is_torch:
        return _take_of_torch(name, tensor, word)
    if getattr(dtype, "byteorder", "=") == ">":
        raise UnsupportedType(f"'{name}' has its bytes in the other order: send array.astype(array.dtype.newbyteorder('<'))")
    if hasattr(tensor, "__array_interface__"):
        return _take_of_numpy(name, tensor, word)
    return _take_of_other(name, tensor, word)


def _take_of_numpy(name: str, tensor: Any, word: str) -> Taken:
    import numpy

    if isinstance(tensor, numpy.ma.MaskedArray):
        raise UnsupportedType(f"'{name}' has a mask, which cannot be sent: send array.filled()")
    # A scalar has an address only while it is in use: the next one could have the same.
    array = numpy.asarray(tensor)
    if not array.flags.c_contiguous:
        raise NotContiguous(f"'{name}' is not contiguous: send numpy.ascontiguousarray(array)")
    shape = [int(side) for side in array.shape]
    where = array.__array_interface__["data"][0]
    identity = (where, word, tuple(shape)) if array.size else None
    return Taken(word, shape, array.nbytes, identity, lambda: iter([_bytes_of_numpy(array)]))


def _bytes_of_numpy(tensor: Any) -> memoryview:
    return memoryview(tensor.reshape(-1).view("u1"))


def _take_of_other(name: str, tensor: Any, word: str) -> Taken:
    """Describes an array that numpy can convert: one of JAX, wherever its parts are, as long as this process reaches them, or one of
    CuPy."""
    if not getattr(tensor, "is_fully_addressable", True):
        cure = "jax.experimental.multihost_utils.process_allgather(array)"
        raise UnsupportedType(f"'{name}' is sharded over processes: send {cure}")
    # CuPy copies its arrays only through its own method.
    copy = tensor.get if hasattr(tensor, "__cuda_array_interface__") and hasattr(tensor, "get") else None
    if copy is None and not hasattr(tensor, "__array__"):
        raise UnsupportedType(f"'{name}' is a {type(tensor).__name__}, which cannot be sent: give an array of numpy or a tensor of torch")
    shape = [int(side) for side in tensor.shape]

    def parts() -> Iterator[Buffer]:
        import numpy

        copied = numpy.asarray(copy() if copy else tensor)
        # By now the header describes the array.
        if copied.dtype != tensor.dtype or copied.size != tensor.size:
            what = f"'{name}' became {copied.dtype.name} with {copied.size} numbers when it was copied"
            raise UnsupportedType(f"{what}, not {word} with {tensor.size}: send numpy.asarray(array)")
        yield _bytes_of_numpy(copied)

    # An object under two names is one tensor. Only its library knows the address of its bytes.
    identity = (type(tensor).__name__, id(tensor)) if tensor.size else None
    return Taken(word, shape, int(tensor.size) * BITS[word] // 8, identity, parts)


def _take_of_torch(name: str, tensor: Any, word: str) -> Taken:
    import torch

    # Properties that a view of the memory would not show.
    other = {
        "is sharded over processes": (hasattr(tensor, "full_tensor"), "tensor.full_tensor()"),
        "is sparse": (tensor.layout != torch.strided, "tensor.to_dense()"),
        "has no bytes, it is on the device meta": (tensor.device.type == "meta", "a tensor that is somewhere"),
        "is conjugated only when it is read": (tensor.is_conj(), "tensor.resolve_conj()"),
        "is negated only when it is read": (tensor.is_neg(), "tensor.resolve_neg()"),
    }
    for what, (is_so, cure) in other.items():
        if is_so:
            raise UnsupportedType(f"'{name}' {what}: send {cure}")
    if not tensor.is_contiguous():
        raise NotContiguous(f"'{name}' is not contiguous: send tensor.contiguous()")
    nbytes = tensor.numel() * tensor.element_size()
    shape = [int(side) for side in tensor.shape]
    if word == "F4":
        # Two values per byte: the header counts values, torch counts bytes.
        shape[-1] *= 2
    identity = (tensor.device, tensor.data_ptr(), word, tuple(shape)) if nbytes else None
    return Taken(word, shape, nbytes, identity, lambda: _parts_of_torch(tensor.detach(), nbytes))


def _parts_of_torch(tensor: Any, nbytes: int) -> Iterator[Buffer]:
    import torch

    if nbytes == 0:
        return
    if tensor.device.type == "cpu":
        yield _bytes_of_torch(tensor, nbytes)
        return
    if tensor.device.type == "cuda":
        pieces = _gpu.parts(tensor)
    else:
        pieces = (piece.cpu() for piece in tensor.reshape(-1).view(torch.uint8).split(_gpu.PIECE_BYTES))
    for piece in pieces:
        yield _bytes_of_torch(piece, piece.numel())


def _bytes_of_torch(here: Any, nbytes: int) -> memoryview:
    """Views the bytes of a tensor in this machine's memory. numpy lacks some of torch's types and need not be installed."""
    import ctypes

    array = (ctypes.c_ubyte * nbytes).from_address(here.data_ptr())
    # The bytes stay as long as a view of them.
    array.tensor = here  # type: ignore[attr-defined]
    return memoryview(array)
