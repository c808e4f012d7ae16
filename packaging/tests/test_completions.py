"""Completions, in the shells themselves: what a person types before the tabulator, and what is there after it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import HANG_S, program, tool

# What is typed, and what it becomes: a command, one of a command's, a flag, a value, and a file.
COMPLETED = [
    ("polycast subsc", "polycast subscribe "),
    ("polycast token rev", "polycast token revoke "),
    ("polycast send --rep", "polycast send --replace "),
    ("polycast completions fi", "polycast completions fish "),
    ("polycast send model.b", "polycast send model.bin "),
]
# How a shell is started that reads no one's settings, and how it is told of the completions.
STARTED = {
    "bash": (["--norc", "--noprofile", "-i"], "bind 'set enable-bracketed-paste off'; source ./completions; PS1='ready> '"),
    "zsh": (["-f", "-i"], "fpath=($PWD $fpath); autoload -Uz compinit && compinit -D -u; PS1='ready> '"),
}
# Where each looks for them.
FILES = {"bash": "completions", "zsh": "_polycast", "fish": "completions"}
ESCAPES = re.compile(rb"\x1b(\[[0-9;?]*[a-zA-Z]|[=>]|\][^\x07]*\x07)|\x07|\r")


def completions(shell: str, folder: Path) -> Path:
    """Completions for a shell, where it finds them, beside a file."""
    script = subprocess.run([program(), "completions", shell], capture_output=True, check=True, timeout=HANG_S).stdout
    (folder / "model.bin").write_bytes(b"model")
    path = folder / FILES[shell]
    path.write_bytes(script)
    return path


class Typing:
    """A shell at a terminal of its own."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal

    def keys(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def until(self, wanted: str) -> str:
        """Waits for a text, and gives what was shown until then."""
        shown, began = b"", time.monotonic()
        while wanted.encode() not in ESCAPES.sub(b"", shown):
            left = began + HANG_S - time.monotonic()
            assert left > 0 and select.select([self._terminal], [], [], left)[0], f"no {wanted!r} in {ESCAPES.sub(b'', shown)!r}"
            shown += os.read(self._terminal, 65_536)
        return ESCAPES.sub(b"", shown).decode()


@contextmanager
def typing(shell: str, folder: Path) -> Iterator[Typing]:
    """A shell that knows the completions, and waits for what is typed."""
    options, told = STARTED[shell]
    environment = {"PATH": f"{Path(program()).parent}:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(folder)}
    ours, theirs = pty.openpty()
    command = [tool(shell), *options]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True) as process:
        os.close(theirs)
        try:
            one = Typing(ours)
            one.keys(f"{told}\n")
            # Once in what is typed, and then as the prompt.
            one.until("'ready> '")
            one.until("ready> ")
            yield one
        finally:
            process.kill()
            os.close(ours)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_what_is_typed_is_completed(shell: str, tmp_path: Path) -> None:
    completions(shell, tmp_path)
    with typing(shell, tmp_path) as one:
        for typed, completed in COMPLETED:
            one.keys(f"{typed}\t")
            one.until(completed)
            # Ctrl-U takes the line away.
            one.keys("\x15echo nothing-else\n")
            one.until("ready> ")


def test_fish_completes(tmp_path: Path) -> None:
    path = completions("fish", tmp_path)
    for typed, completed in COMPLETED:
        command = [tool("fish"), "--no-config", "-c", f"source {path}; complete -C '{typed}'"]
        told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True, timeout=HANG_S, env={
            "PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb",
        })
        offered = [line.split("\t")[0] for line in told.stdout.splitlines()]
        assert completed.split()[-1] in offered, (typed, told.stdout, told.stderr)
        assert told.stderr == "", told.stderr
