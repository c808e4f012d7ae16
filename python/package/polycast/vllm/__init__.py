"""vLLM: new weights for its workers while it serves, from a trainer to all hosts at once.

The workers' side is a plug-in that vLLM finds by itself:

    llm = LLM(model, weight_transfer_config={"backend": "polycast"})      # or --weight-transfer-config '{"backend": "polycast"}'

The trainer's side:

    from polycast.vllm import Trainer, TrainerInfo

    trainer = Trainer.trainer_init(TrainerInfo(topic="policy", rank=rank), client=client, source=source)
    trainer.send_weights()                          # after each step

Adapters (LoRA) come from topics too if POLYCAST_LORA_TOPICS gives the topics' prefix.

Each host of a worker, and the host of the trainer's rank 0, runs an agent, found by POLYCAST_SOCKET or at its usual place. For vLLM 0.29
and newer; docs/howto/vllm.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polycast.vllm.engine import InitInfo, PolycastEngine, UpdateInfo
    from polycast.vllm.lora import TopicResolver
    from polycast.vllm.trainer import Trainer, TrainerInfo

__all__ = ["InitInfo", "PolycastEngine", "TopicResolver", "Trainer", "TrainerInfo", "UpdateInfo", "register"]

BACKEND = "polycast"
_WHERE = {
    "InitInfo": "engine", "PolycastEngine": "engine", "UpdateInfo": "engine", "Trainer": "trainer", "TrainerInfo": "trainer",
    "TopicResolver": "lora",
}


def register() -> None:
    """Registers the back end, and the resolver for adapters if POLYCAST_LORA_TOPICS is set. vLLM calls this in each of its processes, in
    some more than once."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    for factory, module, name in (
        (WeightTransferEngineFactory, "engine", "PolycastEngine"),
        (WeightTransferTrainerFactory, "trainer", "Trainer"),
    ):
        if BACKEND not in factory._registry:
            factory.register_engine(BACKEND, f"{__name__}.{module}", name)
    if os.environ.get("POLYCAST_LORA_TOPICS"):
        from polycast.vllm import lora

        lora.register()


def __getattr__(name: str) -> Any:
    # Registering alone does not import vLLM's classes.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
