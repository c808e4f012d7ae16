"""verl: new weights from the trainer to all rollout hosts at once, as a checkpoint engine. For verl 0.9.1; docs/howto/rl.md.

    actor_rollout_ref.rollout.checkpoint_engine.backend=polycast
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=polycast.verl

verl imports this module in each of its processes, which registers the engine. The host of the trainer's rank 0 and each rollout host run an
agent, found by POLYCAST_SOCKET or at its usual place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Any

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from polycast._agent import Published
from polycast._backends import DEFAULT_APP, Link, new_number, seconds, usual_device
from polycast._renamed import renamed
from polycast.errors import Invalid

if TYPE_CHECKING:
    import torch

__all__ = ["PolycastCheckpointEngine"]

_LOG = logging.getLogger("polycast.verl")
_PUBLISHES, _GATHERS, _RECEIVES = "publishes", "gathers", "receives"


@CheckpointEngineRegistry.register("polycast")
class PolycastCheckpointEngine(CheckpointEngine):
    """Checkpoint engine: the trainer's rank 0 publishes each version on a topic, and the workers of a rollout host read the host's one
    copy. There is no group of processes that one dead member could stop."""

    wire_format = "named_tensors"

    @renamed("deadline", "publish_timeout")
    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        topic: str = "verl",
        app: str = DEFAULT_APP,
        socket: str | None = None,
        publish_timeout: float = 300.0,
        timeout: float = 600.0,
        device: str | None = None,
    ) -> None:
        # Nothing is sent in buckets here; the consumer of the tensors makes its own.
        self.bucket_size = bucket_size
        self.is_master = is_master
        self.published: Published | None = None
        self._publish_timeout, self._timeout = seconds("publish_timeout", publish_timeout), seconds("timeout", timeout)
        self._topic, self._app, self._socket, self._device = topic, app, socket, device
        self._link: Link | None = None
        self._role = ""
        self._data_id = 0

    def prepare(self) -> dict[str, Any]:
        """Names the next version's object before it exists, so that each rollout waits for this object and no other."""
        if not self.is_master:
            return {}
        # Without an agent here the update fails now, and not after all weights have been gathered.
        self._open(self._topic, self._app)
        return {"topic": self._topic, "app": self._app, "data_id": new_number()}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Assigns each process its role, and passes the version that rank 0 has named to all of them."""
        if not metadata or "data_id" not in metadata[0]:
            raise Invalid("the trainer's rank 0 has named no version: it is the one whose engine is made with is_master=True")
        publication = metadata[0]
        roles = [_PUBLISHES] + [_GATHERS] * (actor_wg_world_size - 1)
        return (
            {"role": roles, "publication": [publication] * actor_wg_world_size},
            {"role": [_RECEIVES] * rollout_world_size, "publication": [publication] * rollout_world_size},
        )

    def init_process_group(self, role: str, publication: dict[str, Any]) -> None:
        """Takes the role. A rollout's host subscribes, before the version is published."""
        self._role, self._data_id = role, publication["data_id"]
        if role == _RECEIVES:
            self._open(publication["topic"], publication["app"]).subscribe()

    def finalize(self) -> None:
        """Forgets the agreement for this update. The subscription stays, so that the next version arrives before it is requested."""
        self._role, self._data_id = "", 0

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float] | None:
        """Publishes the weights as version `global_steps`, and returns once all rollout hosts that are alive have them. verl gets figures
        for its log; `published` names the hosts that lack the version."""
        import torch

        with torch.no_grad():
            if self._role == _GATHERS:
                # All ranks take part in gathering a tensor.
                for _ in weights:
                    pass
                return None
            if self._role != _PUBLISHES or self._link is None:
                raise Invalid("this process publishes nothing: init_process_group has not made it the trainer's rank 0")
            # In this thread, because the generator works on this thread's device.
            self._link.add(self._data_id, weights, {} if global_steps is None else {"global_steps": str(global_steps)})
        published = await asyncio.to_thread(self._link.commit, self._data_id, global_steps, self._publish_timeout)
        self.published = published
        return {
            "polycast/version": published.version,
            "polycast/hosts": len(published.have),
            "polycast/missing_hosts": len(published.missing),
            "polycast/sent_bytes": published.sent_bytes,
            "polycast/spared_bytes": published.spared_bytes,
        }

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Yields the tensors of the version that rank 0 has named, once all of it is verified on this host. Raises `TimedOut` if it does
        not arrive in time."""
        if self._role != _RECEIVES or self._link is None:
            raise Invalid("this process receives nothing: init_process_group has not made it a rollout's")
        what = "the next version" if global_steps is None else f"the version of step {global_steps}"
        found = await self._link.wait(self._data_id, what, self._timeout)
        for name, tensor in self._link.each(found, self._device or usual_device()):
            yield name, tensor

    def _open(self, topic: str, app: str) -> Link:
        if self._link is None or (self._link.topic, self._link.app) != (topic, app):
            if self._link is not None:
                self._link.close()
            self._link = Link(topic, app, self._socket, _LOG)
        # Checks that the agent is running, and registers again if it was restarted.
        _ = self._link.agent
        return self._link
