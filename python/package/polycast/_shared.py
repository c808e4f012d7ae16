"""This process's connections to its host's agent, one per application, for code in processes that other programs run."""

from __future__ import annotations

import os
import threading
import uuid

from polycast._agent import Agent

_AGENTS: dict[tuple[int, str | None, bytes], Agent] = {}
_LOCK = threading.Lock()


def shared_agent(app: bytes = bytes(16)) -> Agent:
    """Returns this process's connection, which lives as long as the process. A forked process has its own."""
    where = (os.getpid(), os.environ.get("POLYCAST_SOCKET"), app)
    with _LOCK:
        if where not in _AGENTS:
            _AGENTS[where] = Agent(app=uuid.UUID(bytes=app))
        return _AGENTS[where]


def _after_fork() -> None:
    # The thread that held the lock does not exist in this process.
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
