"""The wire format, written from docs/protocol.md alone: a second implementation, which also says what it must not."""

import os
import socket
import struct
import time

import blake3

# What the program under attack speaks; an older one for comparisons.
VERSION = int(os.environ.get("NEIGHBOUR_WIRE_VERSION", "3"))
# The version of the API between agents and manager.
VERSION_OF_API = 1
DISCOVERY = ("239.255.80.67", 18067)
HELLO, WELCOME, REFUSE, HASHES, ROOT, HAVE, INTL_SEQ, PROGRESS, PTCH_REQ, PTCH_DATA, DATA_RCVD, DATA_FNSD = range(1, 13)
GROUP, FINISHED, INVITE, JOINING, ALIVE = range(16, 21)
CANDIDATES, ENTER = 47, 48
FRAME_LEN_MAX = 2 << 20


# Bytes that stand before an IPv4 address: from version 3 on the number of its family.
FAMILY = b"\x04" if VERSION > 2 else b""


def text(words):
    """A text with its length before it."""
    raw = words if isinstance(words, bytes) else words.encode()
    return struct.pack(">H", len(raw)) + raw


def frame(kind, body=b""):
    """A frame of the control channel."""
    return struct.pack(">IB", len(body) + 1, kind) + body


def hello(handle, name, window=4 << 20, port=0, version=None):
    """HELLO."""
    version = VERSION if version is None else version
    return frame(HELLO, struct.pack(">BQ", version, handle) + text(name) + struct.pack(">QH", window, port) + 2 * text(""))


def refuse(words):
    """REFUSE."""
    return frame(REFUSE, text(words))


def ranges(pairs):
    """Half-open ranges."""
    return b"".join(struct.pack(">QQ", *pair) for pair in pairs)


def progress(position, received, lost, verified, arrived=0, waited=0):
    """PROGRESS."""
    return frame(PROGRESS, struct.pack(">6Q", position, received, lost, verified, arrived, waited))


def data_rcvd(patched=0, proof=bytes(32)):
    """DATA_RCVD; the proof is left out where the version has none."""
    return frame(DATA_RCVD, struct.pack(">Q", patched) + (proof if VERSION > 1 else b""))


def welcome(name, length, fragment=8_916, group=1 << 18, stall_ns=10**10):
    """WELCOME of an object without a data channel."""
    mode = struct.pack(">H", 0o644) if VERSION > 1 else b""
    body = struct.pack(">B", VERSION) + bytes(24) + b"\0" + mode + text(name)
    body += struct.pack(">QII", length, fragment, group) + FAMILY + bytes(7) + struct.pack(">Q", stall_ns)
    return frame(WELCOME, body + (os.urandom(32) if VERSION > 1 else b""))


class Welcome:
    """What a source answers to HELLO."""

    def __init__(self, body):
        # Version, object, directory, and from version 2 on the file's permissions.
        at = 28 if VERSION > 1 else 26
        length, = struct.unpack_from(">H", body, at)
        self.directory, self.name = bool(body[25]), body[at + 2:at + 2 + length]
        at += 2 + length
        self.object_len, self.fragment_len, self.group_len = struct.unpack_from(">QII", body, at)
        if body[at + 16:at + 16 + len(FAMILY)] != FAMILY:
            raise ValueError(f"the channel has family {body[at + 16]}")
        at += len(FAMILY)
        group, port, self.outer_len, self.stall_ns = struct.unpack_from(">4sHBQ", body, at + 16)
        self.channel = socket.inet_ntoa(group), port
        self.salt = body[at + 31:at + 63] or bytes(32)


def read_welcome(body):
    """Reads WELCOME."""
    if body[0] != VERSION:
        raise ValueError(f"the source speaks version {body[0]}")
    return Welcome(body)


def invite(address, port, handle, number):
    """INVITE to a pushed transfer."""
    body = struct.pack(">B", VERSION) + FAMILY + struct.pack(">4sHQ", socket.inet_aton(address), port, handle) + bytes(16)
    size = struct.pack(">QB", 1 << 20, 0) if VERSION > 1 else b""
    return frame(INVITE, body + struct.pack(">QB", number, 0) + size)


def announce(handle, address, port, places, name):
    """A source's offer, as a datagram of discovery."""
    head = b"PLYC" + struct.pack(">BBQ", VERSION, 1, handle)
    size = struct.pack(">Q", 15) if VERSION > 1 else b""
    # The name of the source's machine, and no code.
    behind = text("x") + b"\0" if VERSION > 1 else b""
    return head + FAMILY + socket.inet_aton(address) + struct.pack(">HI", port, places) + size + text(name) + behind


def solicit(version=None):
    """Asks sources to announce."""
    return b"PLYC" + struct.pack(">BB", VERSION if version is None else version, 2)


def read_announcement(datagram):
    """Handle, address, port, places and name of an offer; `None` where it is none."""
    if datagram[:4] != b"PLYC" or len(datagram) < (34 if VERSION > 1 else 26) or datagram[4] != VERSION or datagram[5] != 1:
        return None
    handle, = struct.unpack_from(">Q", datagram, 6)
    if datagram[14:14 + len(FAMILY)] != FAMILY:
        return None
    at = 14 + len(FAMILY)
    address, port, places = struct.unpack_from(">4sHI", datagram, at)
    at += 18 if VERSION > 1 else 10
    length, = struct.unpack_from(">H", datagram, at)
    return handle, socket.inet_ntoa(address), port, places, datagram[at + 2:at + 2 + length]


def packet(handle, round_, sn, payload, flags=0, kind=1, extension=b"", version=None):
    """A packet of the data channel."""
    version = VERSION if version is None else version
    return struct.pack(">BBBBIQQ", version, kind, flags, 24 + len(extension), round_, handle, sn) + extension + payload


def read_packet(datagram):
    """(kind, flags, round, handle, sn, extension, payload) of a packet of the data channel; `None` where it is none."""
    if len(datagram) < 24 or datagram[0] != VERSION or not 24 <= datagram[3] <= min(56, len(datagram)):
        return None
    _, kind, flags, length, round_, handle, sn = struct.unpack_from(">BBBBIQQ", datagram)
    return kind, flags, round_, handle, sn, datagram[24:length], datagram[length:]


def stream_packet(handle, number, payload, piece=0, pieces=1):
    """A piece of a stream's message."""
    return struct.pack(">BBHHHQQ", VERSION, 7, piece, pieces, 0, handle, number) + payload


class Frames:
    """The control channel over a socket."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = b""

    def say(self, *frames):
        """Sends frames."""
        self.sock.sendall(b"".join(frames))

    def hear(self, timeout=5.0):
        """The next (kind, body); `None` at the end of the connection. Raises `TimeoutError`."""
        self.sock.settimeout(timeout)
        while True:
            if len(self.buffer) >= 4:
                length, = struct.unpack_from(">I", self.buffer)
                if len(self.buffer) >= 4 + length:
                    whole, self.buffer = self.buffer[4:4 + length], self.buffer[4 + length:]
                    return whole[0], whole[1:]
            try:
                more = self.sock.recv(1 << 20)
            except ConnectionError:
                return None
            if not more:
                return None
            self.buffer += more


def connect(address, port, timeout=5.0):
    """A control channel to there."""
    sock = socket.create_connection((address, port), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Frames(sock)


def discover(own, timeout=120.0, wanted=lambda offer: True):
    """The first offer on the network that is wanted."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", DISCOVERY[1]))
    member = socket.inet_aton(DISCOVERY[0]) + socket.inet_aton(own)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
    sock.settimeout(0.2)
    end, asked_at = time.monotonic() + timeout, 0.0
    while time.monotonic() < end:
        if time.monotonic() > asked_at + 0.2:
            sock.sendto(solicit(), DISCOVERY)
            asked_at = time.monotonic()
        try:
            offer = read_announcement(sock.recv(2048))
        except TimeoutError:
            continue
        if offer and wanted(offer):
            sock.close()
            return offer
    raise TimeoutError("no offer was heard")


def split(object_len, fragment_len):
    """How many fragments an object has."""
    return max(1, -(-object_len // fragment_len))


def proof(salt, group_len, content):
    """That one has the content: the keyed hash of the group that the salt chooses."""
    groups = max(1, -(-len(content) // group_len))
    chosen = int.from_bytes(salt[:8], "big") % groups
    return blake3.keyed(salt, content[chosen * group_len:(chosen + 1) * group_len])
