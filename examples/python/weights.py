"""A training loop that hands new weights to workers after each step.

    python weights.py [STEPS] [MEGABYTES]

Runs a trainer and three workers as processes of this machine, each with an agent of its own. Between machines, give
`Agent.embedded` the manager and the interface, or use the hosts' agents with `Agent()`.
"""

import multiprocessing
import sys
import time
import uuid

import numpy
import polycast
from polycast import tensors

APP = uuid.uuid5(uuid.NAMESPACE_DNS, "weights.example")


def worker(manager: str, steps: int, said: "multiprocessing.Queue[tuple[str, int, float]]") -> None:
    with polycast.Agent.embedded(manager, app=APP) as agent:
        said.put((agent.name, -1, 0.0))
        for step in range(steps):
            weights = tensors.of(agent.read(step, timeout=60))
            # A view of what the agent has verified: nothing was copied into this process.
            said.put((agent.name, step, float(weights["layers.0.w"][0, 0])))


def main(steps: int, megabytes: int) -> None:
    side = int((megabytes * 1e6 / 4 / 4) ** 0.5)
    weights = {f"layers.{layer}.w": numpy.zeros((side, side), "float32") for layer in range(4)}
    with polycast.Agent.embedded(app=APP) as agent:
        context = multiprocessing.get_context("spawn")
        said = context.Queue()
        workers = [context.Process(target=worker, args=(agent.manager, steps, said)) for _ in range(3)]
        for process in workers:
            process.start()
        names = [said.get(timeout=60)[0] for _ in workers]
        for step in range(steps):
            for array in weights.values():
                array += 1.0
            began = time.monotonic()
            tensors.add(agent, step, weights)
            report = agent.send(step, to=names).result(60)
            print(f"step {step}: {report.bytes / 1e6:.0f} MB to {len(names)} workers in {time.monotonic() - began:.3f} s")
            agent.delete(step)
        seen = [said.get(timeout=60) for _ in range(steps * len(workers))]
        assert all(value == step + 1 for _, step, value in seen), seen
        for process in workers:
            process.join()
        print(f"every worker has seen all {steps} versions")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, int(sys.argv[2]) if len(sys.argv) > 2 else 40)
