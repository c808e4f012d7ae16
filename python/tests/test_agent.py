"""The module against real agents."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polycast
import pytest
from conftest import HANG_S, deleted, until
from polycast import Finished, Granted, _embedded, aio, errors, tensors
from polycast._agent import opened

Cluster = list[polycast.Agent]


def test_an_array_reaches_all_and_is_mapped(cluster: Cluster, number: int) -> None:
    numpy = pytest.importorskip("numpy")
    sent = numpy.arange(3_000_000, dtype="float32").reshape(1000, 3000)
    cluster[0].add_buffer(number, sent)
    report = cluster[0].send(number, "all").result(HANG_S)
    assert report.complete and len(report.receivers) == 3 and report.bytes == sent.nbytes
    for agent in cluster[1:]:
        got = agent.read(number, HANG_S).numpy("float32", (1000, 3000))
        assert not got.flags.writeable and not got.flags.owndata
        assert numpy.array_equal(sent, got)
        agent.delete(number)
        assert numpy.array_equal(sent, got), "a view outlives the object"
    cluster[0].delete(number)


def test_a_map_is_one_copy_of_the_store(cluster: Cluster, number: int, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(os.urandom(1 << 20) * 64)
    cluster[0].add(number, file)
    cluster[0].send(number, [cluster[1].name]).result(HANG_S)
    there = cluster[1].read(number)

    def own_kib() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    before = own_kib()
    view = there.map()
    total = sum(view[:: 4096])
    assert total > 0 and view.nbytes == 64 << 20
    assert own_kib() - before < 8 << 10, "the pages are the store's"
    with pytest.raises(TypeError):
        view[0] = 1
    own = there.map(writable_copy=True)
    own[0] = (view[0] + 1) % 256
    assert own[0] != view[0]


def test_a_descriptor_that_is_another_objects_by_now(cluster: Cluster, number: int) -> None:
    found = cluster[0].add_buffer(number, b"one")
    descriptor = os.readlink(found.path)
    cluster[0].delete(number)
    after = cluster[0].add_buffer(number + 1, b"two")
    assert after.path == found.path and os.readlink(after.path) != descriptor
    with pytest.raises(errors.ObjectUnknown, match="deleted meanwhile"):
        found.map()
    assert bytes(after.map()) == b"two"


@pytest.mark.parametrize("what", ["file", "pipe", "nothing"])
def test_a_descriptor_that_is_something_else_by_now(cluster: Cluster, number: int, tmp_path: Path, what: str) -> None:
    found = cluster[0].add_buffer(number, b"one")
    taken = int(found.path.rsplit("/", 1)[1])
    cluster[0].delete(number)
    (tmp_path / "file").write_bytes(b"two")
    others = {"file": lambda: [os.open(tmp_path / "file", os.O_RDONLY)], "pipe": lambda: list(os.pipe()), "nothing": list}[what]()
    assert (taken in others) == (what != "nothing"), "the lowest number that is free is given next"
    try:
        with pytest.raises(errors.ObjectUnknown, match="deleted meanwhile"):
            found.map()
    finally:
        for other in others:
            os.close(other)


def memories(number: int) -> list[str]:
    """Descriptors of this process that hold the memory of an object."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            found += [one.name] if os.readlink(one).startswith(f"/memfd:polycast-{number}") else []
        except FileNotFoundError:
            # The descriptor of the iteration itself.
            pass
    return found


@pytest.mark.parametrize("at", ["all", "own", "other"])
def test_memory_of_what_is_removed_is_let_go(cluster: Cluster, number: int, at: str) -> None:
    agent = cluster[0]
    agent.add_buffer(number, b"x" * 100_000, name="named")
    assert len(memories(number)) == 1
    assert agent.remove(number, {"all": "all", "own": agent.name, "other": cluster[1].name}[at]) == {}
    assert len(memories(number)) == (at == "other")
    assert (number in agent._names) == (at == "other")
    if at == "other":
        agent.delete(number)
        assert not memories(number) and number not in agent._names


def test_memory_of_what_another_process_has_deleted_is_let_go(cluster: Cluster, number: int) -> None:
    agent = cluster[0]
    agent.add_buffer(number, b"x" * 100_000)
    with polycast.Agent(agent.socket, uuid.UUID(bytes=agent._app)) as other:
        other.delete(number)
    with pytest.raises(errors.ObjectUnknown):
        agent.delete(number)
    assert not memories(number) and number not in agent._names


def test_a_publisher_whose_agent_ends_keeps_no_memory(apart: Cluster, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    topic, weights = f"ends-{number}", {"w": numpy.ones(1000)}
    with polycast.Agent.embedded(apart[0].manager) as agent:
        assert agent._embedded is not None
        (child,), plain = agent._embedded._children, agent.publish
        tensors.publish(agent, topic, weights)

        def ends(*arguments: object, **named: object) -> polycast.Published:
            child.kill()
            child.wait(HANG_S)
            return plain(*arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(agent, "publish", ends)
        with pytest.raises((errors.AgentLost, errors.AgentNotRunning)):
            tensors.publish(agent, topic, weights)
        # The version before is not this call's to give up.
        assert list(agent._memory) == [agent._published[topic]]
        with pytest.raises((errors.AgentLost, errors.AgentNotRunning)):
            agent._forget(agent._published[topic])
        assert not agent._memory


def test_a_result_that_is_asked_for_again_says_the_same(apart: Cluster, number: int) -> None:
    with polycast.Agent.embedded(apart[0].manager) as agent, polycast.Agent.embedded(apart[0].manager) as still:
        assert agent._embedded is not None and still._embedded is not None
        (child,), (stands_still,) = agent._embedded._children, still._embedded._children
        agent.add_buffer(number, bytes(1000))
        # A receiver that stands still, so that the transfer is not over before its agent is.
        stands_still.send_signal(signal.SIGSTOP)
        try:
            transfer = agent.send(number, [still.name])
            child.kill()
            child.wait(HANG_S)
            with pytest.raises(errors.AgentLost) as lost:
                transfer.result(HANG_S)
            with pytest.raises(errors.AgentLost) as again:
                transfer.result(HANG_S)
            with pytest.raises(errors.AgentLost):
                asyncio.run(aio.Transfer(transfer, aio._Runner()).result())
        finally:
            stands_still.send_signal(signal.SIGCONT)
    assert str(again.value) == str(lost.value)


def test_a_path_that_is_not_told(cluster: Cluster, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent says to another user: neither the form nor the path."""
    found = dataclasses.replace(cluster[0].add_buffer(number, b"x", name="theirs"), form="", path="")
    monkeypatch.setattr(cluster[0], "read", lambda *_: found)
    calls = (found.map, found.open, found.numpy, lambda: found.save(tmp_path / "copy"), lambda: cluster[0]._map_only(number, "", None))
    for call in calls:
        with pytest.raises(errors.Invalid, match=f"this user gets no path to theirs.*`polycast get .*{number} .*` copies it"):
            call()
    with pytest.raises(errors.Invalid, match=rf"theirs is still being received: read\({number}\) waits"):
        dataclasses.replace(found, state="receiving").map()
    with pytest.raises(errors.Invalid, match=f"this user gets no path to object {number} "):
        opened(found.path, number)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mask", "mode", "saved"), [(0o077, 0o644, 0o600), (0o022, 0o666, 0o644), (0o027, 0o755, 0o750), (0o022, 0o400, 0o400)]
)
def test_a_copy_has_the_permissions_that_this_process_gives(
    cluster: Cluster, number: int, tmp_path: Path, mask: int, mode: int, saved: int
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "secret").chmod(mode)
    found = cluster[0].add(number, tmp_path / "secret")
    (tmp_path / "into").mkdir()
    before = os.umask(mask)
    try:
        found.save(tmp_path / "into/copy")
    finally:
        os.umask(before)
    (copy,) = (tmp_path / "into").iterdir()
    assert copy.stat().st_mode & 0o777 == saved and copy.read_bytes() == b"secret"


def test_later_lines_of_an_embedded_agent_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "written"
    stands_in = tmp_path / "polycast"
    lines = "for _ in range(320): os.write(2, (b'a line' * 20 + b'\\n') * 1000)"
    stands_in.write_text(f"#!{sys.executable}\nimport os\nos.write(2, b'listens on here\\n')\n{lines}\nopen({str(written)!r}, 'w')\n")
    stands_in.chmod(0o755)
    monkeypatch.setattr(_embedded, "program", lambda: stands_in)
    one = _embedded.Embedded.__new__(_embedded.Embedded)
    one._children, one._input = [], subprocess.DEVNULL
    tracemalloc.start()
    try:
        assert one._run(["agent"]) == "here"
        until("it has written all", written.exists)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
        one._children[0].wait(HANG_S)


def test_events_lead_to_the_report(cluster: Cluster, number: int, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 100_000)
    cluster[0].add(number, file)
    events = list(cluster[0].send(number, [cluster[2].name]))
    assert any(isinstance(event, Granted) for event in events)
    assert isinstance(events[-1], Finished)
    assert events[-1].report.receivers[0].name == cluster[2].name
    assert events[-1].report.document["name"] == "f"


def test_a_folder_travels(cluster: Cluster, number: int, tmp_path: Path) -> None:
    (tmp_path / "set" / "inner").mkdir(parents=True)
    (tmp_path / "set" / "inner" / "a").write_bytes(b"a")
    cluster[0].add(number, tmp_path / "set", exclude=["*.tmp"])
    cluster[0].send(number, [cluster[1].name]).result(HANG_S)
    assert cluster[1].read(number).kind == "directory"


def test_a_receiver_that_is_not_there_is_named(cluster: Cluster, number: int) -> None:
    cluster[0].add_buffer(number, b"abc")
    with pytest.raises(errors.ReceiverUnknown, match="not-here"):
        cluster[0].send(number, ["not-here"]).result(HANG_S)


def test_one_text_stands_for_itself(cluster: Cluster, number: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, other = cluster[:2]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "kept").write_bytes(os.urandom(300_000))
    (folder / "left.tmp").touch()
    source.add(number, folder, exclude="*.tmp")
    report = source.send(number, to=other.name).result(HANG_S, progress=True)
    assert [one.name for one in report.receivers] == [other.name]
    assert "polycast" in capfd.readouterr().err
    assert [one.name for one in other.get("folder", tmp_path / "into", timeout=HANG_S).iterdir()] == ["kept"]
    assert source.remove(number, other.name) == {}
    assert number not in [one.data_id for one in other.list()]
    source.delete(number)


def test_bad_input_says_what_to_do(cluster: Cluster, number: int, tmp_path: Path) -> None:
    agent = cluster[0]
    with pytest.raises(errors.ObjectUnknown, match="no object"):
        agent.read(number, known_only=True)
    with pytest.raises(errors.PathError):
        agent.add(number, tmp_path / "missing")
    with pytest.raises(errors.UnsupportedType, match="numpy array"):
        agent.add_buffer(number, 17)  # type: ignore[arg-type]
    with pytest.raises(errors.NotContiguous, match="ascontiguousarray"):
        agent.add_buffer(number, memoryview(b"abcdef")[::2])
    with pytest.raises(errors.UnsupportedType, match="to=3 has the type int"):
        agent.send(number, 3)  # type: ignore[arg-type]
    with pytest.raises(errors.UnsupportedType, match="exclude=b'x' has the type bytes"):
        agent.add(number, tmp_path, exclude=[b"x"])  # type: ignore[list-item]
    wrong_types = (
        lambda: agent.put(3),  # type: ignore[arg-type]
        lambda: agent.add(number, [tmp_path, None]),  # type: ignore[list-item]
        lambda: agent.get("x", timeout="3"),  # type: ignore[arg-type]
        lambda: polycast.Agent(3),  # type: ignore[arg-type]
        lambda: polycast.Agent(agent.socket, app=3),  # type: ignore[arg-type]
        lambda: polycast.Agent.embedded(3),  # type: ignore[arg-type]
        lambda: polycast.Agent.embedded(listen=3),  # type: ignore[arg-type]
        lambda: polycast.Agent.embedded(key_file=3),  # type: ignore[arg-type]
        lambda: polycast.cast(3),  # type: ignore[arg-type]
        lambda: polycast.cast(tmp_path, receivers="3"),  # type: ignore[arg-type]
    )
    for call in wrong_types:
        with pytest.raises(errors.UnsupportedType, match="has the type (int|str|NoneType)"):
            call()
    with pytest.raises(errors.Invalid, match="is no UUID"):
        polycast.Agent(agent.socket, app="x")
    with pytest.raises(errors.Invalid, match="say one of them"):
        polycast.Agent.embedded(agent.manager, listen="127.0.0.1:0")
    with pytest.raises(errors.AgentNotRunning, match="cluster's key"):
        polycast.Agent.embedded(listen="0.0.0.0:0")
    for outside in (-1, 1 << 64):
        with pytest.raises(errors.Invalid, match=f"{outside} is no number of an object"):
            agent.read(outside)
    for time_s in (-1.0, float("nan"), float("inf")):
        with pytest.raises(errors.Invalid, match="is no time in seconds"):
            agent.read(number, time_s)
        with pytest.raises(errors.Invalid, match="is no time in seconds"):
            agent.subscribe(f"times-{number}").next(time_s)
    with pytest.raises(ValueError, match="catch-up"):
        agent.send(number, "all", slow="never")  # type: ignore[arg-type]
    agent.add_buffer(number, b"abc")
    with pytest.raises(errors.ObjectTaken):
        agent.add_buffer(number, b"other")
    with pytest.raises(errors.AgentNotRunning, match=r"Agent\.embedded"):
        polycast.Agent(tmp_path / "nothing.sock")
    closed = polycast.Agent(cluster[0].socket)
    closed.close()
    with pytest.raises(errors.Closed):
        closed.list()


def test_a_socket_without_permission_says_so(cluster: Cluster) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become a user who has no permission")
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            polycast.Agent(cluster[0].socket)
        except errors.SocketPermission as error:
            os._exit(0 if "agent's user" in str(error) else 2)
        except BaseException:
            os._exit(3)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_eight_threads(cluster: Cluster, tmp_path: Path, number: int) -> None:
    def one(index: int) -> bytes:
        content = bytes([index]) * (100_000 + index)
        cluster[0].add_buffer(number + index, content)
        cluster[0].send(number + index, [cluster[3].name]).result(HANG_S)
        return bytes(cluster[3].read(number + index).map()[:10])

    with ThreadPoolExecutor(8) as threads:
        assert [got[0] for got in threads.map(one, range(8))] == list(range(8))


def test_a_forked_process_goes_on(cluster: Cluster, number: int) -> None:
    cluster[0].add_buffer(number, b"before the fork")
    cluster[0].send(number, [cluster[1].name]).result(HANG_S)
    child = os.fork()
    if child == 0:
        # Nothing of the parent's threads is here: this must not hang.
        signal.alarm(int(HANG_S))
        try:
            right = bytes(cluster[1].read(number, HANG_S).map()) == b"before the fork"
            os._exit(0 if right else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cluster[1].read(number).length == 15, "the parent goes on too"


def test_a_forked_process_closes_what_is_its_own(cluster: Cluster, number: int) -> None:
    agent = polycast.Agent(cluster[0].socket)
    agent.add_buffer(number, b"the parent's")
    child = os.fork()
    if child == 0:
        signal.alarm(int(HANG_S))
        try:
            agent.add_buffer(number + 1, b"the child's")
            agent.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [one.data_id for one in agent.list() if one.data_id in (number, number + 1)] == [number]
    agent.send(number, [cluster[1].name]).result(HANG_S)
    with polycast.Agent(cluster[1].socket) as receiver:
        assert bytes(receiver.read(number, HANG_S).map()) == b"the parent's"
    agent.close()
    with polycast.Agent(cluster[0].socket) as other:
        assert all(one.data_id != number for one in other.list())


@pytest.mark.parametrize("what", ["read", "fetch", "subscribe"])
def test_ctrl_c_ends_a_wait(cluster: Cluster, number: int, what: str) -> None:
    waits = {
        "read": lambda: cluster[1].read(number),
        "fetch": lambda: cluster[1].fetch(number, timeout=HANG_S),
        "subscribe": lambda: next(cluster[1].subscribe(f"nothing-{number}")),
    }[what]
    # A shell lets what runs in its background ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            waits()
    finally:
        signal.signal(signal.SIGINT, before)
    assert cluster[1].status().manager_connected


def test_a_cancelled_transfer_ends(cluster: Cluster, number: int) -> None:
    cluster[0].add_buffer(number, bytes(50_000_000))
    transfer = cluster[0].send(number, [cluster[1].name])
    transfer.cancel()
    with pytest.raises((errors.TransferFailed, errors.Cancelled)):
        transfer.result(HANG_S)
    # Sooner or later it is free: what ran is over.
    until("the transfer is over", lambda: deleted(cluster[0], number))


def test_the_other_process_does_not_take_the_agent_along() -> None:
    script = "import polycast, sys; a = polycast.Agent.embedded(); print(a._embedded._children[1].pid); sys.exit(0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert not Path(f"/proc/{int(done.stdout)}").exists(), "the agent ends with the script"


def test_two_of_one_application_in_one_process(cluster: Cluster) -> None:
    where, app = cluster[0].socket, uuid.uuid4()
    with polycast.Agent(where, app) as one:
        polycast.Agent(where, app).close()
        assert one.add_buffer(1, b"still registered").length == 16
        one.delete(1)


def test_pointers_are_not_sent(cluster: Cluster, number: int) -> None:
    numpy = pytest.importorskip("numpy")
    for pointers in (numpy.array([object(), 3], object), numpy.zeros(2, [("a", "i4"), ("b", "O")])):
        with pytest.raises(errors.UnsupportedType, match="places in this process's memory"):
            cluster[0].add_buffer(number, pointers)
    with pytest.raises(errors.UnsupportedType, match=r"array.view\('u1'\)"):
        cluster[0].add_buffer(number, numpy.zeros(2, "M8[s]"))
    named = numpy.ones(2, [("Offset", "i4"), ("P", "f4")])
    assert bytes(cluster[0].add_buffer(number, named).map()) == named.tobytes()


def test_a_script_that_runs_again(cluster: Cluster, number: int) -> None:
    """Closed, it leaves nothing; killed, what it leaves is in no one's way."""
    app = uuid.UUID(bytes=cluster[0]._app)
    with polycast.Agent(cluster[0].socket, app) as one:
        one.add_buffer(number, b"first")
    assert number not in [found.data_id for found in cluster[0].list()]
    script = f"import os, polycast; polycast.Agent({cluster[0].socket!r}, {str(app)!r}).add_buffer({number}, b'killed'); os._exit(0)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_S)
    with polycast.Agent(cluster[0].socket, app) as one:
        assert bytes(one.add_buffer(number, b"again").map()) == b"again"


def await_end(pids: list[int]) -> None:
    until("all have ended", lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))


def is_free(lock: Path) -> bool:
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


PRINTS = "import os, polycast; a = polycast.Agent.embedded(); print(*[c.pid for c in a._embedded._children], a._embedded._folder, flush=True)"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_children_end_with_a_script_that_is_killed(how: signal.Signals) -> None:
    # A worker that was forked goes on: it is not in the way of their end.
    script = f"{PRINTS}; pid = os.fork(); import time; print(pid or '', flush=True) if pid else None; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        *pids, folder = child.stdout.readline().split()
        forked = int(child.stdout.readline())
        child.send_signal(how)
        child.wait(HANG_S)
        try:
            await_end([int(pid) for pid in pids])
            # The kernel lets go of a process's files after its memory.
            until("its store is free", lambda: is_free(Path(folder) / "store" / ".lock"))
            assert Path(f"/proc/{forked}").exists()
        finally:
            os.kill(forked, signal.SIGKILL)
    # What is left goes when the next one begins, and what lives stays.
    os.utime(f"{folder}/store/.lock", (0, 0))
    with polycast.Agent.embedded() as one:
        assert not Path(folder).exists()
        assert one._embedded is not None
        os.utime(one._embedded._folder / "store" / ".lock", (0, 0))
        polycast.Agent.embedded(one.manager).close()
        assert one._embedded._folder.exists() and one.add_buffer(1, b"x").length == 1


def test_a_process_that_is_forked_between_keeps_no_child() -> None:
    # The pipe is there, and nothing knows of it yet.
    script = f"""
import os, threading, time
def fork():
    if (pid := os.fork()) == 0:
        time.sleep(600)
        os._exit(1)
    print(pid, flush=True)
def pipe():
    os.pipe = real
    made = real()
    other = threading.Thread(target=fork)
    other.start()
    other.join(0.5)
    return made
real, os.pipe = os.pipe, pipe
{PRINTS}
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        # Either of both may come first.
        said = [child.stdout.readline().split() for _ in range(2)]
        child.kill()
        (forked,), (*pids, _) = sorted(said, key=len)
        child.wait(HANG_S)
        try:
            await_end([int(pid) for pid in pids])
            assert Path(f"/proc/{forked}").exists()
        finally:
            os.kill(int(forked), signal.SIGKILL)


def test_children_end_with_a_worker_of_multiprocessing() -> None:
    script = f"import multiprocessing\ndef work():\n    global a\n    {PRINTS}\np = multiprocessing.get_context('fork').Process(target=work)\np.start()\np.join()\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S)
    *pids, _ = done.stdout.split()
    assert len(pids) == 2, done
    await_end([int(pid) for pid in pids])


def test_an_agent_that_begins_anew_is_used_again(cluster: Cluster, number: int) -> None:
    with polycast.Agent.embedded(cluster[0].manager, app=uuid.UUID(bytes=cluster[0]._app)) as agent:
        embedded = agent._embedded
        assert embedded is not None
        agent.add_buffer(number, b"before")
        embedded._children[0].terminate()
        embedded._children[0].wait(HANG_S)
        embedded._children[0] = subprocess.Popen(embedded._children[0].args, stdin=embedded._input, stderr=subprocess.DEVNULL)

        def is_back() -> bool:
            try:
                return agent.status().manager_connected
            except errors.AgentLost:
                return False

        until("the agent has its manager again", is_back)
        assert bytes(agent.add_buffer(number + 1, b"after").map()) == b"after"
        assert agent.send(number + 1, [cluster[1].name]).result(HANG_S).complete


def test_a_stranger_where_the_agent_is_looked_for() -> None:
    """In shared memory every user can make the folder of another one."""
    if os.geteuid() != 0:
        pytest.skip("only root can become two users")
    victim, stranger = 20_000 + os.getpid() % 30_000, 65534
    folder = Path(f"/dev/shm/polycast-{victim}")
    folder.mkdir(mode=0o755)
    os.chown(folder, stranger, stranger)
    listens = os.fork()
    if listens == 0:
        os.setuid(stranger)
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{folder}/agent.sock")
            door.listen()
            os.chmod(f"{folder}/agent.sock", 0o777)
            time.sleep(600)
    try:
        door = folder / "agent.sock"
        until("the stranger listens", lambda: door.exists() and door.stat().st_mode & 0o002 != 0)
        child = os.fork()
        if child == 0:
            signal.alarm(int(HANG_S))
            os.setuid(victim)
            os.environ.pop("XDG_RUNTIME_DIR", None)
            os.environ.pop("POLYCAST_SOCKET", None)
            try:
                polycast.Agent()
            except errors.SocketPermission as error:
                os._exit(0 if f"user {stranger} listens there" in str(error) else 2)
            except BaseException:
                os._exit(3)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        os.kill(listens, signal.SIGKILL)
        os.waitpid(listens, 0)
        shutil.rmtree(folder)
