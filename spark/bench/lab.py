"""Hosts in network namespaces with links of a given rate: a driver, and executors, each with an agent. Linux, root.

    python lab.py --program polycast --jar polycast-spark-0.1.0.jar --tests polycast-spark-0.1.0-tests.jar --executors 2 --sizes 10,100

Runs `BroadcastBench` with Torrent and with Polycast in turns, with the pyspark of the Python that runs this, and prints a row for
each size: medians of all rounds with the least and the most, and the ratios of Torrent's to Polycast's. *Reading* is what the slowest
executor waits for the value, *whole* is from the call of broadcast to the end of a job in which every executor has read it, and
*copies* are the bytes that left the driver's host, over those of the value. Hosts, processes and files are in namespaces of a child
process, and end with it.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

NET = "10.77.0"
# Hosts have the addresses from 1 to 254 of one network, and one is the driver's.
EXECUTORS_MAX = 253
KINDS = ("torrent", "polycast")
PROGRAMS = ("ip", "tc", "java", "mount")
READ = re.compile(r"has broadcast \d+ of \d+ bytes from agent")
# Of the kernel's interface: linux/sched.h and linux/prctl.h.
CLONE_NEWNS, CLONE_NEWPID, PR_SET_PDEATHSIG = 0x0002_0000, 0x2000_0000, 1


class Fault(Exception):
    """What went wrong, in one sentence."""


def sh(line: str) -> str:
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    if done.returncode:
        raise Fault(f"`{line}` failed: {done.stderr.strip()}")
    return done.stdout


def spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise Fault(f"{sys.executable} has no pyspark: install it, for example `pip install pyspark==4.*`")
    return Path(found.origin).parent


class Round(NamedTuple):
    """One broadcast of one size."""

    whole_s: float
    slowest_s: float
    # Bytes that left the driver's host, over those of the value.
    copies: float


class Lab:
    """A bridge, and hosts 0 to N on it: the driver is host 0."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder, self.hosts, self.home = options, folder, options.executors + 1, spark_home()
        self.children: list[subprocess.Popen[bytes]] = []
        mtu, rate = options.mtu, options.rate
        sh(f"ip netns add switch && ip -n switch link add br0 type bridge mcast_snooping 0 && ip -n switch link set br0 mtu {mtu} up")
        for host in range(self.hosts):
            name, port = f"host-{host}", f"p{host}"
            sh(f"ip netns add {name} && ip -n {name} link set lo up")
            sh(f"ip link add eth0 netns {name} mtu {mtu} type veth peer name {port} netns switch mtu {mtu}")
            sh(f"ip -n {name} addr add {self.address(host)}/24 dev eth0 && ip -n {name} link set eth0 up")
            sh(f"ip -n {name} route add default dev eth0")
            sh(f"ip -n switch link set {port} master br0 up")
            for namespace, device in ((name, "eth0"), ("switch", port)):
                sh(f"ip netns exec {namespace} tc qdisc add dev {device} root tbf rate {rate} burst 256kb limit 2mb")

    @staticmethod
    def address(host: int) -> str:
        return f"{NET}.{host + 1}"

    def environment(self, host: int) -> dict[str, str]:
        own = {"SPARK_LOCAL_IP": self.address(host), "POLYCAST_SOCKET": str(self.folder / f"agent-{host}.sock")}
        own |= {"SPARK_LOCAL_DIRS": str(self.folder / f"local-{host}"), "SPARK_HOME": str(self.home), "PYSPARK_PYTHON": sys.executable}
        return dict(os.environ) | own

    def run(self, host: int, name: str, line: list[str]) -> None:
        """Starts a program on a host; what it says goes to a file."""
        with open(self.folder / f"{name}.log", "wb") as log:
            child = subprocess.Popen(
                ["ip", "netns", "exec", f"host-{host}", *line],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(host), cwd=self.folder,
            )  # fmt: skip
        self.children.append(child)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def await_words(self, name: str, words: str, seconds: float) -> None:
        until, child = time.monotonic() + seconds, self.children[-1]
        while words not in self.said(name):
            if child.poll() is not None or time.monotonic() > until:
                raise Fault(f"{name} did not say '{words}' within {seconds:.0f} s; its last words: {last_line(self.said(name))}")
            time.sleep(0.1)

    def start(self) -> None:
        program, manager = self.options.program, f"{self.address(0)}:7400"
        self.run(0, "manager", [program, "manager", "--insecure", "--listen", manager])
        self.await_words("manager", "listens on", 20)
        for host in range(self.hosts):
            line = [program, "agent", "--insecure", "--manager", manager, "--interface", "eth0", "--name", f"host-{host}"]
            line += ["--socket", str(self.folder / f"agent-{host}.sock"), "--store", str(self.folder / f"store-{host}")]
            self.run(host, f"agent-{host}", line)
            self.await_words(f"agent-{host}", "listens on", 20)
        run_class = [str(self.home / "bin/spark-class")]
        line = [*run_class, "org.apache.spark.deploy.master.Master", "--host", self.address(0), "--port", "7077", "--webui-port", "0"]
        self.run(0, "master", line)
        self.await_words("master", "I have been elected leader", 120)
        for host in range(1, self.hosts):
            line = [*run_class, "org.apache.spark.deploy.worker.Worker", f"spark://{self.address(0)}:7077", "--host", self.address(host)]
            line += ["--cores", "1", "--memory", self.options.memory, "--webui-port", "0"]
            self.run(host, f"worker-{host}", [*line, "--work-dir", str(self.folder / f"work-{host}")])
            self.await_words(f"worker-{host}", "Successfully registered with master", 120)

    def submit(self, kind: str, turn: int) -> Iterator[tuple[int, Round]]:
        """Runs the measured application; gives sizes and what has been measured, as it comes."""
        options, name = self.options, f"driver-{turn}-{kind}"
        conf = {"spark.driver.host": self.address(0), "spark.ui.enabled": "false"}
        conf |= {"spark.executor.memory": options.memory, "spark.driver.memory": options.driver_memory or options.memory}
        if kind == "polycast":
            conf |= {"spark.plugins": "io.polycast.spark.PolycastPlugin", "spark.jars": options.jar}
            conf |= {"spark.polycast.spool": str(self.folder / "spool")}
        line = ["ip", "netns", "exec", "host-0", str(self.home / "bin/spark-submit"), "--master", f"spark://{self.address(0)}:7077"]
        for setting, value in conf.items():
            line += ["--conf", f"{setting}={value}"]
        line += ["--class", "io.polycast.spark.BroadcastBench", options.tests, str(options.executors), str(options.rounds)]
        line += [str(size) for size in options.sizes]
        with open(self.folder / f"{name}.log", "w") as log:
            child = subprocess.Popen(
                line, cwd=self.folder, env=self.environment(0), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        timer = threading.Timer(options.timeout, child.kill)
        timer.start()
        assert child.stdout is not None
        before = self.left_driver()
        for said in child.stdout:
            left, words = self.left_driver(), said.split()
            # The first line of each size only warms up.
            if words[:1] == ["BROADCAST"]:
                megabytes = int(words[1])
                yield megabytes, Round(float(words[2]), float(words[3]), (left - before) / (megabytes * 1_000_000))
            before = left
        status = child.wait()
        if not timer.is_alive():
            raise Fault(f"the application with {kind} has not ended within {options.timeout} s (--timeout)")
        timer.cancel()
        if status:
            raise Fault(f"the application with {kind} failed: {first_exception(self.said(name))}")

    def left_driver(self) -> int:
        return int(sh("ip netns exec host-0 cat /sys/class/net/eth0/statistics/tx_bytes"))

    def reads(self) -> int:
        """How many values executors have had from agents."""
        logs = self.folder.glob("work-*/*/*/stderr")
        return sum(len(READ.findall(path.read_text(errors="replace"))) for path in logs)

    def keep(self, where: str) -> None:
        """Copies what was said: logs of daemons, of the driver, and of executors."""
        for path in [*self.folder.glob("*.log"), *self.folder.glob("work-*/*/*/std*")]:
            to = Path(where) / path.relative_to(self.folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "none")


def first_exception(text: str) -> str:
    """The line of a log that says why."""
    return next((line.strip() for line in text.splitlines() if re.search(r"(Exception|Error)\b", line)), last_line(text))


def bench(options: argparse.Namespace, folder: Path) -> None:
    load = os.getloadavg()[0]
    lab = Lab(options, folder)
    found: dict[tuple[str, int], list[Round]] = {}
    try:
        lab.start()
        for turn in range(options.turns):
            for kind in KINDS:
                for size, measured in lab.submit(kind, turn):
                    found.setdefault((kind, size), []).append(measured)
        table(options, lab, found, load)
    finally:
        if options.keep:
            lab.keep(options.keep)


def table(options: argparse.Namespace, lab: Lab, found: dict[tuple[str, int], list[Round]], load: float) -> None:
    reads = options.turns * (options.rounds + 1) * len(options.sizes) * options.executors
    print(f"pyspark {importlib.metadata.version('pyspark')}, {options.executors} executors, {options.rate}, MTU {options.mtu}")
    print(f"values that executors have had from agents: {lab.reads()} of {reads}")
    print(f"load of the machine, mean of a minute: {load:.1f} before, {os.getloadavg()[0]:.1f} at the end")
    heads = ["executors", "MB", "rounds", "reading, Torrent, s", "reading, Polycast, s", "ratio", "whole, Torrent, s", "whole, Polycast, s"]
    heads += ["ratio", "copies, Torrent", "copies, Polycast"]
    print(f"\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for size in options.sizes:
        cells = [str(options.executors), str(size), str(len(found["torrent", size]))]
        for part in ("slowest_s", "whole_s"):
            columns = [[getattr(one, part) for one in found[kind, size]] for kind in KINDS]
            medians = [statistics.median(column) for column in columns]
            cells += [f"{median:.2f} ({min(column):.2f} to {max(column):.2f})" for median, column in zip(medians, columns)]
            cells.append(f"{medians[0] / medians[1]:.2f}")
        cells += [f"{statistics.median(one.copies for one in found[kind, size]):.2f}" for kind in KINDS]
        print(f"| {' | '.join(cells)} |", flush=True)


def apart(folder: Path) -> None:
    """Returns in a child that is the first of its namespaces: when it ends, so do its processes, networks and files."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWPID):
        raise Fault(f"no namespace of processes can be made: {os.strerror(ctypes.get_errno())}")
    # The first child is the one that the others end with.
    if child := os.fork():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(child, number))
        _, status = os.waitpid(child, 0)
        folder.rmdir()
        os._exit(abs(os.waitstatus_to_exitcode(status)))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if libc.unshare(CLONE_NEWNS):
        raise Fault(f"no namespace of mounts can be made: {os.strerror(ctypes.get_errno())}")
    os.makedirs("/run/netns", exist_ok=True)
    sh("mount --make-rprivate / && mount -t proc proc /proc && mount -t tmpfs lab /run/netns")
    sh(f"mount -t tmpfs -o mode=700 lab {folder}")


class Words(argparse.ArgumentParser):
    """One sentence in place of the usage."""

    def error(self, message: str) -> NoReturn:
        raise Fault(f"{message}; --help lists the flags")


def above_zero(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number above 0")
    return int(text)


def packet(text: str) -> int:
    if not text.isdecimal() or not 1280 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1280 to 65535")
    return int(text)


def file(text: str) -> str:
    if not os.path.isfile(text):
        raise argparse.ArgumentTypeError(f"there is no file '{text}'")
    return os.path.abspath(text)


def matching(what: str, pattern: str):  # type: ignore[no-untyped-def]
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"'{text}' is no {what}")
        return text

    return check


def parse() -> argparse.Namespace:
    parser = Words(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    rate, memory = matching("rate as tc has it, for example 1gbit", r"[1-9]\d*[kmg]bit"), matching("size, for example 2g", r"[1-9]\d*[mg]")
    parser.add_argument("--program", type=file, required=True, help="polycast")
    parser.add_argument("--jar", type=file, required=True, help="the plugin")
    parser.add_argument("--tests", type=file, required=True, help="the jar with BroadcastBench")
    parser.add_argument("--executors", type=above_zero, default=2, help="how many, each on its own host")
    parser.add_argument("--rounds", type=above_zero, default=5, help="of each application, after one that warms up")
    parser.add_argument("--turns", type=above_zero, default=1, help="applications of each kind")
    parser.add_argument("--sizes", type=lambda text: [above_zero(one) for one in text.split(",")], default=[10, 100], help="MB")
    parser.add_argument("--rate", type=rate, default="1gbit", help="of every link")
    parser.add_argument("--mtu", type=packet, default=9000, help="of every link")
    parser.add_argument("--memory", type=memory, default="2g", help="of an executor")
    parser.add_argument("--driver-memory", type=memory, help="of the driver, unless an executor's")
    parser.add_argument("--timeout", type=above_zero, default=900, help="seconds that an application may take")
    parser.add_argument("--keep", help="a folder for the logs")
    options = parser.parse_args()
    if options.executors > EXECUTORS_MAX:
        parser.error(f"--executors {options.executors} are more than the {EXECUTORS_MAX} that the lab has addresses for")
    if options.keep:
        options.keep = os.path.abspath(options.keep)
    return options


def main() -> int:
    try:
        options = parse()
        spark_home()
        if os.geteuid() != 0:
            raise Fault("only root can make network namespaces: run it as root")
        if missing := [program for program in PROGRAMS if not shutil.which(program)]:
            raise Fault(f"there is no program {' and no '.join(missing)} on this machine: install it")
        folder = Path(tempfile.mkdtemp(prefix="polycast-spark-lab-"))
        apart(folder)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        bench(options, folder)
    except Fault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: it was ended before it was done", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
