"""A network of namespaces on one bridge, and what is run in it. Everything ends with it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HOSTS = {"a": 1, "b": 2, "c": 3, "m": 9, "x": 66}
SUBNET = "10.77.0."


def address(host):
    """IPv4 address of a host."""
    return f"{SUBNET}{HOSTS[host]}"


class Lan:
    """Hosts a (source), b and c (receivers), m (manager) and x (the stranger); a switch that floods multicast."""

    def __init__(self, mtu):
        self.tag = f"nb{os.getpid() % 100000}"
        self.place = tempfile.mkdtemp(prefix="neighbour-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.running, self.started = [], 0
        try:
            self._lay_out(mtu)
        except BaseException:
            self.close()
            raise

    def _lay_out(self, mtu):
        wire = f"{self.tag}w"
        run = lambda *words: subprocess.run(words, check=True)
        run("ip", "netns", "add", wire)
        inside = ("ip", "-n", wire)
        run(*inside, "link", "add", "switch0", "type", "bridge", "mcast_snooping", "0")
        run(*inside, "link", "set", "switch0", "mtu", str(mtu), "up")
        for host in HOSTS:
            space = self.space(host)
            run("ip", "netns", "add", space)
            run(*inside, "link", "add", f"port-{host}", "mtu", str(mtu), "type", "veth", "peer", "name", "eth0", "netns", space)
            run(*inside, "link", "set", f"port-{host}", "master", "switch0", "up")
            run("ip", "-n", space, "link", "set", "eth0", "mtu", str(mtu), "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "address", "add", f"{address(host)}/24", "dev", "eth0")
            run("ip", "-n", space, "route", "add", "default", "dev", "eth0")
        # The stranger is to see packets as they are, not several glued together.
        run("ip", "netns", "exec", wire, "ethtool", "-K", "port-x", "tx-udp-segmentation", "off")

    def space(self, host):
        """Name of a host's namespace."""
        return f"{self.tag}{host}"

    def path(self, *parts):
        """A path in the network's own folder."""
        whole = os.path.join(self.place, *parts)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        return whole

    def run(self, host, *words, **options):
        """Starts a program on a host."""
        # A pipe that is not read would hold the program.
        self.started += 1
        said = self.path("said", str(self.started))
        options = {"stdout": subprocess.PIPE, "text": True, **options}
        with open(said, "w") as errors:
            options.setdefault("stderr", errors)
            process = self._begin(host, words, options)
        process.said = said
        return process

    def _begin(self, host, words, options):
        process = subprocess.Popen(("ip", "netns", "exec", self.space(host), *words), start_new_session=True, **options)
        self.running.append(process)
        return process

    def attack(self, name, *words):
        """Starts an attack on the stranger's host, and waits until it says that it stands."""
        here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attacks.py")
        process = self.run("x", sys.executable, here, name, *map(str, words), stderr=None)
        line = process.stdout.readline()
        if line.strip() != "stands":
            raise RuntimeError(f"the attack {name} did not begin: {line!r}")
        return process

    def end(self, process, kind=signal.SIGKILL):
        """Ends a program and all that it has started."""
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            pass
        try:
            process.communicate(timeout=10)
        except (subprocess.TimeoutExpired, ValueError):
            pass
        if process in self.running:
            self.running.remove(process)

    def end_all(self):
        """Ends all programs."""
        for process in list(self.running):
            self.end(process)

    def close(self):
        """Ends all programs and takes the network away."""
        self.end_all()
        for host in [*HOSTS, "w"]:
            subprocess.run(("ip", "netns", "delete", self.space(host)), stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.place, ignore_errors=True)


def said(process):
    """What a program has said on standard error."""
    with open(process.said, errors="replace") as file:
        return file.read()


def until(true, timeout, what):
    """Waits until something is true."""
    end = time.monotonic() + timeout
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} within {timeout} s")
        time.sleep(0.02)
