"""BLAKE3, slowly and in plain Python: hash, keyed hash, key derivation, and the chaining value of a part of a longer text.

Written from the BLAKE3 paper (section 2). It serves small texts only: about 250 kB a second.
"""

import struct

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
MASK = 0xFFFFFFFF
CHUNK_START, CHUNK_END, PARENT, ROOT, KEYED_HASH = 1, 2, 4, 8, 16
DERIVE_KEY_CONTEXT, DERIVE_KEY_MATERIAL = 32, 64
CHUNK_LEN, BLOCK_LEN = 1024, 64
# Which four words of the state each quarter round mixes: columns, then diagonals.
QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
            (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def _compress(chaining, words, counter, length, flags):
    state = list(chaining) + list(IV[:4]) + [counter & MASK, counter >> 32, length, flags]
    for turn in range(7):
        for at, (a, b, c, d) in enumerate(QUARTERS):
            x, y = words[2 * at], words[2 * at + 1]
            p, q, r, s = state[a], state[b], state[c], state[d]
            p = (p + q + x) & MASK
            s ^= p
            s = (s >> 16 | s << 16) & MASK
            r = (r + s) & MASK
            q ^= r
            q = (q >> 12 | q << 20) & MASK
            p = (p + q + y) & MASK
            s ^= p
            s = (s >> 8 | s << 24) & MASK
            r = (r + s) & MASK
            q ^= r
            q = (q >> 7 | q << 25) & MASK
            state[a], state[b], state[c], state[d] = p, q, r, s
        if turn < 6:
            words = [words[i] for i in PERMUTATION]
    return [state[i] ^ state[i + 8] for i in range(8)]


def _words(block):
    return list(struct.unpack("<16I", block.ljust(BLOCK_LEN, b"\0")))


# Called between chunks, where it is set: a busy machine takes seconds for a group.
between = None


def _chunk(chunk, number, key, flags, root):
    if between:
        between()
    chaining = key
    blocks = [chunk[at:at + BLOCK_LEN] for at in range(0, len(chunk), BLOCK_LEN)] or [b""]
    for at, block in enumerate(blocks):
        mark = flags | (CHUNK_START if at == 0 else 0)
        if at == len(blocks) - 1:
            mark |= CHUNK_END | (ROOT if root else 0)
        chaining = _compress(chaining, _words(block), number, len(block), mark)
    return chaining


def _parent(left, right, key, flags, root):
    return _compress(key, left + right, 0, BLOCK_LEN, flags | PARENT | (ROOT if root else 0))


def _tree(text, first, key, flags, root):
    if len(text) <= CHUNK_LEN:
        return _chunk(text, first, key, flags, root)
    chunks = (len(text) - 1) // CHUNK_LEN
    left = 1 << (chunks.bit_length() - 1)
    cut = left * CHUNK_LEN
    return _parent(_tree(text[:cut], first, key, flags, False), _tree(text[cut:], first + left, key, flags, False),
                   key, flags, root)


def _bytes(words):
    return struct.pack("<8I", *words)


def blake3(text):
    """The hash of a text."""
    return _bytes(_tree(text, 0, list(IV), 0, True))


def keyed(key, text):
    """The hash of a text under a key of 32 bytes."""
    return _bytes(_tree(text, 0, list(struct.unpack("<8I", key)), KEYED_HASH, True))


def derive_key(context, material):
    """A key for a purpose."""
    key = _tree(context.encode(), 0, list(IV), DERIVE_KEY_CONTEXT, True)
    return _bytes(_tree(material, 0, key, DERIVE_KEY_MATERIAL, True))


def chaining_value(text, offset):
    """The chaining value of a part of a longer text, which begins at a multiple of its own padded length."""
    return _bytes(_tree(text, offset // CHUNK_LEN, list(IV), 0, False))


def root_of(values):
    """The hash of a text whose parts of one size (a power of two chunks) have these chaining values; at least two."""
    def join(parts, root):
        if len(parts) == 1:
            return parts[0]
        cut = 1 << ((len(parts) - 1).bit_length() - 1)
        return _parent(join(parts[:cut], False), join(parts[cut:], False), list(IV), 0, root)
    return _bytes(join([list(struct.unpack("<8I", value)) for value in values], True))
