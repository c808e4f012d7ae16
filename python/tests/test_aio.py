"""Coroutines."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import polycast
import pytest
from conftest import HANG_S, deleted, until
from polycast import aio, errors

Cluster = list[polycast.Agent]


def connect(agent: polycast.Agent) -> aio.Agent:
    return aio.Agent(agent, aio._Runner())


def test_two_reads_at_a_time(cluster: Cluster, number: int) -> None:
    async def run() -> None:
        source, first, second = (connect(agent) for agent in cluster[:3])
        cluster[0].add_buffer(number, b"to both")
        reads = asyncio.gather(first.read(number, HANG_S), second.read(number, HANG_S))
        report = await (await source.send(number, [cluster[1].name, cluster[2].name])).result()
        assert report.complete
        assert [bytes(one.map()) for one in await reads] == [b"to both"] * 2

    asyncio.run(run())


def test_a_read_that_is_cancelled_lets_its_thread_go(cluster: Cluster, number: int) -> None:
    async def run() -> None:
        agent = connect(cluster[1])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(agent.read(number), 0.3)
        await asyncio.wait_for(asyncio.to_thread(agent._run._waits["read"].shutdown), HANG_S)

    asyncio.run(run())


def test_many_waits_are_in_the_way_of_nothing(cluster: Cluster, number: int) -> None:
    async def run() -> None:
        agent = await aio.Agent.connect(cluster[1].socket, uuid.UUID(bytes=cluster[1]._app))
        reads = [asyncio.ensure_future(agent.read(number)) for _ in range(2 * aio._THREADS_MAX)]
        await asyncio.sleep(0.5)
        assert (await asyncio.wait_for(agent.status(), HANG_S)).manager_connected
        cluster[0].add_buffer(number, b"for all")
        report = await (await connect(cluster[0]).send(number, [cluster[1].name])).result()
        assert report.complete
        assert {one.length for one in await asyncio.wait_for(asyncio.gather(*reads), HANG_S)} == {7}
        await agent.close()
        await agent.close()
        with pytest.raises(errors.Closed):
            await agent.status()

    asyncio.run(run())


def test_each_event_is_for_one_of_those_who_wait(cluster: Cluster, number: int, tmp_path: Path) -> None:
    for at in range(8):
        (tmp_path / f"file-{at}").write_bytes(bytes([at]) * 1000)
    cluster[0].add(number, tmp_path, files=True)

    async def run() -> None:
        files = await connect(cluster[0]).files(number, HANG_S)

        async def some() -> list[str]:
            return [file.name async for file in files]

        names = await asyncio.wait_for(asyncio.gather(*(some() for _ in range(4))), HANG_S)
        assert sorted(name for some in names for name in some) == [f"file-{at}" for at in range(8)]

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
        await asyncio.to_thread(until, "the transfer is over", lambda: deleted(cluster[0], number))

    asyncio.run(run())


def test_versions_and_keys(cluster: Cluster, number: int) -> None:
    topic = f"aio-{number}"

    async def run() -> None:
        source, worker = connect(cluster[0]), connect(cluster[1])
        versions = await worker.subscribe(topic)

        async def two() -> list[bytes]:
            seen = []
            async for version in versions:
                assert version.object is not None
                seen.append(bytes(version.object.map()))
                if seen[-1] == b"two":
                    break
            return seen

        seen = asyncio.ensure_future(two())
        for at, content in enumerate((b"one", b"two")):
            cluster[0].add_buffer(number + at, content)
            published = await source.publish(topic, number + at, timeout=HANG_S)
            assert published.version == at + 1 and not published.missing
        assert (await asyncio.wait_for(seen, HANG_S))[-1] == b"two"
        # A look for the next one that is cancelled leaves the subscription as it was.
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(versions), 0.3)
        cluster[0].add_buffer(number + 2, b"three")
        await source.publish(topic, number + 2)
        assert (await asyncio.wait_for(anext(versions), HANG_S)).version == 3
        versions.cancel()
        got = await asyncio.gather(*(connect(agent).fetch(number + 2, timeout=HANG_S) for agent in cluster[1:]))
        assert {bytes(one.map()) for one in got} == {b"three"}

    asyncio.run(run())


def test_a_fetch_that_is_cancelled_lets_its_thread_go(cluster: Cluster, number: int) -> None:
    async def run() -> None:
        agent = connect(cluster[1])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(agent.fetch(number, timeout=3600), 0.3)
        await asyncio.wait_for(asyncio.to_thread(agent._run._waits["fetch"].shutdown), HANG_S)

    asyncio.run(run())
