"""Agents that live as long as a script: the program `polycast` as a child of this process."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import IO

from polycast import _pipes
from polycast._program import StrPath, path_text, program, text_of
from polycast.errors import AgentNotRunning, Invalid

STARTS_WITHIN_S = 20.0
# Time that children have to end after a signal.
ENDS_WITHIN_S = 10.0
_PREFIX = "polycast-python-"
# Age below which a store is kept: its agent may be about to lock it.
_LEFT_FOR_S = 60.0
# Output of a child that is read at once.
_PIECE = 1 << 16
_LISTENS = re.compile(r"listens on (\S+)")


class Embedded:
    """The child processes and their folder."""

    def __init__(
        self,
        manager: str | None,
        *,
        name: str | None,
        listen: str | None,
        interface: str | None,
        key_file: StrPath | None,
        store: StrPath | None,
        config: StrPath | None,
    ) -> None:
        for word, value in {"manager": manager, "name": name, "listen": listen, "interface": interface}.items():
            if value is not None:
                text_of(word, value)
        if manager is not None and listen is not None:
            raise Invalid("manager= names a manager that runs already, and listen= is for one that is started: say one of them")
        _sweep(parent())
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent()))
        self._children: list[subprocess.Popen[str]] = []
        # The children end when this pipe closes, even if this process is killed. A forked process closes its copy.
        self._input, self._output = _pipes.make()
        # Runs even without `close`, at the latest when the interpreter ends.
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._children, (self._input, self._output), self._folder)
        try:
            self._start(manager, name, listen, interface, key_file, store, config)
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        manager: str | None,
        name: str | None,
        listen: str | None,
        interface: str | None,
        key_file: StrPath | None,
        store: StrPath | None,
        config: StrPath | None,
    ) -> None:
        key = ["--key-file", path_text(key_file)] if key_file is not None else []
        if manager is None:
            listen = listen or "127.0.0.1:0"
            manager = self._run(["manager", "--listen", listen, *key])
            interface = interface or ("lo" if listen.startswith("127.") else listen.rpartition(":")[0].strip("[]"))
        elif interface is None and manager.startswith(("127.", "localhost")):
            interface = "lo"
        elif interface is None and manager.startswith("[::1]"):
            # The loopback's own address is one of IPv4.
            interface = "::1"
        self.socket = self._folder / "agent.sock"
        line = ["agent", "--manager", manager, "--socket", str(self.socket)]
        line += ["--name", name or f"python-{os.getpid()}-{self._folder.name[-6:]}"]
        line += ["--store", path_text(store) if store is not None else str(self._folder / "store")]
        line += ["--interface", interface] if interface else []
        line += ["--config", path_text(config)] if config is not None else []
        self._run([*line, *key])

    def _run(self, arguments: list[str]) -> str:
        """Starts a child and returns the address that it listens on."""
        with _pipes.STARTS:
            child = subprocess.Popen(
                [str(program()), *arguments, "--until-input-ends"],
                stdin=self._input,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                # Ctrl-C is for the script, which ends the children itself.
                start_new_session=True,
            )
        self._children.append(child)
        assert child.stderr is not None
        said: list[str] = []
        timer = threading.Timer(STARTS_WITHIN_S, child.kill)
        timer.start()
        try:
            for line in child.stderr:
                if found := _LISTENS.search(line):
                    # Later output has to be read, or the child would block.
                    threading.Thread(target=_discard, args=(child.stderr,), daemon=True).start()
                    return found.group(1)
                said.append(line.strip())
        finally:
            timer.cancel()
        why = " ".join(said) or f"it ended with {child.wait()}"
        raise AgentNotRunning(f"polycast {arguments[0]} does not start: {why}")

    def close(self) -> None:
        """Ends the children."""
        self._finalizer()


def parent() -> Path:
    """Returns the parent of the folders of scripts and of their agents' sockets."""
    return Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())


def _sweep(parent: Path) -> None:
    """Removes folders left by scripts that were killed: those whose store no agent holds any longer."""
    for folder in parent.glob(f"{_PREFIX}*"):
        lock = folder / "store" / ".lock"
        try:
            if folder.lstat().st_uid != os.geteuid() or time.time() - lock.stat().st_mtime < _LEFT_FOR_S:
                continue
            with open(lock) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # The folder's agent is alive, or the folder has gone meanwhile, or it holds no store.
            continue


def _discard(said: IO[str]) -> None:
    """Reads a child's output to its end, and keeps none of it. Its bytes need not be text."""
    while said.buffer.read(_PIECE):  # type: ignore[attr-defined]
        pass


def _end(owner: int, children: list[subprocess.Popen[str]], pipe: tuple[int, int], folder: Path) -> None:
    # A forked process has copies of these, but no children.
    if os.getpid() != owner:
        return
    # The agent ends before its manager.
    for child in reversed(children):
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    os.close(pipe[0])
    _pipes.close(pipe[1])
    shutil.rmtree(folder, ignore_errors=True)
