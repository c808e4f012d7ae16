"""NeMo-RL: new weights from the policy to all hosts with vLLM at once, as a checkpoint engine. See docs/howto/rl.md.

    policy:
      generation:
        refit_transport: "polycast.nemo:CheckpointEngine"
        refit_cfg:
          "polycast.nemo:CheckpointEngine": {topic: policy}

The host of the policy's rank 0 and each host with vLLM run an agent, found by POLYCAST_SOCKET or at its usual place.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Any

from nemo_rl.utils.checkpoint_engines import base

from polycast._agent import Published
from polycast._backends import DEFAULT_APP, Link, seconds, usual_device
from polycast._renamed import renamed
from polycast.errors import Invalid

if TYPE_CHECKING:
    import torch

__all__ = ["CheckpointEngine"]

_LOG = logging.getLogger("polycast.nemo")


def _number(session: str, refit: int) -> int:
    """Returns the number of a refit's object. NeMo-RL does not say which refit it is, so both sides count."""
    return int.from_bytes(hashlib.sha256(f"{session}/{refit}".encode()).digest()[:8], "big") >> 1


class CheckpointEngine(base.CheckpointEngine):
    """Checkpoint engine: the policy's rank 0 publishes each version on a topic, and the workers of a host read the host's one copy."""

    @renamed("deadline", "publish_timeout")
    def __init__(
        self,
        bucket_size: int,
        topic: str = "nemo-rl",
        app: str = DEFAULT_APP,
        socket: str | None = None,
        publish_timeout: float = 300.0,
        timeout: float = 600.0,
        device: str | None = None,
        release_after_refit: bool = False,
        shard_expert_weights: bool = False,
    ) -> None:
        if shard_expert_weights:
            raise Invalid("shard_expert_weights=True asks for a part of the weights per host, and here each host gets all: leave it false")
        if bucket_size < 1:
            raise Invalid(f"bucket_size={bucket_size} is no length: give the bytes of a batch")
        self.bucket_size = bucket_size
        # The subscription holds no memory that could be released, so it is kept.
        self.release_after_refit = release_after_refit
        self.published: Published | None = None
        self._publish_timeout, self._timeout = seconds("publish_timeout", publish_timeout), seconds("timeout", timeout)
        self._topic, self._app, self._socket, self._device = topic, app, socket, device
        self._link: Link | None = None
        self._session = ""
        self._refits = 0
        self._rank: int | None = None

    def prepare(self) -> dict[str, Any]:
        """Returns the metadata for all processes. Only that of the policy's rank 0 counts. NeMo-RL adds the ranks."""
        return {"topic": self._topic, "app": self._app, "session": uuid.uuid4().hex}

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Opens the host's agent at rank 0. The other ranks need none."""
        self._rank, self._refits, self._session = worker_rank, 0, metadata[0]["session"]
        if worker_rank == 0:
            self._open(metadata[0])

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Subscribes the host to the topic that the policy's rank 0 has named, before the first version is published."""
        self._rank, self._refits, self._session = None, 0, metadata[0]["session"]
        self._open(metadata[0]).subscribe()

    def finalize(self) -> None:
        """Ends the session; a new one has to be agreed. The subscription stays."""
        self._session, self._refits = "", 0

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Publishes the weights, and returns once all hosts that are alive have them. `published` names the hosts that lack them."""
        data_id, refit = self._next()
        if self._rank != 0 or self._link is None:
            # All ranks take part in gathering a tensor.
            for _ in weights:
                pass
            return
        # In this thread, because the generator works on this thread's device.
        self._link.add(data_id, weights, {"refit": str(refit)})
        self.published = await asyncio.to_thread(self._link.commit, data_id, None, self._publish_timeout)

    async def receive_weight_batches(self) -> AsyncGenerator[list[tuple[str, torch.Tensor]], None]:
        """Yields the tensors of this refit's version, in batches of about `bucket_size` bytes, once all of it is verified on this host.
        Raises `TimedOut` if it does not arrive in time."""
        data_id, refit = self._next()
        if self._link is None:
            raise Invalid("this process receives nothing: init_rollout_process_group comes first")
        found = await self._link.wait(data_id, f"the version of refit {refit}", self._timeout)
        batch: list[tuple[str, torch.Tensor]] = []
        length = 0
        for name, tensor in self._link.each(found, self._device or usual_device()):
            if batch and length + tensor.nbytes > self.bucket_size:
                yield batch
                batch, length = [], 0
            batch.append((name, tensor))
            length += tensor.nbytes
        if batch:
            yield batch

    def _next(self) -> tuple[int, int]:
        if not self._session:
            raise Invalid("no session was agreed: prepare and init_*_process_group come before a refit")
        # Counted even if the refit fails afterwards: the other side has counted it.
        self._refits += 1
        return _number(self._session, self._refits), self._refits

    def _open(self, publication: dict[str, Any]) -> Link:
        where = (publication["topic"], publication["app"])
        if self._link is None or (self._link.topic, self._link.app) != where:
            if self._link is not None:
                self._link.close()
            self._link = Link(*where, self._socket, _LOG)
        # Checks that the agent is running, and registers again if it was restarted.
        _ = self._link.agent
        return self._link
