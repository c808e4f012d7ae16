"""New weights to several processes after each step: Polycast beside torch.distributed and beside files in a shared folder.

    python weights_loop.py [--megabytes 500] [--versions 20] [--subscribers 4] [WAY ...]

All of it runs on this machine, and gloo and Polycast between agents go over its loopback. For each version the clock runs from
the call that publishes until the last subscriber has the tensors (where they are is different: gloo receives into the model,
the others have views of a file in memory), and until each has copied them into its own model. The next version begins then.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import polycast
from polycast import tensors

LAYERS = 24
APP = str(uuid.uuid5(uuid.NAMESPACE_DNS, "weights-loop.example"))
TOPIC = "weights"


@dataclass(frozen=True)
class Setting:
    """What every way is asked to do, and where its parts meet."""

    side: int
    versions: int
    subscribers: int
    framework: str
    # Folder, manager, or address, as the way needs it.
    place: str = ""


def empty(setting: Setting) -> dict[str, Any]:
    if setting.framework == "torch":
        import torch

        # Threads of several processes on few cores wait for each other.
        torch.set_num_threads(1)
        return {f"layers.{layer}.w": torch.zeros(setting.side, setting.side) for layer in range(LAYERS)}
    return {f"layers.{layer}.w": numpy.zeros((setting.side, setting.side), "float32") for layer in range(LAYERS)}


def copy_into(model: dict[str, Any], state: dict[str, Any]) -> None:
    for name, tensor in model.items():
        if hasattr(tensor, "copy_"):
            tensor.copy_(state[name])
        else:
            numpy.copyto(tensor, state[name])


def check(state: dict[str, Any], version: int) -> None:
    for tensor in state.values():
        assert tensor[0, 0] == tensor[-1, -1] == version, (float(tensor[0, 0]), version)


class Subscriber:
    """Tells the main process when a version is here, and when it is in the model."""

    def __init__(self, setting: Setting, index: int, said: Any) -> None:
        self.setting, self.index, self._said = setting, index, said
        self.model = empty(setting)
        # Memory that is used for the first time takes longer.
        copy_into(self.model, empty(setting))

    def ready(self) -> None:
        self._said.put((self.index, 0, 0.0, 0.0))

    def has(self, version: int, state: dict[str, Any]) -> None:
        check(state, version)
        here = time.monotonic()
        if state is not self.model:
            copy_into(self.model, state)
        self._said.put((self.index, version, here, time.monotonic()))


def polycast_subscriber(own: Subscriber, agent: polycast.Agent) -> None:
    if own.setting.framework == "torch":
        from polycast import torch as weights

        with weights.subscribe(TOPIC, agent=agent) as versions:
            own.ready()
            for _ in range(own.setting.versions):
                found = next(versions)
                own.has(found.version, found.state_dict())
        return
    versions = agent.subscribe(TOPIC)
    own.ready()
    before = None
    for _ in range(own.setting.versions):
        version = next(versions)
        assert version.object is not None
        own.has(version.version, tensors.of(version.object))
        if before is not None:
            agent._forget(before)
        before = version.object.data_id
    versions.cancel()


def agents_subscriber(setting: Setting, index: int, said: Any) -> None:
    own = Subscriber(setting, index, said)
    with polycast.Agent.embedded(setting.place, app=APP) as agent:
        polycast_subscriber(own, agent)


def one_agent_subscriber(setting: Setting, index: int, said: Any) -> None:
    own = Subscriber(setting, index, said)
    with polycast.Agent(setting.place, app=APP) as agent:
        polycast_subscriber(own, agent)


def gloo(setting: Setting, rank: int) -> Any:
    import torch.distributed as distributed

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=setting.place, rank=rank, world_size=setting.subscribers + 1)
    return distributed


def gloo_subscriber(setting: Setting, index: int, said: Any) -> None:
    own = Subscriber(setting, index, said)
    distributed = gloo(setting, index + 1)
    own.ready()
    for version in range(1, setting.versions + 1):
        for tensor in own.model.values():
            distributed.broadcast(tensor, 0)
        own.has(version, own.model)
    distributed.destroy_process_group()


def files_subscriber(setting: Setting, index: int, said: Any) -> None:
    from safetensors import safe_open

    own = Subscriber(setting, index, said)
    own.ready()
    for version in range(1, setting.versions + 1):
        file = Path(setting.place) / f"{version}.safetensors"
        while not file.exists():
            time.sleep(0.005)
        with safe_open(file, framework="pt" if setting.framework == "torch" else "np") as opened:
            own.has(version, {name: opened.get_tensor(name) for name in opened.keys()})


@contextmanager
def agents_publisher(setting: Setting) -> Iterator[tuple[str, Callable[[int, dict[str, Any]], None]]]:
    """Each subscriber has an agent of its own, as if it were another host."""
    with polycast.Agent.embedded(app=APP) as agent:
        yield agent.manager, lambda version, weights: published(agent, version, weights, setting.subscribers)


@contextmanager
def one_agent_publisher(setting: Setting) -> Iterator[tuple[str, Callable[[int, dict[str, Any]], None]]]:
    """All subscribers are on one other host: they share its agent."""
    with polycast.Agent.embedded(app=APP) as agent, polycast.Agent.embedded(agent.manager, app=APP) as other:
        yield str(other._embedded.socket), lambda version, weights: published(agent, version, weights, 1)  # type: ignore[union-attr]


def published(agent: polycast.Agent, version: int, weights: dict[str, Any], wanted: int) -> None:
    came_to = tensors.publish(agent, TOPIC, weights, version=version, deadline=120)
    assert not came_to.missing and len(came_to.have) == wanted, came_to


@contextmanager
def gloo_publisher(setting: Setting) -> Iterator[tuple[str, Callable[[int, dict[str, Any]], None]]]:
    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{folder}/meet"
        joined: list[Any] = []

        def publish(_: int, weights: dict[str, Any]) -> None:
            for tensor in weights.values():
                joined[0].broadcast(tensor, 0)

        def join() -> None:
            joined.append(gloo(Setting(**{**vars(setting), "place": place}), 0))

        publish.join = join  # type: ignore[attr-defined]
        yield place, publish
        joined[0].destroy_process_group()


@contextmanager
def files_publisher(setting: Setting) -> Iterator[tuple[str, Callable[[int, dict[str, Any]], None]]]:
    """A folder in this machine's memory: the best that a shared file system could be."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    if setting.framework == "torch":
        from safetensors.torch import save_file
    else:
        from safetensors.numpy import save_file

    def publish(version: int, weights: dict[str, Any]) -> None:
        save_file(weights, folder / "new")
        (folder / "new").rename(folder / f"{version}.safetensors")
        (folder / f"{version - 1}.safetensors").unlink(missing_ok=True)

    try:
        yield str(folder), publish
    finally:
        shutil.rmtree(folder)


WAYS: dict[str, tuple[str, str, Any, Any]] = {
    "polycast-numpy": ("Polycast, an agent each, numpy", "numpy", agents_publisher, agents_subscriber),
    "polycast-torch": ("Polycast, an agent each, torch", "torch", agents_publisher, agents_subscriber),
    "polycast-host": ("Polycast, one agent for all, torch", "torch", one_agent_publisher, one_agent_subscriber),
    "gloo": ("torch.distributed.broadcast, gloo", "torch", gloo_publisher, gloo_subscriber),
    "files-numpy": ("files in /dev/shm, numpy", "numpy", files_publisher, files_subscriber),
    "files-torch": ("files in /dev/shm, torch", "torch", files_publisher, files_subscriber),
}


def run(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One way: all versions, one after the other."""
    _, framework, publisher, subscriber = WAYS[way]
    side = int((arguments.megabytes * 1e6 / 4 / LAYERS) ** 0.5)
    setting = Setting(side, arguments.versions, arguments.subscribers, framework)
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    here, copied = [], []
    with publisher(setting) as (place, publish):
        setting = Setting(side, arguments.versions, arguments.subscribers, framework, place)
        processes = [context.Process(target=subscriber, args=(setting, index, said)) for index in range(setting.subscribers)]
        for process in processes:
            process.start()
        try:
            if hasattr(publish, "join"):
                publish.join()
            model = empty(setting)
            for _ in processes:
                said.get(timeout=120)
            # The manager hears of a subscription a moment later.
            time.sleep(1)
            began = time.monotonic()
            changed_s = 0.0
            for version in range(1, setting.versions + 1):
                change = time.monotonic()
                for tensor in model.values():
                    tensor += 1
                start = time.monotonic()
                changed_s += start - change
                publish(version, model)
                got = [said.get(timeout=120) for _ in processes]
                assert all(number == version for _, number, _, _ in got), got
                here.append(max(when for _, _, when, _ in got) - start)
                copied.append(max(when for _, _, _, when in got) - start)
            seconds = time.monotonic() - began - changed_s
            for process in processes:
                process.join(60)
        finally:
            for process in processes:
                process.kill()
    return {
        "way": way,
        "bytes": side * side * 4 * LAYERS,
        "versions_per_s": setting.versions / seconds,
        "here_s": {"median": statistics.median(here), "most": max(here)},
        "in_model_s": {"median": statistics.median(copied), "most": max(copied)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", choices=[[], *WAYS], metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--subscribers", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    print("| way | versions a second | until the last has the tensors, s: median, most | until the last has them in its model, s: median, most |")
    print("| --- | --- | --- | --- |")
    for way in arguments.ways or WAYS:
        result = run(way, arguments)
        if arguments.json:
            print(json.dumps(result), file=sys.stderr)
        row = [WAYS[way][0], f"{result['versions_per_s']:.2f}"]
        row += [f"{result[name]['median']:.3f}, {result[name]['most']:.3f}" for name in ("here_s", "in_model_s")]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
