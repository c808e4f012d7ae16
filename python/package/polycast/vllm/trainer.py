"""The trainer's side: sends weights to the hosts of all workers, then has vLLM load them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from polycast import torch as _weights
from polycast._agent import Agent, Published
from polycast._renamed import renamed
from polycast.errors import WeightsMismatch

_LOG = logging.getLogger("polycast.vllm")


@dataclass
class TrainerInfo(TrainerInitInfo):
    """Settings for publishing weights. Rank 0 publishes; all ranks take part in gathering."""

    backend: ClassVar[str] = "polycast"

    _: KW_ONLY
    # Topic, and the application of the topic. The workers get both from the trainer.
    topic: str = "weights"
    app: str = str(uuid.UUID(int=0))
    # Socket of this host's agent, if it is not the usual one.
    socket: str | None = None
    # Seconds that hosts have to get a version before vLLM is notified of it, and that workers still without it have then.
    publish_timeout: float = 600.0
    timeout: float = 60.0
    # Workers load only the differences from the version that they have, up to this part of all elements.
    patches: bool = False
    patches_part: float = 0.1


TrainerInfo.__init__ = renamed("deadline", "publish_timeout")(TrainerInfo.__init__)  # type: ignore[method-assign]


class Trainer(TrainerWeightTransferEngine[TrainerInfo]):
    """Publishes weights on a topic that the workers' hosts have subscribed to. vLLM stops serving only when all hosts that are alive have
    them, and only for as long as its workers take to load them. A host that has died does not delay the others."""

    init_info_cls = TrainerInfo

    info: TrainerInfo
    published: Published | None = None
    _agent: Agent | None = None

    @classmethod
    def trainer_init(cls, init_info: TrainerInfo, *, client: Any, source: Any = None) -> Trainer:
        """Opens the agent, and tells the workers which topic to subscribe to."""
        made: Trainer = cls(client=client, source=source, is_sender=init_info.is_sender)
        made.info = init_info
        if made.is_sender:
            made._agent = Agent(init_info.socket, init_info.app)
            said: dict[str, Any] = {"topic": init_info.topic, "app": init_info.app}
            if init_info.patches:
                # A worker of an older release does not know these fields, and refuses them.
                said |= {"patches": True, "patches_part": init_info.patches_part}
            client.init_weight_transfer_engine(said)
        return made

    def send_weights(self) -> None:
        """Publishes the source's weights as a new version, and has vLLM load it. `published` lists the hosts that had it beforehand."""
        if not self.is_sender:
            # All ranks may take part in gathering a tensor.
            for _ in self._tensors():
                pass
            return
        assert self._agent is not None, "trainer_init has opened it"
        info = self.info
        self.published = _weights.publish(self._whole(), info.topic, agent=self._agent, timeout=info.publish_timeout)
        for host, why in self.published.missing.items():
            _LOG.warning("%s has not got version %d beforehand: %s", host, self.published.version, why)
        version, data_id = self.published.version, self._agent._published[info.topic]
        self.client.start_weight_update()
        self.client.update_weights({"data_id": data_id, "version": version, "timeout": info.timeout})
        self.client.finish_weight_update(str(version))

    def _whole(self) -> Iterator[tuple[str, Any]]:
        """Yields the tensors. Raises `WeightsMismatch` if rank 0 lacks one: half a model is not published."""
        metadata = self.source.metadata
        # A property since vLLM 0.33.
        lacking = {meta.name for meta in (metadata() if callable(metadata) else metadata)}
        for name, tensor in self._tensors():
            if tensor is not None:
                lacking.discard(name)
                yield name, tensor.detach().contiguous()
        if lacking:
            what = f"rank 0 has not got '{min(lacking)}'" + (f" and {len(lacking) - 1} others" if len(lacking) > 1 else "")
            raise WeightsMismatch(f"{what}, and publishes for all: give a source that gathers every tensor at rank 0")

    def _tensors(self) -> Iterator[tuple[str, Any]]:
        # vLLM 0.33 states which of a rank's tensors are meant.
        return self.source.iter_full() if hasattr(self.source, "iter_full") else iter(self.source)

    def shutdown(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None
