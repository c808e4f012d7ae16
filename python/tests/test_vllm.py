"""The contract with vLLM: its own modules of two versions, out of its wheels, with the back end between real agents."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
import zipfile
from pathlib import Path

import polycast
import pytest

pytest.importorskip("torch")
Cluster = list[polycast.Agent]

CONTRACT = Path(__file__).with_name("vllm_contract.py")
# The oldest that the back end is for, and the newest that there was.
VERSIONS = ["0.29.0", "0.33.0"]
MODULES = [
    *(f"vllm/distributed/weight_transfer/{name}.py" for name in ("base", "factory", "clients")), "vllm/v1/worker/gpu_worker.py",
]


@pytest.fixture(params=VERSIONS)
def modules(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder that has vLLM's modules for new weights; the rest of a wheel is not kept."""
    folder = Path(request.config.cache.mkdir("vllm")) / request.param  # type: ignore[union-attr]
    if not (folder / "gpu_worker.py").exists():
        line = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*line, "--dest", str(tmp_path), f"vllm=={request.param}"], check=True, timeout=600)
        (wheel,) = tmp_path.glob("vllm-*.whl")
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(wheel) as packed:
            for name in MODULES:
                (folder / Path(name).name).write_bytes(packed.read(name))
        wheel.unlink()
    return folder


def test_the_back_end_does_what_vllm_asks(modules: Path, cluster: Cluster) -> None:
    from conftest import sent_bytes

    pytest.importorskip("requests")
    sockets = [agent.socket for agent in cluster[:3]]
    before = sent_bytes(cluster[0])
    line = [sys.executable, str(CONTRACT), str(modules), str(uuid.UUID(bytes=cluster[0]._app)), *sockets]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env={**os.environ, "POLYCAST_SOCKET": "/nowhere"})
    assert done.returncode == 0, done.stdout + done.stderr
    versions, size = map(int, done.stdout.split()[-2:])
    sent = sent_bytes(cluster[0]) - before
    # Each byte left the trainer's host about once for two hosts with three workers.
    assert versions * size <= sent < 2 * versions * size, (versions, size, sent)


def test_vllm_finds_the_back_end() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="vllm.general_plugins", name="polycast")
    assert found.load().__module__ == "polycast.vllm"
