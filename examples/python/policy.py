"""A trainer and workers of a model in torch: each new version of the policy to all workers, which go on with the last one meanwhile.

    python policy.py [STEPS]

Runs as processes of this machine, each with an agent of its own, as if they were hosts. Between machines every host runs an
agent; leave out `agent=` there.
"""

import multiprocessing
import sys
import uuid
from typing import Any

import polycast
import torch
from polycast import torch as weights

APP = uuid.uuid5(uuid.NAMESPACE_DNS, "policy.example")
TOPIC = "policy"


def policy() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))


def worker(manager: str, last: int, said: Any) -> None:
    """Tries out the policy, with the newest version that is here."""
    model, tries, version = policy(), 0, 0
    with polycast.Agent.embedded(manager, app=APP) as agent, weights.subscribe(TOPIC, agent=agent) as versions:
        said.put("ready")
        while version < last:
            if (newer := versions.newest()) is not None:
                newer.load_into(model)
                version = newer.version
            with torch.no_grad():
                model(torch.randn(256, 8))
            tries += 256
        said.put((version, float(next(model.parameters()).sum()), tries))


def main(steps: int) -> None:
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    with polycast.Agent.embedded(app=APP) as agent:
        workers = [context.Process(target=worker, args=(agent.manager, steps, said)) for _ in range(2)]
        for process in workers:
            process.start()
        for _ in workers:
            said.get(timeout=120)
        model = policy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(1, steps + 1):
            loss = (model(torch.randn(64, 8)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            published = weights.publish(model, TOPIC, version=step, agent=agent, timeout=60)
            print(f"step {step}: loss {loss:.3f}, at {len(published.have)} workers, missing {published.missing}")
        for version, total, tries in [said.get(timeout=60) for _ in workers]:
            assert total == float(next(model.parameters()).sum()), "the trainer's weights"
            print(f"a worker tried {tries} times and has version {version}")
        for process in workers:
            process.join()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
