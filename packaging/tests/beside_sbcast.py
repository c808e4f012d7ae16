"""Seconds that `polycast bcast` and Slurm's own `sbcast` take for the same file, in a Slurm of this machine whose nodes have links of a rate.

    POLYCAST_PROGRAM=target/release/polycast python beside_sbcast.py --nodes 16 --mb 50 --rate 200mbit --times 3

Needs root. Each job copies to all its nodes; the file is new each time, and every node's copy is compared.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from pathlib import Path

from conftest import program
from slurm import Slurm

_JOB = r"""
began=$(date +%s.%N)
{command} {file} {local}/copy || exit 1
ended=$(date +%s.%N)
echo "seconds $(echo "$ended $began" | awk '{{print $1 - $2}}')"
srun sh -c 'sha256sum < {local}/copy; rm {local}/copy'
"""


def seconds(slurm: Slurm, command: str, file: Path, digest: str) -> float:
    """One job's copy; every node has the file after it."""
    _, said = slurm.job(_JOB.format(command=command, file=file, local=slurm.local))
    lines = said.splitlines()
    assert sum(line.startswith(digest) for line in lines) == len(slurm.nodes), said
    return float(next(line.split()[1] for line in lines if line.startswith("seconds ")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--mb", type=int, default=50)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        slurm = Slurm(Path(folder), options.nodes, options.rate)
        try:
            for _ in range(options.times):
                for name, command in [("sbcast", "sbcast"), ("polycast bcast", f"{program()} bcast")]:
                    file = Path(folder) / "file"
                    content = os.urandom(options.mb * 1_000_000)
                    file.write_bytes(content)
                    took = seconds(slurm, command, file, hashlib.sha256(content).hexdigest())
                    print(f"{name} to {options.nodes} nodes: {took:.2f} s", flush=True)
        finally:
            slurm.end()


if __name__ == "__main__":
    main()
