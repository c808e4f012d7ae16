"""The same as coroutines. A call that is cancelled lets go of its transfer, which cancels that too."""

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
from polycast._events import Event, Finished, Report
from polycast._program import StrPath, complete, place
from polycast._renamed import deadline_is_timeout
from polycast.errors import Closed, TimedOut, TransferFailed

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# How long one look for an event takes: a thread that waits cannot be interrupted.
_LOOK_S = 0.1
_THREADS_MAX = 32
# Calls of a kind that wait at once; others wait for their turn.
_WAITS_MAX = 1024


class Transfer(AsyncIterator[Event]):
    """A transfer: `async for` over its events, or `await transfer.result()`."""

    def __init__(self, transfer: _agent.Transfer, run: _Runner) -> None:
        self._transfer, self._run = transfer, run
        self._report: Report | None = None

    async def __anext__(self) -> Event:
        while True:
            try:
                event = await self._run(partial(self._transfer.next, _LOOK_S))
            except TimedOut:
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
        """The end. Raises `TransferFailed` where a receiver has not got everything."""
        async for _ in self:
            pass
        if self._report is None:
            raise TransferFailed("the transfer was cancelled")
        return complete(self._report)

    def cancel(self) -> None:
        """Ends the transfer, unless others watch it or it is detached."""
        self._transfer.cancel()


class _Source(Protocol[T_co]):
    def next(self, timeout: float | None = None) -> T_co | None: ...
    def cancel(self) -> None: ...


class _Events(AsyncIterator[T]):
    """What comes one after the other: `async for` over it."""

    def __init__(self, source: _Source[T], run: _Runner) -> None:
        self._source, self._run = source, run
        self._looks: asyncio.Future[tuple[T | None] | None] | None = None
        self._turn = asyncio.Lock()

    async def __anext__(self) -> T:
        # What comes is for one of those that wait.
        async with self._turn:
            return await self._next()

    async def _next(self) -> T:
        while True:
            self._looks = self._looks or asyncio.ensure_future(self._run(self._look))
            looks = self._looks
            try:
                found = await asyncio.shield(looks)
            except asyncio.CancelledError:
                # A wait that is cancelled does not take a version along: the next one gets it.
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
        """What has come, if anything: `(None,)` at the end."""
        try:
            return (self._source.next(_LOOK_S),)
        except TimedOut:
            return None

    def cancel(self) -> None:
        """Ends it."""
        self._source.cancel()


class Versions(_Events[Version]):
    """The committed versions of a topic, from the last one on: `async for` over them. A slow reader gets the newest."""


class Watch(_Events[Part]):
    """The verified bytes of an object as they come."""


class Files(_Events[SetFile]):
    """The files of a set, each as soon as it is here."""


class _Runner:
    """Runs calls in threads of its own. Those that wait for what others bring have others than those that bring it."""

    def __init__(self) -> None:
        self._calls = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="polycast-aio")
        # The name of a call that waits, and its threads.
        self._waits: dict[str, ThreadPoolExecutor] = {}
        self.closed = False

    async def __call__(self, call: Callable[[], T]) -> T:
        return await self._run(self._calls, call)

    async def wait(self, name: str, call: Callable[[], T]) -> T:
        """A call that may wait for long."""
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
    """As `polycast.Agent`; made with `await Agent.connect()`."""

    def __init__(self, agent: _agent.Agent, run: _Runner) -> None:
        self._agent, self._run = agent, run

    @classmethod
    async def connect(cls, socket: StrPath | None = None, app: uuid.UUID | str | None = None) -> Agent:
        """Registers this process."""
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
        """As `polycast.Agent.add`."""
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
        """As `polycast.Agent.put`."""
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
        """As `polycast.Agent.get`. One that is cancelled while the copy is written is not waited for; it is written all the same."""
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
        """As `polycast.Agent.send`."""
        send = partial(self._agent.send, data_id, to, timeout=timeout, slow=slow, detached=detached)
        return Transfer(await self._run(send), self._run)

    async def read(self, data_id: int, timeout: float | None = None, known_only: bool = False) -> Object:
        """As `polycast.Agent.read`."""
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
        """As `polycast.Agent.fetch`; `fill` runs in a thread."""
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
        """As `polycast.Agent.publish`. One that is cancelled is not waited for; it may be committed all the same."""
        cancel = _native.Cancel()
        try:
            return await self._run.wait("publish", partial(self._agent._publish, topic, data_id, version, timeout, cancel))
        except asyncio.CancelledError:
            cancel.set()
            raise

    async def subscribe(self, topic: str, *, staged: bool = False) -> Versions:
        """As `polycast.Agent.subscribe`."""
        return Versions(await self._run(partial(self._agent.subscribe, topic, staged=staged)), self._run)

    async def watch(
        self, data_id: int, ranges: Iterable[tuple[int, int]] = (), *, timeout: float | None = None
    ) -> Watch:
        """As `polycast.Agent.watch`."""
        return Watch(await self._run(partial(self._agent.watch, data_id, ranges, timeout=timeout)), self._run)

    async def files(self, data_id: int, timeout: float | None = None) -> Files:
        """As `polycast.Agent.files`."""
        return Files(await self._run(partial(self._agent.files, data_id, timeout)), self._run)

    async def delete(self, data_id: int) -> None:
        """As `polycast.Agent.delete`."""
        await self._run(partial(self._agent.delete, data_id))

    async def list(self, all_applications: bool = False) -> list[Object]:
        """As `polycast.Agent.list`."""
        return await self._run(partial(self._agent.list, all_applications))

    async def status(self) -> Status:
        """As `polycast.Agent.status`."""
        return await self._run(self._agent.status)

    async def close(self) -> None:
        """Ends the registration. A second time does nothing."""
        if self._run.closed:
            return
        await self._run(self._agent.close)
        self._run.close()

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
