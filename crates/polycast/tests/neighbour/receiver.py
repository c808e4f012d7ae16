"""A receiver that is honest: the push transport a second time, written from docs/protocol.md alone.

`receiver.py OUT [--name NAME] [--interface-address A] [--loss P] [--seed S]` takes the first offer that it hears, and
throws away a part of the packets, so that it has to ask.
"""

import argparse
import random
import select
import socket
import struct
import sys
import time

import blake3
import wire

FLAG_REPORT = 4


class Receiver:
    """One transfer."""

    def __init__(self, own, name, loss, seed):
        self.own, self.name, self.loss, self.draw = own, name, loss, random.Random(seed)
        self.fragments, self.hashes, self.root = {}, {}, None
        self.position = self.received = self.lost = self.patched = 0
        self.verified, self.waiting, self.started = set(), [], False
        self.asked_at = self.said_at = 0.0
        self.offered = self.ended = False

    def join(self, handle, where, port):
        """HELLO, WELCOME, and the data channel."""
        self.handle, self.source = handle, (where, port)
        self.frames = wire.connect(where, port, 120.0)
        self.frames.say(wire.hello(handle, self.name, window=1 << 20))
        kind, body = self.frames.hear(120.0) or (0, b"")
        if kind != wire.WELCOME:
            raise ConnectionError(f"turned away: {body[2:].decode(errors='replace')}")
        self.welcome = wire.read_welcome(body)
        self.count = wire.split(self.welcome.object_len, self.welcome.fragment_len)
        self.groups = max(1, -(-self.welcome.object_len // self.welcome.group_len))
        self.data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.data.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.data.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        group, port = self.welcome.channel
        self.data.bind((group, port))
        member = socket.inet_aton(group) + socket.inet_aton(self.own)
        self.data.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        self.frames.say(wire.frame(wire.HAVE))

    def run(self):
        """Until FINISHED; gives the object."""
        content = None
        while not self.ended:
            ready, _, _ = select.select([self.data, self.frames.sock], [], [], 0.01)
            try:
                if self.data in ready:
                    self._packet(self.data.recv(1 << 16))
                if self.frames.sock in ready or self.frames.buffer:
                    self._frames()
                content = self._go_on(content)
            except (BrokenPipeError, ConnectionResetError):
                # The source has gone: all is well if it has said that it is finished.
                self._frames()
        return content

    def _go_on(self, content):
        """What there is to say; gives the object once it is there."""
        if self.ended:
            return content
        self._decode()
        self._ask()
        self._report(False)
        if not self.started:
            self._breathe()
        if content is None and len(self.fragments) == self.count and self.root and self._all_hashes():
            content = self._check()
            self.frames.say(wire.frame(wire.ALIVE))
            salt = self.welcome.salt
            self.frames.say(wire.data_rcvd(self.patched, wire.proof(salt, self.welcome.group_len, content)))
        return content

    def _packet(self, datagram):
        read = wire.read_packet(datagram)
        if not read or read[3] != self.handle:
            return
        kind, flags, round_, _, sn, extension, payload = read
        if self.draw.random() < self.loss:
            return
        if kind == 1:
            position = round_ * self.count + sn
            if not self.started:
                self.started, self.position = True, position
                self.frames.say(wire.frame(wire.INTL_SEQ, struct.pack(">Q", position)))
            self.lost += max(0, position - self.position)
            self.position = max(self.position, position + 1)
            self.received += 1
            self.fragments.setdefault(sn, payload)
        else:
            far = struct.unpack(f">{len(extension) // 2}H", extension)
            self.waiting = [*self.waiting[-63:], ([sn, *(sn + distance for distance in far)], payload)]
        if flags & FLAG_REPORT:
            self._report(True)

    def _decode(self):
        for sns, payload in list(self.waiting):
            lacking = [sn for sn in sns if sn not in self.fragments]
            if len(lacking) > 1:
                continue
            self.waiting.remove((sns, payload))
            if lacking:
                value = int.from_bytes(payload, "big")
                for sn in sns:
                    if sn != lacking[0]:
                        value ^= int.from_bytes(self.fragments[sn].ljust(len(payload), b"\0"), "big")
                self._patch(lacking[0], value.to_bytes(len(payload), "big"))

    def _patch(self, sn, payload):
        length = min(self.welcome.fragment_len, self.welcome.object_len - sn * self.welcome.fragment_len)
        if 0 <= sn < self.count and sn not in self.fragments:
            self.fragments[sn] = payload[:length]
            self.patched += length

    def _frames(self):
        while True:
            try:
                heard = self.frames.hear(0.001)
            except TimeoutError:
                return
            if heard is None:
                raise ConnectionError("the source has gone")
            kind, body = heard
            if kind == wire.HASHES:
                first, = struct.unpack_from(">Q", body)
                for at in range(8, len(body), 32):
                    self.hashes[first + (at - 8) // 32] = body[at:at + 32]
            elif kind == wire.ROOT:
                self.root = body
            elif kind == wire.PTCH_DATA:
                sn, = struct.unpack_from(">Q", body)
                for at in range(8, max(9, len(body)), self.welcome.fragment_len):
                    self._patch(sn, body[at:at + self.welcome.fragment_len])
                    sn += 1
            elif kind == wire.DATA_FNSD:
                self.offered = True
            elif kind == wire.CANDIDATES:
                entry, = struct.unpack_from(">Q", body)
                if entry and len(self.fragments) < self.count:
                    self._take(entry)
            elif kind == wire.REFUSE:
                raise ConnectionError(body[2:].decode(errors="replace"))
            elif kind == wire.FINISHED:
                self.ended = True
                return

    def _take(self, entry):
        """Takes what the source gives away: the whole object where this receiver is alone. It fetches from no other one."""
        giver = wire.connect(*self.source, 120.0)
        giver.say(wire.frame(wire.ENTER, struct.pack(">BQ32xQ", wire.VERSION, self.handle, entry)))
        groups = {}
        while len(groups) < self.groups:
            kind, body = giver.hear(120.0) or (0, b"")
            if kind != wire.GROUP:
                raise ConnectionError("the source gives no groups")
            index, = struct.unpack_from(">Q", body)
            groups[index] = body[8:]
        content, per = b"".join(groups[index] for index in range(self.groups)), self.welcome.fragment_len
        for sn in range(self.count):
            self._patch(sn, content[sn * per:(sn + 1) * per])
        self.offered = True

    def _ask(self):
        """Asks for what lies behind, and at the end for all that lacks."""
        now = time.monotonic()
        if now < self.asked_at + 0.05 or not (self.started or self.offered):
            return
        end = self.count if self.offered or self.position >= self.count else max(0, self.position - 200)
        lacking = [sn for sn in range(end) if sn not in self.fragments]
        if lacking:
            self.asked_at = now
            pairs = []
            for sn in lacking:
                if pairs and pairs[-1][1] == sn:
                    pairs[-1][1] = sn + 1
                else:
                    pairs.append([sn, sn + 1])
            self.frames.say(wire.frame(wire.PTCH_REQ, wire.ranges(pairs[:4_096])))

    def _report(self, asked):
        now = time.monotonic()
        if self.started and (asked or now > self.said_at + 0.05):
            self.said_at = now
            verified = min(len(self.fragments) * self.welcome.fragment_len, self.welcome.object_len)
            self.frames.say(wire.progress(self.position, self.received, self.lost, verified))

    def _breathe(self):
        """Says that it lives, while it hashes: the source waits for ten seconds."""
        if time.monotonic() > self.said_at + 0.5:
            self.said_at = time.monotonic()
            self.frames.say(wire.frame(wire.ALIVE))

    def _all_hashes(self):
        return all(group in self.hashes for group in range(self.groups))

    def _check(self):
        """The object, checked group by group and as a whole."""
        content = b"".join(self.fragments[sn] for sn in range(self.count))
        size = self.welcome.group_len
        blake3.between = self._breathe
        if self.groups == 1:
            right = blake3.blake3(content) == self.root == self.hashes[0]
        else:
            values = [blake3.chaining_value(content[at:at + size], at) for at in range(0, len(content), size)]
            right = values == [self.hashes[group] for group in range(self.groups)]
            right = right and blake3.root_of(values) == self.root
        if not right:
            raise ValueError("the object is not what its hashes say")
        return content


def main():
    """Receives one object."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("out")
    words.add_argument("--name", default="second")
    words.add_argument("--address", default="127.0.0.1")
    words.add_argument("--loss", type=float, default=0.0)
    words.add_argument("--seed", type=int, default=1)
    asked = words.parse_args()
    handle, where, port, _, _ = wire.discover(asked.address)
    receiver = Receiver(asked.address, asked.name, asked.loss, asked.seed)
    receiver.join(handle, where, port)
    content = receiver.run()
    with open(asked.out, "wb") as file:
        file.write(content)
    print(f"{len(content)} bytes, {receiver.patched} of them patched")


if __name__ == "__main__":
    try:
        main()
    except (ConnectionError, TimeoutError, ValueError) as error:
        sys.exit(f"receiver.py: {error}")
