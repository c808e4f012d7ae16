"""A call of gRPC over HTTP/2 without any library: enough to say messages and to see what comes (RFC 9113, RFC 7541)."""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7


def _frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def _header(name, value):
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class Call:
    """One call on one connection."""

    def __init__(self, where, path):
        self.sock = socket.create_connection(where, 5.0)
        self.buffer = b""
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "stranger",
                  "content-type": "application/grpc", "te": "trailers"}
        block = b"".join(_header(*field) for field in fields.items())
        self.sock.sendall(PREFACE + _frame(SETTINGS, 0, 0) + _frame(HEADERS, 4, 1, block))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def say(self, message):
        """Sends a message."""
        self.sock.sendall(_frame(DATA, 0, 1, struct.pack(">BI", 0, len(message)) + message))

    def hear(self, timeout):
        """The frames (kind, flags, body) that come within this time."""
        frames = []
        self.sock.settimeout(timeout)
        while True:
            try:
                more = self.sock.recv(1 << 16)
            except (TimeoutError, ConnectionError):
                return frames
            if not more:
                return frames
            self.buffer += more
            while len(self.buffer) >= 9:
                length = int.from_bytes(self.buffer[:3], "big")
                if len(self.buffer) < 9 + length:
                    break
                kind, flags = self.buffer[3], self.buffer[4]
                frames.append((kind, flags, self.buffer[9:9 + length]))
                self.buffer = self.buffer[9 + length:]
                if kind == SETTINGS and not flags & 1:
                    self.sock.sendall(_frame(SETTINGS, 1, 0))


def varint(value):
    """A number of protobuf."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    """A field of protobuf: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def join(version, name, incarnation, address, port, leases=b""):
    """AgentMessage with a Join."""
    agent = field(1, name) + field(2, incarnation)
    return field(1, field(1, version) + field(2, agent) + field(3, address) + field(4, port) + leases)
