"""Daemons for the tests: real ones, of the program that POLYCAST_PROGRAM names."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

_T = TypeVar("_T")
PACKAGING = Path(__file__).parents[1]
# How long a test waits for what has to come. Only a fault takes as long: a machine that is merely busy does not.
HANG_S = 120.0
# Ports that the system does not give to a socket that asks for any: Linux begins with 32,768 unless it is told otherwise.
_PORTS = range(20_000, 30_000)
_TRIED = itertools.count(os.getpid() * 97)
# A test that cannot run for this reason is left out, and no fault of the machine.
NO_REGISTRY = "the registry has given no"


def until(what: str, look: Callable[[], _T]) -> _T:
    """Waits until something is so; gives what was found."""
    began = time.monotonic()
    while not (found := look()):
        assert time.monotonic() - began < HANG_S, f"{what}: not so after {HANG_S:.0f} s"
        time.sleep(0.05)
    return found


def free_port() -> int:
    """A port on which nothing listens. Until something does, no socket that asks for any port gets it; it is given once."""
    for _ in _PORTS:
        port = _PORTS[next(_TRIED) % len(_PORTS)]
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")


def program() -> str:
    """The program polycast."""
    path = os.environ.get("POLYCAST_PROGRAM") or shutil.which("polycast")
    if path is None:
        pytest.skip("POLYCAST_PROGRAM names no program, and there is no polycast on the path")
    return path


def tool(name: str) -> str:
    """A program of this machine that a test needs."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed: .ci/run packaging installs it")
    return path


def ending_with_us(*command: str) -> list[str]:
    """A command whose process is killed when this one ends."""
    return [tool("setpriv"), "--pdeathsig", "KILL", *command]


def python_tool(name: str) -> str:
    """A program of the tests' own environment."""
    path = PYTHON.parent / name
    if not path.exists():
        pytest.skip(f"{NO_REGISTRY} {name}")
    return str(path)


# Without links: the environment's own.
PYTHON = Path(os.path.abspath(sys.executable))


class Daemon:
    """A daemon of Polycast, which ends with the test."""

    def __init__(self, *arguments: str, is_awaited: bool = True) -> None:
        # Also where this process is killed it ends.
        command = [program(), "--json", *arguments, "--until-input-ends"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready: dict[str, str] = {}
        if is_awaited:
            self.await_ready()

    def await_ready(self) -> None:
        """Waits until it says that it is ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args!r} ended with status {self.process.wait()}"
        self.ready = json.loads(line)
        assert "error" not in self.ready, self.ready["error"]

    def page(self, path: str) -> str:
        """What its page for monitoring says."""
        with urllib.request.urlopen(f"http://{self.ready['http']}{path}", timeout=HANG_S) as answer:
            return str(answer.read().decode())

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends it."""
        self.process.send_signal(how)
        self.process.wait(HANG_S)
        assert self.process.stdout is not None and self.process.stdin is not None
        self.process.stdout.close()
        self.process.stdin.close()


class Cluster:
    """A manager and agents on the loopback interface."""

    def __init__(self, folder: Path, names: list[str], settings: str, agent_settings: str = "") -> None:
        self.folder, self.daemons = folder, []
        (folder / "manager.toml").write_text(f'http = "127.0.0.1:0"\n{settings}')
        (folder / "agent.toml").write_text(f'http = "127.0.0.1:0"\ninterface = "lo"\nstore-max = "1GiB"\n{agent_settings}')
        try:
            self.manager = self._start("manager", "--listen", "127.0.0.1:0", "--config", str(folder / "manager.toml"))
            self.agents = {name: self._agent(name) for name in names}
        except BaseException:
            self.end()
            raise

    def _start(self, *arguments: str, is_awaited: bool = True) -> Daemon:
        self.daemons.append(Daemon(*arguments, is_awaited=is_awaited))
        return self.daemons[-1]

    def _agent(self, name: str, is_awaited: bool = True) -> Daemon:
        local = ["--name", name, "--store", str(self.folder / name), "--socket", self.socket(name)]
        manager = self.manager.ready["listening"]
        return self._start("agent", "--config", str(self.folder / "agent.toml"), "--manager", manager, *local, is_awaited=is_awaited)

    def crowd(self, names: list[str], at_once: int = 16) -> None:
        """Adds many agents, some at a time: each takes a while to begin, and most of it is waiting."""
        for first in range(0, len(names), at_once):
            begun = [(name, self._agent(name, is_awaited=False)) for name in names[first : first + at_once]]
            for name, agent in begun:
                agent.await_ready()
                self.agents[name] = agent

    def socket(self, name: str) -> str:
        """An agent's socket."""
        return str(self.folder / f"{name}.sock")

    def begin(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command at an agent."""
        command = [program(), "--json", *arguments, "--socket", self.socket(name)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self) -> None:
        """Ends all daemons."""
        for daemon in reversed(self.daemons):
            if daemon.process.poll() is None:
                daemon.end()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder in memory whose name is short enough for sockets below it."""
    folder = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp") / f"polycast-test-{os.getpid()}-{next(_TRIED)}"
    folder.mkdir(mode=0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


_SKIPPED: list[str] = []
_LEFT_OUT: list[str] = []


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Notes the modules that were skipped."""
    _note(report)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes the tests that were skipped."""
    _note(report)


def _note(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Notes what was skipped: for want of a registry, or otherwise."""
    if report.skipped:
        (_LEFT_OUT if NO_REGISTRY in str(report.longrepr) else _SKIPPED).append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where every test has to run, one that is skipped has failed: `-rs` names it with its reason."""
    if _LEFT_OUT:
        print(f"\nleft out, as the registry has not given what they need: {', '.join(_LEFT_OUT)}")
    if _SKIPPED and os.environ.get("POLYCAST_REQUIRE") == "all" and session.exitstatus == 0:
        print(f"\nskipped, and all have to run: {', '.join(_SKIPPED)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
