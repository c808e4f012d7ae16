"""The program, and what needs no agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polycast
import pytest
from polycast import errors


def test_a_file_reaches_four(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(bytes(range(256)) * 4096)
    report = polycast.cast(file, receivers=4, out=tmp_path / "copies", loss=0.02)
    assert report.complete and len(report.receivers) == 4 and report.sealed
    copies = sorted((tmp_path / "copies").glob("*/model.bin"))
    assert len(copies) == 4 and all(copy.read_bytes() == file.read_bytes() for copy in copies)
    with pytest.raises(errors.PolycastError, match="there already"):
        polycast.cast(file, receivers=4, out=tmp_path / "copies")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.PolycastError, match="no such file"):
        polycast.cast(tmp_path / "missing")


def test_the_program_is_the_packages() -> None:
    said = subprocess.run([polycast.program(), "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.split()[:2] == ["polycast", polycast.__version__]
    module = subprocess.run([sys.executable, "-m", "polycast", "--version"], capture_output=True, text=True, check=True)
    assert module.stdout == said.stdout


def test_errors_have_the_agents_words() -> None:
    assert isinstance(errors.of_kind("object-unknown", "?"), errors.ObjectUnknown)
    assert isinstance(errors.of_kind("version", "?"), errors.VersionMismatch)
    assert type(errors.of_kind("of-a-later-version", "?")) is errors.PolycastError
    assert errors.of_kind("of-a-later-version", "?").kind == "of-a-later-version"
