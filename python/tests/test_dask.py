"""Dask: workers on two hosts, each with an agent, and what left the source."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import types
import uuid
from pathlib import Path
from typing import Any

import polycast
import pytest
from conftest import HANG_S, deleted, until
from polycast import errors, values

numpy = pytest.importorskip("numpy")
Cluster = list[polycast.Agent]


def joined(value: Any) -> memoryview:
    return memoryview(b"".join(bytes(memoryview(part)) for part in values.pack(value)))


def test_values_come_back_with_views() -> None:
    value = {"a": numpy.arange(1000.0), "b": [1, "two", numpy.eye(3, dtype="f4")], "n": numpy.zeros((0, 2)), "t": (None, b"x")}
    view = joined(value)
    got = values.unpack(view)
    assert got["b"][:2] == [1, "two"] and got["t"] == (None, b"x")
    assert numpy.array_equal(got["a"], value["a"]) and numpy.array_equal(got["b"][2], value["b"][2])
    assert not got["a"].flags.owndata and got["a"].ctypes.data % 8 == 0


@pytest.mark.parametrize("cut", [0, 5, 16, 20, 24, 40, -1])
def test_what_is_no_value_is_refused(cut: int) -> None:
    whole = joined([numpy.arange(1000)])
    with pytest.raises(errors.Invalid):
        values.unpack(whole[:cut])


UNPACKED: list[str] = []


def run(word: str) -> None:
    UNPACKED.append(word)


class Rogue:
    """Runs something where it is unpacked."""

    def __reduce__(self) -> tuple[Any, ...]:
        return run, ("it ran",)


def broadcast_to(source: polycast.Agent, other: polycast.Agent, number: int, value: Any) -> values.Known:
    parts = values.pack(value)
    source.add_parts(number, parts, name="value")
    source._send_to_the_end(number, [other.name], HANG_S)
    return values.Known.of(parts).and_root(source.read(number, HANG_S).root)


def replaced(number: int, member: polycast.Agent, other: polycast.Agent, value: Any) -> None:
    """Another member takes an object away at an agent, and sends one of its own there under the same number."""
    until("the agent lets go of what was there", lambda: not member.remove(number, [other.name]))
    broadcast_to(member, other, number, value)
    until("the member lets go of it, too", lambda: deleted(member, number))


def test_what_is_put_in_the_place_of_a_broadcast_is_not_unpacked(cluster: Cluster, number: int) -> None:
    source, other, member = cluster[:3]
    known = broadcast_to(source, other, number, [1, "two"])
    assert known.root and values.unpack_broadcast(other, number, known, HANG_S) == [1, "two"]
    UNPACKED.clear()
    replaced(number, member, other, Rogue())
    with pytest.raises(errors.Invalid, match="is not what was broadcast: its root hash is "):
        values.unpack_broadcast(other, number, known, HANG_S)
    # Nor where no agent has computed a root hash.
    with pytest.raises(errors.Invalid, match="is not what was broadcast: its first "):
        values.unpack_broadcast(other, number, known.and_root(""), HANG_S)
    assert UNPACKED == []
    values.unpack(other.read(number, HANG_S).map())
    assert UNPACKED == ["it ran"], "it would have"
    other.delete(number)
    source.delete(number)


@pytest.mark.parametrize("comes_back", [False, True])
def test_what_is_put_there_while_it_is_opened_is_not_unpacked(
    cluster: Cluster, number: int, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """An agent says that a broadcast is here; then another object gets its place, and is opened. With `comes_back` it makes room for the
    right one before the agent is asked again."""
    source, other, member = cluster[:3]
    value, wrong = numpy.arange(1000.0), numpy.zeros(1000)
    known = broadcast_to(source, other, number, value)
    plain, asked = other.read, []

    def read(*arguments: Any, **named: Any) -> polycast.Object:
        asked.append(len(asked))
        if len(asked) == 2 and comes_back:
            replaced(number, member, other, value)
        found = plain(*arguments, **named)
        if len(asked) == 1:
            replaced(number, member, other, wrong)
        return found

    monkeypatch.setattr(other, "read", read)
    error = errors.ObjectUnknown if comes_back else errors.Invalid
    with pytest.raises(error, match="was replaced meanwhile" if comes_back else "is not what was broadcast"):
        values.unpack_broadcast(other, number, known, HANG_S)
    assert len(asked) == 2
    monkeypatch.undo()
    if comes_back:
        assert numpy.array_equal(values.unpack_broadcast(other, number, known, HANG_S), value)
    other.delete(number)
    source.delete(number)


def worker(scheduler: str, agent: polycast.Agent, folder: Path) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--no-dashboard", "--nworkers", "1"]
    line += ["--nthreads", "1", "--no-nanny", "--local-directory", str(folder)]
    return subprocess.Popen(line, env={**os.environ, "POLYCAST_SOCKET": agent.socket}, stderr=subprocess.DEVNULL)


def test_a_value_reaches_all_workers(cluster: Cluster, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    from polycast.dask import broadcast

    # Two workers share the second agent's host; the third has one of its own.
    with distributed.LocalCluster(
        n_workers=0, dashboard_address=None, processes=True, protocol="tcp://", host="127.0.0.1"
    ) as scheduler:
        hosts = [cluster[1], cluster[1], cluster[2]]
        workers = [worker(scheduler.scheduler_address, host, tmp_path) for host in hosts]
        try:
            with distributed.Client(scheduler) as client:
                client.wait_for_workers(len(workers), timeout=HANG_S)
                array = numpy.arange(2_000_000.0)
                sent: list[int] = []
                plain = polycast.Agent.send

                def counted(*arguments: Any, **named: Any) -> polycast.Transfer:
                    transfer = plain(*arguments, **named)
                    result = transfer.result

                    def counting(timeout: float | None = None) -> polycast.Report:
                        report = result(timeout)
                        sent.append(report.sent_bytes)
                        return report

                    transfer.result = counting  # type: ignore[method-assign]
                    return transfer

                polycast.Agent.send = counted  # type: ignore[method-assign]
                try:
                    future = broadcast(client, array, agent=cluster[0])
                finally:
                    polycast.Agent.send = plain  # type: ignore[method-assign]
                # Each byte left the source about once, for two hosts and three workers.
                assert len(sent) == 1 and sent[0] < 2 * array.nbytes, sent
                sums = [
                    client.submit(lambda value: (float(value.sum()), value.flags.owndata), future, workers=[one], pure=False)
                    for one in client.scheduler_info()["workers"]
                ]
                assert client.gather(sums) == [(float(array.sum()), False)] * 3
                assert len(client.who_has([future])[future.key]) == 3
                assert numpy.array_equal(future.result(), array)
        finally:
            for one in workers:
                one.terminate()
            for one in workers:
                one.wait(HANG_S)


def test_a_broadcast_without_workers_is_refused(cluster: Cluster) -> None:
    distributed = pytest.importorskip("distributed")
    from polycast.dask import broadcast

    before = len(cluster[0].list())
    with distributed.LocalCluster(n_workers=0, dashboard_address=None, protocol="tcp://", host="127.0.0.1") as scheduler:
        with distributed.Client(scheduler) as client, pytest.raises(errors.NoReceivers, match="no workers"):
            broadcast(client, [1], agent=cluster[0])
    assert len(cluster[0].list()) == before


@pytest.mark.parametrize("leaves", [False, True])
def test_a_worker_that_joins_during_a_broadcast_is_left_out(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """The agent of its host has not got the value. With `leaves` another worker ends meanwhile."""
    distributed = pytest.importorskip("distributed")
    from polycast.dask import broadcast

    with distributed.LocalCluster(
        n_workers=0, dashboard_address=None, processes=True, protocol="tcp://", host="127.0.0.1"
    ) as scheduler:
        workers = [worker(scheduler.scheduler_address, cluster[1], tmp_path) for _ in range(2)]
        try:
            with distributed.Client(scheduler) as client:
                client.wait_for_workers(2, timeout=HANG_S)
                first, plain = set(client.nthreads()), polycast.Agent._send_to_the_end

                def joins(*arguments: Any) -> polycast.Report:
                    if leaves:
                        workers[0].kill()
                        until("it has left", lambda: len(client.nthreads()) == 1)
                    workers.append(worker(scheduler.scheduler_address, cluster[2], tmp_path))
                    until("another one is there", lambda: bool(set(client.nthreads()) - first))
                    return plain(*arguments)

                monkeypatch.setattr(polycast.Agent, "_send_to_the_end", joins)
                array = numpy.arange(1000.0)
                future = broadcast(client, array, agent=cluster[0], timeout=HANG_S)
                assert set(client.who_has([future])[future.key]) == first & set(client.nthreads())
                assert numpy.array_equal(future.result(HANG_S), array)
        finally:
            for one in workers:
                one.terminate()
            for one in workers:
                one.wait(HANG_S)


def test_a_broadcast_that_is_interrupted_leaves_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    from polycast.dask import broadcast

    app = uuid.UUID(bytes=cluster[0]._app)
    with polycast.Agent.embedded(cluster[0].manager, app=app) as hangs:
        assert hangs._embedded is not None
        name, pid = hangs.name, hangs._embedded._children[0].pid
        client = types.SimpleNamespace(run=lambda *_: {"one": name})
        monkeypatch.setenv("POLYCAST_SOCKET", cluster[0].socket)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        known = {found.data_id for found in cluster[0].list(all_applications=True)}
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(KeyboardInterrupt) as raised:
                threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                broadcast(client, numpy.zeros(20_000_000, "u1"), timeout=HANG_S)
        finally:
            os.kill(pid, signal.SIGCONT)
            signal.signal(signal.SIGINT, before)
        assert raised.value is not None
        assert {found.data_id for found in cluster[0].list(all_applications=True)} <= known
