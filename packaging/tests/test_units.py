"""The units, by systemd's own examination."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import HANG_S, PACKAGING, tool

UNITS = sorted(PACKAGING.glob("*.service"))
# How exposed a unit may be, in tenths of what systemd says. systemd 252 says 2.0 and 5.9; other versions look at other things, too. Those
# with programs in the kernel run as root.
EXPOSED = {"polycast-agent": 25, "polycast-manager": 25, "polycast-forwarder": 65, "polycast-label-switch": 65, "polycast-rack-agent": 65}


def test_units_are_units(tmp_path: Path) -> None:
    """The program and its pages may not be installed here."""
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/usr/bin/polycast", "/bin/true"))
    command = [tool("systemd-analyze"), "verify", "--man=no", *map(str, sorted(tmp_path.glob("*.service")))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_no_more_exposed(unit: Path) -> None:
    command = [tool("systemd-analyze"), "security", "--offline=true", "--no-pager", f"--threshold={EXPOSED[unit.stem]}", str(unit)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert result.returncode == 0, result.stdout
