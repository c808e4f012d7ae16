"""What a version has changed of the one before it, as patches that vLLM loads in place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from polycast import tensors

# Types that have a NaN by which vLLM marks what stays, and whose elements torch puts at indices on every device.
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Integers of the same size: two numbers are the same when their bits are, also a NaN, or a zero of the other sign.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# How many elements are compared at once. The room that a comparison takes is bounded by it.
_AT_ONCE = 1 << 24
# How many elements of a tensor show that a model is laid out as its file.
_SHOWN = 64
_INDEX_MAX = (1 << 31) - 1
# What vLLM's attention with latent vectors makes of its weights beside them. A patch would change the one and not the other.
_DERIVED = ("W_UK_T", "W_UV")


class Whole(Exception):
    """Why a version is loaded whole."""


@dataclass(frozen=True)
class Loaded:
    """A version that a model has: a mapping of its file, and sums of what the model had then."""

    model: torch.nn.Module
    view: memoryview
    sums: dict[str, int]


@dataclass(frozen=True)
class Change:
    """A tensor of the new file, and where it is another one than in the old file, by rising places."""

    name: str
    tensor: torch.Tensor
    at: torch.Tensor


def loader() -> Any:
    """vLLM's module that loads patches."""
    try:
        from vllm.model_executor.model_loader import checkpoint_weight_patch
    except ImportError:
        raise Whole("this vLLM loads no patches") from None
    return checkpoint_weight_patch


def refuse_model(model: torch.nn.Module, model_config: Any) -> None:
    """Raises where the model's own tensors are something else than the file's, as far as vLLM lets us see."""
    if getattr(model_config, "quantization", None) is not None:
        raise Whole(f"the model is quantised ({model_config.quantization}): scales are computed of whole tensors")
    for name, module in model.named_modules():
        if any(hasattr(module, one) for one in _DERIVED):
            raise Whole(f"'{name}' keeps tensors that vLLM has made of its weights")


def changes(before: memoryview, after: memoryview, part_max: float) -> list[Change]:
    """What has changed. Raises `Whole` where patches cannot say it, or where it is more than this part of all elements."""
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
    """Which elements differ in their bits: where a run of them begins, and a mask."""
    # A type of another size is no float of ours: only whether it has changed counts.
    bits = _BITS.get(new.element_size(), torch.uint8)
    one, other = old.reshape(-1).view(bits), new.reshape(-1).view(bits)
    for begin in range(0, other.numel(), _AT_ONCE):
        yield begin, torch.ne(one[begin : begin + _AT_ONCE], other[begin : begin + _AT_ONCE])


def load(model: torch.nn.Module, found: list[Change], device: torch.device) -> int:
    """Has vLLM load the changes into the model in place, and says how many elements these are."""
    module = loader()
    patches = []
    for change in found:
        # Only what has changed goes to the device; vLLM makes a whole tensor of it there.
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
            # Places that rise are unique: vLLM need not sort them.
            module.load_checkpoint_weight_patches(model, patches, validate_unique_indices=False)
    return sum(change.at.numel() for change in found)


def _some_of_all() -> contextlib.AbstractContextManager[Any]:
    """A model that asks for all tensors of its draft layers at once is given some of them."""
    try:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
    except ImportError:
        return contextlib.nullcontext()
    made: contextlib.AbstractContextManager[Any] = disable_mtp_completeness_check()
    return made


def show(model: torch.nn.Module, view: memoryview, device: torch.device) -> bool:
    """Whether patches get to their places in this model: some elements of each tensor are loaded again, which changes nothing where it is
    laid out as its file, and where its loaders write as vLLM's mark of what stays (a NaN) needs it. Otherwise the model is wrong
    now, and is to be loaded anew."""
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
    """A sum of each parameter's bits. It tells whether something else has changed a model meanwhile."""
    by_device: dict[torch.device, dict[str, torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        bits = _BITS.get(parameter.element_size())
        if bits is not None and parameter.layout == torch.strided and parameter.device.type != "meta":
            # In whichever order a transposed tensor has its elements: nothing is copied.
            found = parameter.detach().view(bits).sum(dtype=torch.int64)
            by_device.setdefault(parameter.device, {})[name] = found
    made: dict[str, int] = {}
    for of_device in by_device.values():
        # One answer for each device, and not one for each tensor.
        made.update(zip(of_device, torch.stack(list(of_device.values())).tolist(), strict=True))
    return made

