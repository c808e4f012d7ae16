"""slime and miles: two hooks that replace their shared file system. See docs/howto/rl.md.

    --custom-update-weight-post-write-path polycast.shared_folder.post_write
    --sglang-custom-pull-weights-pre-read-hook polycast.shared_folder.pre_read

The trainer writes each version into a folder `weight_v000017` on its own disk, and `post_write` publishes that folder as a set of files. On
each rollout host `pre_read` puts it into the folder of the same name, before SGLang reads it there. POLYCAST_TOPIC names the topic
(default: one made of the folder's path, which is the same on both sides), and POLYCAST_SOCKET the agent's socket. A reader waits
POLYCAST_TIMEOUT seconds, and the hosts have POLYCAST_PUBLISH_TIMEOUT seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polycast._agent import Agent, Published, SetFile, Version, Versions, created, until
from polycast._backends import DEFAULT_APP, GONE, Link, new_number, publish, seconds
from polycast._renamed import variable
from polycast.errors import Invalid, ObjectUnknown, TimedOut

__all__ = ["post_write", "pre_read"]

_LOG = logging.getLogger("polycast.shared_folder")
_VERSION = re.compile(r"weight_v(\d{6,})")
# Folder of the hooks beside the versions.
_OWN = ".polycast"
_PUBLISH_TIMEOUT = "POLYCAST_PUBLISH_TIMEOUT"
_INDEX = "model.safetensors.index.json"
# Prefix of the name of the object that announces a run. The run's name follows it.
_BEGINS = "polycast-run-"


@dataclass
class _Run:
    """Versions that one run of a trainer has published and still offers: from the last whole one on, since a host that comes late needs it
    and all changes after it."""

    name: str
    versions: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Place:
    """A topic as used by the process of this number. A forked process has its own."""

    process: int
    socket: str | None
    topic: str


_RUNS: dict[_Place, _Run] = {}
_LINKS: dict[_Place, Link] = {}
_READERS: dict[_Place, _Reader] = {}
_LOCK = threading.Lock()


def post_write(args: Any, version_dir: str | os.PathLike[str], rollout_engines: Any) -> Published | None:
    """Publishes a version's folder, and returns once all hosts that are alive have it. Every rank of the trainer calls this, and only rank
    0 acts: it must see the files of all ranks. The result, and a warning in the log, name the hosts that lack the version.

    `args.polycast_topic` and `args.polycast_socket` override the environment. A call with the folder of all versions, made before the first
    one, announces a new run.
    """
    if _rank() != 0:
        return None
    folder = Path(os.path.abspath(version_dir))
    number = _number(folder.name)
    of_all = folder if number is None else folder.parent
    place = _place(getattr(args, "polycast_socket", None), getattr(args, "polycast_topic", None), of_all)
    timeout = seconds(_PUBLISH_TIMEOUT, variable(_PUBLISH_TIMEOUT, "POLYCAST_DEADLINE", "300"))
    with _LOCK:
        agent = _link(place).agent
        if number is None:
            _begin(agent, place, timeout)
            return None
        run = _RUNS.get(place)
        if run is None or (run.versions and number <= run.versions[-1][0]):
            run = _begin(agent, place, timeout)
        return _publish(agent, place, run, folder, number, timeout)


def _begin(agent: Agent, place: _Place, timeout: float) -> _Run:
    """Announces to all readers that versions begin anew, so that none takes a version of the previous run for one of the same number."""
    before = _RUNS.pop(place, None)
    run = _Run(uuid.uuid4().hex)
    data_id = new_number()
    agent.add_buffer(data_id, run.name.encode(), name=_BEGINS + run.name)
    try:
        publish(agent, place.topic, data_id, None, timeout, _LOG)
    except BaseException:
        agent._forget(data_id)
        raise
    for _, one in before.versions if before else []:
        agent._forget(one)
    _RUNS[place] = run
    return run


def _publish(agent: Agent, place: _Place, run: _Run, folder: Path, number: int, timeout: float) -> Published:
    data_id = new_number()
    changes = _refuse_what_is_not_whole(folder)
    # A reader starts from a whole version, or from the weights that it had before the first one.
    versions = [*(run.versions if changes else []), (number, data_id)]
    empty = [str(one.relative_to(folder)) for one in sorted(folder.rglob("*")) if one.is_file() and one.stat().st_size == 0]
    manifest = folder.parent / _OWN / f"{folder.name}.json"
    _write(manifest, {"version": number, "run": run.name, "versions": versions, "empty": empty})
    agent.add(data_id, [folder, manifest], name=folder.name, files=True)
    try:
        # The topic goes on counting when a run begins anew, so its numbers differ from those of the folders.
        published = publish(agent, place.topic, data_id, None, timeout, _LOG)
    except BaseException:
        agent._forget(data_id)
        raise
    for _, one in run.versions:
        if one not in [kept for _, kept in versions]:
            agent._forget(one)
    run.versions = versions
    return published


def _refuse_what_is_not_whole(folder: Path) -> bool:
    """Returns true if the version has only changes. Raises `Invalid` if it lacks a file that its index names."""
    try:
        index = json.loads((folder / _INDEX).read_text())
        names, metadata = set(index.get("weight_map", {}).values()), index.get("metadata", {})
    except FileNotFoundError:
        return False
    except (ValueError, AttributeError) as error:
        raise Invalid(f"'{folder / _INDEX}' is no index that can be used ({error}), and the version is not published") from None
    lacking = sorted(name for name in names if not (folder / name).is_file())
    if lacking:
        cure = "have all ranks of the trainer write into one folder that rank 0 reads"
        raise Invalid(f"'{folder}' has not got '{lacking[0]}', which its index names, and is not published: {cure}")
    return "delta_encoding" in metadata


def pre_read(delta_dir: str | os.PathLike[str], target_version: int) -> None:
    """Waits until a version is on this host, and puts its folder where the reader looks for it, with the missing earlier versions that it
    builds on. A folder appears only once it is complete. Processes of one host may call this at the same time."""
    folder = Path(os.path.abspath(delta_dir))
    timeout = seconds("POLYCAST_TIMEOUT", os.environ.get("POLYCAST_TIMEOUT", 600))
    place = _place(None, None, folder)
    ends = until(timeout)
    assert ends is not None
    with _LOCK:
        reader = _READERS.setdefault(place, _Reader(_link(place)))
        said = reader.wait(target_version, ends, timeout)
        agent = reader.link.agent
    with _alone(folder / _OWN):
        for number, data_id in said["versions"]:
            if number <= target_version:
                _put(agent, folder, number, data_id, said["run"], ends)
        _remove_what_is_over(folder, said)


class _Reader:
    """This process's subscription. It stays from one version to the next, so that the host has a version before a reader asks for it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._versions: Versions | None = None
        self._said: dict[str, Any] = {}
        self._last = "none has come"

    def wait(self, target: int, ends: float, timeout: float) -> dict[str, Any]:
        """Returns the manifest of the newest version, once the wanted version is that one or one before it."""
        # Versions that have already arrived come first: the newest one so far may belong to another run.
        left = 0.0
        while True:
            versions = self.link.versions()
            if versions is not self._versions:
                # The agent was restarted, and reports the last version again.
                self._versions, self._said = versions, {}
            try:
                version = versions.next(left)
            except GONE:
                version = None
            except TimedOut:
                if any(number == target for number, _ in self._said.get("versions", [])):
                    return self._said
                if time.monotonic() >= ends:
                    raise self._late(target, timeout) from None
                left = max(0.0, ends - time.monotonic())
                continue
            if version is None:
                if time.monotonic() >= ends:
                    raise self._late(target, timeout)
                # The subscription has ended with the agent. This raises if the agent is not up again.
                self.link.resubscribe()
            else:
                self._take(version, ends)
            left = 0.0

    def _late(self, target: int, timeout: float) -> TimedOut:
        what = f"version {target} of '{self.link.topic}' did not come to the agent at {self.link.agent.socket}"
        cure = "see whether the trainer has published it there, and whether its log names this host"
        return TimedOut(f"{what} within {timeout:g} s ({self._last}): {cure}")

    def _take(self, version: Version, ends: float) -> None:
        found = version.object
        if found is None:
            return
        if found.name.startswith(_BEGINS):
            self._said, self._last = {}, "a run has begun, and it has not been published"
            return
        try:
            manifest = _files(self.link.agent, found.data_id, ends).get(f"{found.name}.json")
            self._said = json.loads(Path(manifest.path).read_text()) if manifest is not None else {}
        except (ObjectUnknown, TimedOut, FileNotFoundError):
            # A newer version has replaced it.
            return
        self._last = f"the last one there is {found.name}"


def _put(agent: Agent, folder: Path, number: int, data_id: int, run: str, ends: float) -> None:
    """Puts a version's folder in its place, unless it is there."""
    name = f"weight_v{number:06d}"
    target = folder / name
    if target.is_dir():
        runs = [_read(folder / _OWN / f"{name}{end}").get("run") for end in (".json", ".put.json")]
        if run in runs:
            return
        if runs[1] is None:
            raise Invalid(f"'{target}' is there already and is not of this run: remove it, or name another folder")
    coming = folder / _OWN / f"coming-{uuid.uuid4().hex}"
    made = coming / name
    made.mkdir(parents=True)
    try:
        agent.fetch(data_id, timeout=max(0.0, ends - time.monotonic()))
        files = _files(agent, data_id, ends)
        said = json.loads(Path(files.pop(f"{name}.json").path).read_text())
        store = agent.status().store
        for file in files.values():
            to = _below(coming, file.name)
            to.parent.mkdir(parents=True, exist_ok=True)
            _bring(file, to, store)
    except (ObjectUnknown, TimedOut, FileNotFoundError) as error:
        cure = "have the trainer write a whole version, or start from the weights that it has begun with"
        raise TimedOut(f"{name}, on which the wanted version builds, is with no agent any more ({error}): {cure}") from error
    for one in said["empty"]:
        to = _below(made, one)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.touch()
    if target.is_dir():
        # Before the mark: if this process dies in between, another run's folder does not carry this run's mark.
        os.rename(target, coming / "before")
    _write(folder / _OWN / f"{name}.put.json", {"run": run})
    os.rename(made, target)
    shutil.rmtree(coming)


def _bring(file: SetFile, to: Path, store: str) -> None:
    """Links to the store's file where possible, and copies it otherwise. The agent reuses no memory that has a second name. A file in the
    trainer's own folder is copied, since it may change."""
    there = os.stat(file.path)
    if there.st_uid == os.geteuid() and os.path.commonpath([store, file.path]) == store:
        try:
            os.link(file.path, to)
            return
        except OSError:
            # Another file system, or one without links.
            pass
    created(os.fspath(to), file.mode | 0o600).close()
    shutil.copyfile(file.path, to)


def _below(folder: Path, name: str) -> Path:
    """Returns the path of a file of this name. Refuses names that lead out of the folder: they come from other hosts."""
    to = Path(os.path.normpath(folder / name))
    if not to.is_relative_to(folder) or to == folder:
        raise Invalid(f"'{name}' leads out of the version's folder, and the version is not put there")
    return to


def _remove_what_is_over(folder: Path, said: dict[str, Any]) -> None:
    """Removes versions that this module has put there and that no reader needs: those of other runs, and those before a whole one."""
    first = said["versions"][0][0]
    for mark in (folder / _OWN).glob("*.put.json"):
        name = mark.name.removesuffix(".put.json")
        number = _number(name)
        if number is not None and (number < first or _read(mark).get("run") != said["run"]):
            shutil.rmtree(folder / name, ignore_errors=True)
            mark.unlink()


@contextlib.contextmanager
def _alone(own: Path) -> Iterator[None]:
    """Lets in one process of this host at a time."""
    own.mkdir(parents=True, exist_ok=True)
    with open(own / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for rest in own.glob("coming-*"):
            # Left by a process that has died.
            shutil.rmtree(rest, ignore_errors=True)
        yield


def _files(agent: Agent, data_id: int, ends: float) -> dict[str, SetFile]:
    files = agent.files(data_id, max(0.0, ends - time.monotonic()))
    found = {}
    while (file := files.next(max(0.0, ends - time.monotonic()))) is not None:
        found[file.name] = file
    return found


def _place(socket: str | None, topic: str | None, folder: Path) -> _Place:
    # A path is no name for a topic, and may be too long for one.
    topic = topic or os.environ.get("POLYCAST_TOPIC") or f"weights-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    return _Place(os.getpid(), socket or os.environ.get("POLYCAST_SOCKET"), topic)


def _link(place: _Place) -> Link:
    return _LINKS.setdefault(place, Link(place.topic, DEFAULT_APP, place.socket, _LOG))


def _number(name: str) -> int | None:
    found = _VERSION.fullmatch(name)
    return int(found.group(1)) if found else None


def _rank() -> int:
    """Returns this process's rank in the trainer. Asks torch only if the trainer has imported it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return int(os.environ.get("RANK", 0))


def _read(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _write(path: Path, said: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".half")
    half.write_text(json.dumps(said))
    os.replace(half, path)
