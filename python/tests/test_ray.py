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


@pytest.fixture
def nodes(cluster: Cluster, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Two nodes of Ray; gives the driver's environment."""
    pytest.importorskip("ray")
    home = {"RAY_AUTH_MODE": "disabled", "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    base = {**os.environ, **home}
    ray = str(Path(sys.executable).parent / "ray")

    def start(agent: polycast.Agent, *arguments: str) -> dict[str, str]:
        environment = {**base, "POLYCAST_SOCKET": str(agent._embedded.socket)}  # type: ignore[union-attr]
        line = [ray, "start", "--num-cpus=2", "--object-store-memory=200000000", "--disable-usage-stats", *arguments]
        subprocess.run(line, env=environment, check=True, capture_output=True, timeout=120)
        return environment

    try:
        driver = start(cluster[1], "--head", "--port=26379", "--include-dashboard=false")
        start(cluster[2], "--address=127.0.0.1:26379")
        yield driver
    finally:
        subprocess.run([ray, "stop", "--force"], env=base, capture_output=True, timeout=60)


def test_a_value_reaches_all_nodes(nodes: dict[str, str], cluster: Cluster) -> None:
    app = str(uuid.UUID(bytes=cluster[0]._app))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, app], env=nodes, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    assert "left {}" in done.stdout
