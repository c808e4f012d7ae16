"""Between machines without a daemon, and objects by their names."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polycast
import pytest
from conftest import HANG_S, deleted, until
from polycast import _program, _progress, aio, errors

Cluster = list[polycast.Agent]

# A code that has no offer.
OTHER_CODE = "lusab-babad-gutih-tugad"


def accept(code: str, into: Path | None = None, **more: Any) -> polycast.Accepted:
    return polycast.accept(code, into, interface="lo", **{"timeout": HANG_S, **more})


def offer(path: Path | list[Path], receivers: int = 1, **more: Any) -> polycast.Offer:
    return polycast.offer(path, receivers, interface="lo", **{"timeout": HANG_S, **more})


def has_ended(pid: int) -> bool:
    """Whether a process has ended. One without a parent may not be taken away at once."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "model.bin"
    file.write_bytes(os.urandom(3_000_000))
    return file


def test_an_offer_reaches_all_that_accept(file: Path, tmp_path: Path) -> None:
    with offer(file, 2, name="model-7") as offered, ThreadPoolExecutor() as threads:
        assert str(offered) == offered.code and offered.name == "model-7"
        assert offered.code not in repr(offered)
        first = threads.submit(accept, offered.code, tmp_path / "first", name="first")
        second = threads.submit(accept, offered.code, out=tmp_path / "second", name="second")
        report = offered.wait()
        assert report.complete and report.sealed and report.bytes == 3_000_000
        assert sorted(receiver.name for receiver in report.receivers) == ["first", "second"]
        assert offered.wait() == report
        accepted = [one.result(HANG_S) for one in (first, second)]
    assert [one.path for one in accepted] == [tmp_path / "first/model-7", tmp_path / "second"]
    for one in accepted:
        assert one.path.read_bytes() == file.read_bytes()
        assert (one.name, one.bytes, one.unchanged) == ("model-7", 3_000_000, False)
        assert one.root == report.document["root"] == one.document["root"] and one.seconds > 0


def test_progress_is_shown_to_its_end(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with offer(file, progress=True) as offered:
        accept(offered.code, tmp_path / "made", progress=True)
        assert offered.wait().complete
    said = capsys.readouterr().err
    # A bar of tqdm or lines, of both.
    assert said.count("100%") + said.count("100 %") >= 2, said
    # What is wrong is told as before, and no note of the program with it.
    with offer(file) as again, pytest.raises(errors.PathError, match=f"^{tmp_path}/made/model.bin is there already"):
        accept(again.code, tmp_path / "made", progress=True)


def test_without_tqdm_lines_show_the_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    bar = _progress.bar_of_bytes()
    for done in (0, 49, 50, 100):
        bar(done, 100)
    bar(None, 0)
    assert [line.split(", ")[-1] for line in capsys.readouterr().err.splitlines()] == ["0 %", "40 %", "50 %", "100 %"]


def test_a_bar_has_no_rate_of_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    tqdm = pytest.importorskip("tqdm.auto")
    made: list[Any] = []

    class Kept(tqdm.tqdm):  # type: ignore[misc, name-defined]
        def __init__(self, **more: Any) -> None:
            super().__init__(**more, file=io.StringIO())
            made.append(self)

    monkeypatch.setattr(tqdm, "tqdm", Kept)
    bar = _progress.bar_of_bytes()
    # 10 kB come, and 1 GB was there.
    for done, spared in [(1, 0), (10**9, 10**9), (10**9 + 10_000, 10**9)]:
        bar(done, 2 * 10**9, spared)
        time.sleep(0.15)
    assert made[0].n == 10**9 + 10_000
    made[0].refresh()
    rates = made[0].format_dict
    assert (rates["rate"] or (rates["n"] - rates["initial"]) / rates["elapsed"]) < 1e6, rates
    bar(None, 0)


def test_folders_and_several_paths(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "-").write_text("a dash is a name here")
    (folder / "left.tmp").touch()
    with offer([file, folder], name="both", exclude="*.tmp") as offered:
        found = accept(offered.code, tmp_path / "made").path
        assert offered.wait().complete
    assert found == tmp_path / "made/both" and (found / "model.bin").read_bytes() == file.read_bytes()
    assert [one.name for one in (found / "folder").iterdir()] == ["-"]


def test_what_is_there_already(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(file.read_bytes())
    with pytest.raises(errors.PathError, match="copy is there already"):
        accept(OTHER_CODE, out=copy)
    with offer(file) as offered:
        assert accept(offered.code, out=copy, update=True).unchanged
        assert offered.wait().receivers[0].spared_bytes == 3_000_000
    copy.write_text("another one")
    with offer(file) as offered:
        assert not accept(offered.code, out=copy, force=True).unchanged
    assert copy.read_bytes() == file.read_bytes()


def test_one_that_does_not_come_is_named(file: Path, tmp_path: Path) -> None:
    with offer(file, 2, timeout=1.5) as offered:
        accept(offered.code, tmp_path / "here", name="here")
        with pytest.raises(errors.TransferFailed) as caught:
            offered.wait()
        report = caught.value.report
        assert isinstance(report, polycast.Report)
        assert [(one.name, one.verified) for one in report.receivers if one.verified] == [("here", True)]


def test_an_offer_that_serves_ends_when_it_is_told(file: Path, tmp_path: Path) -> None:
    with offer(file, serve=True) as offered:
        for name in ("first", "later"):
            accept(offered.code, tmp_path / name, name=name)
        with pytest.raises(errors.TimedOut):
            offered.wait(0.1)
        offered.cancel()
        assert [one.name for one in offered.wait().receivers if one.verified] == ["first", "later"]


def test_an_offer_is_cancelled(file: Path) -> None:
    offered = offer(file)
    process = offered._child._child
    with pytest.raises(errors.TimedOut, match="has not ended within 0.05 s"):
        offered.wait(0.05)
    threading.Timer(0.1, offered.cancel).start()
    with pytest.raises(errors.Cancelled):
        offered.wait()
    offered.cancel()
    assert process.poll() is not None

    with offer(file) as offered:
        process = offered._child._child
    assert process.poll() is not None, "the end of the block cancels it"

    offered = offer(file)
    process = offered._child._child
    del offered
    until("letting go of an offer cancels it", lambda: process.poll() is not None)


def test_descriptors_are_given_back(file: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    with offer(file):
        pass
    before = count()
    for _ in range(3):
        with offer(file) as offered:
            pass
        with pytest.raises(errors.Invalid):
            polycast.accept("short")
    del offered
    until("as many descriptors as before", lambda: count() <= before)


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda to: polycast.offer(to / "missing"), errors.PathError, "missing: no such file"),
        (lambda to: polycast.offer(3), errors.UnsupportedType, "has the type int"),  # type: ignore[arg-type]
        (lambda to: polycast.offer([to, 3]), errors.UnsupportedType, "has the type int"),  # type: ignore[list-item]
        (lambda to: polycast.offer([]), errors.Invalid, "FILE|DIR"),
        (lambda to: polycast.offer("-"), errors.PathError, "./-: no such file"),
        (lambda to: polycast.offer("--serve"), errors.PathError, "./--serve: no such file"),
        (lambda to: polycast.offer("a\0b"), errors.Invalid, "null byte"),
        (lambda to: polycast.offer("\ud800"), errors.Invalid, "surrogates"),
        (lambda to: polycast.offer(to, receivers="2"), errors.UnsupportedType, "receivers='2'"),  # type: ignore[arg-type]
        (lambda to: polycast.offer(to, 0), errors.Invalid, "there must be 1 to"),
        (lambda to: polycast.offer(to, -1), errors.Invalid, "invalid value '-1'"),
        (lambda to: polycast.offer(to, name="a/b"), errors.Invalid, "it is a path"),
        (lambda to: polycast.offer(to, name=b"x"), errors.UnsupportedType, "give a text"),  # type: ignore[arg-type]
        (lambda to: polycast.offer(to, exclude=[3]), errors.UnsupportedType, "exclude=3"),  # type: ignore[list-item]
        (lambda to: polycast.offer(to, exclude=["["]), errors.Invalid, "is no pattern"),
        (lambda to: polycast.offer(to, timeout=-1), errors.Invalid, "invalid value '-1"),
        (lambda to: polycast.offer(to, timeout=float("nan")), errors.Invalid, "write a time"),
        (lambda to: polycast.offer(to, timeout="5"), errors.UnsupportedType, "give seconds"),  # type: ignore[arg-type]
        (lambda to: polycast.offer(to, interface="nowhere"), errors.Invalid, "no interface nowhere"),
        (lambda to: accept("short"), errors.Invalid, "a code has 6 to 64 letters"),
        (lambda to: accept(""), errors.Invalid, "no code"),
        (lambda to: accept("-"), errors.Invalid, "a code has 6 to 64 letters"),
        (lambda to: accept("letters " * 100_000), errors.Invalid, "a code has 6 to 64 letters"),
        (lambda to: accept(7), errors.UnsupportedType, "a code is a text"),  # type: ignore[arg-type]
        (lambda to: accept(OTHER_CODE, to, timeout=0.2), errors.TimedOut, "was offered within"),
        (lambda to: accept(OTHER_CODE, to, out=to / "x"), errors.Invalid, "cannot be used with"),
        (lambda to: accept(OTHER_CODE, to, update=True, force=True), errors.Invalid, "cannot be used with"),
        (lambda to: accept(OTHER_CODE, to / "file"), errors.PathError, "is no directory"),
        (lambda to: accept(OTHER_CODE, out=to / "none/file"), errors.PathError, "cannot write to"),
        (lambda to: polycast.fetch("name:x", agent=None, into=3), errors.UnsupportedType, "has the type int"),  # type: ignore[arg-type]
        (lambda to: polycast.fetch("--help"), errors.Invalid, "write a key"),
    ],
)
def test_wrong_input(tmp_path: Path, call: Callable[[Path], object], kind: type[Exception], says: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(kind) as caught:
        call(tmp_path)
    assert says in str(caught.value)
    assert OTHER_CODE not in str(caught.value) or "such as" in str(caught.value)


SCRIPT = """
import os, signal, sys, threading, time
import polycast

if sys.argv[3] == "blocks SIGTERM":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
offered = polycast.offer(sys.argv[1], serve=True, interface="lo", timeout=600)
taking = threading.Thread(target=polycast.accept, args=(sys.argv[2],), kwargs={"interface": "lo"}, daemon=True)
taking.start()
if sys.argv[3] == "forked" and os.fork() == 0:
    print("ready", os.getpid(), flush=True)
    time.sleep(600)
else:
    print("ready", os.getpid(), flush=True) if sys.argv[3] != "forked" else None
    if sys.argv[3] == "ends":
        time.sleep(0.5)
    elif sys.argv[3] == "raises":
        raise SystemExit("it ends")
    else:
        offered.wait()
"""


def children(pid: int) -> list[int]:
    """The programs that a process has started."""
    lists = (Path(one).read_text().split() for one in Path(f"/proc/{pid}/task").glob("*/children"))
    found = [int(one) for one in sum(lists, [])]
    return [one for one in found if b"polycast\0" in Path(f"/proc/{one}/cmdline").read_bytes()]


@pytest.mark.parametrize("how", ["killed", "blocks SIGTERM", "terminated", "interrupted", "forked", "ends", "raises"])
def test_a_script_that_ends_leaves_no_process(file: Path, how: str) -> None:
    line = [sys.executable, "-c", SCRIPT, str(file), OTHER_CODE, how]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None and script.stderr is not None
        other = int(script.stdout.readline().split()[1])
        if how == "raises":
            found = []
        else:
            until("both programs run", lambda: len(children(script.pid)) == 2)
            found = children(script.pid)
        if how in ("killed", "blocks SIGTERM", "forked"):
            script.kill()
        elif how == "terminated":
            script.terminate()
        elif how == "interrupted":
            script.send_signal(signal.SIGINT)
        script.wait(HANG_S)
        try:
            for pid in found:
                until(f"process {pid} has ended", lambda pid=pid: has_ended(pid))  # type: ignore[misc]
            assert how != "forked" or not has_ended(other), "it is not what they have ended with"
        finally:
            if how == "forked":
                os.kill(other, signal.SIGKILL)
        if how == "interrupted":
            assert "KeyboardInterrupt" in script.stderr.read()


def test_a_process_that_was_forked_leaves_an_offer_alone(file: Path) -> None:
    with offer(file) as offered:
        pid = os.fork()
        if pid == 0:
            try:
                offered.cancel()
                offered.wait()
            except errors.Closed:
                os._exit(17)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
        assert offered._child._child.poll() is None
        assert accept(offered.code, out=file.with_name("copy")).bytes == 3_000_000
        assert offered.wait().complete


def test_objects_by_their_names(cluster: Cluster, file: Path, tmp_path: Path) -> None:
    source, other = cluster[:2]
    name = f"model-{os.getpid()}"
    with pytest.raises(errors.ObjectUnknown, match=f"no object called {name} here"):
        other.get(name, tmp_path)
    with pytest.raises(errors.TimedOut, match=f"no object called {name} came"):
        other.get(name, tmp_path, timeout=0.2)
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(other.get, name, tmp_path / "into", timeout=HANG_S)
        first = source.put(file, name)
        source.send(first.data_id, [other.name]).result(HANG_S)
        found = waits.result(HANG_S)
    assert found == tmp_path / "into" / name and found.read_bytes() == file.read_bytes()
    with pytest.raises(errors.PathError, match="is there already"):
        other.get(name, tmp_path / "into")
    assert other.get(name, tmp_path / "into", update=True) == found

    file.with_name("newer").write_text("newer")
    second = source.put(file.with_name("newer"), name)
    source.send(second.data_id, [other.name]).result(HANG_S)
    assert first.data_id != second.data_id
    assert other.get(name, out=tmp_path / "newest").read_text() == "newer"
    for agent in (source, other):
        for one in (first, second):
            until("both go", lambda agent=agent, one=one: deleted(agent, one.data_id))  # type: ignore[misc]


@pytest.mark.parametrize("files", [False, True])
def test_a_folder_by_its_name(cluster: Cluster, tmp_path: Path, files: bool, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / f"folder-{os.getpid()}"
    (folder / "below").mkdir(parents=True)
    (folder / "below/file").write_text("bytes")
    (folder / "left.tmp").touch()
    put = cluster[0].put(folder, files=files, exclude=["*.tmp"])
    cluster[0].send(put.data_id, [cluster[1].name]).result(HANG_S)
    found = cluster[1].get(folder.name, tmp_path / "into", progress=True)
    assert "100" in capfd.readouterr().err, "how far it is was shown"
    assert sorted(one.name for one in found.rglob("*")) == ["below", "file"]
    here = cluster[1].read(put.data_id)
    with pytest.raises(errors.Invalid, match="extract"):
        here.save(tmp_path / "copy")
    here.extract(tmp_path / "copy")
    assert (tmp_path / "copy/below/file").read_text() == "bytes"
    with pytest.raises(errors.PathError, match="copy is there already"):
        here.extract(tmp_path / "copy")
    (tmp_path / "copy/old").touch()
    here.extract(tmp_path / "copy", force=True)
    assert sorted(one.name for one in (tmp_path / "copy").rglob("*")) == ["below", "file"]
    with pytest.raises(errors.PathError):
        here.extract(tmp_path / "none/copy")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["copy", folder.name, "into"], "nothing half-written is left"
    for agent in cluster[:2]:
        until("it goes", lambda agent=agent: deleted(agent, put.data_id))  # type: ignore[misc]


def test_an_object_is_opened_and_saved(cluster: Cluster, number: int, tmp_path: Path) -> None:
    agent, name = cluster[0], f"buffer-{number}"
    added = agent.add_buffer(number, b"some bytes", name=name)
    assert agent.get(name, tmp_path).read_bytes() == b"some bytes"
    copy = tmp_path / "copy"
    added.save(copy)
    with pytest.raises(errors.Invalid, match="is a file"):
        added.extract(tmp_path / "folder")
    with pytest.raises(errors.PathError, match="copy is there already"):
        added.save(copy)
    copy.write_text("another")
    added.save(copy, force=True)
    assert copy.read_bytes() == b"some bytes"
    with pytest.raises(errors.PathError, match="cannot write"):
        added.save(tmp_path / "none/copy")
    with added.open() as file:
        agent.delete(number)
        assert file.read() == b"some bytes" and not file.writable()
    with pytest.raises(errors.ObjectUnknown):
        added.open()
    with pytest.raises(errors.ObjectUnknown):
        added.save(tmp_path / "later")
    assert sorted(one.name for one in tmp_path.iterdir()) == [name, "copy"], "nothing half-written is left"


FULL = """
import ctypes, subprocess, sys
from pathlib import Path
import polycast
from polycast import errors

agent, number, folder = polycast.Agent(sys.argv[1], sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
code = sys.argv[5]
assert ctypes.CDLL(None).unshare(0x20000) == 0
folder.mkdir()
subprocess.run(f"mount --make-rprivate / && mount -t tmpfs -o size=200k small {folder}", shell=True, check=True)
calls = {
    "save": lambda: agent.read(number).save(folder / "copy"),
    "get": lambda: agent.get(f"file-{number}", folder),
    "extract": lambda: agent.read(number + 1).extract(folder / "copy"),
    "accept": lambda: polycast.accept(code, folder, interface="lo", timeout=120),
}
for name, call in calls.items():
    try:
        call()
    except errors.StoreFull as error:
        print(name, error)
    # What is verified of an offer stays for the next attempt.
    assert name == "accept" or list(folder.iterdir()) == [], name
"""


def test_a_full_disk_is_said(cluster: Cluster, number: int, file: Path, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    (folder := tmp_path / "folder").mkdir()
    (folder / "a").write_bytes(os.urandom(1_000_000))
    agent, app = cluster[0], uuid.UUID(bytes=cluster[0]._app)
    agent.add(number, file, name=f"file-{number}")
    agent.add(number + 1, folder)
    with offer(file, serve=True) as offered:
        line = [sys.executable, "-c", FULL, agent.socket, str(app), str(number), str(tmp_path / "small"), offered.code]
        done = subprocess.run(line, capture_output=True, text=True, timeout=HANG_S, check=False)
    said = dict(one.split(" ", 1) for one in done.stdout.splitlines())
    assert (done.returncode, set(said)) == (0, {"save", "get", "extract", "accept"}), done
    for name, sentence in said.items():
        assert "no space left" in sentence.lower() or "is full" in sentence, f"{name}: {sentence}"


# Threads that wait for what does not come, or that send, as the interpreter ends.
LEAVES = """
import sys, threading
import polycast

agent, other, number = polycast.Agent(sys.argv[1], sys.argv[2]), sys.argv[3], int(sys.argv[4])
agent.add_buffer(number, b"x" * 50_000_000)
waits = [
    lambda: agent.read(number + 1),
    lambda: agent.get(f"nothing-{number}", timeout=600),
    lambda: agent.subscribe(f"nothing-{number}").next(),
    lambda: [agent.send(number, [other]).result() for _ in range(1000)],
    lambda: next(iter(agent.watch(number + 2))),
]
for wait in waits:
    threading.Thread(target=wait, daemon=True).start()
agent.send(number, [other])
print("ends", flush=True)
"""


@pytest.mark.parametrize("repeated", range(3))
def test_an_interpreter_ends_in_mid_transfer(cluster: Cluster, number: int, repeated: int) -> None:
    agent, app = cluster[0], uuid.UUID(bytes=cluster[0]._app)
    line = [sys.executable, "-c", LEAVES, agent.socket, str(app), cluster[1].name, str(number)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
    # The agent goes on, and what the script has left is in no one's way.
    with polycast.Agent(agent.socket, app) as again:
        assert again.add_buffer(number + 3, b"later").length == 5


def test_wrong_calls_of_objects(cluster: Cluster, number: int, tmp_path: Path) -> None:
    with polycast.Agent(cluster[0].socket, uuid.UUID(bytes=cluster[0]._app)) as agent:
        added = agent.add_buffer(number, b"some bytes")
        (tmp_path / "folder").mkdir()
        folder = agent.add(number + 1, tmp_path / "folder")
        for call in (lambda: added.save(3), lambda: folder.extract(None)):  # type: ignore[arg-type]
            with pytest.raises(errors.UnsupportedType, match="has the type (int|NoneType)"):
                call()
        for call in (lambda: added.save("a\0b"), lambda: folder.extract("a\0b")):
            with pytest.raises(errors.Invalid, match="null byte"):
                call()
        with pytest.raises(errors.Invalid, match="open the files in it"):
            folder.open()
        with pytest.raises(errors.Invalid, match=r"extract\(PATH\)"):
            folder.save(tmp_path / "copy")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_wrong_calls_of_put_and_get(cluster: Cluster, file: Path, tmp_path: Path) -> None:
    agent = cluster[0]
    with pytest.raises(errors.PathError, match="missing"):
        agent.put(tmp_path / "missing")
    with pytest.raises(errors.Invalid, match="is a path"):
        agent.put(file, "a/b")
    with pytest.raises(TypeError):
        agent.put(3)  # type: ignore[arg-type]
    with pytest.raises(errors.UnsupportedType, match="read"):
        agent.get(3)  # type: ignore[arg-type]
    with pytest.raises(errors.UnsupportedType, match="is no path"):
        agent.get("x", 3)  # type: ignore[arg-type]
    with pytest.raises(errors.Invalid, match="is no time"):
        agent.get("x", timeout=-1)
    with polycast.Agent(agent.socket) as closed:
        pass
    for call in (closed.put, closed.get, lambda what: polycast.fetch(what, agent=closed)):
        with pytest.raises(errors.Closed):
            call(str(file))


def test_no_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYCAST_SOCKET", str(tmp_path / "none.sock"))
    with pytest.raises(errors.AgentNotRunning, match="no agent listens on"):
        polycast.fetch("file:///etc/hostname", tmp_path)


def test_an_address_is_fetched(cluster: Cluster, file: Path, tmp_path: Path) -> None:
    found = polycast.fetch(f"file://{file}", tmp_path / "into", agent=cluster[1], timeout=HANG_S)
    assert found == tmp_path / "into/model.bin" and found.read_bytes() == file.read_bytes()
    with pytest.raises(errors.OriginFailed, match="cannot get"):
        polycast.fetch(f"file://{tmp_path}/missing", tmp_path, agent=cluster[1])
    with pytest.raises(errors.ObjectUnknown, match="no agent has it"):
        polycast.fetch("name:missing", tmp_path, agent=cluster[1])
    with pytest.raises(errors.Invalid, match="is no sha256 key"):
        polycast.fetch("sha256:0", tmp_path, agent=cluster[1])


def test_coroutines(cluster: Cluster, file: Path, tmp_path: Path) -> None:
    async def run() -> None:
        source, other = (aio.Agent(agent, aio._Runner()) for agent in cluster[:2])
        name = f"aio-{os.getpid()}"
        waits = asyncio.ensure_future(other.get(name, tmp_path / "into", timeout=HANG_S))
        put = await source.put(file, name)
        await (await source.send(put.data_id, [cluster[1].name])).result()
        assert (await waits).read_bytes() == file.read_bytes()
        with pytest.raises(errors.ObjectUnknown):
            await other.get("missing", tmp_path)
        with pytest.raises(errors.TimedOut):
            await other.get("missing", tmp_path, timeout=0.1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(other.get("missing", tmp_path, timeout=HANG_S), 0.2)
        for agent in (source, other):
            await agent.delete(put.data_id)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["cut", "bar"])
def test_a_listener_that_meets_a_fault_wakes_those_that_wait(how: str) -> None:
    events = [{"event": "progress", "bytes": 1, "total": 2}, {"event": "offered", "code": "x"}]
    lines = "".join(f"{json.dumps(one, separators=(',', ':'))}\n" for one in events)
    told: list[object] = []

    def bar(done: int | None, total: int, spared: int = 0) -> None:
        told.append(done)
        if how == "bar":
            raise BrokenPipeError

    said = _program._Said(bar)
    text = lines + ('{"event":"prog' if how == "cut" else "")
    child = subprocess.Popen(["printf", "%s", text], stdout=subprocess.PIPE)
    child.stderr, child.stdout = child.stdout, None  # type: ignore[assignment]
    _program._listen(child, said)  # type: ignore[arg-type]
    assert said.told.is_set() and said.ended.is_set() and said.event == events[1]
    assert (list(said.lines), told) == ((['{"event":"prog'], [1, None]) if how == "cut" else ([], [1]))


def test_advice_is_given_once() -> None:
    for kind in ("agent-unreachable", "version", "path"):
        once = str(errors.of_kind(kind, "what was wrong"))
        assert str(errors.of_kind(kind, f"rank 1: {once}")) == f"rank 1: {once}"


def test_the_old_names_of_an_argument_and_a_variable_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from polycast._renamed import renamed, variable

    class Engine:
        @renamed("deadline", "publish_timeout")
        def __init__(self, size: int, publish_timeout: float = 300.0) -> None:
            self.publish_timeout = publish_timeout

    assert (Engine(1).publish_timeout, Engine(1, 2.0).publish_timeout) == (300.0, 2.0)
    with pytest.warns(DeprecationWarning, match=r"Engine\(deadline=\) is called publish_timeout= now") as warned:
        assert Engine(1, **{"deadline": 3.0}).publish_timeout == 3.0
    assert warned[0].filename == __file__
    monkeypatch.setenv("OLD", "4")
    with pytest.warns(DeprecationWarning, match="OLD is called NEW now"):
        assert variable("NEW", "OLD", "1") == "4"
    monkeypatch.setenv("NEW", "5")
    assert variable("NEW", "OLD", "1") == "5"


def test_the_old_name_of_a_time_limit_still_works() -> None:
    from polycast._renamed import deadline_is_timeout

    @deadline_is_timeout
    def call(*, timeout: float | None = None) -> float | None:
        return timeout

    assert call(timeout=2) == 2
    with pytest.warns(DeprecationWarning, match="timeout= now"):
        assert call(**{"deadline": 3}) == 3
    with pytest.raises(TypeError, match="give timeout alone"):
        call(**{"deadline": 3, "timeout": 2})
