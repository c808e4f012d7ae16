"""A lookup table for every worker of a Dask cluster, and a task on each that uses it.

    python table.py [ROWS]

The workers are processes of this machine: two beside one agent and one beside another, as if those were two hosts. Between machines every
host runs an agent, and `broadcast(client, table)` is all of it.
"""

import logging
import sys
from typing import Any

import numpy
import polycast
from distributed import Client, Nanny, Scheduler, SpecCluster
from polycast.dask import broadcast


def cluster(sockets: list[str]) -> SpecCluster:
    """A scheduler, and a worker for each of these agents."""
    scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "dashboard": False}}

    def worker(socket: str) -> dict[str, Any]:
        return {"cls": Nanny, "options": {"host": "127.0.0.1", "nthreads": 1, "env": {"POLYCAST_SOCKET": socket}, "silence_logs": logging.WARNING}}

    return SpecCluster(scheduler=scheduler, workers=dict(enumerate(map(worker, sockets))), silence_logs=logging.WARNING)


def total(table: Any, rows: list[int]) -> tuple[float, bool]:
    """The sum of some rows, and whether the table is a copy of this process."""
    return float(table[rows].sum()), bool(table.flags.owndata)


def main(rows: int) -> None:
    table = numpy.arange(rows, dtype="f8") / 4
    some = [0, rows // 2, rows - 1]
    with polycast.Agent.embedded() as here, polycast.Agent.embedded(here.manager) as there:
        with cluster([here.socket, here.socket, there.socket]) as workers, Client(workers) as client:
            client.wait_for_workers(3, timeout=60)
            shared = broadcast(client, table, agent=here)
            for worker in client.scheduler_info()["workers"]:
                found, is_copy = client.submit(total, shared, some, workers=[worker], pure=False).result()
                assert found == table[some].sum()
                kind = "a copy" if is_copy else "a view of its host's copy"
                print(f"{worker}: {found}, from {kind}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
