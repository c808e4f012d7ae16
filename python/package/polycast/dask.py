"""Dask: one value to all workers, once per host.

    from polycast.dask import broadcast

    table = broadcast(client, array)            # a Future, as client.scatter(array, broadcast=True) gives
    client.submit(use, table)

Each worker's host runs an agent, and so does this host. Workers on one host map one copy.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from polycast import values
from polycast._agent import Agent
from polycast._shared import shared_agent
from polycast.errors import NoReceivers, ObjectUnknown

# Time that a cancelled transfer may still hold the object.
_ENDS_WITHIN_S = 2.0


def _name(app: bytes) -> str:
    return shared_agent(app).name


def _adopt(app: bytes, data_id: int, known: values.Known, key: str, timeout: float, dask_worker: Any) -> int:
    """Makes the object a result that this worker has. (Dask passes the worker under this argument's name.)"""
    value = values.unpack_broadcast(shared_agent(app), data_id, known, timeout)
    nbytes: dict[str, int] = dask_worker.update_data({key: value})["nbytes"]
    return nbytes[key]


def _forget(app: bytes, data_id: int) -> None:
    """Deletes the object. The views keep its pages."""
    try:
        shared_agent(app).delete(data_id)
    except ObjectUnknown:
        # Another worker of this host has already deleted it.
        pass


def _still_there(client: Any, names: Mapping[str, str]) -> list[str]:
    """Returns the workers that have not left since. Those that have joined since are on hosts that may lack the object."""
    return [one for one in client.nthreads() if one in names]


def _no_workers() -> NoReceivers:
    return NoReceivers("the scheduler has no workers: wait for one (client.wait_for_workers(1)), and broadcast then")


def broadcast(client: Any, value: Any, *, agent: Agent | None = None, timeout: float = 300.0) -> Any:
    """Sends a value to all workers that the client's scheduler has now, and returns its Future.

    `agent` is the agent of this process (default: the host's). Raises `TransferFailed` if a worker's host has not received the value, and
    `NoReceivers` if there is no worker.
    """
    from distributed import Future

    own = agent or Agent()
    app, data_id = own._app, uuid.uuid4().int >> 65
    key = f"polycast-{uuid.uuid4().hex}"
    try:
        names = client.run(_name, app)
        if not names:
            raise _no_workers()
        parts = values.pack(value)
        known = values.Known.of(parts)
        own.add_parts(data_id, parts, name=key)
        # The agent holds the bytes from now on.
        del parts
        others = sorted(set(names.values()) - {own.name})
        if others:
            own._send_to_the_end(data_id, others, timeout)
        # Dask's connections carry the hash, and agents the bytes.
        known = known.and_root(own.read(data_id, timeout).root)
        sizes = client.run(_adopt, app, data_id, known, key, timeout, workers=_still_there(client, names))
        if not sizes:
            # Without a worker that has it, the Future would look for its result without end.
            raise _no_workers()
        client.sync(
            client.scheduler.update_data,
            who_has={key: list(sizes)},
            nbytes={key: next(iter(sizes.values()))},
            client=client.id,
        )
        future = Future(key, client)
        client.futures[key].finish(type=type(value))
        client.run(_forget, app, data_id, workers=_still_there(client, names))
        return future
    finally:
        # A worker of this host may already have deleted it.
        own._forget_within(data_id, _ENDS_WITHIN_S)
        if agent is None:
            own.close()
