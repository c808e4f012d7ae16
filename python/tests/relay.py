"""A server between a client and another server, which counts."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from conftest import HANG_S


class Relay(ThreadingHTTPServer):
    """A server that asks an endpoint what it is asked itself, and counts."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.behind = endpoint.removeprefix("http://").split("/")[0]
        self.asked: list[str] = []
        self.file_bytes = {"xorbs": 0, "resolve": 0}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hf"

    def count(self, part: str) -> int:
        return sum(part in line for line in self.asked)


class Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        behind = http.client.HTTPConnection(self.server.behind, timeout=HANG_S)
        behind.request(self.command, self.path, headers=dict(self.headers))
        answer = behind.getresponse()
        body = answer.read()
        for kind in self.server.file_bytes:
            self.server.file_bytes[kind] += len(body) if f"/{kind}/" in self.path else 0
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
