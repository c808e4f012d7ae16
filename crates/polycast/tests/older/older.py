#!/usr/bin/env python3
"""What an older version spares where bytes shift: pairs of versions, made here with a fixed seed, each delivered over its older one.

    older.py target/release/polycast [--keep DIR] [CASE ...]

Each case is a file in two versions. A receiver on this machine has the older one (`polycast cast --update`), and the report says how much
of the newer one was spared. Prints a table in Markdown. With --keep the files stay, for other programs.
"""

import argparse
import gzip
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile


def row(rng, key):
    return b"%012d,%s,%s\n" % (key, rng.randbytes(16).hex().encode(), rng.randbytes(6).hex().encode())


def table(inserted):
    """A sorted table of 118 MB, and new rows at random places."""

    def make(rng):
        rows = {key: row(rng, key) for key in rng.sample(range(10**12), 2_000_000)}
        older = b"".join(rows[key] for key in sorted(rows))
        rows.update((key, row(rng, key)) for key in rng.sample(range(10**12), inserted))
        return older, b"".join(rows[key] for key in sorted(rows))

    return make


def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def image(rng):
    """An archive as a container's layer has it: 200 files from 1 KB to 10 MB; four of them grow, and one is new."""
    files = {f"usr/lib/{number:03}": rng.randbytes(int(1_000 * 10 ** rng.uniform(0, 4))) for number in range(200)}
    newer = dict(files)
    for name in rng.sample(sorted(files), 4):
        content, at = files[name], rng.randrange(len(files[name]))
        newer[name] = content[:at] + rng.randbytes(rng.randrange(1, 50_000)) + content[at:]
    newer["usr/lib/0505"] = rng.randbytes(100_000)
    return tar(files), tar(dict(sorted(newer.items())))


def packed(rng):
    """The same, compressed."""
    return tuple(gzip.compress(content, 1, mtime=0) for content in image(rng))


def reordered(rng):
    """An archive of 1,000 files of 2 to 200 KB in another order."""
    files = {f"{number:05}": rng.randbytes(rng.randrange(2_000, 200_000)) for number in range(1_000)}
    order = rng.sample(sorted(files), len(files))
    return tar(files), tar({name: files[other] for name, other in zip(files, order)} | {"more": b""})


def weights(rng):
    """128 MiB, of which one group in a hundred changes where it is."""
    older = rng.randbytes(128 << 20)
    newer = bytearray(older)
    for group in rng.sample(range(512), 5):
        newer[group << 18 : (group << 18) + 4_096] = rng.randbytes(4_096)
    return older, bytes(newer)


def header(rng):
    """The same, behind a header that is 64 bytes longer."""
    older, newer = weights(rng)
    return older, rng.randbytes(64) + newer


CASES = {
    "table, 20 new rows": table(20),
    "table, 200 new rows": table(200),
    "table, 2,000 new rows": table(2_000),
    "archive, files grow": image,
    "archive, compressed": packed,
    "archive, other order": reordered,
    "weights, in place": weights,
    "weights, longer header": header,
}


def deliver(program, folder, older, newer):
    """Delivers the newer version to a receiver that has the older one; gives the report."""
    place = os.path.join(folder, "out", "receiver-1")
    os.makedirs(place, exist_ok=True)
    for path, content in ((os.path.join(place, "object"), older), (os.path.join(folder, "object"), newer)):
        with open(path, "wb") as file:
            file.write(content)
    line = [program, "cast", os.path.join(folder, "object"), "--receivers", "1", "--out", os.path.join(folder, "out")]
    ran = subprocess.run([*line, "--update", "--json"], capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(line)}: {ran.stderr.strip() or ran.stdout.strip()}")
    with open(os.path.join(place, "object"), "rb") as file:
        if file.read() != newer:
            sys.exit("the receiver has other bytes")
    return json.loads(ran.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="polycast")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--keep", metavar="DIR", help="keep the versions there, as NUMBER.older and NUMBER.newer")
    options = parser.parse_args()
    print("| case | MB | spared, % | sent, % |\n| --- | --- | --- | --- |")
    for number, (name, make) in enumerate(CASES.items()):
        if options.cases and name not in options.cases:
            continue
        older, newer = make(random.Random(7))
        if options.keep:
            for what, content in (("older", older), ("newer", newer)):
                with open(os.path.join(options.keep, f"{number}.{what}"), "wb") as file:
                    file.write(content)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            report = deliver(options.program, folder, older, newer)
        shares = [100 * report[part] / len(newer) for part in ("spared_bytes", "sent_bytes")]
        print(f"| {name} | {len(newer) / 1e6:.0f} | {shares[0]:.1f} | {shares[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
