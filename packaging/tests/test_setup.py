"""`polycast setup`, under systemd on a copy of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import program
from machine import Machine


@pytest.fixture
def machine(short_folder: Path) -> Iterator[Machine]:
    """A copy of this machine that has nothing of Polycast's."""
    made = Machine(short_folder)
    try:
        made.run("rm", "-rf", "/usr/bin/polycast", "/usr/local/bin/polycast", "/etc/polycast", "/var/lib/polycast")
        yield made
    finally:
        made.end()


def test_two_commands_make_a_cluster(machine: Machine) -> None:
    """A manager with a key of its own making, and an agent; repeated, other settings, and a key of another cluster."""
    manager = [program(), "--json", "setup", "manager", "--listen", "127.0.0.1:7400"]
    said = json.loads(machine.run(*manager).stdout)
    assert said["started"] and any("a new key" in line for line in said["done"]), said
    agent = ["/usr/local/bin/polycast", "--json", "setup", "agent", "--manager", "127.0.0.1:7400", "--interface", "lo"]
    agent += ["--key-file", "/etc/polycast/cluster.key", "--name", "gpu-1"]
    said = json.loads(machine.run(*agent).stdout)
    assert said["joined"] is True, said
    assert machine.run("systemctl", "is-active", "polycast-manager", "polycast-agent").stdout.split() == ["active"] * 2
    assert machine.run("systemctl", "is-enabled", "polycast-manager", "polycast-agent").stdout.split() == ["enabled"] * 2
    assert machine.run("stat", "-c", "%U %a", "/etc/polycast/cluster.key").stdout == "polycast 600\n"
    nodes = json.loads(machine.run("/usr/local/bin/polycast", "--json", "nodes", "--socket", "/run/polycast/agent.sock").stdout)
    assert [(node["name"], node["state"]) for node in nodes] == [("gpu-1", "ready")], nodes
    # Once more: nothing is written.
    again = json.loads(machine.run(*agent).stdout)
    assert not any("wrote" in line or "copied" in line for line in again["done"]), again
    # Other settings are not replaced without being told to.
    other = [*agent, "--store-max", "1GB"]
    refused = machine.run(*other, is_checked=False)
    assert refused.returncode == 1 and "with other settings" in refused.stderr, refused.stderr
    replaced = json.loads(machine.run(*other, "--force").stdout)
    assert replaced["joined"] is True and machine.run("test", "-e", "/etc/polycast/agent.toml.old").returncode == 0
    machine.run("sh", "-c", "/usr/local/bin/polycast key new /opt/other.key")
    wrong = machine.run(*[word.replace("/etc/polycast/cluster.key", "/opt/other.key") for word in other], is_checked=False)
    assert wrong.returncode == 1 and "is another key" in wrong.stderr, wrong.stderr


def test_a_token_lets_an_agent_in(machine: Machine) -> None:
    """A manager with an authority: its unit gets a folder for it."""
    machine.run(program(), "setup", "manager", "--listen", "127.0.0.1:7400", "--ca")
    polycast = "/usr/local/bin/polycast"
    token = machine.run("runuser", "-u", "polycast", "--", polycast, "token", "new", "--name", "gpu-1").stdout.strip()
    agent = ["setup", "agent", "--manager", "127.0.0.1:7400", "--interface", "lo", "--name", "gpu-1", "--token", token]
    said = json.loads(machine.run(polycast, "--json", *agent).stdout)
    assert said["joined"] is True, said
    assert machine.run("stat", "-c", "%U %a", "/etc/polycast/agent.toml").stdout == "polycast 600\n"
