"""A compile cache of many small files from one host to others at the same moment, beside one file of the same bytes. Linux, root.

    python small_files.py --program target/release/polycast [--hosts 8] [--files 20000] [--megabytes 2000] [--rate 1gbit] [--runs 3]

Each host has an agent, in a network namespace behind a link of that rate. Host 0 has the cache and pushes it (`polycast warm push`); then all others pull it
(`polycast warm pull`), and have the files in a folder at the end. Prints JSON: seconds of the push, and until the last of the others had all, of each run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hosts
from hub_uplink import started


def make_cache(folder: Path, files: int, size: int, seed: int) -> None:
    """Files as compilers leave them: in folders of 100, of lengths around the mean."""
    noise = random.Random(seed)
    block = noise.randbytes(8 << 20)
    left = size
    for number in range(files):
        here = folder / f"{number // 100:03}"
        here.mkdir(parents=True, exist_ok=True)
        mean = left // (files - number)
        length = left if number == files - 1 else noise.randrange(mean // 2, mean * 3 // 2 + 1)
        with (here / f"{number:05}.cubin").open("wb") as out:
            at = noise.randrange(len(block) // 2)
            while length > 0:
                piece = block[at : at + min(length, len(block) // 2)]
                out.write(piece)
                length -= len(piece)
                left -= len(piece)


def state(folder: Path) -> tuple[int, str]:
    """Number of files, and a digest of their paths and bytes."""
    digest, count = hashlib.sha256(), 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
        count += 1
    return count, digest.hexdigest()


def once(options: argparse.Namespace, folder: Path, cache: Path, key: str) -> dict[str, float]:
    def command(host: int, *words: str) -> subprocess.Popen[str]:
        line = ["ip", "netns", "exec", f"host-{host}", options.program, "warm", words[0], "triton", "--key", key, "--socket", str(folder / f"{host}.sock")]
        return subprocess.Popen([*line, *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(child: subprocess.Popen[str]) -> None:
        _, said = child.communicate(timeout=600)
        if child.returncode:
            raise hosts.Fault(said.strip()[-500:])

    began = time.monotonic()
    ended(command(0, "push", "--path", str(cache)))
    pushed = time.monotonic()
    places = {host: folder / f"out-{host}" for host in range(1, options.hosts + 1)}
    for child in [command(host, "pull", "--path", str(place), "--replace") for host, place in places.items()]:
        ended(child)
    done = time.monotonic()
    wanted = state(cache)
    for host, place in places.items():
        if state(place) != wanted:
            raise hosts.Fault(f"host {host} has other files")
        shutil.rmtree(place)
    return {"push_s": round(pushed - began, 2), "last_s": round(done - pushed, 2)}


def run(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    hosts.make(options.hosts + 1, options.rate, 1500)
    children, manager = [], f"{hosts.address(0)}:7400"
    size = int(options.megabytes * 1e6)
    caches = {"files": folder / "files", "file": folder / "file"}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in caches}
    try:
        children.append(started(0, folder / "manager.log", [options.program, "manager", "--insecure", "--listen", manager], "listens on"))
        for host in range(options.hosts + 1):
            line = [options.program, "agent", "--insecure", "--manager", manager, "--interface", hosts.DEVICE, "--name", f"host-{host}"]
            line += ["--socket", str(folder / f"{host}.sock"), "--store", str(folder / f"store-{host}"), "--store-max", f"{5 * size // 2}"]
            children.append(started(host, folder / f"agent-{host}.log", line, "listens on"))
        time.sleep(6)
        for number in range(options.runs):
            for name, cache in caches.items():
                # No host has its bytes from a run before.
                make_cache(cache, options.files if name == "files" else 1, size, 2 * number + (name == "file"))
                results[name].append(once(options, folder, cache, f"{name}-{number}"))
                shutil.rmtree(cache)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
        if options.logs:
            for log in folder.glob("*.log"):
                sys.stderr.write(f"== {log.name}\n{log.read_text()}")
    return {"hosts": options.hosts, "count": options.files, "bytes": size, "processors": os.cpu_count(), **results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=os.path.abspath, default="polycast")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--megabytes", type=float, default=2_000)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--logs", action="store_true", help="print the daemons' logs")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="small-files-", dir="/dev/shm") as folder:
            print(json.dumps(run(options, Path(folder))))
    except hosts.Fault as fault:
        sys.exit(str(fault))


if __name__ == "__main__":
    main()
