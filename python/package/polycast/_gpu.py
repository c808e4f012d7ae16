"""Copies between a GPU and this machine's memory through two pinned buffers: the device fills or empties one while the processor uses the
other. Without them a copy goes through one small buffer of the driver, and a copy of a whole tensor needs as much memory again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Long enough that the start of a copy does not matter, and short enough to be pinned twice.
PIECE_BYTES = 16 << 20


class _Turns:
    """Two buffers, each with the event at which the device has finished with it."""

    def __init__(self, device: torch.device, length: int) -> None:
        import torch

        # Earlier work of the device comes first: a stream runs its work in order, and this is the stream in which the caller computes.
        self._stream = torch.cuda.current_stream(device)
        self._buffers = [torch.empty(length, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._events = [torch.cuda.Event() for _ in range(2)]

    def copy(self, at: int, length: int, copy: Callable[[torch.Tensor], Any]) -> None:
        """Has the device copy from or into this turn's buffer."""
        copy(self._buffers[at % 2][:length])
        self._events[at % 2].record(self._stream)

    def buffer(self, at: int, length: int) -> torch.Tensor:
        """Returns this turn's buffer once the device has finished with it."""
        self._events[at % 2].synchronize()
        return self._buffers[at % 2][:length]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().reshape(-1).view(torch.uint8)


def parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the bytes of a tensor, in pieces that are valid until the next one is requested."""
    pieces = _bytes(tensor).split(PIECE_BYTES)
    turns = _Turns(tensor.device, len(pieces[0]))

    def fill(at: int) -> None:
        if at < len(pieces):
            turns.copy(at, len(pieces[at]), lambda buffer: buffer.copy_(pieces[at], non_blocking=True))

    fill(0)
    for at, piece in enumerate(pieces):
        fill(at + 1)
        yield turns.buffer(at, len(piece))


def fill(targets: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies tensors from this machine's memory into tensors of the same type and length on a GPU, and returns once the copies are
    complete."""
    turns: dict[torch.device, _Turns] = {}
    at = 0
    for target, source in targets:
        mine = turns.setdefault(target.device, _Turns(target.device, PIECE_BYTES))
        for to, piece in zip(_bytes(target).split(PIECE_BYTES), _bytes(source).split(PIECE_BYTES), strict=True):
            mine.buffer(at, len(piece)).copy_(piece)
            mine.copy(at, len(piece), lambda buffer, to=to: to.copy_(buffer, non_blocking=True))  # type: ignore[misc]
            at += 1
    for mine in turns.values():
        mine.buffer(0, 0)
        mine.buffer(1, 0)
