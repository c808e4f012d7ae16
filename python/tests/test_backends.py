"""The contracts with verl, NeMo-RL, slime, miles, TRL and transformers: their own modules, out of their wheels where there are any, with
the back ends between real agents. Each runs in a process of its own, since modules stand in for others there."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import time
import types
import uuid
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polycast
import pytest
from conftest import HANG_S, sent_bytes, until
from polycast._backends import Link, new_number

torch = pytest.importorskip("torch")
Cluster = list[polycast.Agent]

CONTRACT = Path(__file__).with_name("backends_contract.py")
# What is taken out of a wheel; the rest of it is not kept.
WHEELS = {
    "verl": ("verl==0.9.1", ["verl/checkpoint_engine/base.py", "verl/workers/engine_workers.py", "verl/utils/import_utils.py"]),
    "trl": ("transformers==5.24.0", ["transformers/trainer_callback.py"]),
}
# A folder with what no wheel has: `nemo_rl/utils/checkpoint_engines/base.py` of NVIDIA-NeMo/RL, and `sglang/local_checkpoint.py`, which is
# slime's reader out of its docker/patch/latest/sglang-pull_weights.patch. Without it what the back ends meet of these stands in for them.
FRAMEWORKS = os.environ.get("POLYCAST_FRAMEWORKS")


def modules_of(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    if backend not in WHEELS:
        return None
    wanted, names = WHEELS[backend]
    folder = Path(request.config.cache.mkdir("backends")) / wanted  # type: ignore[union-attr]
    if not all((folder / Path(name).name).exists() for name in names):
        line = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run([*line, "--dest", str(tmp_path), wanted], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            pytest.skip(f"{wanted} cannot be downloaded: {(done.stderr.strip() or 'pip says nothing').splitlines()[-1]}")
        (wheel,) = tmp_path.glob("*.whl")
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(wheel) as packed:
            for name in names:
                (folder / Path(name).name).write_bytes(packed.read(name))
        wheel.unlink()
    return str(folder)


@pytest.fixture
def standing_still(cluster: Cluster) -> Iterator[polycast.Agent]:
    """One more agent, which a test may stop."""
    with polycast.Agent.embedded(cluster[0].manager, app=uuid.UUID(bytes=cluster[0]._app)) as agent:
        yield agent


@pytest.mark.parametrize("backend", ["verl", "nemo", "shared_folder", "trl"])
def test_the_back_end_does_what_its_framework_asks(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path, cluster: Cluster, standing_still: polycast.Agent
) -> None:
    modules = modules_of(backend, request, tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    assert standing_still._embedded is not None
    settings = {
        "modules": modules,
        "frameworks": FRAMEWORKS,
        "work": str(work),
        "app": str(uuid.UUID(bytes=cluster[0]._app)),
        "trainer": cluster[0].socket,
        "hosts": [agent.socket for agent in cluster[1:3]],
        "late": cluster[3].socket,
        "frozen": standing_still.socket,
        "frozen_process": standing_still._embedded._children[-1].pid,
    }
    before = sent_bytes(cluster[0])
    environment = {**os.environ, "POLYCAST_SOCKET": "/nowhere"}
    environment.pop("RANK", None)
    line = [sys.executable, str(CONTRACT), backend, json.dumps(settings)]
    said = []
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        try:
            for text in child.stdout:
                said.append(text)
                if text.startswith("sent "):
                    # It waits while the bytes are counted that have left the trainer's host.
                    versions, size = map(int, text.split()[1:])
                    sent = sent_bytes(cluster[0]) - before
                    assert versions * size <= sent < 2 * versions * size, (versions, size, sent)
                    child.stdin.write("go on\n")
                    child.stdin.flush()
            errors = child.stderr.read()
            assert child.wait(HANG_S) == 0, "".join(said) + errors
        finally:
            child.kill()
    assert "done\n" in said, said
    if FRAMEWORKS and backend == "shared_folder":
        assert "slime's reader: done\n" in said, said


def answers(where: Path) -> bool:
    try:
        with polycast.Agent(where) as one:
            return one.status().manager_connected
    except polycast.PolycastError:
        return False


def known_to_the_manager(socket: Path) -> None:
    """Returns when the manager has heard what an agent has said so far: it takes an agent's words in their order, and answers this one."""
    with polycast.Agent(socket) as one:
        data_id = new_number()
        one.add(data_id, __file__)
        one.publish(f"word-{uuid.uuid4()}", data_id)


@contextlib.contextmanager
def killed_at_the_end(cluster: Cluster, folder: Path) -> Iterator[None]:
    """An agent that listens at `agent.sock` in a folder. After it another one can begin there."""
    socket = folder / "agent.sock"
    line = [str(polycast.program()), "agent", "--manager", cluster[0].manager, "--interface", "lo", "--until-input-ends"]
    line += ["--name", f"restarted-{folder.name}", "--socket", str(socket), "--store", str(folder / "store")]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            until("the agent listens", lambda: socket.exists() and answers(socket))
            yield
        finally:
            child.kill()


@pytest.mark.parametrize("asks", ["meanwhile", "later", "only for the version"])
def test_a_host_whose_agent_is_restarted(apart: Cluster, tmp_path: Path, asks: str) -> None:
    """The process registers and subscribes anew with its next update, and has that version; the trainer does not wait for it before. So it
    is where the agent is up again before the process asks, and where the process does not ask to subscribe at each update."""
    topic, app, log = f"restart-{uuid.uuid4()}", str(uuid.UUID(bytes=apart[0]._app)), logging.getLogger("polycast.test")
    socket = tmp_path / "agent.sock"
    agent = functools.partial(killed_at_the_end, apart, tmp_path)
    trainer, rollout = (Link(topic, app, where, log) for where in (apart[0].socket, socket))

    def update(step: int) -> polycast.Published:
        data_id = new_number()
        trainer.add(data_id, [("w", torch.full((50_000,), float(step), dtype=torch.bfloat16))], {})
        if step == 1 or (step == 3 and asks != "only for the version"):
            rollout.subscribe()
            known_to_the_manager(socket)
        published = trainer.commit(data_id, step, 20)
        if step != 2:
            found = asyncio.run(rollout.wait(data_id, f"version {step}", HANG_S))
            assert {float(tensor[-1]) for _, tensor in rollout.each(found, None)} == {float(step)}
        return published

    with ThreadPoolExecutor(1) as threads:
        with agent():
            assert len(update(1).have) == 1
            waits = threads.submit(asyncio.run, rollout.wait(new_number(), "what never comes", HANG_S))
            time.sleep(0.5)
        with pytest.raises(polycast.PolycastError, match="agent"):
            waits.result(HANG_S / 2)
    assert not update(2).have
    if asks == "meanwhile":
        with pytest.raises(polycast.errors.AgentNotRunning, match="agent.sock"):
            rollout.subscribe()
    with agent():
        assert len(update(3).have) == (0 if asks == "only for the version" else 1)
        assert len(update(4).have) == 1
        rollout.close()
    trainer.close()


@dataclass
class Anything:
    """In the place of each of the classes that a framework's base has for its messages."""


class Worker:
    """As much of vLLM's engine as the back end's own needs here."""

    model: Any = None
    model_config: Any = None

    def __class_getitem__(cls, _: Any) -> type:
        return cls


def test_a_vllm_worker_whose_agent_is_restarted(apart: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host has the next version but one beforehand again."""
    base = types.ModuleType("vllm.distributed.weight_transfer.base")
    of = {"WeightTransferEngine": Worker, "TrainerWeightTransferEngine": Worker}
    messages = ["WeightTransferInitInfo", "WeightTransferUpdateInfo", "TrainerInitInfo"]
    for name, value in {**of, **dict.fromkeys(messages, Anything)}.items():
        setattr(base, name, value)
    reload = types.ModuleType("vllm.model_executor.model_loader.reload")
    reload.initialize_layerwise_reload = reload.finalize_layerwise_reload = lambda *_: None  # type: ignore[attr-defined]
    for module in (base, reload):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("engine", "trainer"):
        monkeypatch.delitem(sys.modules, f"polycast.vllm.{name}", raising=False)
    engine_module = importlib.import_module("polycast.vllm.engine")
    trainer_module = importlib.import_module("polycast.vllm.trainer")
    with pytest.warns(DeprecationWarning, match="publish_timeout"):
        assert trainer_module.TrainerInfo(deadline=3.0).publish_timeout == 3.0
    monkeypatch.setenv("POLYCAST_SOCKET", str(tmp_path / "agent.sock"))
    topic, app = f"vllm-{uuid.uuid4()}", str(uuid.UUID(bytes=apart[0]._app))
    trainer = Link(topic, app, apart[0].socket, logging.getLogger("polycast.test"))
    loaded: list[float] = []
    worker = engine_module.PolycastEngine()
    worker.model = types.SimpleNamespace(load_weights=lambda pairs: loaded.extend(float(tensor[0]) for _, tensor in pairs))

    def update(step: int) -> polycast.Published:
        data_id = new_number()
        trainer.add(data_id, [("w", torch.full((1000,), float(step)))], {})
        published = trainer.commit(data_id, step, 20)
        worker.start_weight_update()
        worker.receive_weights(engine_module.UpdateInfo(data_id, published.version, HANG_S))
        worker.finish_weight_update()
        return published

    with killed_at_the_end(apart, tmp_path):
        worker.init_transfer_engine(engine_module.InitInfo(topic, app))
        assert len(update(1).have) == 1
    with killed_at_the_end(apart, tmp_path):
        # The new agent has not been told of the topic when this is published.
        assert not update(2).have
        assert len(update(3).have) == 1
        worker.shutdown()
    assert loaded == [1.0, 2.0, 3.0]
    trainer.close()


def test_a_reader_of_a_folder_whose_agent_is_restarted(apart: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polycast import shared_folder

    # These are a process's own, and another test does not need them.
    for name in ("_LINKS", "_READERS", "_RUNS"):
        monkeypatch.setattr(shared_folder, name, {})
    topic, here = f"restart-{uuid.uuid4()}", tmp_path / "here"
    args = types.SimpleNamespace(polycast_topic=topic, polycast_socket=apart[0].socket)
    for name, value in (("SOCKET", str(tmp_path / "agent.sock")), ("TOPIC", topic), ("PUBLISH_TIMEOUT", "20"), ("TIMEOUT", str(HANG_S))):
        monkeypatch.setenv(f"POLYCAST_{name}", value)
    monkeypatch.setenv("RANK", "0")
    # The agent of the third version is another one than that of the second, and so on.
    for number in (1, 2, 3):
        version = tmp_path / f"trainer/weight_v{number:06d}"
        version.mkdir(parents=True)
        (version / "model.safetensors").write_bytes(os.urandom(10_000))
        with killed_at_the_end(apart, tmp_path):
            shared_folder.post_write(args, version, [])
            shared_folder.pre_read(here, number)
            assert (here / version.name / "model.safetensors").read_bytes() == (version / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("mask", "mode", "saved"), [(0o077, 0o644, 0o600), (0o022, 0o666, 0o644), (0o022, 0o444, 0o644)])
def test_a_copy_of_a_versions_file_has_the_permissions_that_this_process_gives(tmp_path: Path, mask: int, mode: int, saved: int) -> None:
    from polycast import shared_folder

    (tmp_path / "theirs").write_bytes(b"weights")
    file = polycast.SetFile("ours", 1, 7, "", mode, True, str(tmp_path / "theirs"))
    before = os.umask(mask)
    try:
        shared_folder._bring(file, tmp_path / "ours", "/nowhere")
    finally:
        os.umask(before)
    assert (tmp_path / "ours").stat().st_mode & 0o777 == saved and (tmp_path / "ours").read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["_backends", "nemo", "shared_folder", "trl", "verl"])
def test_the_package_imports_no_framework(name: str) -> None:
    """`import polycast` brings none of them along; each module brings its own."""
    frameworks = ("verl", "nemo_rl", "transformers", "torch", "ray")
    line = f"import sys, polycast; print([one for one in {frameworks!r} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.strip() == "[]"
    assert importlib.util.find_spec(f"polycast.{name}") is not None
