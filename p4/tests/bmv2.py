# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of a script on BMv2's simple_switch, in the network namespace that it is started in.

    unshare --net python3 bmv2.py PROGRAM.json STEPS

A script is a line `ports N` and then lines of two kinds: `command` with one of simple_switch_CLI, and `packet` with the
port that it comes in by, its bytes, and the ports and bytes of its copies. The last line that is written says how many
packets were compared and how many copies were wrong: `compared 1000 wrong 0`.
"""

import collections
import os
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time

CPU_PORT = 510
THRIFT_PORT = 9090
# The longest wait for a step that goes well.
WAIT_S = 20
# From <linux/if_packet.h> and <linux/if_ether.h>.
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC, ETH_P_ALL = 263, 1, 1, 3
# A frame of the protocol for local experiments, which a switch hands to its processor.
MARKER = bytes.fromhex("02000000000102000000000288b5")


class Console:
    """The switch's command line."""

    PROMPT = b"RuntimeCmd: "

    def __init__(self):
        arguments = ["simple_switch_CLI", "--thrift-port", str(THRIFT_PORT)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.handles = {}
        self.read()

    def read(self):
        said = b""
        while not said.endswith(self.PROMPT):
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                sys.exit(f"simple_switch_CLI ended: {said.decode()}")
            said += more
        return said.decode()

    def say(self, command):
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        said = self.read()
        if "Error" in said or "Invalid" in said or "rror:" in said:
            sys.exit(f"{command}: {said}")
        return said

    def run(self, command):
        """Runs a command; entries are removed by their keys, for which the switch has numbers."""
        words = command.split()
        if words[0] == "table_delete_match":
            self.say(f"table_delete {words[1]} {self.handles.pop(tuple(words[1:]))}")
            return
        said = self.say(command)
        if words[0] == "table_add":
            keys = words[3 : words.index("=>")]
            self.handles[(words[1], *keys)] = re.search(r"with handle (\d+)", said).group(1)


class Links:
    """A pair of interfaces for each port of the switch, and a socket at our end of it."""

    def __init__(self, ports):
        self.sockets = {}
        self.got = collections.Counter()
        self.markers = set()
        self.sent = 0
        batch = ["link set lo up"]
        for port in ports:
            batch.append(f"link add s{port} mtu 9000 type veth peer name h{port} mtu 9000")
            batch += [f"link set {end}{port} up" for end in "sh"]
        for key in ("all", "default"):
            with open(f"/proc/sys/net/ipv6/conf/{key}/disable_ipv6", "w") as file:
                file.write("1")
        subprocess.run(["ip", "-batch", "-"], input="\n".join(batch), text=True, check=True)
        self.poll = select.epoll()
        for port in ports:
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            end.bind((f"h{port}", 0))
            index = socket.if_nametoindex(f"h{port}")
            end.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b""))
            end.setblocking(False)
            self.poll.register(end.fileno(), select.EPOLLIN)
            self.sockets[end.fileno()] = (port, end)
        self.by_port = {port: end for port, end in self.sockets.values()}

    def receive(self, wait_s):
        for number, _ in self.poll.poll(wait_s):
            port, end = self.sockets[number]
            while True:
                try:
                    frame = end.recv(65536)
                except BlockingIOError:
                    break
                if frame.startswith(MARKER):
                    self.markers.add(frame[len(MARKER) :])
                else:
                    self.got[(port, frame)] += 1

    def send(self, port, frame, copies):
        """Sends a packet, and waits until the switch has seen it and the copies are there; says how many are not."""
        self.sent += 1
        marker = struct.pack("!Q", self.sent)
        self.by_port[port].send(frame)
        self.by_port[port].send(MARKER + marker)
        end = time.monotonic() + WAIT_S
        while marker not in self.markers or any(self.got[copy] < 1 for copy in copies):
            if time.monotonic() > end:
                break
            self.receive(0.1)
        self.markers.discard(marker)
        missing = 0
        for copy in copies:
            if self.got[copy] > 0:
                self.got[copy] -= 1
            else:
                missing += 1
                print(f"port {port}: no copy by port {copy[0]} of {frame.hex()}")
        return missing


def run(console, links, lines):
    compared = wrong = 0
    for line in lines:
        kind, rest = line.split(" ", 1)
        if kind == "command":
            console.run(rest)
            continue
        port, frame, *copies = rest.split()
        pairs = zip(copies[::2], copies[1::2])
        expected = [(int(to), bytes.fromhex(copy)) for to, copy in pairs]
        compared += 1
        wrong += links.send(int(port), bytes.fromhex(frame), expected)
        if wrong > 3:
            break
    # What comes late came in vain.
    end = time.monotonic() + 1
    while time.monotonic() < end:
        links.receive(0.1)
    for (port, frame), count in links.got.items():
        if count:
            wrong += count
            print(f"{count} copies too many by port {port}: {frame.hex()}")
    print(f"compared {compared} wrong {wrong}")


def main():
    program, steps = sys.argv[1:]
    with open(steps) as file:
        lines = file.read().splitlines()
    ports = int(lines[0].split()[1])
    links = Links([*range(ports), CPU_PORT])
    names = [option for port in links.by_port for option in ("-i", f"{port}@s{port}")]
    arguments = ["simple_switch", *names, "--thrift-port", str(THRIFT_PORT), program]
    with tempfile.TemporaryFile() as log:
        switch = subprocess.Popen(arguments, stdout=log, stderr=log)
        try:
            end = time.monotonic() + WAIT_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", THRIFT_PORT)).close()
                    break
                except OSError:
                    if switch.poll() is not None or time.monotonic() > end:
                        log.seek(0)
                        sys.exit(f"simple_switch did not start: {log.read().decode()}")
                    time.sleep(0.05)
            console = Console()
            console.run("mc_mgrp_create 1")
            console.run("mc_node_create 0 " + " ".join(map(str, range(ports))))
            console.run("mc_node_associate 1 0")
            run(console, links, lines[1:])
        finally:
            switch.terminate()
            switch.wait()


main()
