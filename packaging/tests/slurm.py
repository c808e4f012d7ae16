"""Slurm on this machine, for a test: slurmctld and slurmd of the system, each node with a network, a host name and local folders of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from conftest import HANG_S, ending_with_us, tool, until

# Everything happens in namespaces whose first process ends with the test: with it all of Slurm goes, and no interface, mount or file is left.
_SET_UP = r"""
set -eu
PATH=$PATH:/usr/sbin:/sbin
hostname controller
work=$1 nodes=$2 rate=$3
mount --make-rprivate /
mount -t tmpfs run /run
mkdir /run/munge /run/netns /run/sshd
mount --bind "$work/hosts" /etc/hosts
ip link set lo up
ip link add fabric type bridge
ip address add 10.77.0.254/24 dev fabric
ip link set fabric up
ip link add other type bridge
ip link set other up
dd if=/dev/urandom of="$work/munge.key" bs=1024 count=1 status=none
chmod 400 "$work/munge.key"
munged --force --key-file="$work/munge.key" --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/pid \
    --log-file="$work/munged.log" --seed-file=/run/munge/seed --num-threads=10
until munge -n > /dev/null 2>&1; do sleep 0.1; done
slurmctld -D > "$work/slurmctld.log" 2>&1 &
for i in $(seq "$nodes"); do
    ip netns add "n$i"
    for network in fabric:eth:10.77 other:fast:10.78; do
        bridge=${network%%:*} rest=${network#*:}
        ip link add "${rest%%:*}$i" type veth peer name "${rest%%:*}" netns "n$i"
        ip link set "${rest%%:*}$i" master "$bridge" up
        [ "$rate" = 0 ] || tc qdisc add dev "${rest%%:*}$i" root tbf rate "$rate" burst 256k latency 20ms
        ip -n "n$i" address add "${rest#*:}.0.$i/24" dev "${rest%%:*}"
        ip -n "n$i" link set "${rest%%:*}" up
        [ "$rate" = 0 ] || ip netns exec "n$i" tc qdisc add dev "${rest%%:*}" root tbf rate "$rate" burst 256k latency 20ms
    done
    ip -n "n$i" link set lo up
    ip -n "n$i" route add default via 10.77.0.254
    NODE="n$i" ip netns exec "n$i" unshare --mount --uts sh -ec '
        hostname "$NODE"
        mount -t tmpfs local "$0/local"
        mkdir "$0/local/spool"
        [ ! -d "$0/at-start" ] || sh "$0/at-start/run"
        exec slurmd -D -N "$NODE" > "$0/slurmd.$NODE.log" 2>&1' "$work" &
done
cat > /dev/null
"""


class Slurm:
    """A controller, and nodes `n1`, `n2`, ...; `local` is a folder that each node has for itself."""

    def __init__(self, folder: Path, nodes: int, rate: str = "0", more: str = "", node_more: str = "") -> None:
        for name in ("slurmctld", "slurmd", "sbatch", "srun", "sbcast", "munged", "ip", "unshare"):
            tool(name)
        self.folder, self.local = folder, folder / "local"
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.local.mkdir(exist_ok=True)
        (folder / "state").mkdir()
        lines = "\n".join(
            f"NodeName={name} NodeAddr=10.77.0.{number} CPUs=4 RealMemory=100 State=UNKNOWN "
            + node_more.format(number=number)
            for number, name in enumerate(self.nodes, 1)
        )
        (folder / "slurm.conf").write_text(
            "ClusterName=test\nSlurmctldHost=controller(10.77.0.254)\nSlurmUser=root\nSlurmdUser=root\n"
            f"AuthType=auth/munge\nStateSaveLocation={folder}/state\n"
            f"SlurmdSpoolDir={self.local}/spool\nSlurmdPidFile={self.local}/slurmd.pid\nSlurmctldPidFile={folder}/slurmctld.pid\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
            f"SlurmdParameters=config_overrides\nSchedulerParameters=batch_sched_delay=0\nReturnToService=2\nMpiDefault=none\nSlurmdDebug=info\n{more}\n{lines}\n"
            f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n"
        )
        # No plugin uses groups here. Older versions load one all the same, and this one asks for no systemd.
        said = subprocess.run([tool("slurmd"), "-V"], capture_output=True, text=True, check=True).stdout
        is_old = tuple(map(int, said.split()[-1].split(".")[:2])) < (23, 11)
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={'cgroup/v1' if is_old else 'disabled'}\n")
        hosts = "".join(f"10.77.0.{number} {name}\n" for number, name in enumerate(self.nodes, 1))
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n10.77.0.254 controller\n{hosts}")
        self._environment = dict(os.environ, SLURM_CONF=str(folder / "slurm.conf"))
        namespaces = [tool("unshare"), "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        command = ending_with_us(*namespaces, "sh", "-c", _SET_UP, "sh", str(folder), str(nodes), rate)
        self._begun: list[subprocess.Popen[bytes]] = []
        self._first = subprocess.Popen(command, stdin=subprocess.PIPE, env=self._environment, text=True)
        try:
            until("all nodes are idle", self._is_idle)
        except BaseException:
            self.end()
            raise

    def _is_idle(self) -> bool:
        assert self._first.poll() is None, "Slurm has not begun"
        said = self.run("sinfo", "--noheader", "--Node", "--format=%N %t", is_checked=False)
        return said.returncode == 0 and said.stdout.split() == [word for name in self.nodes for word in (name, "idle")]

    def _inside(self) -> list[str]:
        first = self._first.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        inside = [tool("nsenter"), "--target", children[0] if children else "0", "--net", "--mount", "--uts", "--pid"]
        return [*inside, f"--wd={self.folder}"]

    def begin(self, *command: str) -> None:
        """Starts a daemon at the controller, which ends with all else."""
        quiet = subprocess.DEVNULL
        self._begun.append(subprocess.Popen([*self._inside(), *command], env=self._environment, stdin=quiet, stdout=quiet, stderr=quiet))

    def run(self, *command: str, is_checked: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs a command at the controller, and reads what it says."""
        ran = subprocess.run(
            [*self._inside(), *command], env=self._environment | more, capture_output=True, text=True, timeout=HANG_S
        )
        assert not is_checked or ran.returncode == 0, f"{command}: {ran.returncode} {ran.stdout}{ran.stderr}"
        return ran

    def on(self, node: str, *command: str, is_checked: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command on a node, beside all jobs."""
        return self.run("srun", "--immediate=60", "--nodes=1", f"--nodelist={node}", *command, is_checked=is_checked)

    def job(self, script: str, nodes: int = 0, is_checked: bool = True, **more: str) -> tuple[int, str]:
        """Runs a batch job to its end; gives its status and what it has said."""
        path, out = self.folder / "job.sh", self.folder / "job.out"
        path.write_text(f"#!/bin/bash\n{script}\n")
        words = ["sbatch", "--wait", f"--nodes={nodes or len(self.nodes)}", "--ntasks-per-node=1", f"--output={out}", str(path)]
        ran = self.run(*words, is_checked=False, **more)
        said = out.read_text() if out.exists() else ran.stderr
        assert not is_checked or ran.returncode == 0, f"{ran.returncode} {said}{ran.stderr}"
        return ran.returncode, said

    def end(self) -> None:
        """Ends all of it."""
        self._first.kill()
        self._first.wait(HANG_S)
        for begun in self._begun:
            begun.wait(HANG_S)
        if self._first.stdin is not None:
            self._first.stdin.close()
