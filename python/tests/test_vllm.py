"""The contract with vLLM: its own modules of two versions, out of its wheels, with the back end between real agents."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from subprocess import PIPE

import polycast
import pytest
from conftest import sent_bytes
from test_serving import OF_VLLM, from_wheel

pytest.importorskip("torch")
Cluster = list[polycast.Agent]

CONTRACT = Path(__file__).with_name("vllm_contract.py")
# The oldest that the back end is for, and the newest that there was.
VERSIONS = ["0.29.0", "0.33.0"]


@pytest.fixture(params=VERSIONS)
def modules(request: pytest.FixtureRequest) -> Path:
    """The folder that has vLLM's modules for new weights; the rest of a wheel is not kept."""
    return from_wheel(request.config, "vllm", request.param, OF_VLLM)


def test_the_back_end_does_what_vllm_asks(modules: Path, cluster: Cluster) -> None:
    pytest.importorskip("requests")
    sockets = [agent.socket for agent in cluster[:3]]
    before = sent_bytes(cluster[0])
    line = [sys.executable, str(CONTRACT), str(modules), str(uuid.UUID(bytes=cluster[0]._app)), *sockets]
    env = {**os.environ, "POLYCAST_SOCKET": "/nowhere"}
    with subprocess.Popen(line, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=env) as running:
        assert running.stdout is not None
        said = running.stdout.readline()
        sent = sent_bytes(cluster[0]) - before
        out, errors = running.communicate("go on\n", timeout=600)
    assert running.returncode == 0, said + out + errors
    versions, size = map(int, said.split())
    # The first version left the trainer's host about once for two hosts with three workers, and of the others at most as much.
    assert size <= sent < 2 * versions * size, (versions, size, sent)


def test_vllm_finds_the_back_end() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="vllm.general_plugins", name="polycast")
    assert found.load().__module__ == "polycast.vllm"
