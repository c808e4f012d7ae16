"""Hosts in network namespaces with links of a given rate, for measurements that go over a network. Linux, root.

Host 0 and the others are on one bridge, each behind a link of its own. All of it is in namespaces of this process, and ends with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path

NET = "10.78.0"
DEVICE = "eth0"
# Of the kernel's interface: linux/sched.h.
CLONE_NEWNS, CLONE_NEWNET = 0x0002_0000, 0x4000_0000


class Fault(Exception):
    """What went wrong, in one sentence."""


def sh(line: str) -> str:
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    if done.returncode:
        raise Fault(f"`{line}` failed: {done.stderr.strip()}")
    return done.stdout


def address(host: int) -> str:
    return f"{NET}.{host + 1}"


def make(hosts: int, rate: str, mtu: int) -> None:
    """Makes the hosts; this process sees them, and those that it starts from now on."""
    if os.geteuid():
        raise Fault("only root can make network namespaces: run it as root")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWNET):
        raise Fault(f"no namespace of networks can be made: {os.strerror(ctypes.get_errno())}")
    os.makedirs("/run/netns", exist_ok=True)
    sh("mount --make-rprivate / && mount -t tmpfs hosts /run/netns && ip link set lo up")
    sh(f"ip netns add switch && ip -n switch link add br0 type bridge mcast_snooping 0 && ip -n switch link set br0 mtu {mtu} up")
    for host in range(hosts):
        name, port = f"host-{host}", f"p{host}"
        sh(f"ip netns add {name} && ip -n {name} link set lo up")
        sh(f"ip link add {DEVICE} netns {name} mtu {mtu} type veth peer name {port} netns switch mtu {mtu}")
        sh(f"ip -n {name} addr add {address(host)}/24 dev {DEVICE} && ip -n {name} link set {DEVICE} up")
        sh(f"ip -n {name} route add default dev {DEVICE} && ip -n switch link set {port} master br0 up")
        for namespace, device in ((name, DEVICE), ("switch", port)):
            # Queues of one time: what reads acknowledges behind what the same host sends.
            sh(f"ip netns exec {namespace} tc qdisc add dev {device} root tbf rate {rate} burst 256kb latency 20ms")


def enter(host: int) -> None:
    """This thread, and those and the processes that it starts, are on that host from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/host-{host}").open("rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise Fault(f"host {host} cannot be entered: {os.strerror(ctypes.get_errno())}")


def left(host: int) -> int:
    """Bytes that have left a host."""
    return _counted(host, "tx")


def come(host: int) -> int:
    """Bytes that have come to a host."""
    return _counted(host, "rx")


def _counted(host: int, way: str) -> int:
    shown = sh(f"ip -n host-{host} -s -j link show dev {DEVICE}")
    return int(json.loads(shown)[0]["stats64"][way]["bytes"])
