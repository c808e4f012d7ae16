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


def test_several_hosts_send_and_others_come_and_go(cluster: Cluster) -> None:
    source, second, third, *_ = cluster
    both = [source.name, second.name]
    until("the agents know each other", lambda: len(source.status().peers) == len(cluster))
    with polycast.group("talk", both, sources=both, agent=source) as group:
        assert (group.sources, group.members) == (tuple(both), tuple(sorted(both)))
        more = group.change(add=third.name, sources=[third.name])
        assert (more.address, set(more.sources)) == (group.address, {*both, third.name})
        assert set(more.members) == {*both, third.name}
        fewer = more.change(remove=[second.name])
        assert set(fewer.members) == set(fewer.sources) == {source.name, third.name}
        for change, why in [
            ({}, "required"),
            ({"remove": "nobody-of-this-name"}, "is not a receiver"),
            ({"sources": third.name}, "is a source of this group already"),
        ]:
            with pytest.raises(errors.PolycastError, match=why):
                group.change(**change)


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
