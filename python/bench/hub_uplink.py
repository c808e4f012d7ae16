"""Hosts that ask for one file of a hub, or one layer of an image, at the same moment, behind a link that may be slower than theirs. Linux, root.

    python hub_uplink.py --program target/release/polycast [--hosts 6] [--megabytes 300] [--uplink 100mbit] [--rate 1gbit] [--client VENV/bin/python]
    python hub_uplink.py --program target/release/polycast --image --hosts 8 --megabytes 2000 --uplink 1gbit

Each host has an agent with a hub endpoint and a client, in a network namespace behind a link of that rate; the hub, which gives one model of one file, is
on a host of its own behind the uplink. Clients are of the standard library; with `--client` they are that Python's huggingface_hub
(`snapshot_download`). With `--image` it is a registry with an image of one layer, agents are its mirrors, and clients, which keep no bytes, get
manifest and layer as runtimes do. `--stores DIR` keeps the agents' stores there in place of memory. `--alone` leaves out the agents: each client asks the hub itself. Prints JSON: seconds of each client and of
the hub until it had given all, how much of the file it had given when each client had its first byte (standard library only), and the bytes that it has given
over those of the file.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import http.server
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

import hosts

COMMIT = "a" * 40
FILE = "model.safetensors"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
PIECE = 1 << 16
REAL = """
import sys, huggingface_hub
print(huggingface_hub.snapshot_download("org/m"))
"""


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, at: str, content: bytes) -> None:
        super().__init__((at, 8000), Answers)
        self.at, self.content, self.given, self.reads, self.ended = at, content, 0, 0, 0.0
        self.digest = hashlib.sha256(content).hexdigest()
        layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{self.digest}", "size": len(content)}
        self.manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [layer]}).encode()
        self.manifest_digest = "sha256:" + hashlib.sha256(self.manifest).hexdigest()
        self.lock = threading.Lock()


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def document(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.answer(200, {"Content-Type": "application/json"}, len(body))
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.server, urllib.parse.urlsplit(self.path).path
        size = len(hub.content)
        if path.endswith(f"/resolve/{COMMIT}/{FILE}") or path.endswith(f"/resolve/main/{FILE}"):
            linked = {"X-Linked-Etag": f'"{hub.digest}"', "X-Linked-Size": str(size), "ETag": f'"{hub.digest}"', "X-Repo-Commit": COMMIT}
            self.answer(200, linked, size)
            if self.command == "GET":
                self.give()
        elif path == "/v2/org/m/manifests/1" or path == f"/v2/org/m/manifests/{hub.manifest_digest}":
            self.answer(200, {"Content-Type": MANIFEST, "Docker-Content-Digest": hub.manifest_digest}, len(hub.manifest))
            if self.command == "GET":
                self.wfile.write(hub.manifest)
        elif path == f"/v2/org/m/blobs/sha256:{hub.digest}":
            self.answer(200, {"Docker-Content-Digest": f"sha256:{hub.digest}"}, size)
            if self.command == "GET":
                self.give()
        elif "/revision/" in path:
            self.document({"id": "org/m", "sha": COMMIT, "siblings": [{"rfilename": FILE}]})
        elif "/tree/" in path and "additional" not in path:
            lfs = {"oid": hub.digest, "size": size, "pointerSize": 134}
            self.document([{"type": "file", "oid": "b" * 40, "size": size, "path": FILE, "lfs": lfs}])
        else:
            self.answer(404, {"X-Error-Code": "EntryNotFound"}, 0)

    def give(self) -> None:
        hub = self.server
        with hub.lock:
            hub.reads += 1
        for at in range(0, len(hub.content), PIECE):
            piece = hub.content[at : at + PIECE]
            self.wfile.write(piece)
            with hub.lock:
                hub.given += len(piece)
        hub.ended = time.monotonic()


def started(host: int, log: Path, line: list[str], says: str) -> subprocess.Popen[str]:
    with log.open("w") as out:
        command = ["ip", "netns", "exec", f"host-{host}", *line]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True)
    until = time.monotonic() + 60
    while says not in (said := log.read_text()):
        if child.poll() is not None or time.monotonic() > until:
            raise hosts.Fault(f"{line[1]} does not start: {said.strip()}")
        time.sleep(0.05)
    return child


class Client(threading.Thread):
    """A client on a host, which begins with all others."""

    def __init__(self, host: int, at: str, hub: Hub, folder: Path, begin: threading.Barrier, python: str | None) -> None:
        super().__init__(daemon=True)
        self.host, self.at, self.hub, self.folder, self.begin, self.python = host, at, hub, folder, begin, python
        self.is_image, self.registry = False, f"{hub.at}:8000"
        self.seconds, self.first, self.began, self.fault = 0.0, 0.0, 0.0, "it has not ended"

    def run(self) -> None:
        hosts.enter(self.host)
        self.begin.wait()
        began = self.began = time.monotonic()
        try:
            self.real() if self.python else self.plain()
            self.seconds, self.fault = time.monotonic() - began, ""
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"

    def plain(self) -> None:
        address = urllib.parse.urlsplit(self.at)
        line = http.client.HTTPConnection(address.netloc, timeout=60)
        path, kept = f"{address.path}/org/m/resolve/main/{FILE}", self.folder / f"out-{self.host}"
        if self.is_image:
            line.request("GET", f"{address.path}/v2/org/m/manifests/1?ns={self.registry}", headers={"Accept": MANIFEST})
            layer = json.loads(line.getresponse().read())["layers"][0]["digest"]
            path, kept = f"{address.path}/v2/org/m/blobs/{layer}?ns={self.registry}", Path(os.devnull)
        line.request("GET", path)
        response, digest, size = line.getresponse(), hashlib.sha256(), 0
        with kept.open("wb") as out:
            while piece := response.read(1 << 20):
                if not size:
                    self.first = self.hub.given / len(self.hub.content)
                digest.update(piece)
                out.write(piece)
                size += len(piece)
        if digest.hexdigest() != self.hub.digest:
            raise hosts.Fault(f"{response.status}, {size} bytes of another file")

    def real(self) -> None:
        environment = {**os.environ, "HF_ENDPOINT": self.at, "HF_HOME": str(self.folder / f"cache-{self.host}"), "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run([str(self.python), "-c", REAL], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise hosts.Fault(done.stderr.strip()[-500:])
        bytes_ = (Path(done.stdout.strip().splitlines()[-1]) / FILE).read_bytes()
        if hashlib.sha256(bytes_).hexdigest() != self.hub.digest:
            raise hosts.Fault("another file")


def run(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    count, children = options.hosts, []
    hosts.make(count + 1, options.rate, 1500)
    hosts.sh(f"ip netns exec host-{count} tc qdisc replace dev {hosts.DEVICE} root tbf rate {options.uplink} burst 256kb limit 2mb")
    noise, size = random.Random(7), int(options.megabytes * 1e6)
    content = b"".join(noise.randbytes(min(1 << 20, size - at)) for at in range(0, size, 1 << 20))
    hubs: list[Hub] = []

    def serve() -> None:
        hosts.enter(count)
        hubs.append(Hub(hosts.address(count), content))
        hubs[0].serve_forever()

    own = threading.Thread(target=serve, daemon=True)
    own.start()
    while not hubs:
        time.sleep(0.05)
    upstream = f"http://{hosts.address(count)}:8000"
    try:
        manager = f"{hosts.address(0)}:7400"
        if not options.alone:
            line = [options.program, "manager", "--insecure", "--listen", manager]
            children.append(started(0, folder / "manager.log", line, "listens on"))
            config = folder / "agent.toml"
            config.write_text(f'[hub]\nlisten = "127.0.0.1:7481"\nupstream = "{upstream}"\n[oci]\nlisten = "127.0.0.1:7482"\nregistries = ["{upstream}"]\n')
            for host in range(count):
                line = [options.program, "agent", "--insecure", "--manager", manager, "--interface", hosts.DEVICE, "--name", f"host-{host}"]
                store = Path(options.stores or folder) / f"store-{host}"
                line += ["--socket", str(folder / f"{host}.sock"), "--store", str(store), "--config", str(config)]
                children.append(started(host, folder / f"agent-{host}.log", line, "listens on"))
            # The manager waits for its agents before it tells one to read.
            time.sleep(6)
        endpoint = upstream if options.alone else "http://127.0.0.1:7482" if options.image else "http://127.0.0.1:7481/hf"
        begin = threading.Barrier(count)
        clients = [Client(host, endpoint, hubs[0], folder, begin, options.client) for host in range(count)]
        for client in clients:
            client.is_image = options.image
            client.start()
        for client in clients:
            client.join()
        began = min(client.began for client in clients)
        faults = [f"host {client.host}: {client.fault}" for client in clients if client.fault]
        if faults:
            raise hosts.Fault("; ".join(faults))
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
        if options.logs:
            for log in folder.glob("*.log"):
                sys.stderr.write(f"== {log.name}\n{log.read_text()}")
    hub, used = hubs[0], resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "hosts": count,
        "bytes": len(content),
        "seconds": [round(client.seconds, 2) for client in clients],
        "last_s": round(max(client.seconds for client in clients), 2),
        "given_at_first_byte": None if options.client else [round(client.first, 3) for client in clients],
        "hub_s": round(hub.ended - began, 2),
        "daemons_cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "reads": hub.reads,
        "upstream_over_bytes": round(hub.given / len(content), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=os.path.abspath, default="polycast")
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--megabytes", type=float, default=300)
    parser.add_argument("--uplink", default="100mbit")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--client", help="a Python with huggingface_hub")
    parser.add_argument("--image", action="store_true", help="a registry, and an image of one layer")
    parser.add_argument("--stores", help="a folder for the agents' stores")
    parser.add_argument("--alone", action="store_true", help="without agents")
    parser.add_argument("--logs", action="store_true", help="print the daemons' logs")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="hub-uplink-", dir="/dev/shm") as folder:
            print(json.dumps(run(options, Path(folder))))
    except hosts.Fault as fault:
        sys.exit(str(fault))


if __name__ == "__main__":
    main()
