"""`polycast bcast` in the jobs of a real Slurm, beside its own sbcast."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import program, until
from slurm import Slurm

_LISTING = "find {0} -type f -printf '%P %m %Ts\\n' -execdir sha256sum {{}} ';'"


@pytest.fixture
def slurm(short_folder: Path) -> Iterator[Slurm]:
    """Three nodes, with a network of their own for broadcasts."""
    made = Slurm(short_folder, 3, node_more="BcastAddr=10.78.0.{number}")
    try:
        (short_folder / "source").write_bytes(os.urandom(5_000_000))
        os.chmod(short_folder / "source", 0o741)
        os.utime(short_folder / "source", (1_500_000_000, 1_600_000_000))
        yield made
    finally:
        made.end()


def _listings(slurm: Slurm, folder: str) -> list[str]:
    """The files that each node has in one of its folders, with modes, times and bytes."""
    return [slurm.on(node, "sh", "-c", _LISTING.format(f"{slurm.local}/{folder}") + " | sort").stdout for node in slurm.nodes]


def test_it_leaves_what_sbcast_leaves(slurm: Slurm) -> None:
    """Bytes, mode and times; what is there already; the libraries of a program."""
    # Called by that name it is that command.
    polycast, local = slurm.folder / "sbcast", slurm.local
    polycast.symlink_to(program())
    for command, fanout, folder in (("sbcast", "fanout", "theirs"), (polycast, "treewidth", "ours")):
        slurm.job(
            f"set -e; srun mkdir {local}/{folder}; cd {slurm.folder}\n"
            f"{command} source {local}/{folder}/a\n{command} --preserve source {local}/{folder}/b\n"
            f"{command} --force --preserve source {local}/{folder}/a\n"
            f"{command} --send-libs --exclude NONE /bin/ls {local}/{folder}/ls\n"
            f"SBCAST_PRESERVE=1 SBCAST_COMPRESS=none {command} --{fanout}=2 -s 1m -t 60 source {local}/{folder}/c\n"
            # These came without times.
            f"srun sh -c 'touch -d @0 {local}/{folder}/ls {local}/{folder}/ls_libs/*'"
        )
    theirs, ours = _listings(slurm, "theirs"), _listings(slurm, "ours")
    assert "ls_libs/libc.so.6" in theirs[0] and "a 741 1600000000" in theirs[0], theirs[0]
    assert theirs == ours


def test_slurms_parameters_are_those_of_sbcast(short_folder: Path) -> None:
    """A relative path is one in `DestDir`, and libraries come along."""
    folder = short_folder / "local/set"
    slurm = Slurm(short_folder, 2, more=f"BcastParameters=DestDir={folder},Compression=lz4,send_libs")
    try:
        for command, name in (("sbcast", "theirs"), (f"{program()} bcast", "ours")):
            slurm.job(f"set -e; srun mkdir -p {folder}; cd {short_folder}; {command} --exclude NONE /bin/ls {name}; {command} --send-libs=no /bin/ls {name}-alone")
            slurm.job(f"srun sh -c 'find {folder} -type f | xargs touch -d @0'")
        for listing in _listings(slurm, "set"):
            theirs, ours = ({line.replace(name, "") for line in listing.splitlines() if line.startswith(name)} for name in ("theirs", "ours"))
            assert theirs == ours and any(line.startswith("_libs/libc.so.6") for line in ours), listing
    finally:
        slurm.end()


def test_what_is_there_and_what_cannot_be_kept_is_said(slurm: Slurm) -> None:
    """An existing file without --force, and a node that lacks the folder."""
    polycast, local = f"{program()} bcast", slurm.local
    status, said = slurm.job(f"set -e; cd {slurm.folder}; {polycast} -C -s 1m source {local}/a; {polycast} source {local}/a", is_checked=False)
    assert status == 1 and said.count("is there already") == 3, said
    assert "-s and -C change nothing" in said, said
    slurm.on("n2", "mkdir", f"{local}/here")
    status, said = slurm.job(f"cd {slurm.folder}; {polycast} --json source {local}/here/a 2>/dev/null", is_checked=False)
    report = json.loads(said)
    assert {receiver["name"]: receiver["verified"] for receiver in report["receivers"]} == {"n1": False, "n2": True, "n3": False}, said
    assert all("no such file" in receiver["error"] for receiver in report["receivers"] if receiver["name"] != "n2"), said


def test_it_goes_over_the_network_that_slurm_names(slurm: Slurm) -> None:
    """`BcastAddr` of each node: nothing of the file crosses the other network."""
    slurm.job(f"cd {slurm.folder}; {program()} bcast source {slurm.local}/a")
    for node in ("n2", "n3"):
        counted = slurm.on(node, "sh", "-c", "cat /sys/class/net/eth/statistics/rx_bytes /sys/class/net/fast/statistics/rx_bytes")
        usual, fast = map(int, counted.stdout.split())
        assert usual < 2_000_000 and fast > 5_000_000, counted.stdout
    # One copy left the first node. The tree of sbcast begins with one for each of the two others.
    sent = int(slurm.on("n1", "cat", "/sys/class/net/fast/statistics/tx_bytes").stdout)
    assert 5_000_000 < sent < 7_500_000, sent


def test_nodes_without_the_program_get_it(slurm: Slurm) -> None:
    """It is on one node alone; the step brings it to the others, which keep it."""
    local = slurm.local
    lines = f"export HOME={local}; cp {program()} {local}/p; cd {slurm.folder}; {local}/p bcast source {local}/a && {local}/p bcast source {local}/b"
    slurm.job(lines)
    assert len(set(_listings(slurm, "b"))) == 1 and " 741 " in _listings(slurm, "b")[0]
    kept = [slurm.on(node, "sh", "-c", f"ls {local}/.cache/polycast || true").stdout.split() for node in slurm.nodes]
    assert kept[0] == [] and len(kept[1]) == len(kept[2]) == 1, kept


def test_a_step_does_it_once(slurm: Slurm) -> None:
    """`srun polycast bcast` on all nodes, and from outside with a job's id and a part of its nodes."""
    out = f"{slurm.folder}/said"
    slurm.job(f"cd {slurm.folder}; srun --label {program()} bcast source {slurm.local}/a > {out} 2>&1")
    assert _listings(slurm, "a")[0].count("\n") == 2 and len(set(_listings(slurm, "a"))) == 1, Path(out).read_text()
    held = slurm.run("sbatch", "--parsable", "--nodes=3", "--wrap", "sleep 100").stdout.strip()
    until("it runs", lambda: slurm.run("squeue", "--noheader", "--job", held, "--format=%N").stdout.strip())
    command = f"cd {slurm.folder}; {program()} bcast --interface fabric --jobid {held} --nodelist n[2-3] --json source {slurm.local}/b"
    report = json.loads(slurm.run("sh", "-c", command).stdout)
    assert [receiver["name"] for receiver in report["receivers"]] == ["n2", "n3"], report
    slurm.run("scancel", held)


@pytest.fixture
def with_agents(short_folder: Path) -> Iterator[Slurm]:
    """The same with a manager, an agent on each node, and a prolog that brings a file."""
    local, manager = short_folder / "local", "10.77.0.254:7400"
    (short_folder / "source").write_bytes(os.urandom(5_000_000))
    os.chmod(short_folder / "source", 0o741)
    os.utime(short_folder / "source", (1_500_000_000, 1_600_000_000))
    (short_folder / "at-start").mkdir()
    (short_folder / "at-start" / "run").write_text(
        f"{program()} agent --insecure --manager {manager} --name $NODE --interface eth --store {local}/store --store-max 64MiB "
        f"--socket {local}/agent.sock > {local}/agent.log 2>&1 &\n"
    )
    prolog = short_folder / "prolog"
    prolog.write_text(
        f"#!/bin/sh\nexport POLYCAST_SOCKET={local}/agent.sock\n"
        f"{program()} bcast --force --preserve {short_folder}/source {local}/warm >> {local}/prolog.log 2>&1\nexit 0\n"
    )
    prolog.chmod(0o755)
    made = Slurm(short_folder, 3, more=f"Prolog={prolog}\nPrologFlags=Alloc")
    try:
        made.begin(program(), "manager", "--insecure", "--listen", manager)
        socket = f"{local}/agent.sock"
        until("agents have joined", lambda: made.on("n1", program(), "nodes", "--socket", socket, is_checked=False).stdout.count("ready") == 3)
        yield made
    finally:
        made.end()


def test_agents_deliver_where_each_node_has_one(with_agents: Slurm) -> None:
    """A prolog on all nodes at once, and a job; the second time nothing is sent."""
    slurm = with_agents
    local, socket = slurm.local, f"{slurm.local}/agent.sock"
    slurm.job("true")
    logs = [slurm.on(node, "cat", f"{local}/prolog.log").stdout for node in slurm.nodes]
    warm = set(_listings(slurm, "warm"))
    assert sum(log.count("getting it from") for log in logs) == 1, logs
    assert len(warm) == 1 and " 741 1600000000" in warm.pop(), logs
    out = slurm.folder / "report"
    for copies, name in ((2, "a"), (0, "b")):
        command = f"POLYCAST_SOCKET={socket} {program()} bcast --preserve --json source {local}/{name} > {out}"
        slurm.job(f"cd {slurm.folder}; {command}")
        report = json.loads(out.read_text())
        receivers = report["receivers"]
        assert [(one["name"], one["verified"], one["path"]) for one in receivers] == [(node, True, f"{local}/{name}") for node in slurm.nodes]
        assert (report["sent_bytes"] > 0) == (copies > 0), report
        assert len(set(_listings(slurm, name))) == 1 and "741 1600000000" in _listings(slurm, name)[0]
    held = slurm.on("n3", program(), "ls", "--socket", socket).stdout
    assert "source" in held, held
