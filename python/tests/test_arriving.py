"""Parts of objects, tensors and files that can be used before the whole is here."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polycast
import pytest
from conftest import HANG_S
from polycast import aio, errors, tensors
from polycast._agent import Object, Version

numpy = pytest.importorskip("numpy")
ROWS, LAYERS = 256, 24


@contextmanager
def limited(folder: Path, port: int, mbit: int) -> Iterator[list[polycast.Agent]]:
    """Two agents whose transfers are of a limited rate, and their manager."""
    config = folder / "manager.toml"
    pool = f"pool = '239.255.72.0/24'\nport = {port}"
    config.write_text(f"[objects]\nsettle-ms = 100\n[ip-multicast]\n{pool}\nrate = '{mbit}mbit'\n")
    line = [str(polycast.program()), "manager", "--listen", "127.0.0.1:0", "--config", str(config)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as manager:
        try:
            assert manager.stderr is not None
            listens = next(found for text in manager.stderr if (found := re.search(r"listens on (\S+)", text)))
            threading.Thread(target=manager.stderr.read, daemon=True).start()
            app = uuid.uuid4()
            with polycast.Agent.embedded(listens.group(1), app=app) as one:
                with polycast.Agent.embedded(listens.group(1), app=app) as other:
                    yield [one, other]
        finally:
            manager.kill()


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[polycast.Agent]]:
    """The tensors of the tests below take some seconds between these."""
    with limited(tmp_path_factory.mktemp("slow"), 17417, 160) as agents:
        yield agents


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[polycast.Agent]]:
    """Between these they take close to a minute: no test waits for their end."""
    with limited(tmp_path_factory.mktemp("slower"), 17419, 16) as agents:
        yield agents


def weights(seed: int) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    return {f"layers.{layer}.w": random.random((ROWS, 4096), dtype="float32") for layer in reversed(range(LAYERS))}


def socket_of(agent: polycast.Agent) -> Path:
    return Path(agent.socket)


def verified(agent: polycast.Agent, data_id: int) -> tuple[int, int]:
    found = next(one for one in agent.list() if one.data_id == data_id)
    return found.verified_bytes, found.length


def test_the_first_tensor_is_usable_before_the_object_is_whole(slower: list[polycast.Agent], number: int) -> None:
    source, other = slower
    state = weights(number % 1000)
    tensors.add(source, number, state)
    coming = tensors.arriving(other, number, timeout=HANG_S)
    transfer = source.send(number, [other.name])
    first, tensor = next(coming)
    here, length = verified(other, number)
    assert here < length, f"{here} of {length} bytes were here with the first tensor"
    assert first == "layers.0.w" and numpy.array_equal(tensor, state[first])
    transfer.cancel()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_tensors_come_in_the_order_of_their_use(slow: list[polycast.Agent], framework: str, number: int) -> None:
    if framework == "torch":
        pytest.importorskip("torch")
    source, other = slow
    state = weights(number % 1000)
    tensors.add(source, number, state)
    coming = tensors.arriving(other, number, framework, timeout=HANG_S)
    transfer = source.send(number, [other.name])
    first, tensor = next(coming)
    seen = {first: tensor}
    if framework == "torch":
        # What is written is seen by this process alone, and is not in the way of what comes.
        tensor[0, 0] = -1.0
        assert float(tensor[0, 0]) == -1.0
        tensor[0, 0] = float(state[first][0, 0])
    for name, tensor in coming:
        seen[name] = tensor
    assert list(seen) == [f"layers.{layer}.w" for layer in range(LAYERS)], "in the order of their use"
    assert all(numpy.array_equal(numpy.asarray(seen[name]), state[name]) for name in state)
    assert transfer.result(HANG_S).receivers[0].verified


def test_versions_that_arrive(slow: list[polycast.Agent]) -> None:
    source, other = slow
    topic = f"arriving-{uuid.uuid4()}"
    versions = other.subscribe(topic, staged=True)
    state = weights(1)
    published = threading.Thread(target=lambda: tensors.publish(source, topic, state, timeout=HANG_S))
    published.start()
    staged = next(versions)
    assert not staged.committed and staged.object is not None
    name, tensor = next(coming := tensors.arriving(other, staged.object.data_id))
    assert numpy.array_equal(tensor, state[name])
    assert len(list(coming)) == LAYERS - 1
    committed = next(versions)
    assert committed.committed and committed.version == staged.version
    published.join(HANG_S)


def test_each_version_comes_once() -> None:
    def told(number: int, data_id: int | None, committed: bool) -> Version:
        fields = ["app", "name", "kind", "state", "root", "path", "form"], ["length", "verified_bytes", "mode"]
        rest: dict[str, Any] = {name: "" for name in fields[0]} | {name: 0 for name in fields[1]}
        return Version(number, committed, None if data_id is None else Object(data_id=data_id, **rest))

    news = [(5, 50, True), (6, 60, False), (6, 61, False), (6, 61, True), (5, 50, True), (7, None, False), (7, 70, True)]
    each = tensors.each_version(told(*one) for one in news)
    assert list(each) == [(5, 50), (6, 60), (6, 61), (7, 70)], "the number of one that was given up has another object"


def test_ranges_are_named_once_and_asyncio_has_them(slow: list[polycast.Agent], number: int) -> None:
    source, other = slow
    content = numpy.random.default_rng(2).bytes(12_000_000)
    source.add_buffer(number, content)
    wanted = [(5_000_000, 300_000), (0, 10)]

    async def watched() -> list[tuple[int, int]]:
        async with await aio.Agent.connect(socket_of(other), uuid.UUID(bytes=other._app)) as agent:
            watch = await agent.watch(number, wanted, timeout=HANG_S)
            named: list[tuple[int, int]] = []
            async for part in watch:
                try:
                    file = open(part.path, "rb")
                except FileNotFoundError:
                    # It has its own name by now.
                    file = open((await agent.read(number, timeout=HANG_S)).path, "rb")
                with file:
                    for at, length in part.verified:
                        file.seek(at)
                        assert file.read(length) == content[at : at + length]
                named += part.verified
            return named

    transfer = source.send(number, [other.name])
    named = asyncio.run(watched())
    assert sum(length for _, length in named) == 300_010
    transfer.result(HANG_S)
    with pytest.raises(errors.Invalid, match="lie outside"):
        next(other.watch(number, [(12_000_000, 1)]))
    absent = other.watch(number + 1, timeout=0.2)
    for _ in range(3):
        # No part, and an error each time: an end would say that all bytes had come.
        with pytest.raises(errors.TimedOut):
            absent.next(HANG_S)
    patient = other.watch(number + 1)
    with pytest.raises(errors.TimedOut):
        patient.next(0.05)
    patient.cancel()
    assert patient.next(HANG_S) is None, "a wait that was too short is no error of the watch"
    cancelled = other.watch(number + 1)
    cancelled.cancel()
    assert cancelled.next(HANG_S) is None


def test_what_has_no_tensors_says_so(slow: list[polycast.Agent], number: int) -> None:
    source, _ = slow
    source.add_buffer(number, b"\xff" * 1000)
    with pytest.raises(errors.Invalid, match="no tensors"):
        next(tensors.arriving(source, number))
    source.add_buffer(number + 1, b"1234")
    with pytest.raises(errors.PolycastError):
        next(tensors.arriving(source, number + 1, timeout=HANG_S))


def test_files_of_a_set(slow: list[polycast.Agent], number: int, tmp_path: Path) -> None:
    source, other = slow
    random = numpy.random.default_rng(3)
    content = {"a.bin": random.bytes(2_000_000), "sub/b.bin": random.bytes(1_000_000)}
    content["sub/again.bin"] = content["a.bin"]
    for name, data in content.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    added = source.add(number, tmp_path, files=True)
    assert added.kind == "set"
    files = other.files(number, timeout=HANG_S)
    report = source.send(number, [other.name]).result(HANG_S)
    # Some are sent again.
    assert report.sent_bytes < 5_000_000, "equal files travel once"
    found = {file.name: file for file in files}
    assert sorted(files.names) == sorted(found) == sorted(content)
    for name, file in found.items():
        assert bytes(other.read(file.data_id).map()) == content[name] and Path(file.path).read_bytes() == content[name]

    async def named() -> set[str]:
        async with await aio.Agent.connect(socket_of(other), uuid.UUID(bytes=other._app)) as agent:
            return {file.name async for file in await agent.files(number)}

    assert asyncio.run(named()) == set(content)
    source.add_buffer(number + 1, b"x")
    of_none = source.files(number + 1)
    for _ in range(3):
        with pytest.raises(errors.Invalid, match="is no set"):
            next(of_none)

    async def of_an_absent_one() -> list[str]:
        async with await aio.Agent.connect(socket_of(other), uuid.UUID(bytes=other._app)) as agent:
            return [file.name async for file in await agent.files(number + 2, 0.3)]

    with pytest.raises(errors.PolycastError):
        asyncio.run(of_an_absent_one())


class Told:
    """A watch that says what the test has written."""

    def __init__(self, parts: list[polycast.Part]) -> None:
        self.parts = parts

    def next(self) -> polycast.Part | None:
        return self.parts.pop(0) if self.parts else None

    def cancel(self) -> None:
        self.parts.clear()


def test_what_is_written_hides_nothing_that_comes(tmp_path: Path) -> None:
    page = 4096
    edges = [0, 10, page - 1, page + 1, 3 * page + 5, 3 * page + 6, 5 * page, 5 * page + 100]
    content = os.urandom(edges[-1])
    file = tmp_path / "part"
    file.write_bytes(bytes(edges[-1]))
    told = Told([])
    coming = tensors._Arriving(told, lambda: str(file), 1)  # type: ignore[arg-type]
    before = len(os.listdir("/proc/self/fd"))
    views = []
    with open(file, "r+b") as written:
        # The last comes first, and each is written to before its neighbour comes.
        for begin, end in reversed(list(zip(edges, edges[1:]))):
            os.pwrite(written.fileno(), content[begin:end], begin)
            told.parts.append(polycast.Part(str(file), len(content), ((begin, end - begin),), False))
            coming.await_bytes(begin, end)
            view = coming.bytes_of(begin, end, own=True)
            assert bytes(view) == content[begin:end], (begin, end)
            view[:] = bytes(255 - byte for byte in view)
            views.append((begin, end, view))
    assert all(bytes(view) == bytes(255 - byte for byte in content[begin:end]) for begin, end, view in views)
    assert file.read_bytes() == content, "this process alone sees what it writes"
    assert len(os.listdir("/proc/self/fd")) - before <= 2, "not a descriptor for each"
    coming.close()
