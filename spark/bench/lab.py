"""Hosts in network namespaces with links of a given rate: a driver, and executors, each with an agent. Linux, root.

    python lab.py --program polycast --jar polycast-spark.jar --tests polycast-spark-tests.jar --executors 2 --sizes 10,100

Runs `BroadcastBench` with Torrent and with Polycast in turns, with the pyspark of the Python that runs this, and prints a row for
each size: medians of all rounds, and their ratio. The bytes are those that left the driver's host.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark

NET = "10.77.0"
TAG = "pcs"
HOME = Path(pyspark.__file__).parent


def sh(line: str) -> str:
    return subprocess.run(line, shell=True, check=True, capture_output=True, text=True).stdout


class Lab:
    """A bridge, and hosts 0 to N on it: the driver is host 0."""

    def __init__(self, hosts: int, rate: str, mtu: int, program: str) -> None:
        self.hosts, self.program = hosts, program
        self.folder = Path(tempfile.mkdtemp(prefix="polycast-spark-lab-", dir="/dev/shm"))
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.remove_namespaces()
        sh(f"ip netns add {TAG}-sw && ip -n {TAG}-sw link add br0 type bridge mcast_snooping 0 && ip -n {TAG}-sw link set br0 mtu {mtu} up")
        for host in range(hosts):
            name, port = f"{TAG}-{host}", f"p{host}"
            sh(f"ip netns add {name} && ip -n {name} link set lo up")
            sh(f"ip link add eth0 netns {name} mtu {mtu} type veth peer name {port} netns {TAG}-sw mtu {mtu}")
            sh(f"ip -n {name} addr add {self.address(host)}/24 dev eth0 && ip -n {name} link set eth0 up")
            sh(f"ip -n {name} route add default dev eth0")
            sh(f"ip -n {TAG}-sw link set {port} master br0 up")
            for namespace, device in ((name, "eth0"), (f"{TAG}-sw", port)):
                sh(f"ip netns exec {namespace} tc qdisc add dev {device} root tbf rate {rate} burst 256kb limit 2mb")

    @staticmethod
    def address(host: int) -> str:
        return f"{NET}.{host + 1}"

    def run(self, host: int, name: str, line: list[str], **environment: str) -> None:
        """Starts a program on a host; what it says goes to a file."""
        with open(self.folder / f"{name}.log", "wb") as log:
            self.children[name] = subprocess.Popen(
                ["ip", "netns", "exec", f"{TAG}-{host}", *line],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(host) | environment, start_new_session=True,
            )  # fmt: skip

    def environment(self, host: int) -> dict[str, str]:
        own = {"SPARK_LOCAL_IP": self.address(host), "POLYCAST_SOCKET": str(self.folder / f"agent-{host}.sock")}
        own |= {"SPARK_LOCAL_DIRS": str(self.folder / f"local-{host}"), "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable}
        return dict(os.environ) | own

    def manager(self) -> None:
        self.run(0, "manager", [self.program, "manager", "--insecure", "--listen", f"{self.address(0)}:7400"])
        time.sleep(0.5)

    def agent(self, host: int) -> None:
        line = [self.program, "agent", "--insecure", "--manager", f"{self.address(0)}:7400", "--interface", "eth0"]
        line += ["--name", f"host-{host}", "--socket", str(self.folder / f"agent-{host}.sock")]
        self.run(host, f"agent-{host}", [*line, "--store", str(self.folder / f"store-{host}")])

    def worker(self, host: int, memory: str) -> None:
        line = [str(HOME / "bin/spark-class"), "org.apache.spark.deploy.worker.Worker", f"spark://{self.address(0)}:7077"]
        line += ["--host", self.address(host), "--cores", "1", "--memory", memory, "--webui-port", "0"]
        self.run(host, f"worker-{host}", [*line, "--work-dir", str(self.folder / f"work-{host}")])

    def start(self, memory: str = "2g") -> None:
        self.manager()
        for host in range(self.hosts):
            self.agent(host)
        line = [str(HOME / "bin/spark-class"), "org.apache.spark.deploy.master.Master", "--host", self.address(0)]
        self.run(0, "master", [*line, "--port", "7077", "--webui-port", "0"])
        for host in range(1, self.hosts):
            self.worker(host, memory)
        for host in range(1, self.hosts):
            self.await_line(f"worker-{host}", "Successfully registered with master", 60)

    def await_line(self, name: str, words: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while words not in (self.folder / f"{name}.log").read_text(errors="replace"):
            if time.monotonic() > until:
                raise TimeoutError(f"{name} did not say '{words}' within {seconds} s: see {self.folder}")
            time.sleep(0.1)

    def submit(self, conf: dict[str, str], arguments: list[str]) -> subprocess.Popen[str]:
        line = ["ip", "netns", "exec", f"{TAG}-0", str(HOME / "bin/spark-submit"), "--master", f"spark://{self.address(0)}:7077"]
        conf = {"spark.driver.host": self.address(0), "spark.ui.enabled": "false"} | conf
        for name, value in conf.items():
            line += ["--conf", f"{name}={value}"]
        log = open(self.folder / "driver.log", "w")
        return subprocess.Popen(
            [*line, *arguments], env=self.environment(0), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def left_driver(self) -> int:
        return int(sh(f"ip netns exec {TAG}-0 cat /sys/class/net/eth0/statistics/tx_bytes"))

    def executor_logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("work-*/*/*/stderr")))

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        child = self.children.pop(name)
        os.killpg(child.pid, how)
        child.wait()

    @staticmethod
    def remove_namespaces() -> None:
        for line in sh("ip netns list").splitlines():
            if line.startswith(f"{TAG}-"):
                sh(f"ip netns del {line.split()[0]}")

    def close(self) -> None:
        for name in list(self.children):
            try:
                self.kill(name, signal.SIGTERM)
            except ProcessLookupError:
                pass
        self.remove_namespaces()
        shutil.rmtree(self.folder, ignore_errors=True)


def polycast(jar: str) -> dict[str, str]:
    return {"spark.plugins": "io.polycast.spark.PolycastPlugin", "spark.jars": jar}


def bench(options: argparse.Namespace) -> None:
    lab = Lab(options.executors + 1, options.rate, options.mtu, options.program)
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    left: dict[str, int] = {}
    try:
        lab.start(options.memory)
        for turn in range(options.turns):
            for kind in ("torrent", "polycast"):
                conf = {"spark.executor.memory": options.memory, "spark.driver.memory": options.memory}
                conf |= polycast(options.jar) if kind == "polycast" else {}
                before = lab.left_driver()
                arguments = ["--class", "io.polycast.spark.BroadcastBench", options.tests, str(options.executors)]
                child = lab.submit(conf, [*arguments, str(options.rounds), *options.sizes.split(",")])
                out, _ = child.communicate(timeout=options.timeout)
                if child.returncode:
                    raise RuntimeError((lab.folder / "driver.log").read_text()[-3000:])
                left[kind] = left.get(kind, 0) + lab.left_driver() - before
                for size, whole, slowest in re.findall(r"^BROADCAST (\d+) (\S+) (\S+)$", out, re.M):
                    found.setdefault((kind, int(size)), []).append((float(whole), float(slowest)))
        through = lab.executor_logs().count("has broadcast")
        expected = options.turns * (options.rounds + 1) * len(options.sizes.split(",")) * options.executors
        print(f"pyspark {pyspark.__version__}, {options.executors} executors, {options.rate}, MTU {options.mtu}")
        print(f"values that executors had from agents: {through} of {expected}; bytes that left the driver's host: {left}")
        print("| MB | Torrent: whole, slowest reader | Polycast: whole, slowest reader | ratio of reading | of whole |")
        for size in sorted({size for _, size in found}):
            rows = {kind: [statistics.median(part) for part in zip(*found[kind, size])] for kind in ("torrent", "polycast")}
            torrent, ours = rows["torrent"], rows["polycast"]
            cells = f"{torrent[0]:.2f} s, {torrent[1]:.2f} s | {ours[0]:.2f} s, {ours[1]:.2f} s"
            print(f"| {size} | {cells} | {torrent[1] / ours[1]:.2f} | {torrent[0] / ours[0]:.2f} |", flush=True)
    finally:
        if options.keep:
            shutil.copytree(lab.folder, options.keep, ignore=shutil.ignore_patterns("*.sock", "store-*", "*.jar"), dirs_exist_ok=True)
        lab.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--jar", required=True)
    parser.add_argument("--tests", required=True)
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--sizes", default="10,100")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--keep", help="a folder for the logs")
    bench(parser.parse_args())


if __name__ == "__main__":
    main()
