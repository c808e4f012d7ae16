"""Agents for the tests: real ones, of the program in the package."""

from __future__ import annotations

import itertools
import os
import socket
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import polycast
import pytest

# How long a test waits for what has to come. Only a fault takes as long: a machine that is merely busy does not.
HANG_S = 120.0
# Ports that the system does not give to a socket that asks for any: Linux begins with 32,768 unless it is told otherwise.
_PORTS = range(20_000, 30_000)
# Programs of tests that run at the same time begin elsewhere.
_TRIED = itertools.count(os.getpid() * 97)


def until(what: str, is_so: Callable[[], bool]) -> None:
    """Waits until something is so."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < HANG_S, f"{what}: not so after {HANG_S:.0f} s"
        time.sleep(0.01)


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


def deleted(agent: polycast.Agent, number: int) -> bool:
    """Deletes an object, unless a transfer has it."""
    try:
        agent.delete(number)
    except polycast.errors.ObjectBusy:
        return False
    return True


# Where the agents' counters are read, by their names.
_PAGES: dict[str, str] = {}


def _with_page(folder: Path, manager: str | None, app: uuid.UUID) -> polycast.Agent:
    """An agent whose counters can be read."""
    port = free_port()
    address, config = f"127.0.0.1:{port}", folder / f"{port}.toml"
    config.write_text(f'http = "{address}"\n')
    agent = polycast.Agent.embedded(manager, app=app, config=config)
    _PAGES[agent.name] = f"http://{address}/metrics"
    return agent


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[polycast.Agent]]:
    """A manager, and four agents of one application."""
    app, folder = uuid.uuid4(), tmp_path_factory.mktemp("settings")
    agents = [_with_page(folder, None, app)]
    try:
        agents += [_with_page(folder, agents[0].manager, app) for _ in range(3)]
        yield agents
    finally:
        for agent in reversed(agents):
            agent.close()


def sent_bytes(agent: polycast.Agent) -> int:
    """The bytes of objects that an agent of the cluster has put on the wire."""
    with urllib.request.urlopen(_PAGES[agent.name], timeout=HANG_S) as page:
        lines = page.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("polycast_sent_bytes_total{"))


@pytest.fixture
def apart() -> Iterator[list[polycast.Agent]]:
    """An agent with a manager of its own. That of the cluster remembers agents that are killed, and names them in other tests."""
    with polycast.Agent.embedded() as agent:
        yield [agent]


@pytest.fixture
def number() -> int:
    """A number that no other test has."""
    return uuid.uuid4().int >> 65


_SKIPPED: list[str] = []
# What is left out where something large or rare is not here, and how it is said.
_NEED_TORCH: list[str] = []
_NEED_GPU: list[str] = []
NO_GPU = "no GPU is here"


def _note(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Torch is large: without `cargo xtask python --torch` what needs it is left out, and counted. So is what needs a GPU."""
    if report.skipped:
        why = str(report.longrepr)
        needs_torch = "could not import 'torch'" in why and not os.environ.get("POLYCAST_TORCH")
        (_NEED_TORCH if needs_torch else _NEED_GPU if NO_GPU in why else _SKIPPED).append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where every test has to run, one that is skipped has failed: `-rs` names it with its reason."""
    if _NEED_TORCH:
        print(f"\nleft out, as torch is not here (`cargo xtask python --torch` installs it): {', '.join(_NEED_TORCH)}")
    if _NEED_GPU:
        print(f"\nleft out, as {NO_GPU}: {', '.join(_NEED_GPU)}")
    if _SKIPPED and os.environ.get("POLYCAST_REQUIRE") == "all" and session.exitstatus == 0:
        print(f"\nskipped, and all have to run: {', '.join(_SKIPPED)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
