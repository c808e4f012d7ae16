"""TRL and transformers: a callback that publishes a model's weights during training. See docs/howto/rl.md.

    from polycast.trl import PolycastCallback

    trainer = GRPOTrainer(..., callbacks=[PolycastCallback("policy", every=10)])

The host of process 0 runs an agent, found by POLYCAST_SOCKET or at its usual place. Programs that use the weights subscribe with
`polycast.torch`.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from transformers import TrainerCallback

from polycast import tensors
from polycast._agent import Agent, Published
from polycast._backends import new_number, publish, seconds
from polycast._renamed import deadline_is_timeout
from polycast._shared import shared_agent
from polycast.errors import Invalid
from polycast.torch import spread_by

__all__ = ["PolycastCallback"]

_LOG = logging.getLogger("polycast.trl")


class PolycastCallback(TrainerCallback):
    """Publishes the weights after every `every` steps and after the last one, with the step's number as the version. The next step begins
    once all subscribers that are alive have them. `published` is the result of the last version."""

    @deadline_is_timeout
    def __init__(self, topic: str, every: int = 1, agent: Agent | None = None, *, timeout: float = 300.0) -> None:
        if every < 1:
            raise Invalid(f"every={every} is no number of steps: give 1 or more")
        self.topic, self.every = topic, every
        self.published: Published | None = None
        self._agent = agent
        self._timeout = seconds("timeout", timeout)
        self._object: int | None = None
        self._step: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Raises `Invalid` at once for a model that would fail after the first step. All processes see that a model is sharded, so that
        none waits for one that has raised."""
        self._step = None
        if why := _sharded(args, model):
            cure = "gather them, and give them to polycast.torch.publish"
            raise Invalid(f"the model's weights are spread over processes ({why}), and process 0 alone publishes: {cure}")
        if state.is_world_process_zero:
            self._agent = self._agent or shared_agent()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Publishes the weights if it is this step's turn."""
        if state.global_step % self.every == 0:
            self._publish(state, model)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Publishes the weights of the last step, unless that was done already."""
        if state.global_step != self._step:
            self._publish(state, model)

    def _publish(self, state: Any, model: Any) -> None:
        if not state.is_world_process_zero or model is None:
            return
        agent = self._agent = self._agent or shared_agent()
        # One mapping instead of pairs, so that tied weights travel once.
        weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
        data_id = new_number()
        tensors.add(agent, data_id, weights, metadata={"global_step": str(state.global_step)})
        try:
            self.published = publish(agent, self.topic, data_id, state.global_step, self._timeout, _LOG)
        except BaseException:
            agent._forget(data_id)
            raise
        before, self._object, self._step = self._object, data_id, state.global_step
        if before is not None:
            agent._forget(before)


def _sharded(args: Any, model: Any) -> str:
    """Returns the cause that has spread the weights over processes, or an empty text."""
    if getattr(args, "fsdp", None) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        return "FSDP"
    return "" if model is None else spread_by(model)
