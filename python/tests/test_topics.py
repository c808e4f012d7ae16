"""Objects that are asked for, and topics."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import polycast
import pytest
from conftest import HANG_S
from polycast import errors, tensors

numpy = pytest.importorskip("numpy")
Cluster = list[polycast.Agent]


def test_a_key_is_filled_once_for_all(cluster: Cluster) -> None:
    content = uuid.uuid4().bytes * 200_000
    key = f"sha256:{hashlib.sha256(content).hexdigest()}"
    filled: list[int] = []

    def fill() -> Iterable[bytes]:
        filled.append(1)
        for at in range(0, len(content), 300_000):
            yield content[at : at + 300_000]

    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(lambda agent: agent.fetch(key, fill=fill, timeout=HANG_S), cluster))
    assert filled == [1], "exactly one brings the bytes"
    assert all(bytes(one.map()) == content for one in got)


def test_wrong_bytes_are_refused(cluster: Cluster) -> None:
    key = f"sha256:{hashlib.sha256(uuid.uuid4().bytes).hexdigest()}"
    with pytest.raises(errors.PolycastError, match="sha256|digest|bytes"):
        cluster[0].fetch(key, fill=lambda: [b"not these"], timeout=HANG_S)
    with pytest.raises(errors.PolycastError):
        cluster[1].fetch(key)


def test_what_has_no_key_is_not_filled(cluster: Cluster, number: int) -> None:
    with pytest.raises(ValueError, match="by its key"):
        cluster[0].fetch(number, fill=lambda: [b"x"], timeout=1)


def test_an_origin_that_raises_is_said(cluster: Cluster) -> None:
    def fill() -> Iterable[bytes]:
        yield b"some"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="disk is gone"):
        cluster[0].fetch(f"name:{uuid.uuid4()}", fill=fill, timeout=HANG_S)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it says nothing")


@pytest.mark.parametrize("error", [OSError("cannot open mod\udce9l"), Mute(), KeyboardInterrupt()])
def test_an_object_that_was_not_filled_is_given_to_no_one(cluster: Cluster, error: BaseException) -> None:
    def fill() -> Iterable[bytes]:
        yield bytes(1 << 20)
        yield b""
        raise error

    key = f"name:{uuid.uuid4()}"
    with pytest.raises(type(error)):
        cluster[0].fetch(key, fill=fill, timeout=HANG_S)
    with pytest.raises(errors.PolycastError):
        cluster[1].fetch(key, timeout=3)


def test_a_filling_that_is_let_go_is_no_object(cluster: Cluster) -> None:
    key = f"name:{uuid.uuid4()}"
    events = cluster[0]._fetching(key, True, HANG_S)
    while "fill" not in (said := events.next(HANG_S) or "it has ended"):
        assert "waiting" in said
    filling = cluster[0]._connection.fill(key, None, "")
    assert filling.write(bytes(1 << 20)) and filling.write(b"")
    del filling
    with pytest.raises(errors.PolycastError):
        cluster[1].fetch(key, timeout=3)
    events.cancel()


def test_versions_of_weights(cluster: Cluster) -> None:
    topic = f"weights-{uuid.uuid4()}"
    seen: dict[str, list[tuple[int, float]]] = {agent.name: [] for agent in cluster[1:]}
    ready = threading.Barrier(4)

    def worker(agent: polycast.Agent) -> None:
        versions = agent.subscribe(topic)
        ready.wait(HANG_S)
        while len(seen[agent.name]) < 3:
            version = versions.next(HANG_S)
            assert version is not None and version.object is not None and version.committed
            seen[agent.name].append((version.version, float(tensors.of(version.object)["w"][0])))
        versions.cancel()

    with ThreadPoolExecutor(3) as threads:
        workers = [threads.submit(worker, agent) for agent in cluster[1:]]
        ready.wait(HANG_S)
        for step in (1, 2, 3):
            published = tensors.publish(cluster[0], topic, {"w": numpy.full(100_000, float(step))}, version=step)
            assert published.version == step and not published.missing
        for one in workers:
            one.result(HANG_S)
    for values in seen.values():
        assert values[-1] == (3, 3.0) and all(version == value for version, value in values)
        assert [version for version, _ in values] == sorted({version for version, _ in values})
    with pytest.raises(errors.PolycastError, match="version"):
        tensors.publish(cluster[0], topic, {"w": numpy.zeros(1)}, version=2)
