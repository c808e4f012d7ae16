"""Polycast delivers one object to many machines: model weights, datasets, images, broadcast values.

    import polycast

    polycast.cast("model.bin", receivers=4)          # on this machine, to see it work

    offer = polycast.offer("model.bin", receivers=2) # between machines: give offer.code to the others
    polycast.accept(code, into="models")             # on the others

    distributed.broadcast_folder("model", src=0)     # in every process of a job of torchrun: from polycast import distributed

    with polycast.Agent() as agent:                  # `polycast agent` runs on each host
        agent.add(17, "model.bin")
        print(agent.send(17, to="all").result())

    with polycast.Agent() as agent:                  # on a receiver
        weights = agent.read(17).numpy("float32")    # the agent's verified copy, mapped, not copied
"""

from polycast import errors
from polycast._agent import (
    Agent,
    Files,
    Object,
    Part,
    Published,
    SetFile,
    Status,
    Transfer,
    Version,
    Versions,
    Watch,
)
from polycast._events import Event, Finished, Granted, Progress, Receiver, Report, Waiting
from polycast._groups import Group, group
from polycast._native import VERSION as __version__
from polycast._program import Accepted, Offer, accept, cast, fetch, offer, program, publish
from polycast.errors import PolycastError

__all__ = [
    "Accepted",
    "Agent",
    "Event",
    "Files",
    "Finished",
    "Granted",
    "Group",
    "Object",
    "Offer",
    "Part",
    "PolycastError",
    "Progress",
    "Published",
    "Receiver",
    "Report",
    "SetFile",
    "Status",
    "Transfer",
    "Version",
    "Versions",
    "Waiting",
    "Watch",
    "__version__",
    "accept",
    "cast",
    "errors",
    "fetch",
    "group",
    "offer",
    "program",
    "publish",
]
