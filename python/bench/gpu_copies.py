"""What it costs to get tensors off a GPU into an object, and a version's tensors into a module on one, beside torch's own copies.

    python gpu_copies.py [--megabytes 2000] [--tensors 16] [--rounds 7]

Off the GPU: all tensors into new memory of the agent's kind, by `tensor.cpu()` and a write, and in pieces as `publish` has them. Onto it: into
a module's parameters from a new mapping of the host's copy, by `load_state_dict`, and by `load_into`. Each is done once before it counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import polycast
import torch
from polycast import tensors
from polycast import torch as weights

GPU = "cuda"


def seconds(do: Callable[[], None], rounds: int) -> list[float]:
    taken = []
    for _ in range(1 + rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        do()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return taken[1:]


def write(parts: Iterable[Any]) -> None:
    memory = os.memfd_create("copies")
    try:
        for part in parts:
            view = memoryview(part).cast("B")
            while view.nbytes:
                view = view[os.write(memory, view) :]
    finally:
        os.close(memory)


def whole(state: dict[str, Any]) -> Iterator[Any]:
    for tensor in state.values():
        yield tensor.cpu().numpy()


def model(arguments: argparse.Namespace, fill: bool) -> Any:
    width = int(arguments.megabytes * 1e6 / 4 / arguments.tensors)
    make = torch.randn if fill else torch.zeros
    return torch.nn.ParameterList(torch.nn.Parameter(make(width, device=GPU)) for _ in range(arguments.tensors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=2000)
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU is here that torch can use")
    sent, got = model(arguments, True), model(arguments, False)
    state = sent.state_dict()
    gigabytes = sum(tensor.nbytes for tensor in state.values()) / 1e9
    print(f"{gigabytes:.2f} GB in {len(state)} tensors, torch {torch.__version__}, {torch.cuda.get_device_name()}, {torch.get_num_threads()} threads")
    print("| copy | GB/s: median | least, most |\n| --- | --- | --- |")

    def row(what: str, do: Callable[[], None]) -> None:
        rates = sorted(gigabytes / taken for taken in seconds(do, arguments.rounds))
        print(f"| {what} | {statistics.median(rates):.2f} | {rates[0]:.2f}, {rates[-1]:.2f} |", flush=True)

    row("off the GPU, `tensor.cpu()` and a write", lambda: write(whole(state)))
    row("off the GPU, as `publish` does it", lambda: write(tensors.pack(state)))
    app = uuid.uuid4()
    with polycast.Agent.embedded(app=app) as agent, polycast.Agent.embedded(agent.manager, app=app) as other:
        with weights.subscribe("copies", agent=other) as versions:
            weights.publish(sent, "copies", agent=agent)
            version = versions.next(120)
            assert version is not None

            def mapped() -> weights.Weights:
                return weights.Weights(version.version, version.object, version.object.map(writable_copy=True))

            row("onto the GPU, `load_state_dict`", lambda: got.load_state_dict(mapped().state_dict()))
            for parameter in got:
                parameter.data.zero_()
            row("onto the GPU, `load_into`", lambda: mapped().load_into(got))
    assert all(torch.equal(one, same) for one, same in zip(sent, got, strict=True)), "the module has other weights than were published"


if __name__ == "__main__":
    main()
