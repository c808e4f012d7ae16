"""Groups for packets that a program sends itself."""

from __future__ import annotations

import polycast
import pytest
from conftest import until
from polycast import errors

Cluster = list[polycast.Agent]


def test_a_group_lasts_as_long_as_its_block(cluster: Cluster) -> None:
    source, *others = cluster
    with polycast.group("prices", [agent.name for agent in others], rate="5mbit", agent=source) as group:
        assert group.address.startswith("239.255.64.") and group.port > 0
        assert (group.fabric, group.rate_bps) == ("ip-multicast", 5_000_000)
        assert group.members == tuple(sorted(agent.name for agent in others))
        assert group.away() == ()
        with pytest.raises(errors.PolycastError, match="there is a group 'prices' already"):
            polycast.group("prices", others[0].name, agent=source)
    with pytest.raises(errors.PolycastError, match="is not at"):
        group.away()
    with pytest.raises(errors.PolycastError, match="there is no group 'prices'"):
        group.remove()


def test_what_cannot_be_a_group(cluster: Cluster) -> None:
    source, other, *_ = cluster
    until("the agents know each other", lambda: len(source.status().peers) == len(cluster))
    for name, to, fabric, why in [
        ("x", ["nobody-of-this-name"], None, "there is no agent 'nobody-of-this-name'"),
        ("x", [other.name], "tcp-chain", "carries no packets that an application sends itself"),
        (".x", [other.name], None, "cannot be a group's name"),
    ]:
        with pytest.raises(errors.PolycastError, match=why):
            polycast.group(name, to, fabric=fabric, agent=source)
    with pytest.raises(errors.UnsupportedType):
        polycast.group("x", [other.name], rate=5, agent=source)  # type: ignore[arg-type]
