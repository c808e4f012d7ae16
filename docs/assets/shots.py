#!/usr/bin/env python3
"""Draws what `polycast send` and `polycast status` print on a real cluster: a manager and four agents in network namespaces.

It needs what record.py needs.

    sudo python3 docs/assets/shots.py target/release/polycast
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from record import GIVE_UP_S, Pane, build, draw, runs

HOSTS = [f"gpu{number}" for number in range(5)]
MANAGER = "10.0.0.1:7400"
COLUMNS, LINES = 112, 60
SCRATCH = Path("/mnt")
FOLDER = Path(__file__).parent


class Cluster:
    """A manager on the first host, and an agent on each."""

    def __init__(self, program: Path, scratch: Path) -> None:
        self.program, self.scratch = program, scratch
        self.key = str(scratch / "cluster.key")
        self.daemons: list[subprocess.Popen[bytes]] = []
        subprocess.run([program, "key", "new", self.key], check=True, capture_output=True)
        self.run_daemon(HOSTS[0], "manager", "--listen", MANAGER)
        for host in HOSTS:
            self.run_daemon(host, "agent", "--manager", MANAGER, "--store", str(scratch / host))
        self.wait_for_agents()

    def socket(self, host: str) -> str:
        return str(self.scratch / f"{host}.sock")

    def command(self, host: str, *words: str) -> list[str]:
        inside = 'hostname "$1"; shift; exec "$@"'
        return ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", inside, "sh", host, str(self.program), *words]

    def run_daemon(self, host: str, *words: str) -> None:
        command = self.command(host, *words, "--key-file", self.key)
        log = open(self.scratch / f"{host}-{words[0]}.log", "wb")
        environment = {**os.environ, "POLYCAST_SOCKET": self.socket(host)}
        self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    def run(self, host: str, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "POLYCAST_SOCKET": self.socket(host)}
        return subprocess.run(self.command(host, *words), capture_output=True, text=True, check=False, env=environment)

    def wait_for_agents(self) -> None:
        """Waits until the first host's agent sees all others."""
        begun = time.monotonic()
        while not all(host in self.run(HOSTS[0], "status").stdout for host in HOSTS):
            if time.monotonic() - begun > GIVE_UP_S:
                sys.exit("not all agents have joined: " + self.run(HOSTS[0], "status").stderr)
            time.sleep(0.2)

    def end(self) -> None:
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait(timeout=GIVE_UP_S)


def shoot(cluster: Cluster, host: str, command: str, name: str) -> None:
    """Runs a command in a terminal, and draws what it has printed."""
    pane = Pane(host, COLUMNS, LINES)
    pane.stream.feed(f"\x1b[32m$\x1b[0m {command}\r\n".encode())
    pane.start(command.split(), cluster.scratch, cluster.program, POLYCAST_SOCKET=cluster.socket(host))
    while True:
        try:
            heard = os.read(pane.master, 65536)
        except OSError:  # The program has ended.
            break
        pane.stream.feed(heard)
    if pane.process is None or pane.process.wait(timeout=GIVE_UP_S):
        sys.exit(f"{command} failed:\n{pane.text().strip()}")
    shown = [runs(pane.screen, number) for number in range(LINES)]
    while shown and not shown[-1]:
        shown.pop()
    pane.lines = len(shown)
    pane.shown = [[(0, row)] for row in shown]
    picture = FOLDER / f"{name}.svg"
    picture.write_text(draw([pane], 0, f"What {command} prints"))
    print(picture)


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("program", type=Path, help="the program to show")
    about.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = about.parse_args()
    if os.geteuid() != 0:
        sys.exit("namespaces belong to root: run it with sudo")
    if not options.inside:
        os.execvp("unshare", ["unshare", "--mount", "--net", sys.executable, *sys.argv, "--inside"])
    build(HOSTS, "1gbit")
    # Mounts of this process end with it, so the folder has the same name in every picture.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", SCRATCH], check=True)
    (SCRATCH / "model.bin").write_bytes(os.urandom(64 << 20))
    cluster = Cluster(options.program.resolve(), SCRATCH)
    try:
        shoot(cluster, HOSTS[0], "polycast send model.bin --to all", "send")
        shoot(cluster, HOSTS[1], "polycast status", "status")
    finally:
        cluster.end()


if __name__ == "__main__":
    main()
