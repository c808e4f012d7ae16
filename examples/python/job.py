"""A folder from the first process of a job to the hosts of all others, without a daemon and without torch.

    python job.py FOLDER              # as four processes of this machine
    srun python job.py FOLDER         # in a job of Slurm, with a FOLDER that every node sees

The processes meet in `FOLDER.job`, which goes when the job ends. With torchrun leave `rendezvous=` out: they meet in its store.
"""

import os
import subprocess
import sys
from pathlib import Path

from polycast import distributed


def work(folder: Path) -> None:
    with distributed.init(rendezvous=f"file://{folder.absolute()}.job") as group:
        into = Path(f"received-{group.agent.name}")
        found = group.broadcast_folder(folder, src=0, into=into, update=True, progress=True)
        print(f"rank {group.rank} of {group.world_size} on {len(group.hosts)} hosts has {len(list(found.iterdir()))} files in {found}")


def start(folder: Path, processes: int) -> int:
    """Does what torchrun and srun do: says to each process which one it is."""
    names = [{"RANK": str(rank), "WORLD_SIZE": str(processes)} for rank in range(processes)]
    running = [subprocess.Popen([sys.executable, __file__, str(folder)], env=os.environ | one) for one in names]
    return max(one.wait() for one in running)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: job.py FOLDER")
    if "RANK" in os.environ or "SLURM_PROCID" in os.environ:
        work(Path(sys.argv[1]))
    else:
        sys.exit(start(Path(sys.argv[1]), 4))
