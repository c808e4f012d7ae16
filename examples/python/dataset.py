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
            found = source.put(folder, exclude="*.tmp")
            report = source.send(found.data_id, to="all", timeout=600).result(progress=True)
            for node in report.receivers:
                print(f"{node.name}: verified after {node.seconds:.2f} s, {node.rate_bps / 1e6:.0f} Mbit/s")
            for node in nodes:
                # A folder is here as one tar file, mapped by all who read it; node.get(found.name, into=...) unpacks it.
                assert node.read(found.data_id, 10).length == found.length
        finally:
            for node in nodes:
                node.close()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: dataset.py FOLDER")
    main(Path(sys.argv[1]))
