"""Jobs of several processes that bring their own cluster along, and meet in a folder. What needs torch is in test_distributed_torch.py."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HANG_S, until
from polycast import _rendezvous, distributed, errors
from test_offer import has_ended

HOSTS = Path(__file__).parents[1] / "bench"

# How each script begins. Two ranks are a host, each with an agent of its own, though all are on this machine.
BEGIN = f"""
import contextlib, dataclasses, os, sys, threading, time
from pathlib import Path
from polycast import distributed, errors

this_process = distributed._this_process
distributed._this_process = lambda rank, interface: dataclasses.replace(this_process(rank, interface), host=f"host {{rank // 2}}")
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
group = distributed.init(rendezvous=f"file://{{folder}}/job", interface="lo", store=folder / "store", timeout={HANG_S})
here = folder / str(rank)
here.mkdir()
programs = [one.pid for one in group.agent._embedded._children] if group.agent._embedded else []
"""


class Job:
    """The processes of a script."""

    def __init__(self, script: str, folder: Path, count: int, begin: str = BEGIN) -> None:
        self.folder = folder
        environment = os.environ | {"WORLD_SIZE": str(count)}
        line = [sys.executable, "-c", begin + script, str(folder)]
        self.processes = [
            subprocess.Popen(
                line, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
            for rank in range(count)
        ]

    def said(self, *, fails: bool = False) -> list[str]:
        """What they have printed, when all have ended."""
        said = [one.communicate(timeout=HANG_S)[0] for one in self.processes]
        for rank, one in enumerate(self.processes):
            assert fails or one.returncode == 0, f"rank {rank}: {said[rank]}"
        return said


@contextlib.contextmanager
def job(script: str, folder: Path, count: int, begin: str = BEGIN) -> Iterator[Job]:
    running = Job(script, folder, count, begin)
    try:
        yield running
    finally:
        for one in running.processes:
            one.kill()
            one.wait()


def run(script: str, folder: Path, count: int) -> list[str]:
    with job(script, folder, count) as running:
        return running.said()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    (model / "below").mkdir(parents=True)
    (model / "below/weights").write_bytes(os.urandom(1_000_000))
    (model / "config.json").write_text("{}")
    return model


def same(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in ("below/weights", "config.json"))


def test_a_folder_reaches_each_host_once(model: Path, tmp_path: Path) -> None:
    script = """
found = group.broadcast_folder(folder / "model", src=3, into=here)
assert distributed.broadcast_folder(folder / "model", src=3, into=here, update=True) == found, "the group is the job's"
one = distributed.broadcast_folder(folder / "model/config.json" if rank == 0 else here / "new/config.json")
group.barrier()
print(found, one, group.rank, group.world_size, len(group.hosts), group.agent.list(), *programs)
"""
    said = [line.split() for line in run(script, tmp_path, 6)]
    # Ranks 2 and 3 are on the host of the original.
    assert [line[0] for line in said] == [str(tmp_path / name) for name in ("0/model", "0/model", "model", "model", "4/model", "4/model")]
    assert [line[1] for line in said] == [
        str(tmp_path / name) for name in ("model/config.json", "model/config.json", *["2/new/config.json"] * 2, *["4/new/config.json"] * 2)
    ]
    assert [line[2:6] for line in said] == [[str(rank), "6", "3", "[]"] for rank in range(6)], "no object stays behind"
    programs = [int(pid) for line in said for pid in line[6:]]
    assert len(programs) == 4 and all(has_ended(pid) for pid in programs), "a manager, and an agent a host"
    assert same(tmp_path / "0/model", model) and same(tmp_path / "4/model", model)
    assert (tmp_path / "2/new/config.json").read_text() == "{}"
    assert not any((tmp_path / str(rank) / "model").exists() for rank in (1, 2, 3, 5))
    assert not (tmp_path / "job").exists()
    assert list((tmp_path / "store").iterdir()) == []


def test_all_hear_of_a_rank_that_fails(model: Path, tmp_path: Path) -> None:
    script = """
def caught(*arguments, **more):
    try:
        group.broadcast_folder(*arguments, **more)
    except errors.PolycastError as error:
        print(type(error).__name__, error)

(here / "there").mkdir()
caught(folder / "missing")
caught(folder / "model" if rank == 0 else here / "there")
caught(folder / "model" if rank < 2 else here / "new", src=rank % 2)
caught(folder / "model", src=4)
caught(folder / "model", into=3 if rank == 2 else here)
(here / "taken/model").mkdir(parents=True)
if rank == 2:
    group._read = None
caught(folder / "model", into=here / "taken")
caught(folder / "model", into=folder / "model/config.json/in a file")
if rank == 2:
    del group._read
found = group.broadcast_folder(folder / "model" if rank == 0 else here / "new")
print(found.name)
"""
    first, second, third, fourth = (one.splitlines() for one in run(script, tmp_path, 4))
    node = os.uname().nodename
    assert first[0].startswith("PathError cannot read") and "/missing: No such file" in first[0]
    for other in (second, third, fourth):
        assert other[0] == f"TransferFailed broadcast_folder(src=0) failed at rank 0 on {node}: {first[0].removeprefix('PathError ')}"
    assert "PathError" in third[1] and "is there already: say update=True" in third[1]
    for other in (first, second, fourth):
        assert other[1] == f"TransferFailed broadcast_folder(src=0) failed at rank 2 on {node}: {third[1].removeprefix('PathError ')}"
    for other in (first, second, third, fourth):
        assert other[2].startswith("Invalid rank ") and "all ranks make the same calls in the same order" in other[2]
        assert "src=4 is no rank: there are those from 0 to 3" in other[3]
        assert "3 has the type int and is no path" in other[4]
        assert f"{tmp_path}/2/taken/model is there already: say update=True" in other[5], "before anything has come"
        assert "cannot make the folder into=" in other[6]
        assert other[7:] == ["model" if other in (first, second) else "new"], "the group goes on"
    assert third[4].startswith("UnsupportedType 3")


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.TimedOut, match=r"^rank 1, rank 2 did not come within 0.3 s$"):
        distributed.init(rank=0, world_size=3, rendezvous=f"file://{tmp_path}/job", interface="lo", timeout=0.3)
    script = """
try:
    group.barrier(timeout=None if rank < 2 else -1)
except errors.PolycastError as error:
    print(type(error).__name__, error)
try:
    if rank < 2:
        group.barrier(timeout=3)
    else:
        time.sleep(5)
except errors.PolycastError as error:
    print(type(error).__name__, error)
"""
    first, second, third = (one.splitlines() for one in run(script, tmp_path, 3))
    assert third == ["Invalid -1 is no time in seconds: give None to wait without a limit"]
    for other in (first, second):
        assert "failed at rank 2" in other[0]
        assert other[1].startswith("TimedOut ") and f"rank 2 on {os.uname().nodename} did not come to barrier() within 3 s" in other[1]


@pytest.mark.parametrize("seconds", [0, 1])
def test_ctrl_c_at_a_rank_is_told(tmp_path: Path, seconds: int) -> None:
    """At once, and when the first rank has heard by then that this one has come."""
    script = f"""
import signal
import time

def interrupted(call):
    time.sleep({seconds})
    signal.raise_signal(signal.SIGINT)

if rank == 1:
    group._all_come = interrupted
try:
    group.barrier()
except (KeyboardInterrupt, errors.PolycastError) as error:
    print(type(error).__name__, error)
"""
    first, second, third = run(script, tmp_path, 3)
    assert second == "KeyboardInterrupt \n"
    for other in (first, third):
        assert other == f"TransferFailed barrier() failed at rank 1 on {os.uname().nodename}: KeyboardInterrupt\n"


def test_a_host_that_dies_in_a_call_is_named(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/large").write_bytes(bytes(1_000_000))
    script = """
def dies(*arguments):
    group._agent._embedded._children[0].kill()
    group._agent._embedded._children[0].wait()
    os.kill(os.getpid(), 9)

if rank == 2:
    group._read = dies
group.barrier()
try:
    group.broadcast_folder(folder / "model" if rank == 0 else here / "new", timeout=15)
except errors.PolycastError as error:
    print(type(error).__name__, error)
"""
    with job(script, tmp_path, 4) as running:
        first, second, third, fourth = running.said(fails=True)
        assert [one.returncode for one in running.processes] == [0, 0, -9, 0]
    for other in (first, second, fourth):
        assert "rank-2-on-" in other or "rank 2 on " in other, other


def test_a_rank_that_has_left_is_not_waited_for(tmp_path: Path) -> None:
    script = """
group.barrier()
if rank == 1:
    sys.exit()
began = time.monotonic()
try:
    group.barrier()
except errors.TransferFailed as error:
    print(error)
assert time.monotonic() - began < 30
if rank:
    time.sleep(1)
    try:
        group.barrier()
    except errors.PolycastError as error:
        print(error)
else:
    group.close()
"""
    first, second, third = run(script, tmp_path, 3)
    assert second == "" and first == f"rank 1 on {os.uname().nodename} has left the job\n"
    assert third == f"{first}rank 0 on {os.uname().nodename} has left the job\n"


def test_what_an_earlier_job_has_left_is_not_taken(model: Path, tmp_path: Path) -> None:
    left = tmp_path / "job/.polycast-rendezvous/0"
    left.mkdir(mode=0o700, parents=True)
    for name, text in {"job": '{"error": "old", "kind": "invalid", "nonces": []}', "rank.1": '{"nonce": "x"}', "0.go": "{}"}.items():
        (left / name).write_text(text)
    assert run("print(group.broadcast_folder(folder / 'model', into=here).name)", tmp_path, 3) == ["model\n"] * 3
    assert list((tmp_path / "job").iterdir()) == [], "the folder was there before"


def test_a_users_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "job/below").mkdir(parents=True)
    for name in ("job/job", "job/rank.0", "job/below/weights"):
        (tmp_path / name).write_text("a user's")
    with alone(tmp_path):
        pass
    there = sorted(str(one.relative_to(tmp_path)) for one in (tmp_path / "job").rglob("*"))
    assert there == ["job/below", "job/below/weights", "job/job", "job/rank.0"]
    for name in ("job#1", "job?x", "job#"):
        with pytest.raises(errors.Invalid, match="write %3F or %23"):
            distributed.init(rank=0, world_size=1, rendezvous=f"file://{tmp_path}/{name}")


def test_a_job_has_one_group_after_the_other_in_a_folder(tmp_path: Path) -> None:
    script = """
for count in range(3):
    group.barrier()
    group.close()
    group = distributed.init(rendezvous=f"file://{folder}/job", interface="lo", timeout=60)
for count in range(5):
    group.barrier()
if rank == 0:
    # What rank 0 forgets stays away.
    time.sleep(0.5)
    there = os.listdir(folder / "job/.polycast-rendezvous/3")
    assert not any(one[0] in "0123" for one in there), there
group.barrier()
print("the end")
"""
    assert run(script, tmp_path, 3) == ["the end\n"] * 3
    assert not (tmp_path / "job").exists()


def test_a_job_has_addresses_of_ipv6(model: Path, tmp_path: Path) -> None:
    """Two hosts whose agents, and the manager, have addresses of IPv6 alone."""
    script = """
group.broadcast_folder(folder / "model", into=here)
status = group.agent.status()
print(status.manager, status.control_address)
"""
    begin = BEGIN.replace('interface="lo"', 'interface="::1"')
    with job(script, tmp_path, 4, begin) as running:
        said = [line.split() for line in running.said()]
    assert all(address.startswith("[::1]:") for line in said for address in line), said
    assert same(tmp_path / "2/model", model)


@pytest.mark.parametrize("fails", [0, 1])
def test_all_hear_of_a_rank_that_cannot_begin(tmp_path: Path, fails: int) -> None:
    (tmp_path / "file").touch()
    begin = BEGIN.partition("group =")[0] + f"""
if rank != {fails}:
    time.sleep(rank)
began = time.monotonic()
try:
    distributed.init(rendezvous=f"file://{{folder}}/job", interface="lo", store=folder / "file" if rank == {fails} else None, timeout=60)
except errors.PathError as error:
    print(error)
assert time.monotonic() - began < 20
"""
    with job("", tmp_path, 3, begin) as running:
        for rank, said in enumerate(running.said()):
            assert "cannot make a folder in store=" in said
            assert rank == fails or said.startswith(f"rank {fails} on {os.uname().nodename}: ")
    assert not (tmp_path / "job").exists()


def test_ctrl_c_in_close_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = alone(tmp_path, store=tmp_path / "store")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    programs = [one.pid for one in group.agent._embedded._children]
    monkeypatch.setattr(_rendezvous, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        group.close()
    assert all(has_ended(pid) for pid in programs)
    assert not (tmp_path / "job").exists() and list((tmp_path / "store").iterdir()) == []


def test_the_folder_where_they_meet_is_theirs_alone(tmp_path: Path) -> None:
    script = """
for one in (folder / "job").iterdir():
    assert one.stat().st_mode & 0o077 == 0, one
assert (folder / "job").stat().st_mode & 0o077 == 0
group.barrier()
"""
    run(script, tmp_path, 2)
    for mode in (0o777, 0o770):
        tmp_path.chmod(mode)
        with pytest.raises(errors.Invalid, match="others may write to"):
            distributed.init(rank=0, world_size=2, rendezvous=f"file://{tmp_path}", timeout=0.1)


def test_threads_forks_and_closed_groups(tmp_path: Path) -> None:
    with distributed.init(rank=0, world_size=1, rendezvous=f"file://{tmp_path}/job", store=tmp_path / "store") as group:
        assert group.hosts == (group.agent.name,) and len(list((tmp_path / "store").iterdir())) == 1
        pid = os.fork()
        if pid == 0:
            try:
                group.close()
                group.barrier()
            except errors.Closed:
                os._exit(17)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
        told: list[str] = []

        def another() -> None:
            with pytest.raises(errors.Invalid, match="another thread") as caught:
                group.barrier()
            told.append(str(caught.value))

        with group._turn():
            thread = threading.Thread(target=another)
            thread.start()
            thread.join(HANG_S)
        assert len(told) == 1
        assert group.broadcast_folder(tmp_path) == tmp_path
        group.barrier()
    group.close()
    assert list((tmp_path / "store").iterdir()) == []
    with pytest.raises(errors.Closed, match="was closed"):
        group.barrier()
    with pytest.raises(errors.Closed, match="was closed"):
        group.agent


@pytest.mark.parametrize("how", ["ends", "raises", "killed"])
def test_a_job_that_ends_in_a_call_leaves_no_process(tmp_path: Path, how: str) -> None:
    # The thread may still hear that its call is lost while rank 0 ends, and that is no fault of the end.
    script = f"""
def called():
    with contextlib.suppress(errors.PolycastError):
        group.barrier()

threading.Thread(target=called, daemon=True).start()
print(*programs, flush=True)
if rank == 0:
    time.sleep(600) if {how!r} == "killed" else sys.exit(3 if {how!r} == "raises" else 0)
time.sleep(600)
"""
    with job(script, tmp_path, 3) as running:
        programs = [int(pid) for one in running.processes if one.stdout for pid in one.stdout.readline().split()]
        assert len(programs) == 3
        for one in running.processes if how == "killed" else running.processes[1:]:
            one.kill()
        first = running.said(fails=True)[0]
        assert [one.returncode for one in running.processes] == [{"ends": 0, "raises": 3, "killed": -9}[how], -9, -9]
        assert "Traceback" not in first, first
        for pid in programs:
            until(f"process {pid} has ended", lambda pid=pid: has_ended(pid))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda to: distributed.init(), errors.Invalid, "this process is of no job"),
        (lambda to: distributed.init(rank=0), errors.Invalid, "go together"),
        (lambda to: distributed.init(rank="0", world_size=1), errors.UnsupportedType, "rank='0'"),  # type: ignore[arg-type]
        (lambda to: distributed.init(rank=2, world_size=2), errors.Invalid, "there is no rank 2 of 2"),
        (lambda to: distributed.init(rank=0, world_size=1, timeout="1"), errors.UnsupportedType, "timeout='1'"),  # type: ignore[arg-type]
        (lambda to: distributed.init(rank=0, world_size=1, timeout=None), errors.UnsupportedType, "without an end"),  # type: ignore[arg-type]
        (lambda to: distributed.init(rank=0, world_size=1, timeout=-1), errors.Invalid, "is no time in seconds"),
        (lambda to: distributed.init(rank=0, world_size=1, rendezvous=3), errors.UnsupportedType, "rendezvous=3"),
        (lambda to: distributed.init(rank=0, world_size=1, rendezvous="shared/run1"), errors.Invalid, "write file:///FOLDER"),
        (lambda to: distributed.init(rank=0, world_size=1, rendezvous=f"file://{to}/file"), errors.PathError, "cannot make"),
        (lambda to: distributed.init(rank=0, world_size=1), errors.Invalid, "MASTER_ADDR and MASTER_PORT"),
        (lambda to: alone(to, interface="nowhere0"), errors.Invalid, "interface='nowhere0' is no network interface"),
        (lambda to: alone(to, interface=3), errors.UnsupportedType, "interface=3"),
        (lambda to: alone(to, interface="198.51.100.7"), errors.AgentNotRunning, "198.51.100.7"),
        (lambda to: alone(to, store=3), errors.UnsupportedType, "3 has the type int and is no path"),
        (lambda to: alone(to, store=to / "file"), errors.PathError, "cannot make a folder"),
    ],
)
def test_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Path], object], kind: type[Exception], says: str) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").touch()
    with pytest.raises(kind) as caught:
        call(tmp_path)
    assert says in str(caught.value)


def test_without_torch_the_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(errors.Invalid, match=r"torch is not installed.*rendezvous='file:///FOLDER'"):
        distributed.init(rank=0, world_size=2)


def alone(folder: Path, **more: Any) -> distributed.Group:
    return distributed.init(rank=0, world_size=1, rendezvous=f"file://{folder}/job", **more)


def test_environments() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "gpu[07-09,12],login1", "SLURM_JOB_ID": "1234567"}
    assert _rendezvous.ranks(None, None, slurm) == (3, 8)
    assert _rendezvous.ranks(None, None, slurm | {"RANK": "1", "WORLD_SIZE": "2"}) == (1, 2)
    assert _rendezvous.master(slurm) == ("gpu07", 24567)
    step = slurm | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[08-09]", "SLURM_STEP_ID": "2"}
    assert _rendezvous.ranks(None, None, step) == (3, 4) and _rendezvous.master(step) == ("gpu08", 26585)
    assert _rendezvous.master(step | {"RANK": "1", "WORLD_SIZE": "2"}) == ("gpu07", 24567), "it may be one job of several steps"
    assert _rendezvous.master(slurm | {"SLURM_STEP_ID": "4294967291"}) == ("gpu07", 24567)
    assert _rendezvous.master(slurm | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7"}) == ("10.0.0.1", 7)
    assert _rendezvous.master({"MASTER_ADDR": "10.0.0.1"}) is None
    lists = {"a": "a", "gpu1,gpu2": "gpu1", "n[3]": "n3", "r[1-2]-x,y": "r1-x", "a-b[010,2]": "a-b010"}
    assert {one: _rendezvous.first_host(one) for one in lists} == lists
    for wrong in ({"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "", "WORLD_SIZE": "2"}):
        with pytest.raises(errors.Invalid):
            _rendezvous.ranks(None, None, wrong)
    for wrong in ({"MASTER_ADDR": "a", "MASTER_PORT": "70000"}, {"MASTER_ADDR": "a", "MASTER_PORT": "x"}, {"SLURM_JOB_NODELIST": "[1-2]"}):
        with pytest.raises(errors.Invalid):
            _rendezvous.master(wrong)


def in_namespaces(folder: Path, script: str, line: str, count: int = 4) -> str:
    """Runs a line of a shell on each of so many hosts, in which $HOST is its number, and gives what all have said."""
    if os.geteuid():
        pytest.skip("only root can make network namespaces")
    (folder / "script.py").write_text(script)
    text = f"""
import os, subprocess, sys
sys.path.insert(0, {str(HOSTS)!r})
import hosts
hosts.make({count}, "1gbit", 1500)
run = [subprocess.Popen(["ip", "netns", "exec", f"host-{{host}}", "sh", "-c", {line!r}],
    env=os.environ | {{"HOST": str(host), "FIRST": hosts.address(0), "PYTHON": sys.executable, "FOLDER": {str(folder)!r}}}) for host in range({count})]
try:
    sys.exit(max(abs(one.wait({HANG_S})) for one in run))
finally:
    for one in run:
        one.kill()
"""
    # What several processes say comes line by line.
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=2 * HANG_S, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_four_hosts_in_a_network(model: Path, tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from polycast import distributed

folder = Path(sys.argv[1])
with distributed.init(rendezvous=f"file://{folder}/job") as group:
    found = group.broadcast_folder(folder / "model", src=1, into=folder / os.environ["RANK"])
    print(found, group.agent.manager, flush=True)
"""
    line = 'RANK=$HOST WORLD_SIZE=4 exec "$PYTHON" "$FOLDER/script.py" "$FOLDER"'
    said = sorted(one.rsplit(":", 1)[0] for one in in_namespaces(tmp_path, script, line).splitlines())
    # The manager is where the others reach it: no host was told where that is.
    assert said == sorted(f"{tmp_path}/{place} 10.78.0.1" for place in ("0/model", "model", "2/model", "3/model"))
    assert all(same(tmp_path / rank / "model", model) for rank in "023")


def test_a_full_disk_is_said(model: Path, tmp_path: Path) -> None:
    script = """
import ctypes, subprocess
if rank == 2:
    assert ctypes.CDLL(None).unshare(0x20000) == 0
    subprocess.run(f"mount --make-rprivate / && mount -t tmpfs -o size=200k small {here}", shell=True, check=True)
try:
    group.broadcast_folder(folder / "model" if rank == 0 else here / "model")
except errors.PolycastError as error:
    print(type(error).__name__, error)
assert rank != 2 or list(here.iterdir()) == []
"""
    if os.geteuid():
        pytest.skip("only root can mount a small file system")
    first, second, third, fourth = run(script, tmp_path, 4)
    assert third.startswith("StoreFull ") and "no space left on device" in third
    for other in (first, second, fourth):
        assert other.startswith("TransferFailed broadcast_folder(src=0) failed at rank 2 on ") and "no space left" in other
