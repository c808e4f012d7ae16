"""The contracts with verl, NeMo-RL, slime, miles, TRL and transformers: their own modules, out of their wheels where there are any, with
the back ends between real agents. Each runs in a process of its own, since modules stand in for others there."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def test_a_host_whose_agent_is_restarted(cluster: Cluster, tmp_path: Path) -> None:
    """The process registers and subscribes anew with its next update, and has that version; the trainer does not wait for it before."""
    topic, app, log = f"restart-{uuid.uuid4()}", str(uuid.UUID(bytes=cluster[0]._app)), logging.getLogger("polycast.test")
    socket = tmp_path / "agent.sock"

    @contextlib.contextmanager
    def agent() -> Iterator[None]:
        line = [str(polycast.program()), "agent", "--manager", cluster[0].manager, "--interface", "lo", "--until-input-ends"]
        line += ["--name", f"restarted-{tmp_path.name}", "--socket", str(socket), "--store", str(tmp_path / "store")]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            until("the agent listens", lambda: socket.exists() and answers(socket))
            try:
                yield
            finally:
                child.kill()

    def answers(where: Path) -> bool:
        try:
            with polycast.Agent(where) as one:
                return one.status().manager_connected
        except polycast.PolycastError:
            return False

    trainer, rollout = (Link(topic, app, where, log) for where in (cluster[0].socket, socket))

    def update(step: int) -> polycast.Published:
        data_id = new_number()
        trainer.add(data_id, [("w", torch.full((50_000,), float(step), dtype=torch.bfloat16))], {})
        if step != 2:
            rollout.subscribe()
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
    with pytest.raises(polycast.errors.AgentNotRunning, match="agent.sock"):
        rollout.subscribe()
    with agent():
        assert len(update(3).have) == 1
        rollout.close()
    trainer.close()


@pytest.mark.parametrize("name", ["_backends", "nemo", "shared_folder", "trl", "verl"])
def test_the_package_imports_no_framework(name: str) -> None:
    """`import polycast` brings none of them along; each module brings its own."""
    frameworks = ("verl", "nemo_rl", "transformers", "torch", "ray")
    line = f"import sys, polycast; print([one for one in {frameworks!r} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.strip() == "[]"
    assert importlib.util.find_spec(f"polycast.{name}") is not None
