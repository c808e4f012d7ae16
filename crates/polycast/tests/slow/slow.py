#!/usr/bin/env python3
"""Measures what one slow receiver costs the others, over real sockets between network namespaces (Linux, root).

    slow.py POLYCAST [--fault rate:50mbit|loss:10|stop:5|none] [--uplink 1gbit] [--chain] [--agents] [--receivers 3]
            [--bytes 300000000] [--runs 10]

A source and receivers are on one bridge with an MTU of 9000. The port of the first receiver is narrow (a queue of 200 kB),
loses packets, or its process is stopped for some seconds. In every round the others are served without it, beside it while
nothing is wrong with it, and beside it with the fault. The ratio is what they take beside the fault over what they take alone.
One more receiver costs processor time, which all share here: the second ratio is over what they take beside a sound one.
With --uplink the source's own link has a rate, as links have; without it the processor is the limit. With --chain, multicast
of data is blocked. Several faults with commas between them are those of the first receivers; each is served alone first. With
--agents a manager and agents do it, in place of offer and accept.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import time

TAG = f"ps{os.getpid()}"


def sh(line, check=True):
    return subprocess.run(line, shell=True, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Lab:
    def __init__(self, args):
        self.args = args
        self.names = [f"r{number}" for number in range(args.receivers)]
        self.folder = f"/dev/shm/{TAG}"
        os.makedirs(self.folder)
        sh(f"head -c {args.bytes} /dev/urandom > {self.folder}/object")
        sh(f"ip netns add {TAG}w && ip -n {TAG}w link add sw0 type bridge mcast_snooping 0")
        sh(f"ip -n {TAG}w link set sw0 mtu 9000 up")
        for number, host in enumerate(["s", *self.names], 1):
            sh(f"ip netns add {TAG}{host}")
            sh(f"ip -n {TAG}w link add p{host} mtu 9000 type veth peer name eth0 netns {TAG}{host}")
            sh(f"ip -n {TAG}w link set p{host} master sw0 up; ip -n {TAG}{host} link set eth0 mtu 9000 up")
            sh(f"ip -n {TAG}{host} link set lo up; ip -n {TAG}{host} address add 10.78.0.{number}/24 dev eth0")
            sh(f"ip -n {TAG}{host} route add default dev eth0")
        if args.uplink:
            sh(f"ip netns exec {TAG}s tc qdisc add dev eth0 root tbf rate {args.uplink} burst 256kb limit 4mb")
        if args.chain:
            rules = ("add table bridge f; add chain bridge f i { type filter hook forward priority 0; }; "
                     "add rule bridge f i ip daddr 239.255.80.67 accept; add rule bridge f i ip daddr 224.0.0.0/4 drop")
            sh(f"ip netns exec {TAG}w nft '{rules}'")
        self.daemons, self.round = [], 0
        if args.agents:
            self.start_agents()

    def start_agents(self):
        """A manager beside the source, and an agent on each host."""
        def daemon(host, words):
            command = ["ip", "netns", "exec", TAG + host, self.args.polycast, *words.split()]
            self.daemons.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

        daemon("s", "manager --listen 10.78.0.1:7400 --insecure")
        for host in ["s", *self.names]:
            daemon(host, f"agent --manager 10.78.0.1:7400 --name {host} --interface eth0 --insecure "
                         f"--store {self.folder}/store-{host} --socket {self.folder}/{host}.sock")
        until = time.time() + 20
        while not set(self.names) <= self.members():
            assert time.time() < until, "the agents do not join"
            time.sleep(0.2)

    def members(self):
        found = sh(f"ip netns exec {TAG}s {self.args.polycast} status --socket {self.folder}/s.sock --json", check=False)
        return {name for name in ["s", *self.names] if f'"{name}"' in found.stdout} if found.returncode == 0 else set()

    def close(self):
        for process in self.daemons:
            process.terminate()
            process.wait()
        for host in ["s", "w", *self.names]:
            sh(f"ip netns delete {TAG}{host}", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def break_first(self, broken):
        sh(f"ip netns exec {TAG}w nft delete table bridge l", check=False)
        sh(f"ip netns exec {TAG}w nft 'add table bridge l; add chain bridge l i {{ type filter hook forward priority 0; }}'")
        for name, fault in zip(self.names, self.args.faults):
            kind, _, value = fault.partition(":")
            sh(f"ip netns exec {TAG}w tc qdisc del dev p{name} root", check=False)
            if broken and kind == "rate":
                sh(f"ip netns exec {TAG}w tc qdisc add dev p{name} root tbf rate {value} burst 64kb limit 200kb")
            elif broken and kind == "loss":
                rule = f"add rule bridge l i oifname p{name} numgen random mod 100 < {value} drop"
                sh(f"ip netns exec {TAG}w nft '{rule}'")

    def send(self, names):
        """The same by agents, as an object of its own."""
        self.round += 1
        with open(f"{self.folder}/object", "r+b") as file:
            file.write(self.round.to_bytes(8, "big"))
        words = ["send", f"{self.folder}/object", "--to", ",".join(names), "--id", str(self.round), "--name", f"round{self.round}"]
        at = ["--socket", f"{self.folder}/s.sock", "--json", "-q"]
        command = ["ip", "netns", "exec", TAG + "s", self.args.polycast, *words, *at]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        report = json.loads(done.stdout)
        for name in names:
            socket = f"--socket {self.folder}/{name}.sock"
            sh(f"{self.args.polycast} get {self.round} --out {self.folder}/{name} --force {socket} && "
               f"cmp {self.folder}/object {self.folder}/{name} && {self.args.polycast} rm {self.round} {socket}")
        sh(f"{self.args.polycast} rm {self.round} --socket {self.folder}/s.sock", check=False)
        return {r["name"]: (r["seconds"], r["slow"], r.get("reason") or "") for r in report["receivers"]}

    def serve(self, names, stop=False):
        """Delivers to these; gives seconds, whether it is said to be slow, and why, by name."""
        if self.args.agents:
            return self.send(names)
        offer = [self.args.polycast, "offer", f"{self.folder}/object", "--receivers", str(len(names))]
        offer = ["ip", "netns", "exec", f"{TAG}s", *offer, "--open", "--interface", "eth0", "--json"]
        source = subprocess.Popen(offer, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        receivers = []
        for name in names:
            shutil.rmtree(f"{self.folder}/{name}", ignore_errors=True)
            if os.path.exists(f"{self.folder}/{name}"):
                os.remove(f"{self.folder}/{name}")
            accept = [self.args.polycast, "accept", "--out", f"{self.folder}/{name}", "--name", name]
            accept = ["ip", "netns", "exec", f"{TAG}{name}", *accept, "--interface", "eth0"]
            receivers.append(subprocess.Popen(accept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        if stop:
            self.stop_when_it_has_begun(receivers[0], names[0])
        report = json.loads(source.communicate()[0])
        for process, name in zip(receivers, names):
            process.wait()
            sh(f"cmp {self.folder}/object {self.folder}/{name}")
        return {r["name"]: (r["seconds"], r["slow"], r.get("reason") or "") for r in report["receivers"]}

    def stop_when_it_has_begun(self, process, name):
        part = f"{self.folder}/.{name}.polycast-part"
        while process.poll() is None:
            try:
                if os.stat(part).st_blocks * 512 > self.args.bytes // 10:
                    break
            except FileNotFoundError:
                pass
            time.sleep(0.001)
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(float(self.args.fault.split(":")[1]))
            process.send_signal(signal.SIGCONT)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("polycast")
    parser.add_argument("--fault", default="rate:50mbit")
    parser.add_argument("--uplink")
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--agents", action="store_true")
    parser.add_argument("--receivers", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=300_000_000)
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    args.polycast = os.path.abspath(args.polycast)
    args.faults = args.fault.split(",")
    stops = args.fault.startswith("stop")
    if stops and (args.agents or len(args.faults) > 1):
        parser.error("a receiver is stopped alone, and without agents")
    if len(args.faults) >= args.receivers:
        parser.error("at least one receiver has no fault")
    lab = Lab(args)
    try:
        slow, others = lab.names[: len(args.faults)], lab.names[len(args.faults) :]
        ratios, sound_ratios, times, named = [], [], [[] for _ in slow], 0
        lab.break_first(True)
        alone = [lab.serve([name], stops)[name][0] for name in slow]
        for number in range(args.runs):
            lab.break_first(False)
            base = max(seconds for seconds, *_ in lab.serve(others).values())
            report = lab.serve(lab.names)
            sound = max(report[name][0] for name in others)
            lab.break_first(True)
            report = lab.serve(lab.names, stops)
            beside = max(report[name][0] for name in others)
            ratios.append(beside / base)
            sound_ratios.append(beside / sound)
            for name, its in zip(slow, times):
                its.append(report[name][0])
            named += all(report[name][1] for name in slow)
            print(f"{number}: others {base:.2f} s alone, {sound:.2f} s beside it sound, {beside:.2f} s beside the fault; "
                  + "; ".join(f"{name} {report[name][0]:.2f} s, {report[name][2]}" for name in slow), flush=True)
        ratios.sort()
        sound_ratios.sort()
        within = sum(ratio <= 1.15 for ratio in ratios)
        within_sound = sum(ratio <= 1.15 for ratio in sound_ratios)
        print(f"{args.fault}{' chain' if args.chain else ''}{' agents' if args.agents else ''}: others "
              f"{statistics.median(ratios):.2f} of alone (median; "
              f"{ratios[0]:.2f} to {ratios[-1]:.2f}), within 1.15 in {within} of {len(ratios)}; of beside a sound one "
              f"{statistics.median(sound_ratios):.2f} ({sound_ratios[0]:.2f} to {sound_ratios[-1]:.2f}), {within_sound} of "
              f"{len(ratios)}; the slow: "
              + ", ".join(f"{statistics.median(its):.2f} s (alone {one:.2f} s)" for its, one in zip(times, alone))
              + f"; named in {named}")
    finally:
        lab.close()


if __name__ == "__main__":
    main()
