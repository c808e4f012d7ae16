"""The Ansible role: by its linter, and for real on a copy of this machine, under systemd."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HANG_S, PACKAGING, program, python_tool, until
from machine import Machine

ANSIBLE = PACKAGING / "ansible"
KEY = "0123456789abcdef" * 4


def ansible(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of Ansible beside the playbook; what it keeps is in a folder of the test."""
    environment = os.environ | {"ANSIBLE_HOME": str(folder), "HOME": str(folder), "ANSIBLE_NOCOLOR": "1", "NO_COLOR": "1"}
    environment["PATH"] = f"{Path(python_tool(name)).parent}:{os.environ['PATH']}"
    command = [python_tool(name), *arguments]
    return subprocess.run(command, cwd=ANSIBLE, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)


def test_the_playbook_can_be_read(tmp_path: Path) -> None:
    result = ansible(tmp_path, "ansible-playbook", "--list-hosts", "-i", "inventory.ini", "playbook.yml")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.findall(r"hosts \((\d+)\)", result.stdout) == ["1", "20"], result.stdout


def test_the_linter_finds_no_fault(tmp_path: Path) -> None:
    result = ansible(tmp_path, "ansible-lint", "--offline", "--profile", "production", "-q", ".")
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text("- hosts: all\n  gather_facts: false\n  roles: [polycast]\n")
    arguments = ["-c", "local", "-i", "localhost,", str(tmp_path / "play.yml"), "-e", f"ansible_python_interpreter={sys.executable}"]
    result = ansible(tmp_path, "ansible-playbook", "--check", *arguments)
    assert result.returncode != 0
    for words in ("Set polycast_package or polycast_binary", "Set polycast_manager_address", "Set polycast_key"):
        assert words in result.stdout, result.stdout + result.stderr
    assert "DEPRECATION" not in result.stdout + result.stderr


@pytest.fixture
def machine(short_folder: Path) -> Iterator[Machine]:
    """A copy of this machine, without what this test brings."""
    made = Machine(short_folder)
    try:
        made.run("rm", "-rf", "/usr/bin/polycast", "/etc/polycast", "/var/lib/polycast")
        yield made
    finally:
        made.end()


def play(machine: Machine, *options: str, **variables: object) -> tuple[str, int, int]:
    """Runs the role on the machine; gives what was said, and how much was changed and failed."""
    values = {"polycast_binary": program(), "polycast_key": KEY, **variables}
    machine.put("/opt/play.yml", b"- hosts: all\n  gather_facts: false\n  roles: [polycast]\n")
    environment = ["env", "ANSIBLE_PIPELINING=1", f"ANSIBLE_ROLES_PATH={ANSIBLE}/roles", "ANSIBLE_NOCOLOR=1"]
    command = [python_tool("ansible-playbook"), "-c", "local", "-i", "localhost,", "/opt/play.yml", "-e", "ansible_python_interpreter=/usr/bin/python3", "-e", json.dumps(values), *options]
    result = machine.run(*environment, *command, is_checked=False)
    counts = re.search(r"changed=(\d+) .* failed=(\d+)", result.stdout)
    assert counts, result.stdout + result.stderr
    return result.stdout + result.stderr, int(counts[1]), int(counts[2])


def test_the_role_installs_and_a_second_run_changes_nothing(machine: Machine) -> None:
    """A manager and an agent on one machine."""
    both = {"polycast_manager": True, "polycast_manager_listen": "127.0.0.1:7400", "polycast_manager_address": "127.0.0.1:7400"}
    more = {"polycast_name": "gpu-1", "polycast_agent_http": "127.0.0.1:7481", "polycast_socket_group": "research"}
    values = both | more | {"polycast_agent_settings": 'interface = "lo"\nsends-max = 8'}
    said, changed, failed = play(machine, **values)
    assert (failed, changed > 5) == (0, True), said
    said, changed, failed = play(machine, **values)
    assert (failed, changed) == (0, 0), said
    assert machine.run("systemctl", "is-active", "polycast-manager", "polycast-agent").stdout.split() == ["active"] * 2
    assert machine.run("systemctl", "is-enabled", "polycast-manager", "polycast-agent").stdout.split() == ["enabled"] * 2
    assert machine.run("stat", "-c", "%U %a", "/etc/polycast/cluster.key").stdout == "polycast 600\n"
    status = json.loads(machine.run("polycast", "--json", "status", "--socket", "/run/polycast/agent.sock").stdout)
    assert status["name"] == "gpu-1"
    # Other settings restart the one whose they are.
    before = machine.run("systemctl", "show", "-p", "MainPID", "polycast-manager", "polycast-agent").stdout.split()
    said, changed, failed = play(machine, "--start-at-task", "Set the agent", **values | {"polycast_agent_settings": 'interface = "lo"\nsends-max = 9'})
    assert (failed, changed) == (0, 2), said
    after = machine.run("systemctl", "show", "-p", "MainPID", "polycast-manager", "polycast-agent").stdout.split()
    assert after[0] == before[0] and after[1] != before[1]
    the_store_outlives_the_agent(machine)


def the_store_outlives_the_agent(machine: Machine) -> None:
    """What is in memory stays where the agent's unit, alone on its machine, ends and begins again."""
    manager = ["--manager", "127.0.0.1:7400", "--name", "source", "--interface", "lo", "--key-file", "/opt/key"]
    machine.run("sh", "-c", f"echo {KEY} > /opt/key; chmod 600 /opt/key; echo data > /opt/f")
    machine.run("systemd-run", "-q", "polycast", "agent", *manager, "--store", "/dev/shm/source", "--socket", "/run/source.sock")
    until("the source is there", lambda: machine.run("polycast", "status", "--socket", "/run/source.sock", is_checked=False).returncode == 0)
    machine.run("polycast", "send", "/opt/f", "--to", "gpu-1", "--socket", "/run/source.sock")
    # The manager's unit has the same user: what systemd removes of a user it removes with the last unit of it.
    machine.run("systemctl", "stop", "polycast-manager")
    for what in (["restart"], ["stop", "start"]):
        for step in what:
            machine.run("systemctl", step, "polycast-agent")
        listed = json.loads(machine.run("polycast", "--json", "ls", "--socket", "/run/polycast/agent.sock").stdout)
        assert [each["name"] for each in listed] == ["f"], f"after {what}: {listed}"
