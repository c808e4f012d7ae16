"""The client of ModelScope, unchanged, at the endpoints of two agents: a ModelScope that counts what it is asked stands behind them."""

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

pytest.importorskip("modelscope")

TOKEN = "ms_right"
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "weights/model.safetensors": random.Random(7).randbytes(12_000_001),
}
CLIENT = """
import hashlib, json, pathlib, sys
from modelscope import snapshot_download
folder = pathlib.Path(snapshot_download("org/m", **({"token": sys.argv[1]} if sys.argv[1] else {})))
names = sys.argv[2:]
print(json.dumps({name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}))
"""
# From one MiB on a file comes in several ranges.
PARALLEL = {"MODELSCOPE_DOWNLOAD_PARALLEL_THRESHOLD_MB": "1", "MODELSCOPE_DOWNLOAD_PARALLEL_WORKERS": "4"}


class Scope(ThreadingHTTPServer):
    """A ModelScope with one model."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: list[str] = []
        self.body_bytes = 0
        self.private = self.flipped = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scope

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", location: str = "") -> None:
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        url = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(url.query))
        if url.path.startswith("/cdn/"):
            body = FILES[urllib.parse.unquote(url.path.removeprefix("/cdn/"))]
            self.server.body_bytes += len(body)
            return self.answer(200, bytes([body[0] ^ self.server.flipped]) + body[1:])
        if not url.path.startswith("/api/v1/models/org/m"):
            return self.answer(404, b'{"Code": 404}')
        if self.server.private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(404, b'{"Code": 10010205001, "Message": "not found"}')
        if url.path.endswith("/repo/files"):
            root = None if asked.get("Recursive") == "True" else asked.get("Root", "")
            files = [self.entry(name, body) for name, body in FILES.items() if root in (None, name.rpartition("/")[0])]
            return self.answer(200, json.dumps({"Code": 200, "Success": True, "Data": {"Files": files}}).encode())
        if url.path.endswith("/repo"):
            return self.answer(302, location=f"http://localhost:{self.server.server_port}/cdn/{urllib.parse.quote(asked['FilePath'])}")
        return self.answer(200, b'{"Code": 200, "Success": true, "Data": {}}')

    @staticmethod
    def entry(name: str, body: bytes) -> dict[str, object]:
        sha256 = hashlib.sha256(body).hexdigest()
        return {"Path": name, "Name": name.split("/")[-1], "Size": len(body), "Sha256": sha256, "Type": "blob", "Revision": "c" * 40}


@pytest.fixture
def scope() -> Iterator[Scope]:
    scope = Scope()
    yield scope
    scope.shutdown()


@pytest.fixture
def endpoints(scope: Scope, tmp_path: Path) -> Iterator[list[str]]:
    """Endpoints of two agents."""
    agents: list[polycast.Agent] = []
    addresses = []
    try:
        for number in range(2):
            address, config = f"127.0.0.1:{free_port()}", tmp_path / f"{number}.toml"
            config.write_text(f'[hub]\nlisten = "{address}"\nmodelscope = "{scope.address}"\n')
            agents.append(polycast.Agent.embedded(agents[0].manager if agents else None, config=config))
            addresses.append(f"http://{address}/ms")
        yield addresses
    finally:
        for agent in reversed(agents):
            agent.close()


def begin(endpoint: str, cache: Path, token: str = "", **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "MODELSCOPE_ENDPOINT": endpoint, "MODELSCOPE_CACHE": str(cache), "HOME": str(cache), **more}
    command = [sys.executable, "-c", CLIENT, token, *FILES]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def files_of(client: subprocess.Popen[str]) -> dict[str, str]:
    out, said = client.communicate(timeout=HANG_S)
    assert client.returncode == 0, said
    files: dict[str, str] = json.loads(out.splitlines()[-1])
    return files


RIGHT = {name: hashlib.sha256(body).hexdigest() for name, body in FILES.items()}
ALL = sum(map(len, FILES.values()))


@pytest.mark.parametrize("more", [{}, PARALLEL])
def test_two_clients_read_each_file_once(scope: Scope, endpoints: list[str], tmp_path: Path, more: dict[str, str]) -> None:
    clients = [begin(endpoint, tmp_path / f"cache-{number}", **more) for number, endpoint in enumerate(endpoints)]
    for client in clients:
        assert files_of(client) == RIGHT
    assert scope.body_bytes == ALL, scope.asked
    assert files_of(begin(endpoints[1], tmp_path / "again")) == RIGHT
    assert scope.body_bytes == ALL, scope.asked


def test_a_private_model_is_for_those_who_may_see_it(scope: Scope, endpoints: list[str], tmp_path: Path) -> None:
    scope.private = True
    assert files_of(begin(endpoints[0], tmp_path / "right", TOKEN)) == RIGHT
    for number, token in enumerate(["", "ms_wrong"]):
        client = begin(endpoints[0], tmp_path / f"wrong-{number}", token)
        _, said = client.communicate(timeout=HANG_S)
        assert client.returncode != 0 and "not found" in said, said
    assert scope.body_bytes == ALL
