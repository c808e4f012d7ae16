"""Versions of a model's weights: a trainer publishes them, and all subscribers get them, once per host.

    from polycast import torch as weights

    weights.publish(model, "policy")                # in the trainer, after each step

    for version in weights.subscribe("policy"):     # in each worker, from the last version on
        version.load_into(model)

Subscribers see a version only when it is complete, verified and committed: every subscriber that is alive and able has it. Each host runs
an agent, found by POLYCAST_SOCKET or at its usual place; `agent=` gives another one, such as `Agent.embedded(...)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from polycast import _gpu
from polycast import tensors as _tensors
from polycast._agent import Agent, Object, Published, Versions
from polycast._renamed import deadline_is_timeout
from polycast._shared import shared_agent
from polycast.errors import Invalid, ObjectUnknown, TimedOut, UnsupportedType, WeightsMismatch

if TYPE_CHECKING:
    import torch

__all__ = ["Arriving", "Subscription", "Weights", "arriving", "publish", "subscribe"]


@deadline_is_timeout
def publish(
    weights: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    topic: str,
    *,
    version: int | None = None,
    timeout: float | None = None,
    metadata: Mapping[str, str] | None = None,
    agent: Agent | None = None,
) -> Published:
    """Publishes weights as a new version of a topic, and returns once it is committed: every subscriber that is alive and able has it, and
    `missing` of the result names the others. The weights may change as soon as this returns.

    `weights` are a module, a state dict, or pairs of names and tensors. Pairs are taken one at a time: weights that are spread over several
    devices need not be in one place. The bytes are copied once, from the tensors into the agent's memory; those of a GPU go there in
    pieces, through two pinned buffers. Version numbers only rise; the default is one above the last.
    """
    if hasattr(weights, "state_dict"):
        weights = state_of(weights)
    if hasattr(weights, "data_ptr") or not isinstance(weights, Iterable):
        what = f"a {type(weights).__name__} has no weights"
        raise UnsupportedType(f"{what}: give a torch.nn.Module, its state_dict(), or pairs of names and tensors")
    agent = agent or shared_agent()
    return _tensors.publish(agent, topic, weights, version=version, timeout=timeout, metadata=metadata)


def spread_by(module: Any) -> str:
    """Returns the cause that has spread a module's weights over processes, so that no single one can publish them; empty if they are whole
    here."""
    for name, parameter in module.named_parameters() if hasattr(module, "named_parameters") else ():
        if hasattr(parameter, "ds_id"):
            return "DeepSpeed ZeRO-3"
        if hasattr(parameter, "full_tensor"):
            return f"'{name}' is a DTensor"
        if name.endswith("_flat_param"):
            return "FSDP"
    return ""


def check_whole(module: Any) -> None:
    """Raises `Invalid` if a module's weights are spread over processes."""
    if why := spread_by(module):
        cure = "gather them on one, and give polycast.torch.publish the tensors there"
        raise Invalid(f"the module's weights are spread over processes ({why}): {cure}")


def state_of(module: Any) -> dict[str, Any]:
    """Returns the state dict of a module, with a copy of each tensor that is not contiguous, as with channels_last. Raises `Invalid` if the
    weights are spread over processes: gathering them would wait for the other ones."""
    check_whole(module)

    def whole(one: Any) -> Any:
        # A tensor without such bytes, such as a sparse one, is refused when it is written.
        is_apart = str(getattr(one, "layout", "")) == "torch.strided" and not one.is_contiguous()
        return one.contiguous() if is_apart else one

    return {name: whole(one) for name, one in module.state_dict().items()}


def subscribe(topic: str, *, agent: Agent | None = None) -> Subscription:
    """Subscribes to the versions of a topic, from the latest committed one on."""
    agent = agent or shared_agent()
    return Subscription(agent, agent.subscribe(topic))


def arriving(topic: str, *, agent: Agent | None = None) -> Iterator[Arriving]:
    """Yields the versions of a topic, each as soon as it is on its way: its tensors come one by one, before the version is complete and
    before it is committed. A late reader begins with the latest committed version."""
    agent = agent or shared_agent()
    for version, data_id in _tensors.each_version(agent.subscribe(topic, staged=True)):
        yield Arriving(version, data_id, agent)


@dataclass(frozen=True)
class Arriving:
    """A version of weights that is on its way. It may still fail at other subscribers; `subscribe` gives only committed versions."""

    version: int
    data_id: int
    _agent: Agent = field(repr=False, compare=False)

    def tensors(self, timeout: float | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the tensors with their names, in the order in which the model uses them, each as soon as its bytes are verified. Raises if
        the rest does not arrive; tensors that were yielded stay valid."""
        return _tensors.arriving(self._agent, self.data_id, "torch", timeout=timeout)


@dataclass(frozen=True)
class Weights:
    """A committed version of weights, complete on this host. Its tensors are views of the host's copy, which stay valid when the version is
    superseded; only this process sees changes to them."""

    version: int
    object: Object
    _view: memoryview = field(repr=False, compare=False)

    @property
    def path(self) -> str:
        """Path of the file with the weights, for readers of safetensors, until the next version is taken."""
        return self.object.path

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata that the publisher gave with the weights."""
        said = _tensors.header_of(self._view)[0].get("__metadata__", {})
        return {name: value for name, value in said.items() if not name.startswith("polycast.")}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the tensors with their names, in the order in which the model uses them."""
        return _tensors.each(self._view, "torch")

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns all tensors by their names, tied ones under each of theirs."""
        return dict(self.tensors())

    def load_into(self, module: torch.nn.Module, *, strict: bool = True, assign: bool = False) -> None:
        """Loads the weights into a module. Checks names and shapes before it changes the first tensor, so that the module has either the
        previous version or this one, and raises `WeightsMismatch` if they differ. Without `strict`, names that only one side has are
        ignored. With `assign` the parameters become views of the host's copy, and nothing is copied: such a module must be in this
        machine's memory, or have no bytes yet."""
        state = self.state_dict()
        own = module.state_dict()
        away = [name for name, tensor in own.items() if tensor.device.type not in ("cpu", "meta")]
        if assign and away:
            where = own[away[0]].device
            raise Invalid(f"'{away[0]}' is on {where}, where no view of the host's copy can be: leave assign away, and it is copied there")
        empty = [name for name, tensor in own.items() if tensor.device.type == "meta" and name in state]
        if empty and not assign:
            # torch itself would copy nothing there, and only warn.
            raise Invalid(f"'{empty[0]}' has no bytes yet: module.to_empty(device=...) first")
        wrong = [
            f"'{name}' is {list(tensor.shape)} and that of the module {list(own[name].shape)}"
            for name, tensor in state.items()
            if name in own and tensor.shape != own[name].shape
        ]
        if strict:
            wrong += [f"'{name}' is not in the module" for name in state if name not in own]
            wrong += [f"'{name}' of the module is not in it" for name in own if name not in state]
        if wrong:
            more = f", and {len(wrong) - 3} others" if len(wrong) > 3 else ""
            what = f"version {self.version} is not of this module: {'; '.join(wrong[:3])}{more}"
            raise WeightsMismatch(f"{what}; give the module that it was made of, or strict=False where only names differ")
        self._fill(state, own)
        module.load_state_dict(state, strict=strict, assign=assign)

    @staticmethod
    def _fill(state: dict[str, torch.Tensor], own: dict[str, torch.Tensor]) -> None:
        """Copies weights that belong on a GPU there, through pinned buffers. The module then loads its own tensors, and does everything
        else that loading does."""
        targets = {}
        for name, to in own.items():
            tensor = state.get(name)
            if tensor is not None and to.device.type == "cuda" and to.dtype == tensor.dtype and to.is_contiguous() and to.numel():
                # Tied weights are copied once. A tensor that begins at the same address may be a part of another.
                targets[to.data_ptr(), to.numel(), tensor.data_ptr()] = (to, tensor)
                state[name] = to
        _gpu.fill(targets.values())


class Subscription(Iterator[Weights]):
    """Versions of a topic: iterate, wait for the next one, or check for a newer one. A version that is taken replaces the one before it in
    this host's store. A slow reader gets only the newest."""

    def __init__(self, agent: Agent, versions: Versions) -> None:
        self._agent, self._versions = agent, versions
        self._last: int | None = None

    def __next__(self) -> Weights:
        while True:
            if (found := self._whole(next(self._versions))) is not None:
                return found

    def next(self, timeout: float | None = None) -> Weights | None:
        """Returns the next version, or `None` if the subscription is closed during the call. Raises `TimedOut` if none arrives within
        `timeout` seconds, and `Closed` if it was closed before."""
        while (version := self._versions.next(timeout)) is not None:
            if (found := self._whole(version)) is not None:
                return found
        return None

    def newest(self) -> Weights | None:
        """Returns the newest version that is here and was not returned yet, or `None`. Does not wait."""
        found = None
        try:
            while (version := self._versions.next(0.0)) is not None:
                found = self._whole(version) or found
        except TimedOut:
            pass
        return found

    def _whole(self, version: Any) -> Weights | None:
        """Returns a version, or `None` if another process of this host has superseded it: then a newer one follows."""
        if version.object is None:
            return None
        try:
            view = version.object.map(writable_copy=True)
        except ObjectUnknown:
            return None
        if self._last is not None and self._last != version.object.data_id:
            self._agent._forget(self._last)
        self._last = version.object.data_id
        return Weights(version.version, version.object, view)

    def close(self) -> None:
        """Ends the subscription."""
        self._versions.cancel()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
