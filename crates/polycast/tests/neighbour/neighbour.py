"""A hostile neighbour beside honest transfers: which transfers it harms, and by how much.

`neighbour.py POLYCAST [NAME ..] [--bytes N] [--repeat N] [--mtu N] [--list] [--version N]` lays out a network of
namespaces (root only), and for every attack delivers an object to two honest receivers, alone and beside the attack in
turn. It prints one row an attack, and ends with 1 if an honest receiver got wrong bytes, none, or something else was done
that must not be.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

import wire
from lan import Lan, address, said, until

# An honest delivery that takes longer than this beside an attack was held by it, on any machine. Programs end within as long.
WITHIN = 240.0
RECEIVERS = ("b", "c")
# Daemons let strangers in only if their settings say so; an older version does not know the word.
OPEN = ("--insecure",) if wire.VERSION > 1 else ()


class Harm(Exception):
    """What an attack has done that it must not."""


class Scene:
    """What is delivered, by which program."""

    def __init__(self, lan, program, size, code=None):
        self.lan, self.program, self.turn, self.code = lan, program, 0, code
        self.bytes = os.urandom(size)
        self.file = lan.path("object.bin")
        with open(self.file, "wb") as file:
            file.write(self.bytes)

    @property
    def who_may(self):
        """Any machine may take an offer, or only one with a code, which the neighbour does not have."""
        if self.code:
            return "--code", self.code
        return ("--open",) if wire.VERSION > 1 else ()

    def folder(self):
        """A new folder for a delivery."""
        self.turn += 1
        return os.path.dirname(self.lan.path(f"turn-{self.turn}", "x"))

    def intact(self, path):
        """Whether a file is the object."""
        try:
            with open(path, "rb") as file:
                return file.read() == self.bytes
        except FileNotFoundError:
            return False


def calm(words, what):
    """No program may fall over."""
    if "panicked" in words:
        line = next(line for line in words.splitlines() if "panicked" in line)
        raise Harm(f"{what}: {line.strip()}")


def handle_of(offer):
    """The handle that an offer prints for those who are to take it; none in the first version."""
    handles = lambda: re.findall('handle"?:? ?"?([0-9a-f]{16})', said(offer))
    until(handles, WITHIN, "the offer has not said its handle")
    return handles()[0]


def offer_and_accept(scene, attack=(), early=False, out="object.bin", prepare=None, named=False):
    """Host a offers, b and c accept; the attack begins after the offer, or before it (`early`). Receivers are told the
    offer's handle where they are to take this one of several (`named`). Returns the seconds until both have the object, and
    the report of the offer."""
    lan, folder = scene.lan, scene.folder()
    if prepare:
        prepare(folder)
    evil = lan.attack(*attack) if attack and early else None
    offer = lan.run("a", scene.program, "offer", scene.file, "--receivers", str(len(RECEIVERS)), "--interface", "eth0",
                    "--timeout", "10m", *scene.who_may, "--json")
    if attack and not early:
        evil = lan.attack(*attack)
        time.sleep(0.5)
    choice = ("--handle", handle_of(offer)) if named and wire.VERSION > 1 else ()
    choice = (*choice, scene.code) if scene.code else choice
    began = time.monotonic()
    ways = {}
    for name in RECEIVERS:
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        path = os.path.join(folder, name, out)
        way = "--into" if os.path.isdir(path) else "--out"
        accept = lan.run(name, scene.program, "accept", way, path, "--interface", "eth0", "--name", name, *choice)
        ways[name] = (accept, os.path.join(path, "object.bin") if os.path.isdir(path) else path)
    try:
        for name, (accept, path) in ways.items():
            left = max(0.1, WITHIN - (time.monotonic() - began))
            try:
                accept.communicate(timeout=left)
            except subprocess.TimeoutExpired:
                raise Harm(f"{name} has nothing after {WITHIN:.0f} s") from None
            calm(said(accept), name)
            if accept.returncode == 0 and not scene.intact(path):
                raise Harm(f"{name} has got something else")
            if accept.returncode != 0:
                raise Harm(f"{name} ended with {accept.returncode}: {said(accept).strip()[-300:]}")
        seconds = time.monotonic() - began
        if evil:
            lan.end(evil)
        try:
            report, _ = offer.communicate(timeout=WITHIN)
        except subprocess.TimeoutExpired:
            raise Harm(f"the offer has not ended {WITHIN:.0f} s after its receivers") from None
        calm(said(offer), "the offer")
        return seconds, json.loads(report)
    finally:
        calm(said(offer), "the offer")
        lan.end_all()


def honest_only(report):
    """Only those who have the object are called verified."""
    for receiver in report["receivers"]:
        if receiver["verified"] and receiver["name"] not in RECEIVERS:
            raise Harm(f"'{receiver['name']}' is called verified and has nothing")


class Cluster:
    """A manager and three agents."""

    def __init__(self, scene):
        self.scene, lan, self.folder = scene, scene.lan, scene.folder()
        self.agents = {}
        self.manager = lan.run("m", scene.program, "manager", "--listen", f"{address('m')}:7400", "--json", *OPEN)
        self.manager.stdout.readline()
        for name in ("a", *RECEIVERS):
            settings = os.path.join(self.folder, f"{name}.toml")
            with open(settings, "w") as file:
                file.write("control-port = 7401\n")
            self.agents[name] = lan.run(
                name, scene.program, "agent", "--manager", f"{address('m')}:7400", "--name", name, "--interface", "eth0", *OPEN,
                "--store", os.path.join(self.folder, f"store-{name}"), "--socket", self.socket(name),
                "--config", settings, "--json")
        for agent in self.agents.values():
            agent.stdout.readline()
        until(lambda: self.present() == 3, WITHIN, "three agents are not there")

    def socket(self, name):
        """An agent's socket."""
        return os.path.join(self.folder, f"{name}.sock")

    def present(self):
        """How many agents the manager knows."""
        status = self.scene.lan.run("a", self.scene.program, "status", "--socket", self.socket("a"), "--json")
        words, _ = status.communicate(timeout=WITHIN)
        try:
            return len(json.loads(words)["peers"])
        except (ValueError, KeyError):
            return 0

    def send(self):
        """Sends the object to b and c: (seconds, report)."""
        began = time.monotonic()
        send = self.scene.lan.run("a", self.scene.program, "send", self.scene.file, "--to", ",".join(RECEIVERS),
                                  "--socket", self.socket("a"), "--json")
        try:
            report, _ = send.communicate(timeout=WITHIN)
        except subprocess.TimeoutExpired:
            raise Harm(f"the send has not ended after {WITHIN:.0f} s") from None
        if send.returncode != 0:
            raise Harm(f"the send ended with {send.returncode}: {said(send).strip()[-200:]} {report[-300:]}")
        return time.monotonic() - began, json.loads(report)

    def all_live(self):
        """No daemon has ended."""
        for name, process in {"the manager": self.manager, **self.agents}.items():
            if process.poll() is not None:
                raise Harm(f"{name} has ended: {said(process).strip()[-200:]}")


def over_agents(scene, attack=()):
    """Host a's agent sends to those of b and c."""
    cluster = Cluster(scene)
    try:
        if attack:
            scene.lan.attack(*attack)
            time.sleep(1.5)
        cluster.all_live()
        outcome = cluster.send()
        cluster.all_live()
        return outcome
    finally:
        scene.lan.end_all()


def keeps_own_file(scene, attack):
    """`accept --out FOLDER`, where FOLDER has a `.bashrc` that must stay."""
    def prepare(folder):
        for name in RECEIVERS:
            os.makedirs(os.path.join(folder, name, "home"))
            with open(os.path.join(folder, name, "home", ".bashrc"), "w") as file:
                file.write("echo mine\n")
    outcome = offer_and_accept(scene, attack, early=True, out="home", prepare=prepare, named=True)
    for name in RECEIVERS:
        home = os.path.join(scene.lan.path(f"turn-{scene.turn}"), name, "home")
        with open(os.path.join(home, ".bashrc")) as file:
            if file.read() != "echo mine\n":
                raise Harm(f"{name}'s .bashrc was replaced")
        if sorted(os.listdir(home)) != [".bashrc", "object.bin"]:
            raise Harm(f"{name} has got {os.listdir(home)}")
    return outcome


def messages(scene, attack=()):
    """A stream of 200 messages from a to b; all must come, in order, and none else."""
    cluster = Cluster(scene)
    lan = scene.lan
    try:
        of = lambda name: ("--socket", cluster.socket(name))
        made = lan.run("a", scene.program, "stream", "create", "ticks", *of("a"))
        made.communicate(timeout=WITHIN)
        recv = lan.run("b", scene.program, "stream", "recv", "ticks", *of("b"), stdin=subprocess.DEVNULL)
        time.sleep(1.0)
        if attack:
            lan.attack(*attack)
        began = time.monotonic()
        send = lan.run("a", scene.program, "stream", "send", "ticks", *of("a"), stdin=subprocess.PIPE)
        for number in range(200):
            send.stdin.write(f"message {number}\n")
            send.stdin.flush()
            time.sleep(0.005)
        send.stdin.close()
        send.wait(WITHIN)
        time.sleep(0.5)
        end = lan.run("a", scene.program, "stream", "end", "ticks", *of("a"))
        end.communicate(timeout=WITHIN)
        heard, _ = recv.communicate(timeout=WITHIN)
        lines = heard.splitlines()
        if "FORGED" in heard:
            raise Harm("a forged message was taken for a genuine one")
        if lines != [f"message {number}" for number in range(200)]:
            raise Harm(f"{len(lines)} of 200 messages have come")
        return time.monotonic() - began, {}
    except subprocess.TimeoutExpired as error:
        raise Harm(f"{error.cmd[4:7]} has not ended") from None
    finally:
        lan.end_all()


def offer(*attack, early=False, named=False):
    """A scenario of offer and accept."""
    def play(scene, hostile):
        seconds, report = offer_and_accept(scene, attack if hostile else (), early and hostile, named=named)
        honest_only(report)
        return seconds, report
    return play


def agents(*attack):
    """A scenario of agents."""
    return lambda scene, hostile: over_agents(scene, attack if hostile else ())


def kept(*attack):
    """A scenario of a home folder."""
    return lambda scene, hostile: keeps_own_file(scene, attack) if hostile else offer_and_accept(scene)


def heard(*attack):
    """A scenario of a stream."""
    return lambda scene, hostile: messages(scene, attack if hostile else ())


# Attack: what is done by whom, and whether a check on every machine plays it (the others only cost time).
ATTACKS = {
    "long-refuse": offer("long_refuse"),
    "long-name": offer("long_name"),
    "liar": offer("liar"),
    "seat": offer("seat"),
    "zombie": offer("zombie"),
    "prophet": offer("progress_of_the_future"),
    "old-version": offer("old_version"),
    "noise-1": offer("noise", 1),
    "noise-2": offer("noise", 2),
    "idle-600": offer("door_of", "idle", 600),
    "promises-600": offer("door_of", "promises", 600),
    "garbage-600": offer("door_of", "garbage", 600),
    "other-versions": offer("other_versions", early=True),
    "rogue-dot": kept("rogue", "dot"),
    "rogue-path": kept("rogue", "path"),
    "rogue-escape": kept("rogue", "escape"),
    "rogue-silent": offer("rogue", "silent", early=True, named=True),
    "rogue-refuse": offer("rogue", "refuse", early=True, named=True),
    "forged-jump": offer("forge", "jump", "own", 0, early=True),
    "forged-groups": offer("forge", "groups", "own", 0, early=True),
    "forged-flood": offer("forge", "flood", "own", 20_000, early=True),
    "replay": offer("replay", "own", early=True),
    "spoofed-jump": offer("forge", "jump", "spoof", 0, early=True),
    "spoofed-groups": offer("forge", "groups", "spoof", 0, early=True),
    "spoofed-flood": offer("forge", "flood", "spoof", 20_000, early=True),
    "spoofed-replay": offer("replay", "spoof", early=True),
    "agent-idle-600": agents("idle", address("b"), 7401, 600),
    "agent-garbage-600": agents("garbage", address("b"), 7401, 600),
    "agent-promises-600": agents("promises", address("b"), 7401, 600),
    "agent-tarpits": agents("tarpits", 7401, 64),
    "manager-idle-600": agents("idle", address("m"), 7400, 600),
    "manager-garbage-600": agents("garbage", address("m"), 7400, 600),
    "join-as-another": agents("join", "b", 7400),
    "stream-inject": heard("stream", "inject"),
    "stream-silence": heard("stream", "silence"),
}


def row(scene, name, repeat):
    """Plays an attack; gives its times alone and beside, and the harm done."""
    play, alone, beside, harm = ATTACKS[name], [], [], None
    for _ in range(repeat):
        try:
            alone.append(play(scene, False)[0])
        except (Harm, TimeoutError) as error:
            return alone, beside, f"without the attack: {error}"
        try:
            beside.append(play(scene, True)[0])
        except (Harm, TimeoutError) as error:
            harm = str(error)
            break
    return alone, beside, harm


def main():
    """Plays what is asked for."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("program")
    words.add_argument("names", nargs="*")
    words.add_argument("--bytes", type=int, default=16_000_000)
    words.add_argument("--repeat", type=int, default=1)
    words.add_argument("--mtu", type=int, default=9000)
    words.add_argument("--code", help="offers are taken by who knows this, as the neighbour does not")
    words.add_argument("--list", action="store_true")
    asked = words.parse_intermixed_args()
    names = asked.names or list(ATTACKS)
    if asked.list:
        print("\n".join(ATTACKS))
        return 0
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        print(f"there is no attack '{unknown[0]}'; --list names all", file=sys.stderr)
        return 1
    program = os.path.abspath(asked.program)
    network = Lan(asked.mtu)
    harmed = 0
    try:
        scene = Scene(network, program, asked.bytes, asked.code)
        print(f"{'attack':20} {'alone':>8} {'beside':>8} {'ratio':>6}  outcome", flush=True)
        for name in names:
            alone, beside, harm = row(scene, name, asked.repeat)
            harmed += harm is not None
            median = lambda times: statistics.median(times) if times else float("nan")
            print(f"{name:20} {median(alone):8.2f} {median(beside):8.2f} {median(beside) / median(alone):6.2f}  "
                  f"{harm or 'right'}", flush=True)
    finally:
        network.close()
    return int(harmed > 0)


if __name__ == "__main__":
    sys.exit(main())
