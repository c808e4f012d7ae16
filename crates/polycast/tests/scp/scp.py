#!/usr/bin/env python3
"""`polycast push` beside scp: hosts with a real sshd each and nothing of Polycast, on links of one rate.

    sudo scp.py target/release/polycast [--hosts 6] [--mb 500] [--rate 1gbit] [--times 3]

Hosts are network namespaces with a folder of their own in memory. Each round takes the ways in turn: scp to one host, scp to one host after
the other, scp to all at the same time, push where hosts have nothing, and push where they keep the program from the last time. After each
way every copy is compared with the file. Prints a table in Markdown: seconds, the middle round of each way. It takes root.
"""

import argparse
import hashlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NETWORK = "10.99.0"


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, **more)


class Hosts:
    """A source and hosts on one switch, until the end of a with."""

    def __init__(self, folder, count, rate):
        self.folder, self.count = folder, count
        self.tag = f"pscp{os.getpid()}"
        self.local = folder / "local"
        self.local.mkdir()
        self.daemons = []
        for key in ("host_key", "own_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key)
        run("ip", "netns", "add", f"{self.tag}s")
        self.inside("s", "ip", "link", "add", "switch", "type", "bridge")
        self.inside("s", "ip", "link", "set", "switch", "up")
        for number in range(count + 1):
            self.host(number, rate)
        lines = "".join(f"Host h{number}\n HostName {NETWORK}.{number + 1}\n" for number in range(1, count + 1))
        common = f"Host *\n IdentityFile {folder}/own_key\n IdentitiesOnly yes\n StrictHostKeyChecking no\n"
        common += " UserKnownHostsFile /dev/null\n LogLevel ERROR\n BatchMode yes\n"
        (folder / "ssh_config").write_text(lines + common)

    def host(self, number, rate):
        """The source is number 0."""
        name = f"{self.tag}{number}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"p{number}", "netns", f"{self.tag}s")
        self.inside("s", "ip", "link", "set", f"p{number}", "master", "switch", "up")
        self.inside(number, "ip", "link", "set", "lo", "up")
        self.inside(number, "ip", "address", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
        self.inside(number, "ip", "link", "set", "eth0", "up")
        self.inside(number, "ip", "route", "add", "default", "dev", "eth0")
        for at, device in ((number, "eth0"), ("s", f"p{number}")):
            self.inside(at, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "512k", "latency", "20ms")
        if number == 0:
            return
        settings = self.folder / f"sshd_config.{number}"
        settings.write_text(
            f"Port 22\nListenAddress {NETWORK}.{number + 1}\nHostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/own_key.pub\n"
            f"StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nMaxStartups 100\nSetEnv XDG_CACHE_HOME={self.local}/cache\n"
            "Subsystem sftp internal-sftp\n"
        )
        # A mount of the daemon's own: other hosts do not see what is there.
        script = f"mount -t tmpfs local {self.local}; exec /usr/sbin/sshd -D -f {settings}"
        self.daemons.append(subprocess.Popen(self.words(number, "sh", "-ec", script), stderr=subprocess.DEVNULL))

    def words(self, at, *words):
        return ["ip", "netns", "exec", f"{self.tag}{at}", *map(str, words)]

    def inside(self, at, *words, **more):
        return run(*self.words(at, *words), **more)

    def ssh(self, number, line):
        ssh = ("ssh", "-F", self.folder / "ssh_config", f"h{number}", line)
        return self.inside(0, *ssh, stdout=subprocess.PIPE, text=True).stdout

    def everywhere(self, line):
        return [self.ssh(number, line) for number in range(1, self.count + 1)]

    def scp(self, file, number):
        scp = ("scp", "-q", "-F", self.folder / "ssh_config", file, f"h{number}:{self.local}/file")
        return subprocess.Popen(self.words(0, *scp))

    def end(self):
        for daemon in self.daemons:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
        for at in ["s", *range(self.count + 1)]:
            subprocess.run(["ip", "netns", "delete", f"{self.tag}{at}"], stderr=subprocess.DEVNULL, check=False)


def ended(*processes):
    for process in processes:
        if process.wait() != 0:
            sys.exit(f"{process.args[4:]} failed")


def ways(hosts, program, file):
    """Each with its name, what comes before it is timed, the way, and how many hosts have the file then."""
    every = range(1, hosts.count + 1)

    def push():
        list_ = f"h[1-{hosts.count}]:{hosts.local}/file"
        ssh = f"ssh -F {hosts.folder}/ssh_config"
        hosts.inside(0, program, "push", file, list_, "-e", ssh, stdout=subprocess.DEVNULL)

    def one_after_the_other():
        for number in every:
            ended(hosts.scp(file, number))

    nothing, kept = "rm -rf {0}/file {0}/cache", "rm -f {0}/file"
    return [
        ("scp to one host", nothing, lambda: ended(hosts.scp(file, 1)), 1),
        ("scp to each", nothing, one_after_the_other, hosts.count),
        ("scp to all at a time", nothing, lambda: ended(*[hosts.scp(file, number) for number in every]), hosts.count),
        ("push, hosts have nothing", nothing, push, hosts.count),
        ("push, hosts keep the program", kept, push, hosts.count),
    ]


def measure(hosts, program, file, times):
    wanted = hashlib.sha256(file.read_bytes()).hexdigest()
    took = {}
    for _ in range(times):
        for name, before, way, count in ways(hosts, program, file):
            hosts.everywhere(before.format(hosts.local))
            begun = time.monotonic()
            way()
            took.setdefault(name, []).append(time.monotonic() - begun)
            copies = [hosts.ssh(number, f"sha256sum {hosts.local}/file").split()[0] for number in range(1, count + 1)]
            if copies != [wanted] * count:
                sys.exit(f"{name}: not every host has the file")
    return {name: statistics.median(all_) for name, all_ in took.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="polycast, with polycast-MACHINE beside it")
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    os.makedirs("/run/sshd", exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        hosts = Hosts(folder, options.hosts, options.rate)
        try:
            file = folder / "object"
            file.write_bytes(os.urandom(options.mb * 1_000_000))
            for number in range(1, options.hosts + 1):
                until = time.monotonic() + 30
                while subprocess.run(hosts.words(0, "ssh", "-F", folder / "ssh_config", f"h{number}", "true"), stderr=subprocess.DEVNULL).returncode:
                    if time.monotonic() > until:
                        sys.exit(f"the sshd of h{number} does not answer")
                    time.sleep(0.1)
            took = measure(hosts, options.program.resolve(), file, options.times)
        finally:
            hosts.end()
    one = took["scp to one host"]
    print("| way | s | of one scp |\n| --- | --- | --- |")
    for name, seconds in took.items():
        print(f"| {name} | {seconds:.2f} | {seconds / one:.2f} |")


if __name__ == "__main__":
    main()
