"""Many hosts that ask for one address at the same time: how often the origin is read, and how many copies leave whom. Linux, root.

    python fetch_once.py --program target/release/polycast [--hosts 8] [--megabytes 200] [--rate 1gbit] [--killed]

Each host has an agent, in a network namespace behind a link of that rate; the origin is a web server on a host of its own, and the manager too. With
`--killed` the agent that reads the origin is killed when half has come. Prints JSON: reads of the origin, and what left the origin's host and that of each agent, over
the bytes of the object.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import hosts


class Origin(http.server.ThreadingHTTPServer):
    """Serves one file, and counts how often it is asked for and how much has been taken."""

    def __init__(self, at: str, content: bytes) -> None:
        super().__init__((at, 8000), Answer)
        self.content, self.reads, self.taken = content, 0, 0


class Answer(http.server.BaseHTTPRequestHandler):
    server: Origin

    def do_GET(self) -> None:
        self.server.reads += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        for at in range(0, len(self.server.content), 1 << 16):
            self.wfile.write(self.server.content[at : at + (1 << 16)])
            self.server.taken = at

    def log_message(self, *_: object) -> None:
        pass


def started(host: int, folder: Path, line: list[str]) -> subprocess.Popen[str]:
    """Starts a daemon on a host, and waits until it listens."""
    name = f"{line[1]}-{host}"
    with (folder / name).open("w") as log:
        child = subprocess.Popen(["ip", "netns", "exec", f"host-{host}", *line], stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
    until = time.monotonic() + 20
    while "listens on" not in (said := (folder / name).read_text()):
        if child.poll() is not None or time.monotonic() > until:
            raise hosts.Fault(f"{name} does not start: {said.strip()}")
        time.sleep(0.05)
    return child


def run(options: argparse.Namespace, folder: Path) -> None:
    count = options.hosts
    hosts.make(count + 1, options.rate, options.mtu)
    content = random.Random(7).randbytes(int(options.megabytes * 1e6))
    hosts.enter(count)
    origin = Origin(hosts.address(count), content)
    threading.Thread(target=origin.serve_forever, daemon=True).start()
    manager, children = f"{hosts.address(count)}:7400", []
    try:
        children.append(started(count, folder, [options.program, "manager", "--insecure", "--listen", manager]))
        agents = []
        for host in range(count):
            line = [options.program, "agent", "--insecure", "--manager", manager, "--interface", hosts.DEVICE, "--name", f"host-{host}"]
            line += ["--socket", str(folder / f"{host}.sock"), "--store", str(folder / f"store-{host}")]
            agents.append(started(host, folder, line))
        children += agents
        # The manager waits for its agents before it tells one to read an origin.
        time.sleep(5)
        measure(options, folder, origin, agents)
    finally:
        for child in reversed(children):
            child.kill()
            child.wait()


def measure(options: argparse.Namespace, folder: Path, origin: Origin, agents: list[subprocess.Popen[str]]) -> None:
    count, size = options.hosts, len(origin.content)
    before = [hosts.left(host) for host in range(count + 1)]
    began = time.monotonic()
    fetching = []
    for host in range(count):
        line = ["ip", "netns", "exec", f"host-{host}", options.program, "fetch", f"http://{hosts.address(count)}:8000/object", "--socket", str(folder / f"{host}.sock")]
        line += ["--out", str(folder / f"out-{host}"), "--timeout", "120s", "--json"]
        fetching.append(subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    killed = None
    if options.killed:
        while origin.taken < size // 2:
            time.sleep(0.001)
        # Only the host that reads the origin has got anything by now.
        killed = max(range(count), key=hosts.come)
        agents[killed].kill()
    ended = [fetch.communicate() for fetch in fetching]
    seconds = time.monotonic() - began
    wrong = []
    for host, (out, error) in enumerate(ended):
        if host != killed and (fetching[host].returncode or (folder / f"out-{host}").read_bytes() != origin.content):
            wrong.append(f"host {host}: {error.strip() or out.strip()}")
    if wrong:
        raise hosts.Fault("; ".join(wrong))
    filled = [host for host, (out, _) in enumerate(ended) if host != killed and json.loads(out)["filled"]]
    copies = [round((hosts.left(host) - before[host]) / size, 3) for host in range(count + 1)]
    found = {"reads_of_origin": origin.reads, "killed": killed, "filled": filled, "seconds": round(seconds, 2)}
    print(json.dumps({**found, "copies_from_origin": copies[count], "copies_from_hosts": copies[:count]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=os.path.abspath, required=True, help="polycast")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--rate", default="1gbit", help="of every link")
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--killed", action="store_true", help="the agent that reads the origin is killed at half")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fetch-once-", dir="/dev/shm") as folder:
        try:
            run(options, Path(folder))
        except hosts.Fault as fault:
            sys.exit(f"error: {fault}")


if __name__ == "__main__":
    main()
