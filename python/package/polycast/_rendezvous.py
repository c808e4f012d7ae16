"""Rendezvous of a job's processes: the rank of this process, and a place where processes leave messages for each other.

The place is the store of torch.distributed, or a folder that all hosts share. Every message in it is JSON under a key.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from polycast.errors import Invalid, PolycastError, TimedOut, UnsupportedType, of_kind

# Interval between polls for a message: at first, and at most.
_PAUSE_S, _PAUSE_MAX_S = 0.001, 0.1
# Interval between checks whether the awaited processes have left.
_LOOK_S = 0.5
# Largest number of ranks that a sentence lists.
_NAMED_MAX = 8
# Subfolder in which the processes meet, and the mark in it that they have created the folder above it themselves.
_TOP, _MADE = ".polycast-rendezvous", "made"
# Variables for the rank of this process and the number of processes: of torchrun and Ray Train, and of Slurm.
_NUMBERS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("SLURM_PROCID", "SLURM_NTASKS"))
# Ports for a Slurm job that names none: Linux hands out those from 32,768 on to any program that asks.
_SLURM_PORTS = range(20_000, 30_000)
# Distance between the ports of a job's steps, which may run at the same time: jobs with consecutive numbers do not collide with them.
_SLURM_STEP = 1009


class Place(Protocol):
    """Place where messages are left."""

    is_new: bool
    """True if all messages belong to this job, and none to an earlier one."""

    def put(self, key: str, word: Any) -> None:
        """Leaves a message, and replaces an earlier one under the same key."""

    def found(self, keys: Collection[str]) -> dict[str, Any]:
        """Returns the messages that exist under these keys."""

    def forget(self, keys: Iterable[str]) -> None:
        """Deletes the messages under these keys, if they exist."""

    def begin(self) -> None:
        """Deletes the messages of an earlier job. Only the first process calls it."""

    def begun(self) -> None:
        """Notes that the first process has called `begin`: later messages stay."""

    def end(self) -> None:
        """Deletes the place. Only the first process calls it, last of all."""


class TorchPlace:
    """A store of torch.distributed."""

    is_new = True

    def __init__(self, store: Any, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def put(self, key: str, word: Any) -> None:
        self._asked(lambda: self._store.set(self._prefix + key, json.dumps(word)))

    def found(self, keys: Collection[str]) -> dict[str, Any]:
        words: dict[str, Any] = self._asked(lambda: self._found(keys))
        return words

    def _found(self, keys: Collection[str]) -> dict[str, Any]:
        # One check is enough if all messages exist.
        if not self._store.check([self._prefix + key for key in keys]):
            keys = [key for key in keys if self._store.check([self._prefix + key])] if len(keys) > 1 else []
        return {key: json.loads(self._store.get(self._prefix + key)) for key in keys}

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._asked(lambda key=key: self._store.delete_key(self._prefix + key))  # type: ignore[misc]

    def begin(self) -> None:
        pass

    def begun(self) -> None:
        pass

    def end(self) -> None:
        pass

    @staticmethod
    def _asked(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as error:
            # torch's message has a stack trace of C++ after its first line.
            why = str(error).partition("\n")[0]
            raise of_kind("rendezvous-lost", f"the store of torch.distributed does not answer any more: {why}") from None


class FolderPlace:
    """A folder that all processes see. Their messages are in a subfolder for each group, and other files of the folder are not touched. The
    files are for this user only."""

    is_new = False

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._top = folder, folder / _TOP
        self._words = self._top / str(count)
        # Messages of this process that the first process may delete together with those of an earlier job.
        self._early: dict[str, str] | None = {}
        self._make()

    def _make(self) -> None:
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            is_made = _made(self._folder)
            self._check(self._folder)
            for one in (self._top, self._words):
                _made(one)
                self._check(one)
            if is_made:
                (self._top / _MADE).touch(mode=0o600)
        except OSError as error:
            if isinstance(error, PolycastError):
                raise
            raise of_kind("path", f"cannot make the folder {self._folder} where the processes meet: {error.strerror}") from None

    @staticmethod
    def _check(folder: Path) -> None:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise of_kind("path", f"{folder} is no folder: name one, and it is made where there is none")
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise Invalid(f"others may write to {folder}, and the job's key lies in it: name a folder that is this user's alone")

    def put(self, key: str, word: Any) -> None:
        text = json.dumps(word)
        if self._early is not None:
            self._early[key] = text
            # The first process of an earlier group may have deleted the folder since.
            self._make()
        self._write(key, text)

    def _write(self, key: str, text: str) -> None:
        try:
            with tempfile.NamedTemporaryFile("w", dir=self._words, prefix=".", delete=False) as part:
                part.write(text)
            os.replace(part.name, self._words / key)
        except FileNotFoundError:
            raise self._gone() from None
        except OSError as error:
            raise of_kind("path", f"cannot write to the folder {self._folder} where the processes meet: {error.strerror}") from None

    def _gone(self) -> PolycastError:
        why = "rank 0 has ended the job, or another job meets there"
        return of_kind("rendezvous-lost", f"what the processes have left in {self._folder} is gone: {why}")

    def found(self, keys: Collection[str]) -> dict[str, Any]:
        # A listing of the folder is newer than a network file system's cache of one file.
        try:
            here = set(os.listdir(self._words))
        except FileNotFoundError:
            if self._early is None:
                raise self._gone() from None
            here = set()
        except OSError:
            here = set()
        for key, text in (self._early or {}).items():
            if key not in here:
                self._make()
                self._write(key, text)
        words = {}
        for key in here.intersection(keys):
            try:
                words[key] = json.loads((self._words / key).read_text())
            except OSError:
                continue
        return words

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            (self._words / key).unlink(missing_ok=True)

    def begin(self) -> None:
        try:
            self.forget(one for one in os.listdir(self._words) if not one.startswith("."))
        except OSError as error:
            raise of_kind("path", f"cannot clear the folder {self._words} where the processes meet: {error.strerror}") from None
        self.begun()

    def begun(self) -> None:
        self._early = None

    def end(self) -> None:
        import shutil

        self._early = None
        shutil.rmtree(self._words, ignore_errors=True)
        # Files of another group keep the folders in place.
        with contextlib.suppress(OSError):
            is_made = os.listdir(self._top) == [_MADE]
            if is_made:
                (self._top / _MADE).unlink()
            self._top.rmdir()
            if is_made:
                self._folder.rmdir()


def _made(folder: Path) -> bool:
    """Creates a folder for this user alone. Returns false if it already exists."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    return True


def wait(
    place: Place,
    keys: Collection[str],
    ends: float,
    late: Callable[[list[str]], str],
    *,
    enough: Callable[[Any], bool] = lambda word: False,
    valid: Callable[[Any], bool] = lambda word: True,
    left: Callable[[list[str]], None] = lambda missing: None,
) -> dict[str, Any]:
    """Waits for the messages under all these keys, or fewer once one is `enough`, and returns them. Messages that are not `valid` do not
    count. Raises `TimedOut` with the sentence of `late` if some are missing at the end. `left` is called from time to time with the missing
    keys, and raises if their messages will not come."""
    words: dict[str, Any] = {}
    pause, looks = _PAUSE_S, time.monotonic() + _LOOK_S
    while True:
        missing = [key for key in keys if key not in words]
        new = {key: word for key, word in place.found(missing).items() if valid(word)}
        words |= new
        if len(words) == len(keys) or any(map(enough, new.values())):
            return words
        if time.monotonic() >= ends:
            raise TimedOut(late([key for key in missing if key not in new]))
        if time.monotonic() >= looks:
            left([key for key in missing if key not in new])
            looks = time.monotonic() + _LOOK_S
        pause = _PAUSE_S if new else min(2 * pause, _PAUSE_MAX_S)
        time.sleep(pause)


def listed(names: list[str]) -> str:
    """Joins names for a sentence."""
    shown = names[:_NAMED_MAX]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} others" if more else "")


def ranks(rank: int | None, world_size: int | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Returns the rank of this process and the number of processes."""
    if rank is None and world_size is None:
        return _checked(*(_group_of_torch() or _from_environment(environment)))
    if rank is None or world_size is None:
        raise Invalid("rank= and world_size= go together: say both, or neither where torchrun or Slurm has started this process")
    for name, value in (("rank", rank), ("world_size", world_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnsupportedType(f"{name}={value!r} has the type {type(value).__name__}: give a whole number")
    return _checked(rank, world_size)


def _checked(rank: int, world_size: int) -> tuple[int, int]:
    if not 0 <= rank < world_size:
        raise Invalid(f"there is no rank {rank} of {world_size}: ranks count from 0 to one below world_size")
    return rank, world_size


def _from_environment(environment: Mapping[str, str]) -> tuple[int, int]:
    for names in _NUMBERS:
        found = [environment.get(name) for name in names]
        if all(found):
            return _number(names[0], str(found[0])), _number(names[1], str(found[1]))
    raise Invalid("this process is of no job: start it with torchrun or srun, set RANK and WORLD_SIZE, or say rank= and world_size=")


def _number(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise Invalid(f"{name}={text!r} is no whole number")
    return int(text)


def _group_of_torch() -> tuple[int, int] | None:
    """Returns the same from torch.distributed, or `None` if this process has no group there."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def first_host(nodes: str) -> str:
    """Returns the first host of a Slurm host list: `gpu[07-09,12]` begins with gpu07."""
    found = re.match(r"([^\[\],]+)(?:\[(\w+)[^\]]*\]([^\[\],]*))?(?:,|$)", nodes)
    if found is None:
        raise Invalid(f"Slurm's {nodes!r} is no list of hosts: set MASTER_ADDR to the host of rank 0")
    return found.group(1) + (found.group(2) or "") + (found.group(3) or "")


def master(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Returns the address and port of the first process: MASTER_ADDR and MASTER_PORT, or values derived from a Slurm job."""
    address = environment.get("MASTER_ADDR") or ""
    port = environment.get("MASTER_PORT") or ""
    # A Slurm step may have only part of the job's hosts. Processes with RANK may be spread over several steps.
    nodes = "" if environment.get("RANK") else environment.get("SLURM_STEP_NODELIST")
    if not address and (nodes := nodes or environment.get("SLURM_JOB_NODELIST")):
        address = first_host(nodes)
    if not port and (job := environment.get("SLURM_JOB_ID")):
        number = _number("SLURM_JOB_ID", job) + _SLURM_STEP * _step(environment)
        port = str(_SLURM_PORTS[number % len(_SLURM_PORTS)])
    if not address or not port:
        return None
    if not 0 < _number("MASTER_PORT", port) < 1 << 16:
        raise Invalid(f"MASTER_PORT={port} is no port: they end at 65535")
    return address, int(port)


def _step(environment: Mapping[str, str] = os.environ) -> int:
    """Returns the number of the Slurm step that is this job, or 0."""
    number = environment.get("SLURM_STEP_ID") or ""
    # The batch script is a step of its own, with a number of ten digits.
    return int(number) if re.fullmatch("[0-9]{1,9}", number) and not environment.get("RANK") else 0


def place(rendezvous: object, rank: int, world_size: int, count: int, timeout_s: float) -> Place:
    """Returns the place where the processes meet. `count` is the number of groups that this process had before."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"polycast/{restarts}/{_step()}/{count}/"
    if isinstance(rendezvous, str):
        return FolderPlace(_folder(rendezvous), count)
    if rendezvous is not None:
        if not all(hasattr(rendezvous, name) for name in ("set", "get", "check", "delete_key")):
            what = f"rendezvous={rendezvous!r} has the type {type(rendezvous).__name__}"
            raise UnsupportedType(f"{what}: give 'file:///FOLDER', or a store of torch.distributed")
        return TorchPlace(rendezvous, prefix)
    if _group_of_torch() is not None:
        from torch.distributed.distributed_c10d import _get_default_store

        return TorchPlace(_get_default_store(), prefix)
    return TorchPlace(_store(rank, world_size, timeout_s), prefix)


def _folder(url: str) -> Path:
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise Invalid(f"rendezvous={url!r} is no folder: write file:///FOLDER, with one that all hosts share")
    if "?" in url or "#" in url:
        raise Invalid(f"rendezvous={url!r} has a '?' or '#', behind which nothing is the folder's name: write %3F or %23 where they belong to it")
    return Path(unquote(parts.path))


def _store(rank: int, world_size: int, timeout_s: float) -> Any:
    """Opens a store of this job's own at MASTER_ADDR. torchrun already runs one there; otherwise the first process runs it."""
    where = master()
    otherwise = "or say rendezvous='file:///FOLDER' with a folder that all hosts share"
    if where is None:
        raise Invalid(f"MASTER_ADDR and MASTER_PORT do not say where the processes meet: set them to the host of rank 0 and a free port, {otherwise}")
    try:
        from torch.distributed import TCPStore
    except ImportError:
        raise Invalid(f"torch is not installed, whose store the processes would meet in: install it, {otherwise}") from None
    from datetime import timedelta

    address, port = where
    is_first = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        # Missing ranks are named later. torch itself may ask for a store at the same port after this.
        return TCPStore(
            address, port, world_size, is_first, timedelta(seconds=timeout_s), wait_for_workers=False, multi_tenant=True
        )
    except (RuntimeError, ValueError) as error:
        why = str(error).partition("\n")[0]
        kind = "invalid" if is_first else "timed-out"
        raise of_kind(kind, f"no store of torch.distributed at MASTER_ADDR={address} MASTER_PORT={port}: {why}") from None
