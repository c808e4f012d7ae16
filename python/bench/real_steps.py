"""What the steps of a training cost as deltas: a small transformer learns the documents of this project, and each step is published three times.

    python real_steps.py [--steps 20] [--width 512] [--layers 4] [--rate 1e-4]

As bfloat16, which rollouts use; as float32; and the moments of the optimiser. For each it says how much of the elements has changed, the bytes of
the delta, and, where the package zstandard is there, those of the XOR of both versions under zstd, level 1.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy
import polycast
import torch
from polycast import tensors

try:
    import zstandard
except ImportError:
    zstandard = None

TEXT = Path(__file__).parents[2] / "docs"
WINDOW = 128


class Model(torch.nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.bytes = torch.nn.Embedding(256, width)
        self.places = torch.nn.Embedding(WINDOW, width)
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = torch.nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.out(self.layers(self.bytes(text) + self.places.weight[: text.shape[1]], mask=mask, is_causal=True))


def published(agent: polycast.Agent, topic: str, state: dict[str, torch.Tensor], before: dict[str, bytes]) -> tuple[float, float, float] | None:
    """Publishes a version; gives the elements that have changed, the delta, and XOR under zstd, in per cent. None of the first version."""
    done = tensors.publish(agent, topic, state)
    whole = b"".join(tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in state.values())
    old, before[topic] = before.get(topic), whole
    if old is None:
        return None
    size = next(iter(state.values())).element_size()
    new_bytes, old_bytes = numpy.frombuffer(whole, f"u{size}"), numpy.frombuffer(old, f"u{size}")
    changed = float((new_bytes != old_bytes).mean()) * 100
    xor = zstandard.ZstdCompressor(level=1).compress((new_bytes ^ old_bytes).tobytes()) if zstandard else b""
    return changed, done.coded_bytes / len(whole) * 100, len(xor) / len(whole) * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-4)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    text = torch.frombuffer(bytearray(b"".join(page.read_bytes() for page in sorted(TEXT.rglob("*.md")))), dtype=torch.uint8)
    model = Model(arguments.width, arguments.layers)
    optimiser = torch.optim.AdamW(model.parameters(), arguments.rate)
    rows: dict[str, list[tuple[float, float, float]]] = {"bfloat16": [], "float32": [], "moments": []}
    before: dict[str, bytes] = {}
    with polycast.Agent.embedded() as trainer, polycast.Agent.embedded(trainer.manager) as rollout:
        topics = [rollout.subscribe(topic) for topic in rows]
        for _ in range(arguments.steps):
            at = torch.randint(len(text) - WINDOW - 1, (16,)).tolist()
            batch = torch.stack([text[place : place + WINDOW + 1] for place in at]).long()
            loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
            moments: dict[str, Any] = {
                f"{kind}.{at}": state[kind] for at, state in enumerate(optimiser.state.values()) for kind in ("exp_avg", "exp_avg_sq")
            }
            kinds = {"bfloat16": {name: tensor.bfloat16() for name, tensor in weights.items()}, "float32": weights, "moments": moments}
            for kind, state in kinds.items():
                if (row := published(trainer, kind, state, before)) is not None:
                    rows[kind].append(row)
        for topic in topics:
            topic.cancel()
    print(f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f} million parameters, {arguments.steps} steps, loss {loss.item():.2f}")
    print("| what | changed elements, %: median, most | delta, %: median, most | XOR under zstd, %: median, most |")
    print("| --- | --- | --- | --- |")
    for kind, steps in rows.items():
        cells = [f"{statistics.median(cell):.3f}, {max(cell):.3f}" for cell in zip(*steps, strict=True)]
        print(f"| {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
