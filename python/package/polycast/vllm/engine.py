"""The workers' side: what a vLLM worker does to get new weights."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from polycast import tensors
from polycast._agent import Agent, Versions
from polycast.errors import Invalid


@dataclass
class InitInfo(WeightTransferInitInfo):
    """What the trainer says once: the topic that it publishes, and the application that it belongs to."""

    topic: str = "weights"
    app: str = str(uuid.UUID(int=0))


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What it says of each version: the number of the object, and how many seconds a worker waits for it."""

    data_id: int = 0
    version: int = 0
    timeout: float = 60.0


class PolycastEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Weights come to the host's agent while vLLM serves. When they are to be taken, they are here already, once for all workers of
    the host. A worker that came later, or whose host was away, gets them then from whichever host has them."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    _agent: Agent | None = None
    _versions: Versions | None = None
    _taken: int | None = None
    _before: int | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self.shutdown()
        self._agent = Agent(app=init_info.app)
        # Those who have subscribed have each version before the trainer tells them to take it.
        self._versions = self._agent.subscribe(init_info.topic)

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # As the base class does it, which cannot wait for a device that is none.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            import torch

            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._agent is None:
            raise Invalid("the trainer has not said where its weights come from: init_weight_transfer_engine comes first")
        found = self._agent.fetch(update_info.data_id, timeout=update_info.timeout)
        self.model.load_weights(tensors.each(found.map(writable_copy=True), "torch"))
        if self._taken != update_info.data_id:
            self._taken, self._before = update_info.data_id, self._taken

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        if self._agent is not None and self._before is not None:
            self._agent._forget(self._before)
            self._before = None

    def shutdown(self) -> None:
        if self._versions is not None:
            self._versions.cancel()
            self._versions = None
        if self._agent is not None:
            self._agent.close()
            self._agent = None
