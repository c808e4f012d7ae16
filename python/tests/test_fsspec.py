"""Programs that read through fsspec, at versions of topics."""

from __future__ import annotations

import uuid
from pathlib import Path

import polycast
import pytest
from conftest import HANG_S

fsspec = pytest.importorskip("fsspec")
Cluster = list[polycast.Agent]


@pytest.fixture
def agents() -> object:
    """Two agents of the default application, as `polycast publish` is of it."""
    first = polycast.Agent.embedded()
    try:
        with polycast.Agent.embedded(first.manager) as second:
            yield [first, second]
    finally:
        first.close()


def options(agent: polycast.Agent) -> dict[str, object]:
    # Instances with the same options are shared.
    return {"socket": agent.socket, "timeout": HANG_S, "skip_instance_cache": True}


def test_a_version_is_read_as_it_was_published(agents: Cluster, tmp_path: Path) -> None:
    folder, topic = tmp_path / "data", f"t{uuid.uuid4().hex}"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.csv").write_text("x,y\n1,2\n3,4\n")
    (folder / "sub" / "b.bin").write_bytes(bytes(range(256)) * 5_000)
    agents[0].add(1, folder)
    agents[0].publish(topic, 1)
    for agent in agents:
        files = fsspec.filesystem("polycast", **options(agent))
        assert sorted(files.ls(f"{topic}@1", detail=False)) == [f"{topic}@1/a.csv", f"{topic}@1/sub"]
        assert files.find(topic) == [f"{topic}/a.csv", f"{topic}/sub/b.bin"]
        assert files.info(f"polycast://{topic}/sub/b.bin")["size"] == 1_280_000
        assert files.isdir(f"{topic}/sub") and not files.exists(f"{topic}/none")
        with files.open(f"polycast://{topic}@1/sub/b.bin") as file:
            file.seek(-3, 2)
            assert file.read() == bytes([253, 254, 255])
            file.seek(256)
            assert file.read(4) == bytes(range(4))
        with pytest.raises(ValueError, match="read only"):
            files.open(f"{topic}/new", "wb")
    with fsspec.open(f"polycast://{topic}@1/a.csv", "rt", **options(agents[1])) as text:
        assert text.readline() == "x,y\n"


def test_the_last_version_is_read_and_one_before_it_is_named(agents: Cluster, tmp_path: Path) -> None:
    topic = f"t{uuid.uuid4().hex}"
    files = fsspec.filesystem("polycast", **options(agents[1]))
    for number in (1, 2):
        (tmp_path / f"model-{number}").write_text(f"version {number}")
        agents[0].add(number, tmp_path / f"model-{number}")
        agents[0].publish(topic, number)
        assert files.cat(f"{topic}@{number}") == f"version {number}".encode()
    assert files.cat(f"{topic}/model-2") == b"version 2"
    with pytest.raises(FileNotFoundError, match="version 2 by now"):
        files.cat(f"{topic}@1")
    with pytest.raises(ValueError, match="no version"):
        files.cat(f"{topic}@new")


def test_pandas_reads_a_version(agents: Cluster, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    topic, folder = f"t{uuid.uuid4().hex}", tmp_path / "tables"
    folder.mkdir()
    table = pandas.DataFrame({"a": range(10_000), "b": [str(one) for one in range(10_000)]})
    table.to_csv(folder / "one.csv", index=False)
    names = ["one.csv"]
    if __import__("importlib.util").util.find_spec("pyarrow"):
        table.to_parquet(folder / "one.parquet")
        names.append("one.parquet")
    agents[0].add(1, folder)
    agents[0].publish(topic, 1)
    for name in names:
        read = pandas.read_csv if name.endswith("csv") else pandas.read_parquet
        there = read(f"polycast://{topic}@1/{name}", storage_options={"socket": agents[1].socket, "timeout": HANG_S})
        assert there["a"].sum() == table["a"].sum() and len(there) == len(table), name
