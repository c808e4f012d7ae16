"""Ray: one value to all nodes, once per node.

    from polycast import ray as polycast_ray

    handle = polycast_ray.broadcast(weights)       # in the driver, or in any task
    use.remote(handle)                             # handle.get() there gives the value, its arrays as views

Each node of the cluster runs an agent, found by POLYCAST_SOCKET or at its usual place. Nodes that join later do not get the value:
broadcast it again.

`register_transport()` has Ray itself deliver the results of actors' methods (Ray's direct transport, which is alpha in Ray 2.60):

    polycast_ray.register_transport()              # in the driver, before it makes actors

    @ray.remote(enable_tensor_transport=True)
    class Trainer:
        @ray.method(tensor_transport="polycast")
        def weights(self): ...                     # a node that takes the reference gets its tensors from the nearest agent
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polycast import values
from polycast._agent import Agent
from polycast._shared import shared_agent

if TYPE_CHECKING:
    from typing import Literal

# Time that a cancelled transfer may still hold the object.
_ENDS_WITHIN_S = 2.0
# Values that tasks of this process have taken, until they are deleted.
_VALUES: dict[tuple[str, int], Any] = {}


def _agent(app: str) -> Agent:
    """Returns this process's connection to its node's agent."""
    return shared_agent(uuid.UUID(app).bytes)


@dataclass(frozen=True)
class Handle:
    """A value that was broadcast. Tasks and actors take it as an argument."""

    app: str
    data_id: int
    timeout: float
    # Ray's connections carry this handle, and agents the bytes.
    known: values.Known

    def get(self) -> Any:
        """Returns the value: the same one in all tasks of a process."""
        key = (self.app, self.data_id)
        if key not in _VALUES:
            _drop_deleted(self.app)
            _VALUES[key] = values.unpack_broadcast(_agent(self.app), self.data_id, self.known, self.timeout)
        return _VALUES[key]

    def delete(self) -> dict[str, str]:
        """Removes the value from all nodes; views of it stay valid. Returns the agents that still have it, each with the reason."""
        _VALUES.pop((self.app, self.data_id), None)
        return _agent(self.app).remove(self.data_id, "all")


def _drop_deleted(app: str) -> None:
    """Drops values that another process has deleted: this one has heard nothing of it, and would keep their pages until it ends."""
    known = [key for key in list(_VALUES) if key[0] == app]
    here = {one.data_id for one in _agent(app).list()} if known else set()
    for key in known:
        if key[1] not in here:
            _VALUES.pop(key, None)


def _name(app: str) -> str:
    return _agent(app).name


def broadcast(value: Any, *, app: str | None = None, timeout: float = 300.0) -> Handle:
    """Sends a value to the agents of all nodes that are alive. Raises `TransferFailed` if one has not received it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    app = app or str(uuid.UUID(int=0))
    agent, data_id = _agent(app), uuid.uuid4().int >> 65
    ask = ray.remote(num_cpus=0)(_name)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    asked = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(app) for node in nodes
    ]
    others = sorted(set(ray.get(asked, timeout=timeout)) - {agent.name})
    parts = values.pack(value)
    known = values.Known.of(parts)
    agent.add_parts(data_id, parts, name=f"ray-{data_id}")
    # The agent holds the bytes from now on.
    del parts
    try:
        if others:
            agent._send_to_the_end(data_id, others, timeout)
    except BaseException:
        agent._forget_within(data_id, _ENDS_WITHIN_S)
        raise
    return Handle(app, data_id, timeout, known.and_root(agent.read(data_id, timeout).root))


def register_transport(name: str = "polycast", *, framework: Literal["torch", "numpy"] = "torch") -> None:
    """Registers the transport of this name for tensors of `torch`, or for arrays of `numpy`; one name serves only one of them. Call it in
    the process that makes the actors, before it makes them. A second call does nothing."""
    from ray.experimental import register_tensor_transport
    from ray.experimental.rdt.util import transport_manager_info

    from polycast import _ray_transport
    from polycast.errors import Invalid

    if framework not in ("torch", "numpy"):
        raise Invalid(f"'{framework}' is no framework that tensors can be of: numpy or torch")
    manager = {"torch": _ray_transport.TorchTransport, "numpy": _ray_transport.NumpyTransport}[framework]
    known = transport_manager_info.get(name.upper())
    if known is not None:
        if known.transport_manager_class is not manager:
            raise Invalid(f"Ray has another transport '{name}' already: give another name")
        return
    devices = ["cpu", "cuda"] if framework == "torch" else ["cpu"]
    register_tensor_transport(name, devices, manager, manager.data_type())
