"""What `bench/lab.py` says to flags that cannot be: one sentence, and nothing is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).parent.parent / "bench" / "lab.py"
FILES = ["--program", sys.executable, "--jar", sys.executable, "--tests", sys.executable]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "the following arguments are required: --program, --jar, --tests"),
        ([*FILES, "--wrong"], "unrecognized arguments: --wrong"),
        ([*FILES, "--executors", "0"], "argument --executors: '0' is no whole number above 0"),
        ([*FILES, "--executors", "254"], "--executors 254 are more than the 253 that the lab has addresses for"),
        ([*FILES, "--sizes", "10,many"], "argument --sizes: 'many' is no whole number above 0"),
        ([*FILES, "--rate", "fast"], "argument --rate: 'fast' is no rate as tc has it, for example 1gbit"),
        ([*FILES, "--memory", "lots"], "argument --memory: 'lots' is no size, for example 2g"),
        ([*FILES, "--mtu", "70000"], "argument --mtu: '70000' is no whole number from 1280 to 65535"),
        ([*FILES, "--timeout", "0"], "argument --timeout: '0' is no whole number above 0"),
        ([*FILES, "--jar", "nothing.jar"], "argument --jar: there is no file 'nothing.jar'"),
    ],
)
def test_a_wrong_flag_gives_one_sentence(flags: list[str], says: str) -> None:
    done = subprocess.run([sys.executable, str(LAB), *flags], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {says}") and done.stderr.count("\n") == 1
