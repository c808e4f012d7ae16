"""A machine for a test: a copy of this one or of another root, as an overlay in namespaces of its own, with systemd as its first process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import HANG_S, ending_with_us, tool, until

# Folders of the copy that do not come from this system. Kernel settings are not its to change, and nothing but what a test starts
# runs there: services that set up a whole machine, or clean its /tmp, are masked.
_MASKED = (
    "systemd-journal-flush",
    "systemd-modules-load",
    "systemd-remount-fs",
    "systemd-sysctl",
    "systemd-tmpfiles-setup",
    "systemd-update-utmp",
)
_SET_UP = r"""
set -eu
PATH=$PATH:/usr/sbin:/sbin
mount --make-rprivate /
work=$1
lower=$2
shift 2
mount -t tmpfs polycast "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay polycast -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work" "$work/root"
root=$work/root
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for folder in run dev; do mount -t tmpfs "$folder" "$root/$folder"; done
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir -m 1777 "$root/dev/shm"
mkdir "$root/dev/pts" "$root/run/before"
mount -t tmpfs shm "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 pts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for unit in "$@"; do ln -sf /dev/null "$root/etc/systemd/system/$unit.service"; done
ip link set lo up
hostname machine
cd "$root"
pivot_root . run/before
umount -l /run/before
exec env -i container=polycast-test PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb /lib/systemd/systemd --unit=basic.target --show-status=0
"""


class Machine:
    """A machine that runs, until it is ended."""

    def __init__(self, folder: Path, root: Path = Path("/")) -> None:
        if os.geteuid() != 0:
            pytest.skip("not root: a copy of this system needs namespaces and mounts")
        if not Path("/lib/systemd/systemd").exists():
            pytest.skip("systemd is not installed: the machine of this test begins with it")
        self.folder = folder / "machine"
        self.folder.mkdir(parents=True)
        self._group = _unified() / f"polycast-test-{os.getpid()}-{time.monotonic_ns()}"
        self._group.mkdir()
        names = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--fork", "--kill-child"]
        enter = ["sh", "-c", 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"', "sh", str(self._group)]
        shell = ["sh", "-c", _SET_UP, "sh", str(self.folder), str(root), *_MASKED]
        self._log = (self.folder.parent / "machine.log").open("w+")
        self._process = subprocess.Popen(
            ending_with_us(*enter, tool("unshare"), *names, *shell), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        try:
            self.first = until("the machine begins", self._child)
            until("the machine has begun", self._is_up)
        except BaseException:
            self.end()
            raise

    def _child(self) -> int:
        assert self._process.poll() is None, self._said()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def _is_up(self) -> bool:
        assert self._process.poll() is None, self._said()
        if Path(f"/proc/{self.first}/comm").read_text() != "systemd\n":
            return False
        return self.run("systemctl", "is-system-running", is_checked=False).stdout.strip() in ("running", "degraded")

    def _said(self) -> str:
        self._log.seek(0)
        return f"the machine does not begin: {self._log.read()}"

    def run(self, *command: str, is_checked: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command there."""
        result = subprocess.run([*self._enter(), *command], capture_output=True, text=True, timeout=HANG_S, check=False)
        assert not is_checked or result.returncode == 0, f"{command}:\n{result.stdout}{result.stderr}"
        return result

    def put(self, path: str, content: bytes) -> None:
        """Writes a file there."""
        subprocess.run([*self._enter(), "sh", "-c", 'cat > "$1"', "sh", path], input=content, timeout=HANG_S, check=True)

    def _enter(self) -> list[str]:
        environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"]
        return [tool("nsenter"), "--target", str(self.first), "--all", "--", *environment]

    def end(self) -> None:
        """Ends it, and all that runs there."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(HANG_S)
        self._log.close()
        until("its groups are empty", self._is_removed)
        shutil.rmtree(self.folder)

    def _is_removed(self) -> bool:
        folders = [Path(folder) for folder, _, _ in os.walk(self._group, topdown=False)]
        try:
            for folder in folders:
                folder.rmdir()
        except OSError:
            return False
        return True


def _unified() -> Path:
    """Where the groups of the second version are."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, where, kind, *_ in mounts:
        if kind == "cgroup2":
            return Path(where)
    pytest.skip("cgroup2 is mounted nowhere: systemd cannot run in a copy of this system")
