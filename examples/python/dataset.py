"""A folder of files to several nodes, with a bar, and what became of each node.

    python dataset.py FOLDER

The nodes are agents of this machine. Between machines, `Agent()` is the host's agent, and `to="all"` are those of the cluster.
"""

import sys
from pathlib import Path

import polycast


def main(folder: Path) -> None:
    with polycast.Agent.embedded() as source:
        nodes = [polycast.Agent.embedded(source.manager, name=f"node{number}") for number in range(1, 4)]
        try:
            found = source.add(1, folder, exclude=["*.tmp"])
            transfer = source.send(1, to="all", deadline=600)
            for event in transfer:
                if isinstance(event, polycast.Progress) and event.received:
                    slowest = min(event.received.values())
                    print(f"\r{slowest / max(1, found.length):4.0%}", end="", file=sys.stderr)
            report = transfer.result()
            for node in report.receivers:
                print(f"{node.name}: {'verified' if node.verified else node.error} after {node.seconds:.2f} s")
            for node in nodes:
                # A folder is here as one tar file, mapped by all who read it.
                assert node.read(1, 10).length == found.length
        finally:
            for node in nodes:
                node.close()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: dataset.py FOLDER")
    main(Path(sys.argv[1]))
