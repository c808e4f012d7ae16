"""The client of the Hugging Face Hub, unchanged, at the hub endpoints of three agents: a hub that counts what it is asked stands behind them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polycast
import pytest
from conftest import HANG_S, free_port

pytest.importorskip("huggingface_hub")

COMMIT = "a" * 40
TOKEN = "hf_right"
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": random.Random(7).randbytes(3_000_001),
    "sub/with space \u00e9.txt": b"text",
    "empty": b"",
}
LARGE = 100_000

# In a process of its own: the client reads the endpoint when it is imported.
CLIENT = """
import hashlib, json, pathlib, sys
import huggingface_hub
folder = pathlib.Path(huggingface_hub.snapshot_download(sys.argv[1], token=sys.argv[2] or False))
files = [path for path in folder.rglob("*") if path.is_file()]
print(json.dumps({str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}))
"""


class Hub(ThreadingHTTPServer):
    """A hub with one repository that all may see, and the same one for those who have the token."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: list[str] = []
        self.body_bytes = 0
        self.flipped = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def bodies(self) -> int:
        """How often bytes of files were asked for."""
        return sum(line.startswith("GET /cdn/") or line.startswith("GET") and "/resolve/" in line for line in self.asked)


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, headers: dict[str, str], body: bytes = b"", length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def give(self, headers: dict[str, str], body: bytes) -> None:
        if self.server.flipped and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if self.command == "GET":
            self.server.body_bytes += len(body)
        self.answer(200, headers, body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        path, token = urllib.parse.unquote(self.path.split("?")[0]), self.headers.get("Authorization")
        if "org/private" in path and token != f"Bearer {TOKEN}":
            return self.answer(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        if path.startswith("/cdn/"):
            return self.give({}, FILES[path.removeprefix("/cdn/")])
        if "/resolve/" in path:
            return self.resolve(path.split("/resolve/")[1].split("/", 1)[1])
        document: object = {"id": "org/m", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]}
        if "/tree/" in path:
            document = [self.entry(name, body) for name, body in FILES.items()]
        elif "/revision/" not in path:
            return self.answer(404, {"X-Error-Code": "EntryNotFound"})
        return self.answer(200, {"Content-Type": "application/json"}, json.dumps(document).encode())

    def resolve(self, name: str) -> None:
        body, commit = FILES.get(name), {"X-Repo-Commit": COMMIT}
        if body is None:
            return self.answer(404, {**commit, "X-Error-Code": "EntryNotFound"})
        if len(body) < LARGE:
            return self.give({**commit, "ETag": f'"{git(body)}"'}, body)
        linked = {"X-Linked-Etag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Linked-Size": str(len(body)), "X-Xet-Hash": name_in_xet(body)}
        xet = {"Link": f'<{self.server.address}/api/models/org/m/xet-read-token/{COMMIT}>; rel="xet-auth"'}
        elsewhere = f"http://localhost:{self.server.server_port}/cdn/{urllib.parse.quote(name)}"
        return self.answer(302, {**commit, **linked, **xet, "Location": elsewhere})

    @staticmethod
    def entry(name: str, body: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "oid": git(body), "size": len(body), "path": name}
        if len(body) >= LARGE:
            entry |= {"xetHash": name_in_xet(body), "lfs": {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}}
        return entry


def name_in_xet(body: bytes) -> str:
    """The hub's name of a file in Xet: any one will do."""
    return hashlib.sha256(b"xet" + body).hexdigest()


def git(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.shutdown()


@pytest.fixture
def endpoints(hub: Hub, tmp_path: Path) -> Iterator[list[str]]:
    """Hub endpoints of three agents."""
    agents: list[polycast.Agent] = []
    addresses = []
    try:
        for number in range(3):
            address, config = f"127.0.0.1:{free_port()}", tmp_path / f"{number}.toml"
            config.write_text(f'[hub]\nlisten = "{address}"\nupstream = "{hub.address}"\n')
            agents.append(polycast.Agent.embedded(agents[0].manager if agents else None, config=config))
            addresses.append(f"http://{address}/hf")
        yield addresses
    finally:
        for agent in reversed(agents):
            agent.close()


def begin(endpoint: str, cache: Path, repository: str = "org/m", token: str = "", **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **more, "HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", CLIENT, repository, token]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def files_of(client: subprocess.Popen[str]) -> dict[str, str]:
    out, said = client.communicate(timeout=HANG_S)
    assert client.returncode == 0, said
    files: dict[str, str] = json.loads(out.splitlines()[-1])
    return files


RIGHT = {name: hashlib.sha256(body).hexdigest() for name, body in FILES.items()}


def test_three_clients_read_each_file_once(hub: Hub, endpoints: list[str], tmp_path: Path) -> None:
    clients = [begin(endpoint, tmp_path / f"cache-{number}") for number, endpoint in enumerate(endpoints)]
    for client in clients:
        assert files_of(client) == RIGHT
    # The empty file needs no bytes.
    assert (hub.body_bytes, hub.bodies) == (sum(map(len, FILES.values())), 2 + 2), hub.asked
    assert not any("xet" in line for line in hub.asked), hub.asked
    # A client with an empty cache gets all from the store.
    assert files_of(begin(endpoints[1], tmp_path / "again")) == RIGHT
    assert hub.body_bytes == sum(map(len, FILES.values()))


def test_wrong_bytes_reach_no_client(hub: Hub, endpoints: list[str], tmp_path: Path) -> None:
    hub.flipped = True
    # The client itself takes them for good; that it would ask servers of Xet shows that it is told of them.
    assert files_of(begin(hub.address, tmp_path / "alone", HF_HUB_DISABLE_XET="1")) != RIGHT
    begin(hub.address, tmp_path / "xet").communicate(timeout=HANG_S)
    assert any("xet-read-token" in line for line in hub.asked)
    client = begin(endpoints[0], tmp_path / "cache")
    _, said = client.communicate(timeout=HANG_S)
    assert client.returncode != 0 and "502" in said, said
    found = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and "blobs" in path.parts and path.stat().st_size]
    assert found == []
    hub.flipped = False
    assert files_of(begin(endpoints[0], tmp_path / "cache")) == RIGHT


def test_private_files_are_for_those_whom_the_hub_lets_see_them(hub: Hub, endpoints: list[str], tmp_path: Path) -> None:
    assert files_of(begin(endpoints[0], tmp_path / "mine", "org/private", TOKEN)) == RIGHT
    for token in ("hf_wrong", ""):
        client = begin(endpoints[0], tmp_path / f"others-{token}", "org/private", token)
        _, said = client.communicate(timeout=HANG_S)
        assert client.returncode != 0 and "Repository" in said, said
