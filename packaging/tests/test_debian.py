"""The Debian package, from an empty root of this machine's own release to its removal: two machines that systemd runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HANG_S, NO_REGISTRY, PACKAGING, program, tool, until
from machine import Machine

ROOT = PACKAGING.parent
# A mirror that gives a byte gives a root in a few minutes.
_BOOTSTRAP_S = 900
_MIRRORS = {"debian": "http://deb.debian.org/debian", "ubuntu": "http://archive.ubuntu.com/ubuntu"}
_SOCKET = "/run/polycast/agent.sock"
# Sends one file after the other; what was cut off is sent again, until it has come.
_TRAFFIC = r"""
for file in /opt/traffic/*; do
    until polycast send "$file" --to b --socket /run/polycast/agent.sock --json --timeout 60s >> /opt/reports 2>> /opt/words; do
        sleep 0.2
    done
done
touch /opt/all-sent
"""
# Written by the system itself, whatever is installed.
_PASSING = ("/opt", "/tmp", "/var/log", "/var/lib/dpkg", "/var/lib/apt", "/var/cache", "/var/lib/systemd", "/var/tmp", "/root", "/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow", "/etc/subuid", "/etc/subgid", "/etc/.pwd.lock", "/etc/machine-id", "/etc/mtab", "/var/backups")


def _release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}


@pytest.fixture(scope="module")
def root() -> Path:
    """An empty root of this machine's release, which stays for the next time: POLYCAST_DEBIAN_ROOT names another one."""
    if os.geteuid() != 0:
        pytest.skip("not root: debootstrap and machines need it")
    system = _release()
    given = os.environ.get("POLYCAST_DEBIAN_ROOT")
    folder = Path(given) if given else Path(program()).parents[1] / "packaging" / system.get("VERSION_CODENAME", "none")
    if (folder / "lib/systemd/systemd").exists():
        return folder
    mirror = _MIRRORS.get(system.get("ID", ""))
    if mirror is None:
        pytest.skip(f"this system is {system.get('ID')}, which debootstrap makes no root of")
    making = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(making, ignore_errors=True)
    making.parent.mkdir(parents=True, exist_ok=True)
    command = [tool("debootstrap"), "--variant=minbase", "--include=systemd-sysv,iproute2", system["VERSION_CODENAME"], str(making), mirror]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_BOOTSTRAP_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{NO_REGISTRY} root within {_BOOTSTRAP_S} s")
    if ran.returncode != 0:
        shutil.rmtree(making, ignore_errors=True)
        pytest.skip(f"{NO_REGISTRY} root: {ran.stdout.strip().splitlines()[-1:]}")
    making.rename(folder)
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package of the tests' program, and a newer one: the same program under a higher version."""
    folder = tmp_path_factory.mktemp("packages")
    stripped = folder / "program"
    subprocess.run([tool("strip"), "-o", stripped, program()], check=True)
    quick = {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
    environment = dict(os.environ, CARGO_TARGET_DIR=str(Path(program()).parents[1]), **quick)
    make = [tool("cargo"), "run", "--offline", "--quiet", "--package", "xtask", "--", "dist", "--program", str(stripped), str(folder)]
    subprocess.run(make, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    (old,) = folder.glob("*.deb")
    opened, newer = folder / "opened", folder / "newer.deb"
    subprocess.run([tool("dpkg-deb"), "-R", old, opened], check=True)
    control = opened / "DEBIAN/control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 99."))
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", opened, newer], check=True, stdout=subprocess.DEVNULL)
    return old, newer


@pytest.fixture
def machines(short_folder: Path, root: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two machines with a network of 200 Mbit/s between them."""
    made: list[Machine] = []
    try:
        for name in ("a", "b"):
            made.append(Machine(short_folder / name, root))
        one, other = made
        ends = ["type", "veth", "peer", "name", "eth0", "netns", str(other.first)]
        subprocess.run([tool("nsenter"), "--target", str(one.first), "--net", "ip", "link", "add", "eth0", *ends], check=True)
        for number, machine in enumerate(made, 1):
            machine.run("ip", "address", "add", f"10.9.0.{number}/24", "dev", "eth0")
            machine.run("ip", "link", "set", "eth0", "up")
            machine.run("ip", "route", "add", "default", "dev", "eth0")
            machine.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "200mbit", "burst", "256k", "latency", "20ms")
        yield one, other
    finally:
        for machine in made:
            machine.end()


def _install(machine: Machine, package: Path) -> None:
    machine.put("/opt/polycast.deb", package.read_bytes())
    machine.run("apt-get", "-y", "-q", "--allow-downgrades", "install", "/opt/polycast.deb")


def _files(machine: Machine) -> set[str]:
    found = machine.run("find", "/", "/run", "/dev/shm", "-xdev", "(", "-path", "/run/systemd", "-o", "-path", "/run/udev", ")", "-prune", "-o", "-print").stdout
    return {path for path in found.splitlines() if not path.startswith(_PASSING)}


def _deliver(one: Machine, other: Machine, name: str) -> None:
    """A new file from the first to the second, through the agents of their units."""
    one.run("sh", "-c", f"head -c 3000000 /dev/urandom > /opt/{name}")
    one.run("polycast", "send", f"/opt/{name}", "--to", "b", "--socket", _SOCKET)
    other.run("polycast", "get", name, "--out", f"/opt/{name}", "--socket", _SOCKET)
    sums = [machine.run("sha256sum", f"/opt/{name}").stdout for machine in (one, other)]
    assert sums[0] == sums[1], sums


def _is_current(machine: Machine, *units: str) -> None:
    """No daemon runs a program that was replaced."""
    for unit in units:
        first = machine.run("systemctl", "show", "-P", "MainPID", unit).stdout.strip()
        running = machine.run("readlink", f"/proc/{first}/exe").stdout.strip()
        assert running == "/usr/bin/polycast", (unit, running)


def test_from_an_empty_root_to_its_removal(machines: tuple[Machine, Machine], packages: tuple[Path, Path]) -> None:
    """A delivery, an upgrade in the midst of transfers, the way back, and a purge that leaves nothing."""
    (one, other), (old, new) = machines, packages
    before = [_files(machine) for machine in machines]
    for machine in machines:
        _install(machine, old)
        assert machine.run("systemctl", "is-enabled", "polycast-agent", is_checked=False).stdout.strip() == "disabled"
    one.run("polycast", "setup", "manager", "--listen", "10.9.0.1:7400")
    key = one.run("cat", "/etc/polycast/cluster.key").stdout
    for name, machine in (("a", one), ("b", other)):
        machine.put("/opt/cluster.key", key.encode())
        machine.run("chmod", "600", "/opt/cluster.key")
        machine.run("polycast", "setup", "agent", "--manager", "10.9.0.1:7400", "--key-file", "/opt/cluster.key", "--name", name)
    until("both have joined", lambda: one.run("polycast", "nodes", "--socket", _SOCKET).stdout.count("ready") == 2)
    _deliver(one, other, "first")

    _upgrade_in_traffic(one, other, new)
    for machine in machines:
        assert machine.run("dpkg-query", "-W", "-f", "${Version}", "polycast").stdout.startswith("99.")

    for machine in machines:
        _install(machine, old)
        machine.run("sh", "-c", "systemctl try-restart polycast-manager && systemctl restart polycast-agent")
        assert not machine.run("dpkg-query", "-W", "-f", "${Version}", "polycast").stdout.startswith("99.")
    _is_current(one, "polycast-manager", "polycast-agent")
    until("both have joined again", lambda: one.run("polycast", "nodes", "--socket", _SOCKET, is_checked=False).stdout.count("ready") == 2)
    _deliver(one, other, "after-the-way-back")

    for machine, files in zip(machines, before, strict=True):
        machine.run("apt-get", "-y", "-q", "remove", "polycast")
        assert machine.run("sh", "-c", "grep -lx polycast /proc/[0-9]*/comm", is_checked=False).stdout == "", "a daemon runs on"
        machine.run("test", "-e", "/etc/polycast/agent.toml")
        machine.run("apt-get", "-y", "-q", "purge", "polycast")
        assert machine.run("getent", "passwd", "polycast", is_checked=False).returncode == 2
        assert machine.run("getent", "group", "polycast", is_checked=False).returncode == 2
        units = machine.run("systemctl", "list-units", "--all", "--no-legend", "polycast*").stdout
        assert units == "" and "polycast" not in machine.run("systemctl", "list-unit-files").stdout, units
        left = {path for path in _files(machine) - files if "polycast" in path}
        assert left == set()
        assert _files(machine) - files == set()


def _upgrade_in_traffic(one: Machine, other: Machine, new: Path) -> None:
    """Installs a package and restarts one daemon after the other, as the page says, while files are sent."""
    one.run("sh", "-c", "mkdir /opt/traffic; for i in 1 2 3 4 5 6 7 8; do head -c 60000000 /dev/urandom > /opt/traffic/f$i; done")
    one.put("/opt/traffic.sh", _TRAFFIC.encode())
    one.run("systemd-run", "--unit=traffic", "sh", "/opt/traffic.sh")
    for machine in (one, other):
        _install(machine, new)
    restarts = ((one, "polycast-manager"), (other, "polycast-agent"), (one, "polycast-agent"))
    for machine, unit in restarts:
        until("a transfer runs", lambda: _is_sending(one))
        machine.run("systemctl", "restart", unit)
    until("all were sent", lambda: one.run("test", "-e", "/opt/all-sent", is_checked=False).returncode == 0)
    _is_current(one, "polycast-manager", "polycast-agent")
    _is_current(other, "polycast-agent")
    for number in range(1, 9):
        other.run("polycast", "get", f"f{number}", "--out", f"/opt/f{number}", "--socket", _SOCKET)
    sums = [machine.run("sh", "-c", f"cd {folder} && sha256sum f?").stdout for machine, folder in ((one, "/opt/traffic"), (other, "/opt"))]
    assert sums[0] == sums[1], sums
    reports = [json.loads(line) for line in one.run("cat", "/opt/reports").stdout.splitlines()]
    whole = [report for report in reports if "receivers" in report and report["receivers"][0]["verified"]]
    words = one.run("cat", "/opt/words").stdout
    assert len(whole) == 8, reports
    assert len(reports) > 8, f"no transfer was cut off: {words}"
    assert any(report["receivers"][0]["spared_bytes"] > 0 for report in whole), f"none went on from where it was: {reports}"


def _is_sending(machine: Machine) -> bool:
    """Whether a part of a file has come, and not all."""
    said = machine.run("polycast", "transfers", "--json", "--socket", _SOCKET, is_checked=False)
    return said.returncode == 0 and any(10 < (one["percent"] or 0) < 60 for one in json.loads(said.stdout))
