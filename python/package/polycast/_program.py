"""The program `polycast` that came with this package, and what is run by it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polycast._events import Report
from polycast.errors import PolycastError, ProgramMissing, TransferFailed

if TYPE_CHECKING:
    from pathlib import Path

StrPath = str | os.PathLike[str]


def program() -> Path:
    """Where the program is: the one of this package, or else the first one on PATH."""
    # Not for everyone who imports the package.
    import shutil
    import sysconfig
    from pathlib import Path

    schemes = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    for folder in schemes:
        found = Path(folder) / "polycast"
        if os.access(found, os.X_OK):
            return found
    if on_path := shutil.which("polycast"):
        return Path(on_path)
    raise ProgramMissing(f"there is no program polycast in {schemes[0]} nor on PATH: install the package again")


def run_json(arguments: Sequence[str]) -> dict[str, object]:
    """Runs the program with `--json` and gives its document; the program ends with this process's Ctrl-C."""
    import subprocess

    line = [str(program()), *arguments, "--json", "--quiet"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            out, err = child.communicate()
        except BaseException:
            child.terminate()
            raise
    try:
        document = json.loads(out)
    except ValueError:
        raise PolycastError(err.strip() or f"polycast {arguments[0]} ended with {child.returncode}") from None
    if not isinstance(document, dict):
        raise PolycastError(f"polycast {arguments[0]} said something unexpected: {out[:200]}")
    if "receivers" not in document and "error" in document:
        raise PolycastError(str(document["error"]))
    return document


def cast(
    path: StrPath,
    receivers: int = 4,
    *,
    out: StrPath | None = None,
    loss: float = 0.0,
    seed: int = 1,
    force: bool = False,
    update: bool = False,
) -> Report:
    """Delivers a file or folder to receivers on this machine, with the protocol that runs between machines.

    `out` keeps the copies in one folder a receiver; `loss` throws away a fraction of the packets. Raises `TransferFailed`
    where a receiver has not verified everything.
    """
    arguments = ["cast", os.fspath(path), "--receivers", str(receivers), "--loss", str(loss), "--seed", str(seed)]
    if out is not None:
        arguments += ["--out", os.fspath(out)]
    arguments += ["--force"] * force + ["--update"] * update
    return complete(Report.of(run_json(arguments)))


def complete(report: Report) -> Report:
    """The report, if every receiver has everything."""
    failed = [f"{one.name}: {one.error or 'not verified'}" for one in report.receivers if not one.verified]
    if failed:
        error = TransferFailed("; ".join(failed))
        error.kind, error.report = "transfer-failed", report
        raise error
    return report
