#!/usr/bin/env python3
"""NORM and MPI_Bcast beside Polycast: real processes on the hosts of one lab, which send one file in turns. Linux, root.

    baselines.py target/release/polycast                 on bridge:5,rate=200mbit
    baselines.py target/release/polycast --shufflecast   on shufflecast:2,2,hosts=1: the paper's comparison (section VI-B)

The source is h0, and all other hosts are receivers. Ways of a bridge: polycast (ip-multicast), norm (at a rate that it is told), norm-cc
(its own congestion control) and mpi (MPI_Bcast over TCP). In a Shufflecast lab polycast and norm-light go over the splitters, the others
over the packet core, which has links of the same rate. Every received file is compared byte for byte. Prints a table in Markdown, and
with --json FILE all that was read.

*Seconds* are from the moment when all hosts are ready until the source knows that all have the file. *Copies* are the bytes that left
the source's eth0, over those of the file. *Sent again* is, for Polycast, the report's patches over the file; for NORM, its packets of data
beyond those that the file needs, over these; for MPI, segments that TCP sent again, over all, at all hosts. *Lost* is the payload of
multicast packets that left the source's programs and reached no receiver's host, over all that should have, and *dropped* are packets that
came to a host and found its sockets full. The lab lives in namespaces of a child process, and ends with it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import filecmp
import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

HERE = Path(__file__).resolve().parent
LAB, SHUFFLECAST = "bridge:5,rate=200mbit", "shufflecast:2,2,hosts=1"
# Kinds of labs, by their fabric, which Polycast is asked for.
FABRICS = {"bridge": "ip-multicast", "shufflecast": "shufflecast"}
WAYS = {"bridge": ["polycast", "norm", "norm-cc", "mpi"], "shufflecast": ["polycast", "norm-light", "norm", "norm-cc", "mpi"]}
# ToRs of labs send groups of 239.255.0.0/16 only where the manager says so; others go everywhere, as on any Ethernet.
GROUP, PORT = "239.77.0.1", 6003
# What NORM may have of a link, and Polycast over splitters: headers need the rest.
SHARE = 0.95
# Of a NORM packet, beside the segment: IP, UDP, and the longest header with its extensions.
NORM_HEADERS = 28 + 72
# MPI_Bcast counts by an int.
BYTES_MAX = 1_000_000_000
PACKAGES = "on Debian libnorm-dev, openmpi-bin, libopenmpi-dev and g++ have them"
PROGRAMS = ("ip", "tc", "nft", "mount")
LABS, SCRATCH = "/run/polycast-lab", "/dev/shm"
# Of the kernel's interface: linux/sched.h and linux/prctl.h.
CLONE_NEWNS, CLONE_NEWPID, PR_SET_PDEATHSIG = 0x0002_0000, 0x2000_0000, 1


class Fault(Exception):
    """What went wrong, in one sentence."""


class Round(NamedTuple):
    """One delivery."""

    seconds: float
    copies: float
    # As parts of one; None where nothing counts it.
    again: float | None
    lost: float | None
    dropped: int | None


class Host(NamedTuple):
    """What a host has counted so far."""

    left_bytes: int
    # Payload of multicast packets that its own programs sent, and that came from the source.
    multicast_sent: int
    multicast_came: int
    # NORM's packets of data that its own programs sent.
    norm_data: int
    socket_drops: int
    tcp_sent: int
    tcp_again: int

    def since(self, before: Host) -> Host:
        return Host(*(now - then for now, then in zip(self, before)))


def reason(ran: subprocess.CompletedProcess[str]) -> str:
    """Why a program failed, in its own words."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(ran.stdout)["error"])
    said = [line.strip() for line in (ran.stdout + ran.stderr).splitlines() if line.strip().strip("-")]
    return said[-1].removeprefix("error: ") if said else f"it ended with status {ran.returncode} and without a word"


def call(*line: str, timeout: float | None = None, env: dict[str, str] | None = None) -> str:
    # Of what runs on a host, that alone; of either no more than tells what it is.
    words = " ".join(line[line.index("--") + 1 if "--" in line else 0 :][:4])
    try:
        ran = subprocess.run(line, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, env=env)
    except subprocess.TimeoutExpired:
        raise Fault(f"`{words} ...` has not ended within {timeout:.0f} s (--timeout)") from None
    if ran.returncode:
        raise Fault(f"`{words} ...` failed: {reason(ran)}")
    return ran.stdout


def compiled(compiler: str, source: str, *libraries: str) -> str:
    """One of the two programs beside this file."""
    program = f"{SCRATCH}/{Path(source).stem}"
    if not shutil.which(compiler):
        raise Fault(f"there is no compiler `{compiler}` for {source}: install it ({PACKAGES}), or leave the way out with --ways")
    ran = subprocess.run([compiler, "-O2", "-o", program, str(HERE / source), *libraries], capture_output=True, text=True)
    if ran.returncode:
        missing = re.search(r"(\S+\.h): No such file|cannot find (-l\S+)", ran.stderr)
        why = f"{missing[1] or missing[2]} is missing: install it ({PACKAGES}), or leave the way out with --ways" if missing else reason(ran)
        raise Fault(f"{source} cannot be compiled: {why}")
    return program


class Lab:
    """A lab that is up: its source is h0, and all other hosts are receivers."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.name, self.sent = options, "baselines", 0
        made = json.loads(call(options.program, "lab", "up", options.lab, "--name", self.name, "--json"))
        self.spec, self.hosts = made["spec"], made["hosts"]
        self.kind = self.spec.partition(":")[0]
        self.path = f"{SCRATCH}/object"
        if len(self.hosts) < 2:
            raise Fault(f"{self.spec} has no receiver: it needs two hosts at least")
        rate = re.search(r",rate=(\d+)", self.spec)
        if not rate:
            raise Fault(f"the links of {self.spec} have no rate: say one, for example {options.lab},rate=200mbit")
        self.rate_bps = int(rate[1])
        mtu = re.search(r"mtu=(\d+)", self.spec)
        self.segment = int(mtu[1] if mtu else 1500) - NORM_HEADERS
        self.addresses = [self.at(host, "ip", "-4", "-o", "addr", "show", "eth0").split()[3].partition("/")[0] for host in self.hosts]
        for host in self.hosts:
            self.count(host)

    def at(self, host: str, *line: str, timeout: float | None = None, env: dict[str, str] | None = None) -> str:
        """Runs a program on a host, or in another namespace of the lab, to its end."""
        return call(self.options.program, "lab", "exec", self.name, host, "--", *line, timeout=timeout, env=env)

    def count(self, host: str) -> None:
        """Lets a host count; packets that an interface card will cut into several count as one, so that payload is what to compare."""
        multicast = "ip daddr 239.0.0.0/8 meta l4proto udp"
        data = f"udp dport {PORT} @th,68,4 2"
        rules = ["add table ip tally"]
        rules += [f"add chain ip tally {way} {{ type filter hook {way}put priority 0; }}" for way in ("out", "in")]
        # `total_of` reads them in this order.
        rules += [f"add rule ip tally out {multicast} counter", f"add rule ip tally out {multicast} {data} counter"]
        rules += [f"add rule ip tally in ip saddr {self.addresses[0]} {multicast} counter"]
        self.at(host, "nft", "; ".join(rules))

    def counters(self) -> list[Host]:
        """What each host has counted so far, all of it read at nearly the same moment."""
        one = "cat /proc/net/dev /proc/net/snmp; nft list table ip tally"
        script = "".join(f"echo '@@'; ip netns exec {host} sh -c '{one}';" for host in self.hosts)
        texts = self.at("network", "sh", "-c", script).split("@@\n")[1:]
        return [total_of(text) for text in texts]

    def put(self) -> None:
        """Writes a file of fresh bytes: no host has a part of them already."""
        with open(self.path, "wb") as file:
            for at in range(0, self.options.bytes, 1 << 22):
                file.write(os.urandom(min(1 << 22, self.options.bytes - at)))

    def compare(self, way: str, place: Callable[[int], str]) -> None:
        """Every receiver has the same bytes; then its copy goes away."""
        for number, host in enumerate(self.hosts[1:], 1):
            copy = place(number)
            if not os.path.exists(copy) or not filecmp.cmp(self.path, copy, shallow=False):
                raise Fault(f"{way}: {host} has other bytes than the source")
            os.unlink(copy)

    def polycast(self) -> tuple[float, float | None]:
        self.sent += 1
        fabric, number = FABRICS[self.kind], str(self.sent)
        line = ["send", self.path, "--to", ",".join(self.hosts[1:]), "--id", number, "--fabric", fabric, "--or-fail", "--json", "-q"]
        report = json.loads(self.at("h0", self.options.program, *line, timeout=self.options.timeout))
        if missed := [one["name"] for one in report["receivers"] if not one["verified"]]:
            raise Fault(f"polycast: {', '.join(missed)} did not get the file")
        if report["fabric"] != fabric:
            raise Fault(f"polycast: the file went over {report['fabric']}, not over {fabric} alone")
        return report["seconds"], report["patched_bytes"] / self.options.bytes

    def take(self, way: str) -> None:
        """Takes Polycast's copies out of the agents' stores and compares them."""
        for number, host in enumerate(self.hosts[1:], 1):
            self.at(host, self.options.program, "get", str(self.sent), "--out", f"{SCRATCH}/{number}.out", "-q")
        self.compare(way, lambda number: f"{SCRATCH}/{number}.out")
        self.at("h0", self.options.program, "rm", str(self.sent), "--to", "all", "-q")

    def light_group(self) -> str:
        """The group whose packets from h0 the manager has led over splitters to all hosts; that path stands after a transfer."""
        socket = f"unix:{LABS}/{self.name}/inside/ovs/tor0/tor0.mgmt"
        flows = self.at("tor0", "ovs-ofctl", "-O", "OpenFlow13", "dump-flows", socket)
        found = re.search(r"in_port=[^,]+,nw_dst=(239\.255\.\d+\.\d+) ", flows)
        if not found:
            raise Fault("norm-light: no path over the splitters stands at tor0; let polycast go first in --ways")
        return found[1]

    def norm(self, group: str, rate_bps: float) -> tuple[float, float | None]:
        """Starts receivers, then the source; NORM itself says when all have acknowledged the file."""
        until, receivers = time.monotonic() + self.options.timeout, []
        enter = [self.options.program, "lab", "exec", self.name]
        with contextlib.ExitStack() as stack:
            for number, host in enumerate(self.hosts[1:]):
                line = [*enter, host, "--", f"{SCRATCH}/norm", "receive", group, str(PORT), f"{SCRATCH}/{number + 1}.out", str(number)]
                receiver = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                stack.callback(end, receiver)
                receivers.append((host, receiver))
            for host, receiver in receivers:
                heard(host, receiver, b"ready\n", until)
            line = ["send", group, str(PORT), self.path, str(len(receivers)), str(rate_bps), str(self.segment)]
            took = float(self.at("h0", f"{SCRATCH}/norm", *line, timeout=self.options.timeout))
            for host, receiver in receivers:
                heard(host, receiver, b"done\n", until)
        return took, None

    def mpi(self) -> tuple[float, float | None]:
        """mpirun starts rank 0 at h0 and the others by a script that stands for ssh."""
        shell, folder = f"{SCRATCH}/enter.sh", f"{SCRATCH}/mpi.files"
        cases = "".join(f"{address}) host={host};; " for address, host in zip(self.addresses, self.hosts))
        Path(shell).write_text(f'#!/bin/sh\ncase $1 in {cases}esac\nshift\nexec ip netns exec $host sh -c "$*"\n')
        os.chmod(shell, 0o700)
        # What an earlier run has left there is no concern of this one.
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        network = "10.77.0.0/16"
        settings = {"plm_rsh_agent": shell, "plm_rsh_no_tree_spawn": "1", "orte_leave_session_attached": "1", "pml": "ob1"}
        # All hosts are on one machine: without these they would use its memory, and every waiting rank a processor of its own.
        settings |= {"btl": "tcp,self", "btl_tcp_if_include": network, "oob_tcp_if_include": network, "mpi_yield_when_idle": "1"}
        line = ["mpirun", "-np", str(len(self.hosts)), "--host", ",".join(f"{address}:1" for address in self.addresses)]
        line += ["--map-by", "node", "--bind-to", "none"]
        line += [word for name, value in settings.items() for word in ("--mca", name, value)]
        line += [f"{SCRATCH}/mpi", self.path, SCRATCH, str(self.options.bytes)]
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TMPDIR=folder)
        said = self.at("h0", *line, timeout=self.options.timeout, env=env)
        return float(said.split()[-1]), None

    def deliver(self, way: str) -> Round:
        """Sends a fresh file one way, compares it everywhere, and says what that cost."""
        self.put()
        group = self.light_group() if way == "norm-light" else GROUP
        before = self.counters()
        if way == "polycast":
            took, again = self.polycast()
        elif way == "mpi":
            took, again = self.mpi()
        else:
            took, again = self.norm(group, 0 if way == "norm-cc" else SHARE * self.rate_bps)
        counted = [now.since(then) for now, then in zip(self.counters(), before)]
        if way == "polycast":
            self.take(way)
        else:
            self.compare(way, lambda number: f"{SCRATCH}/{number}.out")
        source, receivers = counted[0], counted[1:]
        copies, bytes_ = source.left_bytes / self.options.bytes, self.options.bytes
        if way == "mpi":
            again = sum(host.tcp_again for host in counted) / max(1, sum(host.tcp_sent for host in counted))
            return Round(took, copies, again, None, None)
        if way != "polycast":
            needed = -(-bytes_ // self.segment)
            if source.norm_data < needed:
                raise Fault(f"{way}: the source's host counted {source.norm_data} packets of data, and the file needs {needed}")
            again = source.norm_data / needed - 1
        if source.multicast_sent < bytes_:
            raise Fault(f"{way}: {source.multicast_sent} bytes went to groups, fewer than the file has")
        missing = sum(source.multicast_sent - host.multicast_came for host in receivers)
        lost = missing / (len(receivers) * source.multicast_sent)
        return Round(took, copies, again, lost, sum(host.socket_drops for host in receivers))

    def down(self) -> None:
        subprocess.run([self.options.program, "lab", "down", self.name], capture_output=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """A receiver of NORM ends with its standard input; what does not is ended with the lab."""
    with contextlib.suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def heard(host: str, process: subprocess.Popen[bytes], words: bytes, until: float) -> None:
    """Waits for a line of a receiver."""
    assert process.stdout is not None and process.stderr is not None
    if not select.select([process.stdout], [], [], max(0, until - time.monotonic()))[0]:
        raise Fault(f"NORM at {host} has not said '{words.decode().strip()}' in time (--timeout)")
    if process.stdout.readline() != words:
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
        raise Fault(f"NORM at {host} has ended: {said[-1] if said else 'without a word'}")


def total_of(text: str) -> Host:
    """Reads the counters of one host."""
    found = re.search(r"^\s*eth0:(.*)$", text, re.MULTILINE)
    rules = re.findall(r"counter packets (\d+) bytes (\d+)", text)
    if not found or len(rules) != 3:
        raise Fault("a host's counters cannot be read")

    def column(protocol: str, name: str) -> int:
        names, values = re.findall(rf"^{protocol}: (.*)$", text, re.MULTILINE)[:2]
        return int(values.split()[names.split().index(name)])

    # Each packet has 20 bytes of IP and 8 of UDP.
    sent, data, came = [(int(packets), int(size) - 28 * int(packets)) for packets, size in rules]
    left = int(found[1].split()[8])
    return Host(left, sent[1], came[1], data[0], column("Udp", "RcvbufErrors"), column("Tcp", "OutSegs"), column("Tcp", "RetransSegs"))


def title(way: str, lab: Lab) -> str:
    over = ", packet core" if lab.kind == "shufflecast" else ""
    told = f"{SHARE * lab.rate_bps / 1e6:.0f} Mbit/s"
    names = {"polycast": f"Polycast, {FABRICS[lab.kind]}", "norm": f"NORM at {told}{over}", "norm-light": f"NORM at {told}, splitters"}
    return (names | {"norm-cc": f"NORM, its congestion control{over}", "mpi": f"MPI_Bcast over TCP{over}"})[way]


def spread(numbers: list[float], form: Callable[[float], str]) -> str:
    return f"{form(statistics.median(numbers))} ({form(min(numbers))} to {form(max(numbers))})"


def row(way: str, lab: Lab, rounds: list[Round]) -> str:
    def percent(values: list[float | None]) -> str:
        known = [value for value in values if value is not None]
        return spread(known, lambda value: f"{100 * value:.2f} %") if known else ""

    took = [one.seconds for one in rounds]
    line = 8 * lab.options.bytes / lab.rate_bps
    cells = [title(way, lab), spread(took, lambda value: f"{value:.2f}"), f"{100 * line / statistics.median(took):.0f} %"]
    cells += [spread([one.copies for one in rounds], lambda value: f"{value:.3f}"), percent([one.again for one in rounds])]
    cells += [percent([one.lost for one in rounds])]
    drops = [one.dropped for one in rounds if one.dropped is not None]
    cells.append(spread(drops, lambda value: f"{value:.0f}") if drops else "")
    return "| " + " | ".join(cells) + " |"


def table(lab: Lab, ways: list[str], found: dict[str, list[Round]], load: float) -> str:
    options = lab.options
    lines = [f"{lab.spec}: {options.bytes / 1e6:g} MB from h0 to {len(lab.hosts) - 1} receivers, {options.rounds} rounds of each way in turns."]
    left_out = [way for way in WAYS[lab.kind] if way not in ways]
    if left_out:
        lines.append(f"Left out by --ways: {', '.join(left_out)}.")
    if lab.kind == "bridge":
        lines.append("A bridge has no splitters: --shufflecast has.")
    lines.append(f"Load of the machine, mean of a minute: {load:.1f} before, {os.getloadavg()[0]:.1f} at the end.")
    heads = ["way", "seconds, median (least to most)", "part of the line rate", "copies that left the source", "sent again", "lost", "dropped"]
    lines += ["", "| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    return "\n".join(lines + [row(way, lab, found[way]) for way in ways])


def bench(options: argparse.Namespace) -> None:
    kind = options.lab.partition(":")[0]
    ways = options.ways or WAYS[kind]
    if any(way.startswith("norm") for way in ways):
        compiled("c++", "norm.cpp", "-std=c++17", "-lnorm")
    if "mpi" in ways:
        if not shutil.which("mpirun"):
            raise Fault(f"there is no program mpirun on this machine: install it ({PACKAGES}), or leave mpi out with --ways")
        compiled("mpicc", "mpi.c")
    load = os.getloadavg()[0]
    lab = Lab(options)
    found: dict[str, list[Round]] = {way: [] for way in ways}
    try:
        for number in range(options.rounds):
            for way in ways:
                one = lab.deliver(way)
                found[way].append(one)
                print(f"round {number + 1}: {title(way, lab)}: {one.seconds:.2f} s, {one.copies:.3f} copies", file=sys.stderr)
        print(table(lab, ways, found, load), flush=True)
    finally:
        lab.down()
    if options.json:
        rows = [{"way": way, "lab": lab.spec, "bytes": options.bytes, **one._asdict()} for way in ways for one in found[way]]
        os.write(options.json, (json.dumps(rows, indent=1) + "\n").encode())


def apart() -> None:
    """Returns in a child that is the first of its namespaces: when it ends, so do its processes, networks and files."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWPID):
        raise Fault(f"no namespace of processes can be made: {os.strerror(ctypes.get_errno())}")
    # The first child is the one that the others end with.
    if child := os.fork():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(child, number))
        _, status = os.waitpid(child, 0)
        os._exit(abs(os.waitstatus_to_exitcode(status)))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if libc.unshare(CLONE_NEWNS):
        raise Fault(f"no namespace of mounts can be made: {os.strerror(ctypes.get_errno())}")
    os.makedirs(LABS, exist_ok=True)
    # Labs of others are not seen from here, nor is this one from there: their processes have other numbers.
    call("mount", "--make-rprivate", "/")
    for kind, place in (("proc", "/proc"), ("tmpfs", LABS), ("tmpfs", SCRATCH)):
        call("mount", "-t", kind, kind, place)
    tempfile.tempdir = SCRATCH


class Words(argparse.ArgumentParser):
    """One sentence in place of the usage."""

    def error(self, message: str) -> NoReturn:
        raise Fault(f"{message}; --help lists the flags")


def whole(most: int) -> Callable[[str], int]:
    def check(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1 to {most}")
        return int(text)

    return check


def file(text: str) -> str:
    if not os.path.isfile(text) or not os.access(text, os.X_OK):
        raise argparse.ArgumentTypeError(f"there is no program '{text}'")
    return os.path.abspath(text)


def lab_of(text: str) -> str:
    if text.partition(":")[0] not in FABRICS:
        raise argparse.ArgumentTypeError(f"'{text}' is no lab with multicast and TCP over links of one rate: say bridge:N or shufflecast:p,k")
    return text


def parse() -> argparse.Namespace:
    parser = Words(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("program", type=file, help="polycast")
    labs = parser.add_mutually_exclusive_group()
    labs.add_argument("--lab", type=lab_of, default=LAB, help="as `polycast lab up` takes it")
    labs.add_argument("--shufflecast", action="store_const", dest="lab", const=SHUFFLECAST, help=f"the same as --lab {SHUFFLECAST}")
    parser.add_argument("--bytes", type=whole(BYTES_MAX), default=50_000_000, help="of the file")
    parser.add_argument("--rounds", type=whole(1000), default=5, help="of each way")
    parser.add_argument("--ways", type=lambda text: text.split(","), help="only these, for example polycast,mpi")
    parser.add_argument("--timeout", type=whole(86_400), default=120, help="seconds that a delivery may take")
    parser.add_argument("--json", metavar="FILE", help="all that was read")
    options = parser.parse_args()
    known = WAYS[options.lab.partition(":")[0]]
    for way in options.ways or []:
        if way not in known:
            parser.error(f"--ways: '{way}' is no way of this lab, which has {', '.join(known)}")
    return options


def main() -> int:
    try:
        options = parse()
        if os.geteuid() != 0:
            raise Fault("only root can make labs: run it as root")
        if missing := [program for program in PROGRAMS if not shutil.which(program)]:
            raise Fault(f"there is no program {' and no '.join(missing)} on this machine: install it")
        if options.json:
            # Before the child has mounts of its own, so that any folder will do.
            options.json = os.open(options.json, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        apart()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        bench(options)
    except (Fault, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: it was ended before it was done", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
