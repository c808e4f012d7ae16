"""The examples, as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples/python"


def run(*arguments: str) -> str:
    # What several processes say comes line by line.
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_weights() -> None:
    pytest.importorskip("numpy")
    assert "every worker has seen all 2 versions" in run(str(EXAMPLES / "weights.py"), "2", "4")


def test_dataset(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 10_000)
    assert run(str(EXAMPLES / "dataset.py"), str(tmp_path)).count("verified") == 3


def test_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_bytes(bytes(100_000))
    said = run(str(EXAMPLES / "job.py"), "model")
    for rank in range(4):
        assert f"rank {rank} of 4 on 1 hosts has 1 files in {tmp_path}/model\n" in said
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def test_policy() -> None:
    pytest.importorskip("torch")
    assert run(str(EXAMPLES / "policy.py"), "3").count("has version 3") == 2


def test_table() -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("numpy")
    assert run(str(EXAMPLES / "table.py"), "200000").count("a view of its host") == 3


def test_the_loop_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    page = (EXAMPLES.parents[1] / "docs/howto/training.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = tmp_path / "loop.py"
    script.write_text(code)
    sent = [float(line.split()[1]) for line in run(str(script)).splitlines()]
    assert len(sent) == 5 and sent[0] > 130 and all(1 < delta < 1.5 for delta in sent[1:]), sent
