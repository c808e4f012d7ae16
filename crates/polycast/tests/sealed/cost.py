#!/usr/bin/env python3
"""Measures what sealing costs, over real sockets between network namespaces (Linux, root).

    cost.py POLYCAST [--receivers 1,8,16] [--mtu 9000,1500] [--bytes 256000000] [--runs 5]

A source and receivers are on one bridge. In each round an object is offered plain and sealed, in turns. Prints medians: goodput, how
much of the plain one the sealed one has, seconds of processor a GB at the source and at a receiver, and how long 1 KB takes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time

TAG = f"pc{os.getpid()}"
CODE = "lusab-babad-gutih"


def sh(line, check=True):
    return subprocess.run(line, shell=True, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Lan:
    def __init__(self, program, receivers, mtu):
        self.program, self.names = program, [f"r{number}" for number in range(receivers)]
        self.folder = f"/dev/shm/{TAG}"
        os.makedirs(self.folder, exist_ok=True)
        sh(f"ip netns add {TAG}w && ip -n {TAG}w link add sw0 type bridge mcast_snooping 0")
        sh(f"ip -n {TAG}w link set sw0 mtu {mtu} up")
        for number, host in enumerate(["s", *self.names], 1):
            sh(f"ip netns add {TAG}{host}")
            sh(f"ip -n {TAG}w link add p{host} mtu {mtu} type veth peer name eth0 netns {TAG}{host}")
            sh(f"ip -n {TAG}w link set p{host} master sw0 up; ip -n {TAG}{host} link set eth0 mtu {mtu} up")
            sh(f"ip -n {TAG}{host} link set lo up; ip -n {TAG}{host} address add 10.76.0.{number}/24 dev eth0")
            sh(f"ip -n {TAG}{host} route add default dev eth0")

    def close(self):
        for host in ["s", "w", *self.names]:
            sh(f"ip netns delete {TAG}{host}", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self, host, *words):
        command = ["ip", "netns", "exec", TAG + host, self.program, *words, "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def deliver(self, sealed):
        """One delivery: its report, and the processor seconds of the source and of a receiver (mean)."""
        more = [] if sealed else ["--insecure"]
        source = self.begin("s", "offer", f"{self.folder}/object", "--receivers", str(len(self.names)), "--code", CODE, *more)
        time.sleep(0.3)
        receivers = [self.begin(name, "accept", CODE, "--out", f"{self.folder}/{name}", "--force", *more) for name in self.names]
        report, used = json.loads(source.stdout.read()), []
        for process in [source, *receivers]:
            process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0, report
            used.append(usage.ru_utime + usage.ru_stime)
        assert report["sealed"] is sealed
        return report, used[0], statistics.mean(used[1:])


def measure(args, receivers, mtu):
    lan = Lan(args.polycast, receivers, mtu)
    try:
        sh(f"head -c {args.bytes} /dev/urandom > {lan.folder}/object")
        rows = {False: [], True: []}
        for _ in range(args.runs):
            for sealed in rows:
                rows[sealed].append(lan.deliver(sealed))
        sh(f"head -c 1000 /dev/urandom > {lan.folder}/object")
        small = {sealed: [] for sealed in rows}
        for _ in range(2 * args.runs):
            for sealed in rows:
                small[sealed].append(lan.deliver(sealed)[0]["seconds"])
        return rows, small
    finally:
        lan.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("polycast")
    parser.add_argument("--receivers", default="1,8,16")
    parser.add_argument("--mtu", default="9000,1500")
    parser.add_argument("--bytes", type=int, default=256_000_000)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    print("| MTU | receivers | plain, Gbit/s | sealed | ratio | CPU s/GB source: plain, sealed | receiver: plain, sealed | 1 KB, ms: plain, sealed |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for mtu in map(int, args.mtu.split(",")):
        for receivers in map(int, args.receivers.split(",")):
            rows, small = measure(args, receivers, mtu)
            median = lambda sealed, pick: statistics.median(pick(row) for row in rows[sealed])
            goodput = [median(sealed, lambda row: row[0]["goodput_bps"] / 1e9) for sealed in (False, True)]
            source = [median(sealed, lambda row: row[1] / args.bytes * 1e9) for sealed in (False, True)]
            receiver = [median(sealed, lambda row: row[2] / args.bytes * 1e9) for sealed in (False, True)]
            pairs = zip(rows[True], rows[False])
            ratio = statistics.median(s[0]["goodput_bps"] / p[0]["goodput_bps"] for s, p in pairs)
            short = [statistics.median(small[sealed]) * 1e3 for sealed in (False, True)]
            print(f"| {mtu} | {receivers} | {goodput[0]:.2f} | {goodput[1]:.2f} | {ratio:.2f} | {source[0]:.2f}, {source[1]:.2f} | "
                  f"{receiver[0]:.2f}, {receiver[1]:.2f} | {short[0]:.1f}, {short[1]:.1f} |", flush=True)


main()
