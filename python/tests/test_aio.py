"""Coroutines."""

from __future__ import annotations

import asyncio
import time

import polycast
import pytest
from polycast import aio, errors

Cluster = list[polycast.Agent]


def connect(agent: polycast.Agent) -> aio.Agent:
    return aio.Agent(agent, aio._Runner())


def test_two_reads_at_a_time(cluster: Cluster, number: int) -> None:
    async def run() -> None:
        source, first, second = (connect(agent) for agent in cluster[:3])
        cluster[0].add_buffer(number, b"to both")
        reads = asyncio.gather(first.read(number, 30), second.read(number, 30))
        report = await (await source.send(number, [cluster[1].name, cluster[2].name])).result()
        assert report.complete
        assert [bytes(one.map()) for one in await reads] == [b"to both"] * 2

    asyncio.run(run())


def test_a_read_that_is_cancelled_lets_its_thread_go(cluster: Cluster, number: int) -> None:
    async def run() -> None:
        agent = connect(cluster[1])
        began = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(agent.read(number), 0.3)
        agent._run._threads.shutdown(wait=True)
        assert time.monotonic() - began < 5

    asyncio.run(run())


def test_cancelling_cancels_the_transfer(cluster: Cluster, number: int) -> None:
    async def run() -> None:
        source = connect(cluster[0])
        cluster[0].add_buffer(number, bytes(80_000_000))
        transfer = await source.send(number, [cluster[1].name])
        task = asyncio.ensure_future(transfer.result())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, errors.PolycastError)):
            await task
        for _ in range(100):
            try:
                cluster[0].delete(number)
                return
            except errors.ObjectBusy:
                await asyncio.sleep(0.1)
        raise AssertionError("the transfer goes on")

    asyncio.run(run())
