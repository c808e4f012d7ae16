"""Weights of torch: their types, and their versions from one process to others."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polycast
import pytest
from conftest import HANG_S
from polycast import errors, tensors

torch = pytest.importorskip("torch")

from polycast import torch as weights  # noqa: E402
from polycast._taking import TORCH  # noqa: E402

Cluster = list[polycast.Agent]


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A little model whose head is its embedding, as in many language models."""

    def __init__(self, value: float = 0.0, width: int = 64) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(100, width)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width, dtype=torch.bfloat16) for _ in range(12))
        self.head = torch.nn.Linear(width, 100, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor(int(value)))
        self.fill(value)

    def fill(self, value: float) -> None:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(value)
            self.steps.fill_(int(value))

    def values(self) -> set[float]:
        """Those of all weights: one, where they are all of one version."""
        return {float(value) for tensor in self.state_dict().values() for value in tensor.flatten().unique()}


@pytest.fixture
def topic() -> str:
    return f"policy-{uuid.uuid4()}"


def joined(parts: Any) -> memoryview:
    return memoryview(bytearray(b"".join(bytes(memoryview(part)) for part in parts)))


def of_all_types() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    made = {}
    for name in TORCH:
        raw = torch.randint(0, 255, (24, 16), dtype=torch.uint8, generator=generator)
        made[name] = raw.to(torch.bool) if name == "bool" else raw.view(getattr(torch, name))
    made |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "half of nothing": torch.empty(2, 0, dtype=torch.bfloat16)}
    return made


def equal(one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.numel() == 0 or torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def test_all_types_come_back() -> None:
    sent = of_all_types()
    got = tensors.unpack(joined(tensors.pack(sent)), "torch")
    assert got.keys() == sent.keys()
    for name, tensor in sent.items():
        assert equal(got[name], tensor), name


def test_the_library_of_the_format_reads_them(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    # The library has no tensors of these, though the format has.
    sent = {name: tensor for name, tensor in of_all_types().items() if name not in ("float4_e2m1fn_x2",)}
    file = tmp_path / "all.safetensors"
    file.write_bytes(joined(tensors.pack(sent)))
    with safetensors.safe_open(file, framework="pt") as opened:
        assert set(opened.keys()) == set(sent)
        for name, tensor in sent.items():
            assert equal(opened.get_tensor(name), tensor), name
    from safetensors.torch import save

    assert all(equal(tensor, sent[name]) for name, tensor in tensors.unpack(memoryview(bytearray(save(sent))), "torch").items())


def test_numbers_behind_an_odd_byte_are_aligned() -> None:
    sent = {"a": torch.ones(3, dtype=torch.uint8), "b": torch.arange(5, dtype=torch.float64)}
    got = tensors.unpack(joined(tensors.pack(sent)), "torch")
    assert got["b"].data_ptr() % 8 == 0 and torch.equal(got["b"], sent["b"])


@pytest.mark.parametrize(
    ("tensor", "error", "cure"),
    [
        (torch.zeros(3, dtype=torch.complex128), errors.UnsupportedType, "float32"),
        (torch.zeros(3, 4).T, errors.NotContiguous, r"tensor\.contiguous\(\)"),
        (torch.eye(3).to_sparse(), errors.UnsupportedType, r"to_dense\(\)"),
        (torch.zeros(3, device="meta"), errors.UnsupportedType, "device meta"),
        (torch.zeros(3, dtype=torch.complex64).conj(), errors.UnsupportedType, "resolve_conj"),
        ("a text", errors.UnsupportedType, "of type str"),
    ],
)
def test_what_cannot_be_sent_says_what_can(tensor: Any, error: type[Exception], cure: str) -> None:
    with pytest.raises(error, match=rf"'layers\.0\.w'.*{cure}"):
        tensors.pack({"layers.0.w": tensor})


def test_a_module_gets_only_whole_versions(cluster: Cluster, topic: str) -> None:
    last = 8
    known = {one.data_id for agent in cluster for one in agent.list()}
    subscribed = threading.Barrier(5)

    def worker(agent: polycast.Agent) -> list[int]:
        model, seen = Model(), []
        with weights.subscribe(topic, agent=agent) as versions:
            subscribed.wait(30)
            for version in versions:
                version.load_into(model)
                assert model.values() == {float(version.version)}, "a version is whole"
                assert model.head.weight is model.embed.weight
                seen.append(version.version)
                if version.version == last:
                    return seen
        raise AssertionError("the subscription ended")

    with ThreadPoolExecutor(4) as threads:
        # One of them is at the trainer's own agent, and two share another one.
        workers = [threads.submit(worker, agent) for agent in (cluster[0], cluster[1], cluster[2], cluster[2])]
        subscribed.wait(30)
        model = Model()
        for step in range(1, last + 1):
            model.fill(step)
            published = weights.publish(model, topic, version=step, agent=cluster[0], timeout=60)
            assert published.version == step and not published.missing
        for one in workers:
            seen = one.result(HANG_S)
            assert seen == sorted(set(seen)) and seen[-1] == last
    # What was superseded is nowhere any more: neither at the source nor at the others.
    for agent in cluster[:3]:
        left = [one.data_id for one in agent.list() if one.data_id not in known]
        assert 1 <= len(left) <= 2, left


def test_who_comes_late_gets_the_last(cluster: Cluster, topic: str) -> None:
    for step in (1, 2):
        weights.publish(Model(step), topic, agent=cluster[0], metadata={"step": str(step)})
    with weights.subscribe(topic, agent=cluster[3]) as versions:
        version = versions.next(HANG_S)
        assert version is not None and version.version == 2 and version.metadata == {"step": "2"}
        names = [name for name, _ in version.tensors()]
        assert names.index("layers.2.weight") < names.index("layers.10.weight"), "in the order of their use"
        assert versions.newest() is None, "there is no other one"
        with pytest.raises(errors.TimedOut):
            versions.next(0.2)
        for step in (3, 4):
            weights.publish(Model(step), topic, agent=cluster[0])
        found, ends = None, time.monotonic() + HANG_S
        while found is None and time.monotonic() < ends:
            found = versions.newest()
            time.sleep(0.01)
        assert found is not None and found.version in (3, 4)
        model = Model()
        found.load_into(model, assign=True)
        assert model.values() == {float(found.version)}


def test_tensors_that_come_one_at_a_time(cluster: Cluster, topic: str) -> None:
    def gathered() -> Iterator[tuple[str, Any]]:
        for layer in range(20):
            # Each is gone before the next one is made, which may lie where it was.
            yield f"layers.{layer}.w", torch.full((1000,), float(layer))
            gc.collect()

    with weights.subscribe(topic, agent=cluster[1]) as versions:
        weights.publish(gathered(), topic, agent=cluster[0])
        version = versions.next(HANG_S)
        assert version is not None
        assert {name: float(tensor[999]) for name, tensor in version.tensors()} == {f"layers.{at}.w": float(at) for at in range(20)}
    with pytest.raises(errors.Invalid, match="two tensors of the name 'w'"):
        weights.publish([("w", torch.ones(1)), ("w", torch.ones(1))], topic, agent=cluster[0])


def test_a_wrong_module_is_not_touched(cluster: Cluster, topic: str) -> None:
    weights.publish(Model(5), topic, agent=cluster[0])
    with weights.subscribe(topic, agent=cluster[1]) as versions:
        version = versions.next(HANG_S)
    assert version is not None
    other = Model(3, width=32)
    with pytest.raises(errors.WeightsMismatch, match=r"\[100, 64\].*\[100, 32\].*others.*module that it was made of"):
        version.load_into(other)
    assert other.values() == {3.0}
    lacking = torch.nn.Linear(2, 2)
    with pytest.raises(errors.WeightsMismatch, match="not in the module"):
        version.load_into(lacking)
    version.load_into(lacking, strict=False)


def test_wrong_use_says_what_to_do(cluster: Cluster, topic: str) -> None:
    agent = polycast.Agent(cluster[1].socket, uuid.UUID(bytes=cluster[1]._app))
    with pytest.raises(errors.UnsupportedType, match="state_dict"):
        weights.publish(17, topic, agent=agent)  # type: ignore[arg-type]
    with pytest.raises(errors.UnsupportedType, match="state_dict"):
        weights.publish(torch.ones(3), topic, agent=agent)
    weights.publish(Model(1), topic, version=7, agent=agent)
    with pytest.raises(errors.Invalid, match="version 7 .* not above .*versions only rise"):
        weights.publish(Model(1), topic, version=7, agent=agent)
    over = weights.subscribe(topic, agent=agent)
    over.close()
    assert list(over) == []
    with pytest.raises(errors.Closed, match="it was cancelled: subscribe again"):
        over.next()
    closed = weights.subscribe(topic, agent=agent)
    agent.close()
    with pytest.raises(errors.Closed, match="its Agent was closed: subscribe again"):
        closed.next()
    with pytest.raises(errors.Closed, match="make another one"):
        weights.publish(Model(1), topic, agent=agent)
    with pytest.raises(errors.Closed, match="make another one"):
        weights.subscribe(topic, agent=agent)


def test_one_who_waits_hears_that_the_agent_was_closed(cluster: Cluster, topic: str) -> None:
    agent = polycast.Agent(cluster[1].socket, uuid.UUID(bytes=cluster[1]._app))
    versions = weights.subscribe(topic, agent=agent)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(versions.next)
        time.sleep(0.3)
        agent.close()
        with pytest.raises(errors.Closed, match="its Agent was closed"):
            waits.result(HANG_S)


PUBLISHER = """
import sys, torch
from polycast import Agent, torch as weights

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

socket, app, topic = sys.argv[1:]
model = {f"layers.{layer}.w": torch.full((1 << 22,), float(layer), dtype=torch.bfloat16) for layer in range(16)}
with Agent(socket, app) as agent:
    weights.publish({"warm": torch.ones(1)}, topic, agent=agent)
    open("/proc/self/clear_refs", "w").write("5")
    before = peak()
    published = weights.publish(model, topic, agent=agent)
    assert not published.missing and len(published.have) == 2, published
    print(peak() - before)
"""

SUBSCRIBER = """
import sys, torch
from polycast import Agent, torch as weights

def own():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

socket, app, topic = sys.argv[1:]
with Agent(socket, app) as agent, weights.subscribe(topic, agent=agent) as versions:
    print("subscribed", flush=True)
    torch.ones(1 << 22, dtype=torch.bfloat16).max()
    before = own()
    for version in versions:
        state = version.state_dict()
        if "warm" in state:
            continue
        assert len(state) == 16
        for layer in range(16):
            assert state[f"layers.{layer}.w"].max() == state[f"layers.{layer}.w"].min() == layer
        break
    print(own() - before)
"""


def test_one_copy_from_tensor_to_wire_and_none_behind_it(cluster: Cluster, topic: str) -> None:
    def script(text: str, agent: polycast.Agent) -> subprocess.Popen[str]:
        arguments = [agent.socket, str(uuid.UUID(bytes=agent._app)), topic]
        line = [sys.executable, "-c", text, *arguments]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    subscribers = [script(SUBSCRIBER, agent) for agent in cluster[1:3]]
    try:
        for one in subscribers:
            assert one.stdout is not None and one.stdout.readline() == "subscribed\n"
        publisher = script(PUBLISHER, cluster[0])
        out, err = publisher.communicate(timeout=HANG_S)
        assert publisher.returncode == 0, err
        # 128 MiB went from it: into the agent's memory, and nowhere else.
        assert int(out) < 24 << 10, f"{int(out)} KiB more than before"
        for one in subscribers:
            out, err = one.communicate(timeout=HANG_S)
            assert one.returncode == 0, err
            assert int(out) < 24 << 10, f"{int(out)} KiB of its own"
    finally:
        for one in subscribers:
            one.kill()
            one.communicate()


def test_eight_threads_publish(cluster: Cluster, topic: str) -> None:
    def one(index: int) -> float:
        name = f"{topic}-{index}"
        with weights.subscribe(name, agent=cluster[1 + index % 3]) as versions:
            weights.publish(Model(index), name, agent=cluster[0])
            found = versions.next(60)
            assert found is not None
            return float(found.state_dict()["layers.11.bias"][0])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(one, range(8))) == [float(index) for index in range(8)]


def test_a_forked_process_publishes_and_subscribes(cluster: Cluster, topic: str) -> None:
    weights.publish({"w": torch.ones(10)}, topic, agent=cluster[0])
    versions = weights.subscribe(topic, agent=cluster[1])
    assert versions.next(HANG_S) is not None
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            with pytest.raises(errors.Invalid, match="forked"):
                versions.next(1)
            with weights.subscribe(topic, agent=cluster[1]) as own:
                found = own.next(10)
                assert found is not None and found.version == 1
                weights.publish({"w": torch.full((10,), 2.0)}, topic, agent=cluster[0])
                found = own.next(10)
                assert found is not None and float(found.state_dict()["w"][3]) == 2.0
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # The parent goes on with its own.
    found = versions.next(HANG_S)
    assert found is not None and found.version == 2
    versions.close()


def test_the_workers_of_a_data_loader_read(cluster: Cluster, number: int) -> None:
    rows = torch.arange(4000, dtype=torch.float32).reshape(40, 100)
    tensors.add(cluster[0], number, {"rows": rows})
    cluster[0].send(number, [cluster[1].name]).result(HANG_S)

    class Rows(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 40

        def __getitem__(self, at: int) -> Any:
            # In a process that was forked while the parent's threads ran.
            return tensors.of(cluster[1].read(number, HANG_S), "torch")["rows"][at].clone()

    loader = torch.utils.data.DataLoader(Rows(), batch_size=10, num_workers=2, multiprocessing_context="fork", timeout=HANG_S)
    assert torch.equal(torch.cat(list(loader)), rows)
    assert cluster[1].read(number).length > rows.nbytes, "the parent goes on too"


def test_ctrl_c_ends_a_wait_for_a_version(cluster: Cluster, topic: str) -> None:
    versions = weights.subscribe(topic, agent=cluster[1])
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        next(versions)
    weights.publish({"w": torch.ones(1)}, topic, agent=cluster[0])
    found = versions.next(HANG_S)
    assert found is not None and found.version == 1, "it goes on"
    versions.close()


def test_a_module_without_bytes_is_refused_and_not_left_alone(cluster: Cluster, topic: str) -> None:
    with weights.subscribe(topic, agent=cluster[1]) as versions:
        module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last))
        weights.publish(module, topic, agent=cluster[0])
        found = versions.next(HANG_S)
        assert found is not None
        empty = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Conv2d(2, 2, 3, device="meta"))
        before = empty[0].weight.clone()
        with pytest.raises(errors.Invalid, match=r"^'1.weight' has no bytes yet: module.to_empty\(device=...\) first$"):
            found.load_into(empty)
        assert torch.equal(empty[0].weight, before)
        empty = torch.nn.Sequential(empty[0], empty[1].to_empty(device="cpu").to(memory_format=torch.channels_last))
        found.load_into(empty)
        assert torch.equal(empty[1].weight, module[1].weight) and not empty[1].weight.is_contiguous()
        module[0].register_buffer("sparse", torch.eye(3).to_sparse())
        with pytest.raises(errors.UnsupportedType, match="is sparse"):
            weights.publish(module, topic, agent=cluster[0])
