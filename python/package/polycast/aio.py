"""Agents, transfers and subscriptions as coroutines. Cancelling a call cancels its transfer too."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from polycast import _agent, _native
from polycast._agent import LOOK_S, SLOW, Object, Part, Published, SetFile, Status, Version, unnamed, until
from polycast._events import Event, Finished, Report, nothing_yet
from polycast._program import StrPath, complete, place
from polycast._renamed import deadline_is_timeout
from polycast.errors import Closed, TimedOut, TransferFailed

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Longest single wait for an event: a waiting thread cannot be interrupted.
_LOOK_S = 0.1
_THREADS_MAX = 32
# Number of calls of one kind that wait at once; others queue.
_WAITS_MAX = 1024


class Transfer(AsyncIterator[Event]):
    """A transfer: iterate with `async for` over its events, or `await transfer.result()`."""

    def __init__(self, transfer: _agent.Transfer, run: _Runner) -> None:
        self._transfer, self._run = transfer, run
        self._report: Report | None = None

    async def __anext__(self) -> Event:
        while True:
            try:
                event = await self._run(partial(self._transfer.next, _LOOK_S))
            except TimedOut as error:
                if not nothing_yet(error):
                    raise
                continue
            except asyncio.CancelledError:
                self._transfer.cancel()
                raise
            if event is None:
                raise StopAsyncIteration
            if isinstance(event, Finished):
                self._report = event.report
            return event

    async def result(self) -> Report:
        """Waits for the end and returns the report. Raises `TransferFailed` if a receiver lacks bytes."""
        async for _ in self:
            pass
        if self._report is None:
            raise TransferFailed("the transfer was cancelled")
        return complete(self._report)

    def cancel(self) -> None:
        """Ends the transfer, unless it is detached or other callers watch it."""
        self._transfer.cancel()


class _Source(Protocol[T_co]):
    def next(self, timeout: float | None = None) -> T_co | None: ...
    def cancel(self) -> None: ...


class _Events(AsyncIterator[T]):
    """Events one after the other, for `async for`."""

    def __init__(self, source: _Source[T], run: _Runner) -> None:
        self._source, self._run = source, run
        self._looks: asyncio.Future[tuple[T | None] | None] | None = None
        self._turn = asyncio.Lock()

    async def __anext__(self) -> T:
        # Each event goes to only one of the waiting calls.
        async with self._turn:
            return await self._next()

    async def _next(self) -> T:
        while True:
            self._looks = self._looks or asyncio.ensure_future(self._run(self._look))
            looks = self._looks
            try:
                found = await asyncio.shield(looks)
            except asyncio.CancelledError:
                # A cancelled wait does not consume an event: the next wait gets it.
                self._looks = None if looks.cancelled() else looks
                raise
            except BaseException:
                self._looks = None
                raise
            self._looks = None
            if found is None:
                continue
            (event,) = found
            if event is None:
                raise StopAsyncIteration
            return event

    def _look(self) -> tuple[T | None] | None:
        """Returns the next event in a tuple, `(None,)` at the end, or `None` if there is no event yet."""
        try:
            return (self._source.next(_LOOK_S),)
        except TimedOut as error:
            if not nothing_yet(error):
                raise
            return None

    def cancel(self) -> None:
        """Ends the iteration."""
        self._source.cancel()


class Versions(_Events[Version]):
    """Committed versions of a topic from the latest one on, for `async for`. A slow reader gets only the newest."""


class Watch(_Events[Part]):
    """Verified bytes of an object as they arrive."""


class Files(_Events[SetFile]):
    """Files of a set, each as soon as it has arrived."""


class _Runner:
    """Runs calls in its own threads. Calls that wait for data use other threads than the calls that bring it."""

    def __init__(self) -> None:
        self._calls = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="polycast-aio")
        # Threads of each call that waits, by its name.
        self._waits: dict[str, ThreadPoolExecutor] = {}
        self.closed = False

    async def __call__(self, call: Callable[[], T]) -> T:
        return await self._run(self._calls, call)

    async def wait(self, name: str, call: Callable[[], T]) -> T:
        """Runs a call that may wait for long."""
        if name not in self._waits:
            self._waits[name] = ThreadPoolExecutor(_WAITS_MAX, thread_name_prefix=f"polycast-aio-{name}")
        return await self._run(self._waits[name], call)

    async def _run(self, threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        if self.closed:
            raise Closed("the Agent was closed: make another one")
        return await asyncio.get_running_loop().run_in_executor(threads, call)

    def close(self) -> None:
        self.closed = True
        for threads in (self._calls, *self._waits.values()):
            threads.shutdown(wait=False, cancel_futures=True)


class Agent:
    """Coroutine version of `polycast.Agent`. Create it with `await Agent.connect()`."""

    def __init__(self, agent: _agent.Agent, run: _Runner) -> None:
        self._agent, self._run = agent, run

    @classmethod
    async def connect(cls, socket: StrPath | None = None, app: uuid.UUID | str | None = None) -> Agent:
        """Registers this process at the agent."""
        run = _Runner()
        return cls(await run(partial(_agent.Agent, socket, app)), run)

    async def add(
        self,
        data_id: int,
        path: StrPath | Sequence[StrPath],
        *,
        name: str = "",
        exclude: str | Sequence[str] = (),
        files: bool = False,
        follow: bool = False,
    ) -> Object:
        """Does the same as `polycast.Agent.add`."""
        add = partial(self._agent.add, data_id, path, name=name, exclude=exclude, files=files, follow=follow)
        return await self._run(add)

    async def put(
        self,
        path: StrPath | Sequence[StrPath],
        name: str | None = None,
        *,
        files: bool = False,
        exclude: str | Sequence[str] = (),
    ) -> Object:
        """Does the same as `polycast.Agent.put`."""
        return await self._run(partial(self._agent.put, path, name, files=files, exclude=exclude))

    async def get(
        self,
        name: str,
        into: StrPath | None = None,
        *,
        out: StrPath | None = None,
        timeout: float | None = None,
        update: bool = False,
        force: bool = False,
    ) -> Path:
        """Does the same as `polycast.Agent.get`, without `progress`. If it is cancelled while the copy is written, it returns at once, and
        the copy is still completed."""
        ends, where = until(timeout), place(into, out, update, force)
        while (data_id := await self._run(partial(self._agent._called, name))) is None:
            if ends is None or time.monotonic() >= ends:
                raise unnamed(name, timeout)
            await asyncio.sleep(LOOK_S)
        await self.read(data_id, None if ends is None else max(0.0, ends - time.monotonic()), known_only=True)
        return await self._run.wait("get", partial(self._agent._copied, data_id, into, where))

    @deadline_is_timeout
    async def send(
        self,
        data_id: int,
        to: str | Sequence[str],
        *,
        timeout: float | None = None,
        slow: SLOW = "catch-up",
        detached: bool = False,
    ) -> Transfer:
        """Does the same as `polycast.Agent.send`."""
        send = partial(self._agent.send, data_id, to, timeout=timeout, slow=slow, detached=detached)
        return Transfer(await self._run(send), self._run)

    async def read(self, data_id: int, timeout: float | None = None, known_only: bool = False) -> Object:
        """Does the same as `polycast.Agent.read`."""
        cancel = _native.Cancel()
        try:
            return await self._run.wait("read", partial(self._agent._read, data_id, timeout, known_only, cancel))
        except asyncio.CancelledError:
            cancel.set()
            raise

    async def fetch(
        self,
        wanted: str | int,
        *,
        timeout: float | None = None,
        fill: Callable[[], Iterable[bytes]] | None = None,
        length: int | None = None,
        name: str = "",
    ) -> Object:
        """Does the same as `polycast.Agent.fetch`. `fill` runs in a thread."""
        events = await self._run(partial(self._agent._fetching, wanted, fill is not None, timeout))
        try:
            return await self._run.wait("fetch", partial(self._agent._fetched, events, wanted, fill, length, name))
        except asyncio.CancelledError:
            events.cancel()
            raise

    @deadline_is_timeout
    async def publish(
        self, topic: str, data_id: int, *, version: int | None = None, timeout: float | None = None
    ) -> Published:
        """Does the same as `polycast.Agent.publish`. If it is cancelled, it returns at once, and the version may still be committed."""
        cancel = _native.Cancel()
        try:
            return await self._run.wait("publish", partial(self._agent._publish, topic, data_id, version, timeout, cancel))
        except asyncio.CancelledError:
            cancel.set()
            raise

    async def subscribe(self, topic: str, *, staged: bool = False) -> Versions:
        """Does the same as `polycast.Agent.subscribe`."""
        return Versions(await self._run(partial(self._agent.subscribe, topic, staged=staged)), self._run)

    async def watch(
        self, data_id: int, ranges: Iterable[tuple[int, int]] = (), *, timeout: float | None = None
    ) -> Watch:
        """Does the same as `polycast.Agent.watch`."""
        return Watch(await self._run(partial(self._agent.watch, data_id, ranges, timeout=timeout)), self._run)

    async def files(self, data_id: int, timeout: float | None = None) -> Files:
        """Does the same as `polycast.Agent.files`."""
        return Files(await self._run(partial(self._agent.files, data_id, timeout)), self._run)

    async def delete(self, data_id: int) -> None:
        """Does the same as `polycast.Agent.delete`."""
        await self._run(partial(self._agent.delete, data_id))

    async def list(self, all_applications: bool = False) -> list[Object]:
        """Does the same as `polycast.Agent.list`."""
        return await self._run(partial(self._agent.list, all_applications))

    async def status(self) -> Status:
        """Does the same as `polycast.Agent.status`."""
        return await self._run(self._agent.status)

    async def close(self) -> None:
        """Ends the registration. A second call does nothing."""
        if self._run.closed:
            return
        await self._run(self._agent.close)
        self._run.close()

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
