"""Differences between two versions, as patches that vLLM loads in place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from polycast import tensors

# Types with a NaN, by which vLLM marks unchanged elements, and with elements that torch can write by index on every device.
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Integers of the same size: two numbers are equal if their bits are. This covers NaNs, and zeros of different sign.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Number of elements that are compared at once. It bounds the memory that a comparison takes.
_AT_ONCE = 1 << 24
# Number of elements per tensor by which to check that a model is laid out like its file.
_SHOWN = 64
_INDEX_MAX = (1 << 31) - 1
# Tensors that vLLM's attention with latent vectors derives from its weights. A patch would change the weights and not these.
_DERIVED = ("W_UK_T", "W_UV")


class Whole(Exception):
    """Reason that a version is loaded whole."""


@dataclass(frozen=True)
class Loaded:
    """A version that a model has: a mapping of its file, and the model's sums at that time."""

    model: torch.nn.Module
    view: memoryview
    sums: dict[str, int]


@dataclass(frozen=True)
class Change:
    """A tensor of the new file, and the rising places at which it differs from the old file."""

    name: str
    tensor: torch.Tensor
    at: torch.Tensor


def loader() -> Any:
    """Returns vLLM's module that loads patches. Raises `Whole` if it has none."""
    try:
        from vllm.model_executor.model_loader import checkpoint_weight_patch
    except ImportError:
        raise Whole("this vLLM loads no patches") from None
    return checkpoint_weight_patch


def refuse_model(model: torch.nn.Module, model_config: Any) -> None:
    """Raises `Whole` if the model's own tensors are not the file's, as far as vLLM shows it."""
    if getattr(model_config, "quantization", None) is not None:
        raise Whole(f"the model is quantised ({model_config.quantization}): scales are computed of whole tensors")
    for name, module in model.named_modules():
        if any(hasattr(module, one) for one in _DERIVED):
            raise Whole(f"'{name}' keeps tensors that vLLM has made of its weights")


def changes(before: memoryview, after: memoryview, part_max: float) -> list[Change]:
    """Returns the changes. Raises `Whole` if patches cannot express them, or if they are more than this part of all elements."""
    old, new = dict(tensors.each(before, "torch")), dict(tensors.each(after, "torch"))
    if old.keys() != new.keys():
        raise Whole(f"'{min(old.keys() ^ new.keys())}' is in one of both files only")
    for name, tensor in new.items():
        if (old[name].dtype, old[name].shape) != (tensor.dtype, tensor.shape):
            raise Whole(f"'{name}' has another type or shape")
    room = int(part_max * sum(tensor.numel() for tensor in new.values()))
    found = []
    for name, tensor in new.items():
        flat = tensor.reshape(-1)
        at = []
        for begin, differs in _differences(old[name], tensor):
            where = differs.nonzero().squeeze(1)
            if not where.numel():
                continue
            room -= where.numel()
            if tensor.dtype not in _FLOATS:
                raise Whole(f"'{name}', which has changed, is of {tensor.dtype}")
            if room < 0:
                raise Whole(f"more than {part_max:.0%} have changed")
            if flat[begin : begin + differs.numel()][where].isnan().any():
                raise Whole(f"'{name}' has a NaN that is new")
            at.append(where + begin)
        if at:
            found.append(Change(name, tensor, torch.cat(at)))
    return found


def _differences(old: torch.Tensor, new: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields masks of the elements whose bits differ, each with the place where its run of elements begins."""
    # A type of another size is none of the floats above: it only counts whether it has changed.
    bits = _BITS.get(new.element_size(), torch.uint8)
    one, other = old.reshape(-1).view(bits), new.reshape(-1).view(bits)
    for begin in range(0, other.numel(), _AT_ONCE):
        yield begin, torch.ne(one[begin : begin + _AT_ONCE], other[begin : begin + _AT_ONCE])


def load(model: torch.nn.Module, found: list[Change], device: torch.device) -> int:
    """Has vLLM load the changes into the model in place, and returns the number of changed elements."""
    module = loader()
    patches = []
    for change in found:
        # Only changes go to the device; vLLM makes a whole tensor of them there.
        index_type = torch.int32 if change.tensor.numel() <= _INDEX_MAX else torch.int64
        patches.append(
            module.CheckpointWeightPatch(
                name=change.name,
                shape=tuple(change.tensor.shape),
                dtype=change.tensor.dtype,
                values=change.tensor.reshape(-1)[change.at].to(device),
                indices=change.at.to(index_type).to(device),
            )
        )
    if patches:
        with _some_of_all():
            # Rising places are unique: vLLM need not sort them.
            module.load_checkpoint_weight_patches(model, patches, validate_unique_indices=False)
    return sum(change.at.numel() for change in found)


def _some_of_all() -> contextlib.AbstractContextManager[Any]:
    """Lets a model that asks for all tensors of its draft layers at once accept some of them."""
    try:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
    except ImportError:
        return contextlib.nullcontext()
    made: contextlib.AbstractContextManager[Any] = disable_mtp_completeness_check()
    return made


def show(model: torch.nn.Module, view: memoryview, device: torch.device) -> bool:
    """Returns true if patches get to their places in this model. Loads some elements of each tensor again, which changes nothing if the
    model is laid out like its file and its loaders respect vLLM's mark of unchanged elements (a NaN). Otherwise the model is wrong now, and
    has to be loaded again."""
    before = sums(model)
    again = []
    for name, tensor in tensors.each(view, "torch"):
        if tensor.dtype not in _FLOATS or not tensor.numel():
            continue
        at = torch.linspace(0, tensor.numel() - 1, min(_SHOWN, tensor.numel()), dtype=torch.float64).long().unique()
        again.append(Change(name, tensor, at[~tensor.reshape(-1)[at].isnan()]))
    load(model, again, device)
    after = sums(model)
    return after == before


def sums(model: torch.nn.Module) -> dict[str, int]:
    """Returns a sum of each parameter's bits. It shows whether something else has changed a model meanwhile."""
    by_device: dict[torch.device, dict[str, torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        bits = _BITS.get(parameter.element_size())
        if bits is not None and parameter.layout == torch.strided and parameter.device.type != "meta":
            # The sum takes a transposed tensor's elements in any order: nothing is copied.
            found = parameter.detach().view(bits).sum(dtype=torch.int64)
            by_device.setdefault(parameter.device, {})[name] = found
    made: dict[str, int] = {}
    for of_device in by_device.values():
        # One answer for each device, not for each tensor.
        made.update(zip(of_device, torch.stack(list(of_device.values())).tolist(), strict=True))
    return made

