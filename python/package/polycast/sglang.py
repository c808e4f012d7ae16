"""SGLang: new weights for its servers while they serve.

On each host that has a server:

    python -m polycast.sglang --topic policy --server http://127.0.0.1:30000

This puts each version of the topic into a folder in memory and has the server load it (`POST /update_weights_from_disk`). If POLYCAST_TOPIC
names the topic, a plug-in does the same in the server's own process; SGLang finds the plug-in by itself. For SGLang 0.5.23;
docs/howto/sglang.md.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import http.client
import json
import logging
import multiprocessing
import os
import shutil
import signal
import stat
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from polycast._agent import Agent, Object, Version, Versions, opened
from polycast.errors import AgentLost, AgentNotRunning, Invalid, ObjectUnknown, PathError, PolycastError, TimedOut
from polycast.tensors import header_of

__all__ = ["Settings", "Update", "follow", "main", "plugin"]

_LOG = logging.getLogger("polycast.sglang")
SERVER = "http://127.0.0.1:30000"
# SGLang's weight_version until another one is set.
_FIRST = "default"
# Interval between retries for a server that does not answer, and between checks whether it has restarted.
_AGAIN_S = 2.0
_LOOK_S = 5.0
# Weights in a model's folder. A version brings its own; an index would name files that the version lacks.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")
# Lowest code of an answer by which a server does not do what it was asked for.
_REFUSES = 300
_PASSING = ".new"


@dataclass(frozen=True)
class Settings:
    """Topic to follow, and the server that loads its versions."""

    topic: str
    server: str = SERVER
    # Folder in which the versions' folders are made (default: one in memory).
    into: str | os.PathLike[str] | None = None
    # A model's folder on this host. Its configuration and tokenizer go into each version's folder.
    model: str | os.PathLike[str] | None = None
    load_format: str = "auto"
    # End running requests, and do not wait for them.
    abort_all_requests: bool = False
    # Seconds that the server has for one version.
    timeout: float = 600.0
    # Key that a server with `--admin-api-key`, or with `--api-key` alone, asks for.
    key: str | None = None

    def check(self) -> None:
        """Raises `Invalid` for an address at which no server can be asked."""
        try:
            address = urlsplit(self.server)
            if address.scheme in ("http", "https") and address.hostname:
                return
        except ValueError:
            pass
        raise Invalid(f"no request can be made to '{self.server}': give an address such as {SERVER}")

    def folder(self) -> Path:
        """Returns the folder in which the versions' folders are made."""
        if self.into is not None:
            return Path(self.into).absolute()
        return memory_folder("sglang") / one_name(f"{self.topic}@{self.server}")


@dataclass(frozen=True)
class Update:
    """Result of loading a version. `message` is the server's, or describes the error."""

    version: int
    ok: bool
    message: str
    seconds: float
    folder: Path | None


def follow(settings: Settings, *, agent: Agent | None = None, stop: threading.Event | None = None) -> Iterator[Update]:
    """Has the server load each committed version of a topic, and yields the results. A slow server gets only the newest version.

    A failure is reported once, and again when it changes. If the server refuses a version, the next one is tried; a server that does not
    answer is asked again until then. A server that restarts with its first weights gets the last version again. If the agent ends, this
    waits for it to come back, unless `agent` was given.
    """
    settings.check()
    folder = settings.folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(folder):
        follower = _Follower(settings, folder, stop or threading.Event())
        if agent is not None:
            yield from follower.updates(agent)
            return
        while not follower.stop.is_set():
            try:
                with Agent() as own:
                    yield from follower.updates(own)
            except (AgentLost, AgentNotRunning) as error:
                # The first error is reported. Later tries give other messages.
                if not follower.is_alone:
                    follower.is_alone = True
                    yield from follower.failed(0, str(error))
            follower.stop.wait(_AGAIN_S)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Locks the folder: two processes that follow one topic for one server would remove each other's folders."""
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Invalid(f"another process puts versions into {folder}: end it, or name another folder (--into)") from None
        yield


class _Follower:
    """One topic for one server."""

    def __init__(self, settings: Settings, folder: Path, stop: threading.Event) -> None:
        self._settings, self._folder, self.stop = settings, folder, stop
        self._said = ""
        # Set once the agent has ended.
        self.is_alone = False
        # The server's weight_version before it has loaded versions from here.
        self._firsts = {_FIRST}
        self._looked = False
        # The last version with its folder, whether the server still has to load it, and the last version that it has loaded.
        self._last: tuple[int, Path] | None = None
        self._waits = False
        self._loaded: tuple[int, Path] | None = None

    def updates(self, agent: Agent) -> Iterator[Update]:
        versions = agent.subscribe(self._settings.topic)
        self.is_alone = False
        try:
            while not self.stop.is_set():
                version = self._newest(versions, _AGAIN_S if self._waits else _LOOK_S)
                if version is None:
                    yield from self._look()
                elif version.object is not None:
                    yield from self._take(agent, version.version, version.object)
        except _Over:
            return
        finally:
            versions.cancel()

    def _newest(self, versions: Versions, wait_s: float) -> Version | None:
        """Returns the newest version, or `None` if none arrives within `wait_s` seconds."""
        found = None
        with contextlib.suppress(TimedOut):
            while True:
                version = versions.next(wait_s if found is None else 0.0)
                if version is None:
                    raise _Over
                found = version
        return found

    def _take(self, agent: Agent, version: int, found: Object) -> Iterator[Update]:
        folder = self._folder / f"{version}-{found.data_id}"
        if self._last is not None and self._last == (version, folder):
            return
        # Also folders left by an earlier run, which may be incomplete.
        self._remove_unused()
        try:
            put_folder(agent, found, folder, self._settings.model)
            _check_weights(folder)
            self._last = (version, folder)
        except ObjectUnknown:
            # A newer version has replaced it, and comes next.
            return
        except (PolycastError, OSError) as error:
            if isinstance(error, (AgentLost, AgentNotRunning)):
                raise
            yield from self.failed(version, str(error))
            return
        finally:
            # A folder keeps its version in memory, and a server may refuse versions, or be down, for a long time.
            self._remove_unused()
        yield from self._post(version, folder)

    def _remove_unused(self) -> None:
        """Removes all folders except that of the version that the server has, for a server that restarts, and that of the last one."""
        with contextlib.suppress(FileNotFoundError):
            remove_folders(self._folder, keep=[kept[1] for kept in (self._loaded, self._last) if kept is not None])

    def _post(self, version: int, folder: Path) -> Iterator[Update]:
        if not self._looked and (says := self._weight_version()) is not None:
            self._firsts.add(says)
            self._looked = True
        body = {
            "model_path": str(folder),
            "load_format": self._settings.load_format,
            "weight_version": str(version),
            "abort_all_requests": self._settings.abort_all_requests,
        }
        began = time.monotonic()
        try:
            ok, message = self._ask("/update_weights_from_disk", body)
            self._waits = False
        except OSError as error:
            ok, message = False, f"the server at {self._settings.server} does not answer: {_reason(error)}"
            self._waits = True
        if ok:
            self._said, self._loaded = "", (version, folder)
            # The previous version's folder was kept until now, for a server that restarts while this version cannot be loaded.
            self._remove_unused()
            yield Update(version, True, message, time.monotonic() - began, folder)
            return
        yield from self.failed(version, message, time.monotonic() - began, folder)

    def failed(self, version: int, message: str, seconds: float = 0.0, folder: Path | None = None) -> Iterator[Update]:
        """Yields the failure, unless it is the same as the last one."""
        if message != self._said:
            self._said = message
            yield Update(version, False, message, seconds, folder)

    def _look(self) -> Iterator[Update]:
        """Handles a wait without a new version: asks a server again that did not answer, and checks whether it has restarted."""
        if self._waits and self._last is not None:
            yield from self._post(*self._last)
        elif self._loaded is not None:
            version = str(self._loaded[0])
            if (says := self._weight_version()) != version and says in self._firsts:
                _LOG.info("the server at %s has begun anew: it gets version %s", self._settings.server, version)
                yield from self._post(*self._loaded)

    def _weight_version(self) -> str | None:
        """Returns the server's weight_version, or `None` if the server does not answer."""
        try:
            code, answer = self._open("/model_info", None, _LOOK_S)
            said = json.loads(answer)["weight_version"] if code < _REFUSES else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return said if isinstance(said, str) else None

    def _ask(self, path: str, body: dict[str, Any]) -> tuple[bool, str]:
        """Sends a request. Returns true if the server has carried it out, and the server's message."""
        code, answer = self._open(path, body, self._settings.timeout)
        ok = code < _REFUSES
        try:
            said = json.loads(answer)
            return ok and said["success"] is True, str(said["message"])
        except (ValueError, KeyError, TypeError):
            what = "without an answer that can be read" if ok else f"with {code}: {answer[:200].decode(errors='replace').strip()}"
            return False, f"the server at {self._settings.server} has answered {what}"

    def _open(self, path: str, body: dict[str, Any] | None, timeout: float) -> tuple[int, bytes]:
        """Sends a request, and returns the answer's code and text. Raises `OSError` if there is no answer, or none that can be read, and
        `Invalid` if the settings make no request."""
        headers = {"Content-Type": "application/json"}
        if self._settings.key:
            headers["Authorization"] = f"Bearer {self._settings.key}"
        data = None if body is None else json.dumps(body).encode()
        # The server reads files of this host, so no proxy leads to it.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            request = urllib.request.Request(self._settings.server.rstrip("/") + path, data, headers)
            try:
                with opener.open(request, timeout=timeout) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read()
        except (http.client.InvalidURL, ValueError):
            # Without the error's own text, which may have the key.
            cure = "give an address such as http://127.0.0.1:30000, and a key of one line"
            raise Invalid(f"no request can be made to '{self._settings.server}': {cure}") from None
        except http.client.HTTPException as error:
            if isinstance(error, OSError):
                raise
            raise OSError(f"it has sent what is no answer of HTTP ({type(error).__name__})") from error


class _Over(Exception):
    """The subscription has ended."""


def _reason(error: OSError) -> str:
    """Returns the system's text for a failed connection."""
    inner = getattr(error, "reason", error)
    return (inner.strerror if isinstance(inner, OSError) else None) or str(inner) or type(error).__name__


def _check_weights(folder: Path) -> None:
    """Raises `Invalid` for a version that no server can load: SGLang 0.5.23 cannot recover from a file that it cannot read."""
    files = [one for one in sorted(folder.iterdir()) if one.name.endswith(".safetensors")]
    if not files:
        if any(one.name.endswith((".bin", ".pt")) for one in folder.iterdir()):
            return
        raise Invalid("the version has no weights that SGLang loads: publish a safetensors object, or a model's folder with --files")
    for one in files:
        with open(one, "rb") as file:
            first = file.read(8)
            length = int.from_bytes(first, "little")
            size = os.fstat(file.fileno()).st_size
            if length > size:
                raise Invalid(f"'{one.name}' of the version is no safetensors file")
            header, begin = header_of(memoryview(first + file.read(length)))
        try:
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (KeyError, TypeError, IndexError):
            raise Invalid(f"'{one.name}' of the version has a header that says nothing that can be used") from None
        if begin + max(ends, default=0) > size:
            raise Invalid(f"'{one.name}' of the version lacks bytes that its header names")


def put_folder(agent: Agent, found: Object, folder: Path, model: str | os.PathLike[str] | None = None) -> None:
    """Makes a folder of an object: of a set or a directory its files, of a file the file itself, as weights. They are links to the host's
    copy where possible. The other files of the folder `model` are linked beside them. The folder gets its name once it is complete."""
    passing = folder.with_name(folder.name + _PASSING)
    shutil.rmtree(passing, ignore_errors=True)
    passing.mkdir(parents=True, mode=0o700)
    try:
        if found.kind == "set":
            for file in agent.files(found.data_id):
                _put_file(file.path, file.data_id, _inside(passing, file.name))
        elif found.form == "directory":
            _put_tree(Path(found.path), passing)
        elif found.kind == "directory":
            with opened(found.path, found.data_id) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
                archive.extractall(passing, filter="data")
        else:
            _put_file(found.path, found.data_id, passing / "model.safetensors")
        if model is not None:
            _link_rest(Path(model), passing)
        shutil.rmtree(folder, ignore_errors=True)
        passing.rename(folder)
    except tarfile.TarError as error:
        raise PathError(f"the folder of '{found.name}' cannot be made: {error}") from error
    finally:
        shutil.rmtree(passing, ignore_errors=True)


def _inside(folder: Path, name: str) -> Path:
    """Returns a file's path in the folder. Refuses names that lead out of it: they come from the publisher."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise Invalid(f"the set has a file '{name}', which would not be in its folder")
    target = folder.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _put_file(path: str, data_id: int, target: Path) -> None:
    """Gives a file of the store a second name. While it exists, the agent neither overwrites the file with a newer version nor deletes its
    bytes."""
    # Opened before it is linked: an agent does not reuse the memory of an open file for the next version.
    with opened(path, data_id) as file:
        try:
            # Links the open file, not the file that has its name by now. Python follows the link only if it is given a folder.
            os.link(f"/proc/self/fd/{file.fileno()}", target, src_dir_fd=_root(), follow_symlinks=True)
        except OSError:
            # Another file system, memory of a process, or a file of another user.
            with open(target, "xb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)


_ROOT: list[int] = []


def _root() -> int:
    if not _ROOT:
        _ROOT.append(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    return _ROOT[0]


def _put_tree(source: Path, target: Path) -> None:
    """Copies a folder that a process of this host has published in place, with links where possible."""

    def put(one: str, to: str) -> None:
        try:
            os.link(os.path.realpath(one), to)
        except OSError:
            shutil.copyfile(one, to)

    shutil.copytree(source, target, dirs_exist_ok=True, copy_function=put)


def _link_rest(model: Path, folder: Path) -> None:
    """Links the files of a model's folder other than its weights. Files of the version stay."""
    if not model.is_dir():
        raise Invalid(f"{model} is no folder on this host: give the folder of the model that the server has loaded (--model)")
    for one in model.iterdir():
        if one.is_file() and not one.name.endswith(_WEIGHTS) and not (folder / one.name).exists():
            (folder / one.name).symlink_to(one.resolve())


def memory_folder(kind: str) -> Path:
    """Returns this user's folder in memory. Raises `Invalid` if another user has made it, as all users may make folders there."""
    folder = Path(f"/dev/shm/polycast-{kind}-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    shown = folder.lstat()
    if not stat.S_ISDIR(shown.st_mode) or shown.st_uid != os.getuid() or shown.st_mode & 0o022:
        raise Invalid(f"{folder} is not this user's alone: remove it, or name another folder")
    return folder


def one_name(text: str) -> str:
    """Returns a text as the name of one file."""
    name = quote(text, safe="")
    return name if len(name) <= 200 else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def remove_folders(home: Path, keep: Collection[Path]) -> None:
    """Removes the folders of earlier versions. A process that has one of their files open or mapped keeps its bytes."""
    for one in home.iterdir():
        if one not in keep and one.is_dir() and one.name[:1].isdigit():
            shutil.rmtree(one, ignore_errors=True)


def plugin() -> None:
    """Begins to follow the topic that POLYCAST_TOPIC names, if any, in the server's own process. SGLang calls this in each of its
    processes."""
    topic = os.environ.get("POLYCAST_TOPIC")
    # SGLang's schedulers are processes that multiprocessing has made.
    if not topic or multiprocessing.parent_process() is not None:
        return
    settings = Settings(
        topic=topic,
        server=os.environ.get("POLYCAST_SGLANG_SERVER") or _own_server(sys.argv),
        into=os.environ.get("POLYCAST_SGLANG_INTO"),
        model=os.environ.get("POLYCAST_SGLANG_MODEL"),
        key=os.environ.get("POLYCAST_SGLANG_KEY"),
    )
    threading.Thread(target=_follow_quietly, args=(settings,), name="polycast", daemon=True).start()


def _own_server(line: Sequence[str]) -> str:
    """Returns the address of the server with this command line, as seen from its own host."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="30000")
    said, _ = parser.parse_known_args([one for one in line if one not in ("-h", "--help")])
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(said.host, said.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{said.port}"


def _follow_quietly(settings: Settings) -> None:
    """Runs in the plug-in's thread, and writes results and errors to the server's log."""
    try:
        for update in follow(settings):
            _LOG.log(logging.INFO if update.ok else logging.WARNING, "%s", _sentence(settings.topic, update))
    except (PolycastError, OSError) as error:
        _LOG.error("the topic '%s' is not followed any more: %s", settings.topic, error)


def _sentence(topic: str, update: Update) -> str:
    if update.ok:
        return f"{topic} version {update.version}: the server has it after {update.seconds:.3f} s"
    what = f"{topic} version {update.version} is not at the server" if update.version else f"{topic} is not followed"
    return f"{what}: {update.message}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command `python -m polycast.sglang`."""
    parser = argparse.ArgumentParser(
        prog="python -m polycast.sglang", description="Has an SGLang server of this host load each version of a topic.", allow_abbrev=False
    )
    parser.add_argument("--topic", required=True, help="the topic that the versions are published on")
    parser.add_argument("--server", default=SERVER, help="where the server listens (%(default)s)")
    parser.add_argument("--into", help="where the folders of versions are made (one in /dev/shm)")
    parser.add_argument("--model", help="the folder of the server's model: its configuration and tokenizer go into each version's folder")
    parser.add_argument("--load-format", default="auto", help="how SGLang reads the weights (%(default)s)")
    parser.add_argument("--abort-all-requests", action="store_true", help="end requests that run, and do not wait for them")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that the server has for a version (%(default)s)")
    parser.add_argument("--once", action="store_true", help="end after the first version")
    said = vars(parser.parse_args(arguments))
    once = said.pop("once")
    settings = Settings(**said, key=os.environ.get("POLYCAST_SGLANG_KEY"))
    # As with Ctrl-C, an incomplete folder of a version is removed.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        for update in follow(settings):
            print(_sentence(settings.topic, update), file=sys.stdout if update.ok else sys.stderr, flush=True)
            if once and update.version:
                return 0 if update.ok else 1
    except KeyboardInterrupt:
        return 0
    except (PolycastError, OSError) as error:
        print(f"polycast: {error}", file=sys.stderr)
        return 1
    return 0


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
