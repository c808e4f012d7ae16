"""The examples, as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples/python"


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_weights() -> None:
    pytest.importorskip("numpy")
    assert "every worker has seen all 2 versions" in run(str(EXAMPLES / "weights.py"), "2", "4")


def test_dataset(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 10_000)
    assert run(str(EXAMPLES / "dataset.py"), str(tmp_path)).count("verified") == 3


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
