"""Ray: two nodes on this machine, each with an agent of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import polycast
import pytest
from conftest import HANG_S, free_port, until
from polycast import errors, tensors, values

numpy = pytest.importorskip("numpy")
Cluster = list[polycast.Agent]

DRIVER = """
import numpy, ray, sys
from polycast import ray as polycast_ray
ray.init(address="auto", log_to_driver=False)
array = numpy.arange(3_000_000.0)
handle = polycast_ray.broadcast({"weights": array}, app=sys.argv[1])

@ray.remote(num_cpus=1)
def use(handle):
    import os
    weights = handle.get()["weights"]
    return float(weights.sum()), weights.flags.owndata, os.environ["POLYCAST_SOCKET"]

got = ray.get([use.options(scheduling_strategy="SPREAD").remote(handle) for _ in range(8)])
assert {one[:2] for one in got} == {(float(array.sum()), False)}, got
assert len({one[2] for one in got}) == 2, "tasks ran on both nodes"
print("left", handle.delete())
"""


def mappings(folder: str) -> int:
    """Number of files below a folder that this process has mapped."""
    return sum(f" {folder}/" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_worker_keeps_no_value_that_was_deleted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that has the value deletes it, and the worker hears nothing of that."""
    from polycast import _shared
    from polycast import ray as polycast_ray

    source, node = cluster[:2]
    monkeypatch.setenv("POLYCAST_SOCKET", node.socket)
    monkeypatch.setattr(_shared, "_AGENTS", {})
    monkeypatch.setattr(polycast_ray, "_VALUES", {})
    store, app, sums = node.status().store, str(uuid.UUID(bytes=node._app)), []
    kept = polycast_ray.Handle(app, *sent(source, node, numpy.ones(1000)))
    first, before = kept.get(), mappings(store)
    for turn in range(10):
        handle = polycast_ray.Handle(app, *sent(source, node, numpy.full(100_000, float(turn))))
        sums.append(float(handle.get().sum()))
        assert handle.get() is handle.get() and kept.get() is first
        until("it is deleted everywhere", lambda handle=handle: source.remove(handle.data_id, "all") == {})
    assert sums == [100_000.0 * turn for turn in range(10)]
    assert mappings(store) - before <= 1
    source.remove(kept.data_id, "all")


def sent(source: polycast.Agent, node: polycast.Agent, value: object) -> tuple[int, float, values.Known]:
    """Sends a value as `broadcast` does, and gives what its handle has."""
    number, parts = uuid.uuid4().int >> 65, values.pack(value)
    source.add_parts(number, parts)
    source._send_to_the_end(number, [node.name], HANG_S)
    return number, HANG_S, values.Known.of(parts).and_root(source.read(number, HANG_S).root)


def test_tensors_that_are_not_as_the_reference_says_are_refused(
    cluster: Cluster, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    from polycast._ray_transport import Metadata, NumpyTransport

    transport, sent, here = NumpyTransport(), numpy.arange(6.0).reshape(2, 3), cluster[0]
    tensors.add(here, number, {"0": sent})
    monkeypatch.setattr(transport, "_fetch", lambda *_: here.read(number, HANG_S))

    def received(*said: tuple[tuple[int, ...], str]) -> list[numpy.ndarray]:
        known = Metadata([(shape, numpy.dtype(kind)) for shape, kind in said], None, number)
        return transport.recv_multiple_tensors("one", known, transport.get_communicator_metadata(None, None))

    (got,) = received(((2, 3), "f8"))
    assert numpy.array_equal(got, sent)
    for said in [((3, 2), "f8")], [((2, 3), "i8")], [((2, 3), "f8"), ((1,), "f8")]:
        with pytest.raises(errors.Invalid, match=f"its tensor {len(said) - 1} .* and was to have the shape"):
            received(*said)
    here.delete(number)


# Ray makes its manager slowly here, so that two threads always meet in it.
TWO_THREADS = """
import threading, time
import ray.experimental as experimental
from ray._private.worker import global_worker

class Slow(experimental.RDTManager):
    def __init__(self):
        time.sleep(0.2)
        super().__init__()

experimental.RDTManager = Slow
import polycast._ray_transport
seen = []
both = threading.Barrier(2)

def look():
    both.wait()
    seen.append(global_worker.rdt_manager)

threads = [threading.Thread(target=look) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len({id(one) for one in seen}))
"""


def test_a_process_has_one_manager_of_tensors() -> None:
    pytest.importorskip("ray")

    line = [sys.executable, "-c", TWO_THREADS]
    done = subprocess.run(line, capture_output=True, text=True, timeout=HANG_S)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


@pytest.fixture
def nodes(cluster: Cluster, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Two nodes of Ray; gives the driver's environment."""
    pytest.importorskip("ray")
    home = {"RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    # Ray itself gives up a tensor after a minute.
    home |= {"RAY_rdt_fetch_fail_timeout_milliseconds": "400000"}
    base = {**os.environ, **home}
    ray = str(Path(sys.executable).parent / "ray")

    def start(agent: polycast.Agent, *arguments: str) -> dict[str, str]:
        environment = {**base, "POLYCAST_SOCKET": agent.socket}
        line = [ray, "start", "--num-cpus=2", "--object-store-memory=200000000", "--disable-usage-stats", *arguments]
        subprocess.run(line, env=environment, check=True, capture_output=True, timeout=120)
        return environment

    try:
        # Another port each time: what was stopped may have its own for a while.
        port = free_port()
        driver = start(cluster[1], "--head", f"--port={port}", "--include-dashboard=false", '--resources={"source": 9}')
        start(cluster[2], f"--address=127.0.0.1:{port}", '--resources={"other": 9}')
        yield driver
    finally:
        subprocess.run([ray, "stop", "--force"], env=base, capture_output=True, timeout=60)


def test_a_value_reaches_all_nodes(nodes: dict[str, str], cluster: Cluster) -> None:
    app = str(uuid.UUID(bytes=cluster[0]._app))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, app], env=nodes, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "left {}" in done.stdout


TRANSPORT = """
import importlib, os, polycast, ray, sys, time
from polycast import ray as polycast_ray
framework, megabytes, sockets = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
ray.init(address="auto", log_to_driver=False)
polycast_ray.register_transport(framework=framework)
polycast_ray.register_transport(framework=framework)
library = importlib.import_module(framework)
agents = [polycast.Agent(socket) for socket in sockets]
elements = megabytes * 250_000

@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Actor:
    @ray.method(tensor_transport="polycast")
    def make(self, value):
        made = library.full((elements,), value, dtype=library.float32)
        return {"step": int(value), "weights": made, "bias": made[:10]}

    def use(self, got, is_own=False):
        weights = got["weights"]
        assert type(weights).__module__ == framework, type(weights)
        if framework == "numpy" and not is_own:
            assert not weights.flags.owndata and not weights.flags.writeable
        return got["step"], float(weights[0]), float(weights[-1]), float(got["bias"].sum()), os.environ["POLYCAST_SOCKET"]

source = Actor.options(resources={"source": 1}).remote()
others = [Actor.options(resources={"other": 1}).remote() for _ in range(4)]
for value in (1.0, 2.0):
    made = source.make.remote(value)
    got = ray.get([actor.use.remote(made) for actor in others], timeout=500)
    assert {one[:4] for one in got} == {(int(value), value, value, 10 * value)}, got
    assert len({one[4] for one in got}) == 1
    # In the driver, and in the actor itself, where nothing has to be moved.
    assert float(ray.get(made)["weights"][7]) == value
    assert ray.get(source.use.remote(made, is_own=True))[1] == value
    del made
    # When no process has the references any more, the objects are nowhere.
    began = time.monotonic()
    while left := [one for agent in agents for one in agent.list(all_applications=True) if one.name.startswith("ray-")]:
        assert time.monotonic() - began < 120, left
        time.sleep(0.1)
print("done")
"""


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_what_actors_return_goes_over_the_agents(nodes: dict[str, str], cluster: Cluster, framework: str) -> None:
    pytest.importorskip(framework)
    from conftest import sent_bytes

    megabytes = 20
    before = sent_bytes(cluster[1])
    line = [sys.executable, "-c", TRANSPORT, framework, str(megabytes), *(agent.socket for agent in cluster[1:3])]
    done = subprocess.run(line, env=nodes, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    # Two objects to four actors of one node: each byte left the source's host once, and some were sent again.
    sent = sent_bytes(cluster[1]) - before
    assert 2 * megabytes * 1_000_000 <= sent < 4 * megabytes * 1_000_000, sent
