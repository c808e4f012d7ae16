"""A manager and agents for the tests: the real program, on this machine's loopback."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

# How long a test waits for what has to come. Only a fault takes as long: a machine that is merely busy does not.
HANG_S = 120.0
# Ports that the system does not give to a socket that asks for any: Linux begins with 32,768 unless it is told otherwise.
_PORTS = range(20_000, 30_000)
# Programs of tests that run at the same time begin elsewhere.
_TRIED = itertools.count(os.getpid() * 97)
_LISTENS = re.compile(r"listens on (\S+)")


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


class Cluster:
    """One manager, and agents by their names, each with a socket `agent-NAME.sock` in one folder."""

    def __init__(self, program: str, names: Iterable[str]) -> None:
        self._program = program
        self.folder = Path(tempfile.mkdtemp(prefix="polycast-spark-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._pages: dict[str, int] = {}
        try:
            self.manager = self._run("manager", ["manager", "--listen", f"127.0.0.1:{free_port()}"])
            for name in names:
                self.start(name)
        except BaseException:
            self.close()
            raise

    @property
    def socket(self) -> str:
        """What `spark.polycast.socket` is to be: every executor finds the agent of its number."""
        return str(self.folder / "agent-{executor}.sock")

    def start(self, name: str, *more: str) -> None:
        """Starts an agent, or the manager again where it was."""
        if name == "manager":
            self._run("manager", ["manager", "--listen", self.manager])
            return
        self._pages[name] = free_port()
        settings = self.folder / f"{name}.toml"
        settings.write_text(f'manager = "{self.manager}"\nhttp = "127.0.0.1:{self._pages[name]}"\n')
        line = ["agent", "--config", str(settings), "--interface", "lo", "--name", name]
        line += ["--socket", str(self.folder / f"agent-{name}.sock"), "--store", str(self.folder / f"store-{name}")]
        self._run(name, [*line, *more])

    def _run(self, name: str, arguments: list[str]) -> str:
        child = subprocess.Popen(
            [self._program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._children[name] = child
        assert child.stderr is not None
        said: list[str] = []
        timer = threading.Timer(HANG_S, child.kill)
        timer.start()
        try:
            for line in child.stderr:
                if found := _LISTENS.search(line):
                    threading.Thread(target=child.stderr.read, daemon=True).start()
                    return found.group(1)
                said.append(line.strip())
        finally:
            timer.cancel()
        raise RuntimeError(f"{name} does not start: {' '.join(said)}")

    def kill(self, name: str) -> None:
        """Ends one as the power would."""
        child = self._children[name]
        child.kill()
        child.wait()

    def count(self, name: str, metric: str) -> float:
        """One figure of an agent's page, the sum over its labels: none where nothing was counted yet."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._pages[name]}/metrics", timeout=HANG_S) as page:
            lines = page.read().decode().splitlines()
        if not any(line.startswith(f"# TYPE {metric.split('{')[0]} ") for line in lines):
            raise KeyError(metric)
        return sum(float(line.split()[-1]) for line in lines if line.startswith(metric))

    def objects(self, name: str) -> float:
        """How many objects an agent has received and keeps."""
        return self.count(name, 'polycast_objects{state="received"}')

    def close(self) -> None:
        # Agents go before their manager.
        for child in reversed(list(self._children.values())):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
