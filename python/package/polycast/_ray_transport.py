"""Ray's direct transport over the nodes' agents: the result of a method is copied into the agent's memory once, and each node that takes
the reference fetches it. Requests at nearly the same time are served together, and each byte is sent once."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from typing import Any

from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)

from polycast import tensors as _tensors
from polycast._agent import Object
from polycast._shared import shared_agent
from polycast.errors import Invalid

# Ray's own timeout for a transfer.
FETCH_WITHIN_S = 60.0


def _have_ray_make_its_manager() -> Any:
    """Returns this process's manager of tensors. Ray makes it on first use and holds no lock: two threads that ask at once get one each,
    and a task then waits in its own for tensors that have arrived in the other (seen with Ray 2.60)."""
    from ray._private import worker

    return getattr(worker.global_worker, "rdt_manager", None)


# When Ray registers the transport in an actor, it imports this module there, before it sends the actor tensors or a task that takes some.
_have_ray_make_its_manager()


@dataclass
class Metadata(TensorTransportMetadata):
    """Metadata that travels with the reference: the number of the object."""

    data_id: int = 0


class _Transport(TensorTransportManager):
    framework: str

    def __init__(self) -> None:
        self._running: dict[str, Any] = {}
        self._lock = threading.Lock()

    @staticmethod
    def data_type() -> type:
        raise NotImplementedError

    def tensor_transport_backend(self) -> str:
        return "POLYCAST"

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        # Asked before every call. An actor whose node has no agent gets the error when it receives the tensors.
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        """Adds the tensors on the source, once per object."""
        devices = {self._device(tensor) for tensor in rdt_object}
        if len(devices) > 1:
            raise Invalid(f"the tensors of one object are on several devices: {', '.join(sorted(devices))}; return them apart")
        agent, data_id = shared_agent(), uuid.uuid4().int >> 65
        # Numbers as names keep the tensors in their order.
        _tensors.add(agent, data_id, {str(at): tensor for at, tensor in enumerate(rdt_object)}, name=f"ray-{obj_id}")
        shapes = [(tensor.shape, tensor.dtype) for tensor in rdt_object]
        return Metadata(shapes, next(iter(devices), None), data_id)

    @staticmethod
    def _device(tensor: Any) -> str:
        return str(tensor.device.type) if hasattr(tensor, "data_ptr") else "cpu"

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Returns the tensors on a receiver: views of its node's copy, or the given buffers, filled."""
        said = tensor_transport_metadata
        if not isinstance(said, Metadata):
            raise Invalid("the reference is of another transport")
        found = self._fetch(obj_id, said.data_id)
        by_name = _tensors.of(found, self.framework)
        got = [self._as_said(by_name.get(str(at)), at, *meta) for at, meta in enumerate(said.tensor_meta)]
        if target_buffers:
            for buffer, tensor in zip(target_buffers, got, strict=True):
                self._fill(buffer, tensor)
            return target_buffers
        if said.tensor_device not in (None, "cpu"):
            got = [tensor.to(said.tensor_device) for tensor in got]
        return got

    @staticmethod
    def _as_said(tensor: Any, at: int, shape: Any, dtype: Any) -> Any:
        """Returns the tensor if it matches Ray's reference, and raises `Invalid` otherwise: agents bring the bytes, which may be another
        object's."""
        if tensor is None or tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
            what = "is not in it" if tensor is None else f"has the shape {list(tensor.shape)} and the type {tensor.dtype}"
            where = f"the object that came is not the one of the reference: its tensor {at} {what}"
            raise Invalid(f"{where}, and was to have the shape {list(shape)} and the type {dtype}")
        return tensor

    @staticmethod
    def _fill(buffer: Any, tensor: Any) -> None:
        raise NotImplementedError

    def _fetch(self, obj_id: str, data_id: int) -> Object:
        agent = shared_agent()
        events = agent._fetching(data_id, False, FETCH_WITHIN_S)
        with self._lock:
            self._running[obj_id] = events
        try:
            return agent._fetched(events, data_id)
        finally:
            with self._lock:
                self._running.pop(obj_id, None)

    def send_multiple_tensors(
        self,
        tensors: list[Any],
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        raise NotImplementedError("receivers fetch: Ray calls this only for transports that are not one-sided")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: list[Any]) -> None:
        """Removes the object from all nodes, on the source, once no process has the reference. Views of it stay valid."""
        if not isinstance(tensor_transport_meta, Metadata):
            return
        agent = shared_agent()
        try:
            agent.remove(tensor_transport_meta.data_id, "all")
        finally:
            agent._forget(tensor_transport_meta.data_id)

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        with self._lock:
            # A transfer that has not begun ends by itself.
            if (events := self._running.get(obj_id)) is not None:
                events.cancel()


class TorchTransport(_Transport):
    """Transport for tensors of torch."""

    framework = "torch"

    @staticmethod
    def data_type() -> type:
        import torch

        tensor: type = torch.Tensor
        return tensor

    @staticmethod
    def _fill(buffer: Any, tensor: Any) -> None:
        buffer.copy_(tensor)


class NumpyTransport(_Transport):
    """Transport for arrays of numpy."""

    framework = "numpy"

    @staticmethod
    def data_type() -> type:
        import numpy

        return numpy.ndarray

    @staticmethod
    def _fill(buffer: Any, tensor: Any) -> None:
        buffer[...] = tensor
