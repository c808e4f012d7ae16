"""Groups for packets that a program sends itself, such as by IP multicast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from polycast._program import one_or_more, run_any, run_json, text_of
from polycast.errors import PolycastError

if TYPE_CHECKING:
    from polycast._agent import Agent


@dataclass(frozen=True)
class Group:
    """A group that this host sends to, and the others of `sources`. `address` and `port` belong to it alone; any other UDP port at the
    address will do, too. `rate_bps` is the rate to keep to, which no agent and no switch enforces; it is `None` on a shared network. `with`
    removes the group at its end."""

    name: str
    address: str
    port: int
    fabric: str
    rate_bps: int | None
    members: tuple[str, ...]
    # Option that names the agent.
    _at: tuple[str, ...] = field(default=(), repr=False, compare=False)
    sources: tuple[str, ...] = ()

    def away(self) -> tuple[str, ...]:
        """Returns the members and sources whose agents are not connected to the manager now. Raises `PolycastError` if the group is gone or has no
        path."""
        listed: list[dict[str, Any]] = run_any(["group", "ls", *self._at])
        for one in listed:
            if one["name"] == self.name and one["address"] == self.address:
                return tuple(one["away"])
        raise PolycastError(f"the group {self.name} is not at {self.address} any more")

    def change(
        self,
        *,
        add: str | Sequence[str] = (),
        sources: str | Sequence[str] = (),
        remove: str | Sequence[str] = (),
    ) -> Group:
        """Takes in further members (`add`) and further hosts that send (`sources`), takes out those of `remove`, and returns the group as it
        is then. The address stays. Raises `PolycastError` if the path cannot change so: then nothing has changed."""
        arguments = ["group", "change", *self._at]
        for option, names in [("add", add), ("source", sources), ("remove", remove)]:
            if names:
                arguments.append(f"--{option}={','.join(one_or_more(option, names))}")
        return _group(run_json([*arguments, "--", self.name]), self._at)

    def remove(self) -> None:
        """Gives the path back: packets to the address arrive nowhere, except on ordinary switches that forward to all who have joined."""
        run_json(["group", "rm", *self._at, "--", self.name])

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _group(made: dict[str, Any], at: tuple[str, ...]) -> Group:
    members, sources = tuple(made["members"]), tuple(made["sources"])
    return Group(made["name"], made["address"], made["port"], made["fabric"], made["rate_bps"], members, at, sources)


def group(
    name: str,
    to: str | Sequence[str],
    *,
    sources: str | Sequence[str] = (),
    fabric: str | None = None,
    rate: str | None = None,
    agent: Agent | None = None,
) -> Group:
    """Makes a group: leases a path from this host to the agents `to` for packets that this program, or any other, sends itself to
    `Group.address`. Receivers join the address as usual (`IP_ADD_MEMBERSHIP`). No packet goes through an agent, and nothing repairs packets.
    The group lasts until it is removed, also after this process.

    `sources` are the agents whose hosts send, this one among them; without it this host sends alone. A source may be in `to`, too.
    `fabric` has to carry it; without it the best one that can does. `rate` (`"500mbit"`) is what the path must have. `agent` is an agent
    that is not at its usual socket.
    """
    at: tuple[str, ...] = ()
    if agent is not None:
        # Raises if the agent was closed: its socket may by now belong to another one.
        agent._connection
        at = (f"--socket={agent.socket}",)
    arguments = ["group", "create", *at, f"--to={','.join(one_or_more('to', to))}"]
    arguments += [f"--source={','.join(one_or_more('sources', sources))}"] if sources else []
    arguments += [f"--fabric={text_of('fabric', fabric)}"] if fabric is not None else []
    arguments += [f"--rate={text_of('rate', rate)}"] if rate is not None else []
    return _group(run_json([*arguments, "--", text_of("name", name)]), at)
