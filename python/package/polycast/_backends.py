"""Code that the back ends for reinforcement learning share: one process publishes each version of the weights, and the processes that use
them wait for it at their host's agent. The object's number, which both sides know beforehand, identifies the version."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from polycast import _native, tensors
from polycast._agent import Agent, Object, Published, Versions
from polycast.errors import AgentLost, AgentNotRunning, Closed, Invalid, NotRegistered, ObjectUnknown, TimedOut

if TYPE_CHECKING:
    from polycast._program import StrPath

DEFAULT_APP = str(uuid.UUID(int=0))
# The agent has ended, or was restarted and does not know this process.
GONE = (AgentLost, AgentNotRunning, NotRegistered, Closed)


def new_number() -> int:
    """Returns a number that no other object has."""
    return uuid.uuid4().int >> 65


def publish(agent: Agent, topic: str, data_id: int, version: int | None, timeout: float | None, log: logging.Logger) -> Published:
    """Publishes an object as this version, or as the next one if the topic is already past it, since a new run may count from any number.
    Logs the subscribers that lack it."""
    if version is not None and version < 1:
        version = None
    try:
        published = agent.publish(topic, data_id, version=version, timeout=timeout)
    except Invalid as error:
        if version is None:
            raise
        published = agent.publish(topic, data_id, timeout=timeout)
        log.warning("%s. This one is version %d", error, published.version)
    for host, why in published.missing.items():
        log.warning("%s has not got version %d of '%s': %s", host, published.version, topic, why)
    return published


class Link:
    """A process's place on a topic: its host's agent, the last version that it has published there, and the last that it has taken."""

    def __init__(self, topic: str, app: str, socket: StrPath | None, log: logging.Logger) -> None:
        self.topic, self.app, self._socket, self._log = topic, app, socket, log
        self._agent: Agent | None = None
        self._versions: Versions | None = None
        self._published: int | None = None
        self._taken: int | None = None

    @property
    def agent(self) -> Agent:
        """The host's agent. If the agent was restarted, this process registers again."""
        if self._agent is not None:
            try:
                self._agent.status()
                return self._agent
            except GONE:
                self.close()
        self._agent = Agent(self._socket, self.app)
        return self._agent

    def versions(self) -> Versions:
        """Subscribes this host to every version of the topic, until `close` or `resubscribe`, and returns the versions."""
        agent = self.agent
        if self._versions is None:
            self._versions = agent.subscribe(self.topic)
        return self._versions

    def subscribe(self) -> None:
        """Subscribes this host to every version of the topic, until `close`. Subscribes again if the agent was restarted: `agent` does not
        notice that if the agent is up again, because requests then reach the new one."""
        versions = self.versions()
        try:
            while versions.next(0.0) is not None:
                # The object's number identifies a version here, so nothing else reads these.
                pass
        except TimedOut:
            return
        except GONE:
            pass
        self.resubscribe()

    def resubscribe(self) -> Versions:
        """Subscribes this host again, after the subscription has ended with the agent."""
        self._versions = None
        return self.versions()

    def add(self, data_id: int, weights: Iterable[tuple[str, Any]], metadata: Mapping[str, str]) -> None:
        """Copies the tensors into the agent's memory, each before the next one is requested."""
        tensors.add(self.agent, data_id, _whole(weights), metadata=metadata)

    def commit(self, data_id: int, version: int | None, timeout: float | None) -> Published:
        """Publishes the object that was added, and deletes the previous version."""
        assert self._agent is not None, "`add` has opened it"
        agent = self._agent
        try:
            published = publish(agent, self.topic, data_id, version, timeout, self._log)
        except BaseException:
            agent._forget(data_id)
            raise
        before, self._published = self._published, data_id
        if before is not None:
            agent._forget(before)
        return published

    async def wait(self, data_id: int, what: str, timeout: float) -> Object:
        """Waits until the object of this number has arrived and is verified, or raises `TimedOut`."""
        cancel = _native.Cancel()
        try:
            return await asyncio.to_thread(self._wait, data_id, what, timeout, cancel)
        except asyncio.CancelledError:
            # Otherwise the thread would wait on, and the end of the event loop for the thread.
            cancel.set()
            raise

    def _wait(self, data_id: int, what: str, timeout: float, cancel: _native.Cancel) -> Object:
        if self._versions is not None:
            # Otherwise an agent that was restarted would wait for a version that no publisher sends to it.
            self.subscribe()
        agent = self._agent or self.agent
        try:
            return agent._read(data_id, timeout, False, cancel)
        except (ObjectUnknown, TimedOut) as error:
            cure = "see whether the trainer has published it, and whether its log names this host as one that has not got it"
            raise TimedOut(f"{what} of '{self.topic}' did not come to the agent at {agent.socket} within {timeout:g} s: {cure}") from error

    def each(self, found: Object, device: str | None) -> Iterator[tuple[str, Any]]:
        """Yields the object's tensors, on a device or as views of the host's copy. After the last one, the previous version is deleted."""
        for name, tensor in tensors.each(found.map(writable_copy=True), "torch"):
            yield name, tensor if device in (None, "cpu") else tensor.to(device)
        if self._agent is not None and self._taken not in (None, found.data_id):
            assert self._taken is not None
            self._agent._forget(self._taken)
        self._taken = found.data_id

    def close(self) -> None:
        """Ends the subscription and the registration."""
        self._versions = self._published = self._taken = None
        agent, self._agent = self._agent, None
        if agent is not None:
            try:
                agent.close()
            except GONE:
                # The agent has already ended.
                pass


def _whole(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, tensor in weights:
        yield name, tensor.detach().contiguous()


def usual_device() -> str:
    """Returns the device of a worker's model: the accelerator, if there is one."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if found is None else str(found.type)


def seconds(name: str, value: Any) -> float:
    """Returns a setting in seconds, which must be a number above 0."""
    try:
        made = float(value)
    except (TypeError, ValueError):
        made = -1.0
    if not 0 < made < float("inf"):
        raise Invalid(f"{name}={value!r} is no time in seconds: give a number above 0")
    return made
