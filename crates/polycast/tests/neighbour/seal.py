"""Sealed content and packets, written from docs/protocol.md, FIPS 197, SP 800-38D and RFC 8452: `seal.py FILE` compares it with examples.

It is slow, and takes no care of time: for tests only.
"""

import json
import struct
import sys

import blake3


def _times_two(value):
    return (value << 1) ^ (0x11B if value & 0x80 else 0)


def _times(one, other):
    product = 0
    while other:
        product ^= one if other & 1 else 0
        one, other = _times_two(one), other >> 1
    return product


def _substitution():
    box = []
    for value in range(256):
        inverse = next((other for other in range(256) if _times(value, other) == 1), 0)
        box.append(0x63 ^ inverse ^ _turned(inverse, 1) ^ _turned(inverse, 2) ^ _turned(inverse, 3) ^ _turned(inverse, 4))
    return bytes(box)


def _turned(value, by):
    return (value << by | value >> (8 - by)) & 0xFF


BOX = _substitution()


class Aes:
    """AES-128, one block at a time."""

    def __init__(self, key):
        words, round_constant = [key[at:at + 4] for at in range(0, 16, 4)], 1
        while len(words) < 44:
            last = words[-1]
            if len(words) % 4 == 0:
                last = bytes(BOX[byte] for byte in last[1:] + last[:1])
                last = bytes([last[0] ^ round_constant]) + last[1:]
                round_constant = _times_two(round_constant)
            words.append(bytes(a ^ b for a, b in zip(words[-4], last)))
        self.keys = [b"".join(words[at:at + 4]) for at in range(0, 44, 4)]

    def block(self, block):
        """Encrypts a block."""
        state = bytes(a ^ b for a, b in zip(block, self.keys[0]))
        for turn in range(1, 11):
            state = bytes(BOX[byte] for byte in state)
            state = bytes(state[(at + 4 * (at % 4)) % 16] for at in range(16))
            if turn < 10:
                columns = [state[at:at + 4] for at in range(0, 16, 4)]
                state = bytes(_times(c[at], 2) ^ _times(c[(at + 1) % 4], 3) ^ c[(at + 2) % 4] ^ c[(at + 3) % 4]
                              for c in columns for at in range(4))
            state = bytes(a ^ b for a, b in zip(state, self.keys[turn]))
        return state


def polyval(key, blocks):
    """POLYVAL: numbers are little-endian, modulo x^128 + x^127 + x^126 + x^121 + 1, with a factor of x^-128."""
    modulus = 1 << 128 | 1 << 127 | 1 << 126 | 1 << 121 | 1

    def dot(one, other):
        product = 0
        for bit in range(128):
            product ^= one << bit if other >> bit & 1 else 0
        # Division by x, 128 times.
        for _ in range(128):
            product = (product ^ (modulus if product & 1 else 0)) >> 1
        return product

    factor, total = int.from_bytes(key, "little"), 0
    for block in blocks:
        total = dot(total ^ int.from_bytes(block, "little"), factor)
    return total.to_bytes(16, "little")


def _blocks(text):
    return [text[at:at + 16].ljust(16, b"\0") for at in range(0, len(text), 16)]


def _ghash(key, blocks):
    """GHASH of GCM: bits are in the reverse order of POLYVAL's."""
    def dot(one, other):
        product, factor = 0, one
        for bit in range(127, -1, -1):
            product ^= factor if other >> bit & 1 else 0
            factor = (factor >> 1) ^ (0xE1 << 120 if factor & 1 else 0)
        return product

    total = 0
    for block in blocks:
        total = dot(int.from_bytes(key, "big"), total ^ int.from_bytes(block, "big"))
    return total.to_bytes(16, "big")


class Seal:
    """The keys of a transfer."""

    def __init__(self, secret, handle):
        key = lambda what: blake3.derive_key(f"polycast 3 {what}", secret + struct.pack(">Q", handle))[:16]
        self.content, self.sums, self.tags = Aes(key("content")), key("packet sums"), Aes(key("packet tags"))

    def turn(self, sn, offset, text):
        """Seals or opens bytes of a fragment from an offset on."""
        first, last = offset // 16, (offset + len(text) + 15) // 16
        stream = b"".join(self.content.block(struct.pack(">IQI", 0, sn, 2 + at)) for at in range(first, last))
        return bytes(a ^ b for a, b in zip(text, stream[offset % 16:]))

    def content_tag(self, sn, sealed):
        """The tag of a fragment's content."""
        lengths = struct.pack(">QQ", 0, 8 * len(sealed))
        total = _ghash(self.content.block(bytes(16)), [*_blocks(sealed), lengths])
        return bytes(a ^ b for a, b in zip(total, self.content.block(struct.pack(">IQI", 0, sn, 1))))

    def tag(self, header, payload):
        """The tag of a packet, of which some bytes are sent."""
        lengths = struct.pack(">QQ", len(header), len(payload))
        return self.tags.block(polyval(self.sums, [*_blocks(header), *_blocks(payload), lengths]))


def check(path):
    """Compares with examples."""
    with open(path, encoding="ascii") as file:
        examples = json.load(file)
    for example in examples:
        raw = {name: bytes.fromhex(value) if isinstance(value, str) else value for name, value in example.items()}
        seal = Seal(raw["secret"], raw["handle"])
        assert seal.turn(raw["sn"], 0, raw["plain"]) == raw["sealed"], example
        assert seal.content_tag(raw["sn"], raw["sealed"]) == raw["content_tag"], example
        assert seal.turn(raw["sn"], raw["offset"], raw["sealed"]) == raw["piece"], example
        assert seal.tag(raw["header"], raw["sealed"]) == raw["tag"], example
        assert blake3.derive_key("polycast 3 connections", raw["secret"]) == raw["connection_key"], example
    assert len(examples) > 2
    print(f"{len(examples)} examples agree")


if __name__ == "__main__":
    check(sys.argv[1])
