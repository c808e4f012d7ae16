"""New weights to several processes after each step: Polycast beside torch.distributed and beside files in a shared folder.

    python weights_loop.py [--megabytes 500] [--versions 20] [--subscribers 4] [--changed 1 [--spread]] [--rate 1gbit] [WAY ...]

All of it runs on this machine, and gloo and Polycast between agents go over its loopback. With `--rate` the publisher and each subscriber are
on hosts of their own, in network namespaces with links of that rate (Linux, root). With `--changed` so much of the weights
changes from version to version, in per cent: whole rows, or, with `--spread`, single elements everywhere, as after a training step. With `--device cuda` the models are on a GPU, which all processes share. For each version the clock runs from
the call that publishes until the last subscriber has the tensors (where they are is different: gloo receives into the model,
the others have views of a file in memory), and until each has copied them into its own model. The next version begins then.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
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
from polycast._program import program

import hosts

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
    # So many per cent of it change from version to version.
    changed: float = 100
    # Publisher and subscribers are on hosts of their own.
    apart: bool = False
    # Where the key of the agents is.
    folder: str = ""
    # Where the model is, at the publisher and at each subscriber.
    device: str = "cpu"

    def agent(self) -> dict[str, Any]:
        """How an agent of this process is started."""
        own = {"interface": hosts.DEVICE, "key_file": f"{self.folder}/key"} if self.apart else {}
        return {"app": APP, **own}


def empty(setting: Setting) -> dict[str, Any]:
    if setting.framework == "torch":
        import torch

        # Threads of several processes on few cores wait for each other.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // (setting.subscribers + 1)))
        return {f"layers.{layer}.w": torch.zeros(setting.side, setting.side, device=setting.device) for layer in range(LAYERS)}
    return {f"layers.{layer}.w": numpy.zeros((setting.side, setting.side), "float32") for layer in range(LAYERS)}


def copy_into(model: dict[str, Any], state: dict[str, Any]) -> None:
    for name, tensor in model.items():
        if hasattr(tensor, "copy_"):
            tensor.copy_(state[name])
        else:
            numpy.copyto(tensor, state[name])


def wait_for(device: str) -> None:
    """Until a GPU has done what it was told."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def check(state: dict[str, Any], version: int, changed: float) -> None:
    # Of a version that has changed in part the first tensor's corners tell.
    looked_at = state.values() if changed >= 100 else [state["layers.0.w"]]
    for tensor in looked_at:
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
        check(state, version, self.setting.changed)
        here = time.monotonic()
        if state is not self.model:
            copy_into(self.model, state)
            wait_for(self.setting.device)
        self._said.put((self.index, version, here, time.monotonic()))


def polycast_subscriber(own: Subscriber, agent: polycast.Agent, recycled: bool = False) -> None:
    """Removes each version when the next one is in use; with `recycled` the store gives its memory to a later one of the same length."""
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
        if before is not None and not recycled:
            agent._forget(before)
        before = version.object.data_id
        del version
    versions.cancel()


def agents_subscriber(setting: Setting, index: int, said: Any) -> None:
    own = Subscriber(setting, index, said)
    with polycast.Agent.embedded(setting.place, **setting.agent()) as agent:
        polycast_subscriber(own, agent)


def recycling_subscriber(setting: Setting, index: int, said: Any) -> None:
    own = Subscriber(setting, index, said)
    with polycast.Agent.embedded(setting.place, **setting.agent()) as agent:
        polycast_subscriber(own, agent, recycled=True)


def one_agent_subscriber(setting: Setting, index: int, said: Any) -> None:
    own = Subscriber(setting, index, said)
    with polycast.Agent(setting.place, app=APP) as agent:
        polycast_subscriber(own, agent)


def gloo(setting: Setting, rank: int) -> Any:
    import torch.distributed as distributed

    os.environ["GLOO_SOCKET_IFNAME"] = hosts.DEVICE if setting.apart else "lo"
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
        with safe_open(file, framework="pt" if setting.framework == "torch" else "np", device=setting.device) as opened:
            own.has(version, {name: opened.get_tensor(name) for name in opened.keys()})


@contextmanager
def manager_of(setting: Setting) -> Iterator[str | None]:
    """A manager that other hosts reach; on one machine the publisher's agent brings its own along."""
    if not setting.apart:
        yield None
        return
    at = f"{hosts.address(0)}:7400"
    line = [str(program()), "manager", "--listen", at, "--key-file", f"{setting.folder}/key"]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as manager:
        assert manager.stderr is not None
        try:
            said = next((said for said in manager.stderr if "listens on" in said), None)
            if said is None:
                raise hosts.Fault("the manager does not start")
            threading.Thread(target=manager.stderr.read, daemon=True).start()
            yield at
        finally:
            manager.terminate()


@contextmanager
def agents_publisher(setting: Setting) -> Iterator[tuple[str, Callable[[int, dict[str, Any]], None]]]:
    """Each subscriber has an agent of its own, as if it were another host."""
    with manager_of(setting) as manager, polycast.Agent.embedded(manager, **setting.agent()) as agent:
        yield agent.manager, lambda version, weights: published(agent, version, weights, setting.subscribers)


@contextmanager
def one_agent_publisher(setting: Setting) -> Iterator[tuple[str, Callable[[int, dict[str, Any]], None]]]:
    """All subscribers are on one other host: they share its agent."""
    if setting.apart:
        raise hosts.Fault("polycast-host has one host for all subscribers, and --rate gives each its own")
    with polycast.Agent.embedded(**setting.agent()) as agent, polycast.Agent.embedded(agent.manager, **setting.agent()) as other:
        yield str(other._embedded.socket), lambda version, weights: published(agent, version, weights, 1)  # type: ignore[union-attr]


def published(agent: polycast.Agent, version: int, weights: dict[str, Any], wanted: int) -> None:
    came_to = tensors.publish(agent, TOPIC, weights, version=version, timeout=120)
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


def whole(connection: socket.socket, into: memoryview) -> None:
    while into:
        count = connection.recv_into(into)
        if not count:
            raise hosts.Fault("the publisher has gone")
        into = into[count:]


def tcp_subscriber(setting: Setting, index: int, said: Any) -> None:
    """Takes each version as a file that comes over a connection of its own."""
    from safetensors.numpy import load_file

    own = Subscriber(setting, index, said)
    host, port = setting.place.split(":")
    file = Path(f"/dev/shm/weights-{os.getpid()}")
    with socket.create_connection((host, int(port))) as connection:
        own.ready()
        try:
            for version in range(1, setting.versions + 1):
                length = bytearray(8)
                whole(connection, memoryview(length))
                with file.open("w+b") as written:
                    written.truncate(int.from_bytes(length, "big"))
                    with mmap.mmap(written.fileno(), 0) as mapped, memoryview(mapped) as view:
                        whole(connection, view)
                own.has(version, load_file(file))
        finally:
            file.unlink(missing_ok=True)


@contextmanager
def tcp_publisher(setting: Setting) -> Iterator[tuple[str, Callable[[int, dict[str, Any]], None]]]:
    """Copies a file to each subscriber, to all at the same time: what scp or rsync to each of them comes to, without their ciphers."""
    from safetensors.numpy import save_file

    joined: list[socket.socket] = []
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))

    def copy(connection: socket.socket) -> None:
        with (folder / "new").open("rb") as file:
            connection.sendall(os.fstat(file.fileno()).st_size.to_bytes(8, "big"))
            connection.sendfile(file)

    def publish(_: int, weights: dict[str, Any]) -> None:
        save_file(weights, folder / "new")
        copies = [threading.Thread(target=copy, args=(connection,)) for connection in joined]
        for thread in copies:
            thread.start()
        for thread in copies:
            thread.join()

    with socket.create_server((hosts.address(0) if setting.apart else "127.0.0.1", 0)) as server:

        def join() -> None:
            joined.extend(server.accept()[0] for _ in range(setting.subscribers))

        publish.join = join  # type: ignore[attr-defined]
        host, port = server.getsockname()
        try:
            yield f"{host}:{port}", publish
        finally:
            shutil.rmtree(folder)
            for connection in joined:
                connection.close()


WAYS: dict[str, tuple[str, str, Any, Any]] = {
    "polycast-numpy": ("Polycast, an agent each, numpy", "numpy", agents_publisher, agents_subscriber),
    "polycast-recycled": ("Polycast, an agent each, numpy, recycled memory", "numpy", agents_publisher, recycling_subscriber),
    "polycast-torch": ("Polycast, an agent each, torch", "torch", agents_publisher, agents_subscriber),
    "polycast-host": ("Polycast, one agent for all, torch", "torch", one_agent_publisher, one_agent_subscriber),
    "gloo": ("torch.distributed.broadcast, gloo", "torch", gloo_publisher, gloo_subscriber),
    "tcp-numpy": ("a file over TCP to each, numpy", "numpy", tcp_publisher, tcp_subscriber),
    "files-numpy": ("files in /dev/shm, numpy", "numpy", files_publisher, files_subscriber),
    "files-torch": ("files in /dev/shm, torch", "torch", files_publisher, files_subscriber),
}


def draw(model: dict[str, Any]) -> None:
    """Gives a model weights that look like some."""
    draws = numpy.random.default_rng(1)
    for tensor in model.values():
        values = draws.standard_normal(tuple(tensor.shape), "float32") * numpy.float32(0.02)
        tensor[...] = values if isinstance(tensor, numpy.ndarray) else tensor.new_tensor(values)


def step(model: dict[str, Any], version: int, changed: float) -> None:
    """Makes the next version as a training step does: so many per cent of the elements change by a hundredth, wherever they are."""
    draws = numpy.random.default_rng(version)
    for tensor in model.values():
        flat = tensor.reshape(-1)
        where = draws.integers(0, len(flat), round(len(flat) * changed / 100))
        flat[where] *= 1.01
    first = next(iter(model.values()))
    first[0, 0] = first[-1, -1] = version


def change(model: dict[str, Any], version: int, changed: float) -> None:
    """Makes the next version: all numbers, or so many per cent of the rows of all tensors, one behind the other, and the corners of the first one."""
    tensors_of = list(model.values())
    if changed >= 100:
        for tensor in tensors_of:
            tensor += 1
        return
    side = len(tensors_of[0])
    rows = max(1, round(side * len(tensors_of) * changed / 100))
    for row in range(version * rows, (version + 1) * rows):
        tensors_of[row // side % len(tensors_of)][row % side] += 1
    tensors_of[0][0, 0] = tensors_of[0][-1, -1] = version


def on_its_host(subscriber: Any, setting: Setting, index: int, said: Any) -> None:
    if setting.apart:
        hosts.enter(index + 1)
    subscriber(setting, index, said)


def cpu_s() -> float:
    """What this process and those that it has waited for have used."""
    return sum(sum(resource.getrusage(of)[:2]) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def run(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One way: all versions, one after the other."""
    used, left = cpu_s(), hosts.left(0) if arguments.rate else 0
    _, framework, publisher, subscriber = WAYS[way]
    side = int((arguments.megabytes * 1e6 / 4 / LAYERS) ** 0.5)
    apart = {"changed": arguments.changed, "apart": bool(arguments.rate), "folder": arguments.folder, "device": arguments.device}
    setting = Setting(side, arguments.versions, arguments.subscribers, framework, **apart)
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    here, copied = [], []
    with publisher(setting) as (place, publish):
        setting = Setting(side, arguments.versions, arguments.subscribers, framework, place, **apart)
        processes = [context.Process(target=on_its_host, args=(subscriber, setting, index, said)) for index in range(setting.subscribers)]
        for process in processes:
            process.start()
        try:
            if hasattr(publish, "join"):
                publish.join()
            model = empty(setting)
            if arguments.spread:
                draw(model)
            for _ in processes:
                said.get(timeout=120)
            # The manager hears of a subscription a moment later.
            time.sleep(1)
            began = time.monotonic()
            changed_s = 0.0
            for version in range(1, setting.versions + 1):
                before = time.monotonic()
                (step if arguments.spread else change)(model, version, arguments.changed)
                wait_for(arguments.device)
                start = time.monotonic()
                changed_s += start - before
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
    # Subscribers and agents have ended by now: what they used is known.
    size = side * side * 4 * LAYERS
    return {
        "way": way,
        "bytes": size,
        "cpu_s_per_gb_and_subscriber": (cpu_s() - used) / (size * setting.versions / 1e9) / setting.subscribers,
        "copies": (hosts.left(0) - left) / (size * setting.versions) if arguments.rate else None,
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
    parser.add_argument("--changed", type=float, default=100, help="per cent of the weights that change from version to version")
    parser.add_argument("--spread", action="store_true", help="single elements change, everywhere")
    parser.add_argument("--device", default="cpu", help="where the models are: cpu, or cuda (ways of torch alone)")
    parser.add_argument("--rate", help="publisher and subscribers are on hosts of their own, with links of this rate, for example 1gbit")
    parser.add_argument("--mtu", type=int, default=9000, help="of the links")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.device != "cpu":
        arguments.ways = arguments.ways or [way for way, (_, framework, *_) in WAYS.items() if framework == "torch"]
        if others := [way for way in arguments.ways if WAYS[way][1] != "torch"]:
            parser.error(f"{others[0]} has its model in numpy, which is on no GPU: leave it out, or take --device cpu")
    with tempfile.TemporaryDirectory(prefix="weights-loop-") as folder:
        arguments.folder = folder
        try:
            prepare(arguments)
            table(arguments)
        except hosts.Fault as fault:
            sys.exit(f"error: {fault}")


def prepare(arguments: argparse.Namespace) -> None:
    if arguments.rate:
        hosts.make(arguments.subscribers + 1, arguments.rate, arguments.mtu)
        hosts.enter(0)
        subprocess.run([str(program()), "key", "new", f"{arguments.folder}/key"], check=True, stdout=subprocess.DEVNULL)


def table(arguments: argparse.Namespace) -> None:
    print("| way | versions a second | until the last has the tensors, s: median, most | until the last has them in its model, s: median, most "
          "| CPU s per GB and subscriber, all processes | copies that left the publisher's host |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- |")
    for way in arguments.ways or WAYS:
        result = run(way, arguments)
        if arguments.json:
            print(json.dumps(result), file=sys.stderr)
        row = [WAYS[way][0], f"{result['versions_per_s']:.2f}"]
        row += [f"{result[name]['median']:.3f}, {result[name]['most']:.3f}" for name in ("here_s", "in_model_s")]
        copies = result["copies"]
        row += [f"{result['cpu_s_per_gb_and_subscriber']:.2f}", "" if copies is None else f"{copies:.3f}"]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
