"""The program `polycast` that came with this package, and functions that run it."""

from __future__ import annotations

import fcntl
import io
import json
import operator
import os
import signal
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from polycast import _pipes
from polycast._events import Report
from polycast._progress import Bar, bar_of_bytes
from polycast.errors import Closed, Invalid, PolycastError, ProgramMissing, TimedOut, TransferFailed, UnsupportedType, of_kind

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from polycast._agent import Agent, Published

StrPath = str | os.PathLike[str]

# Time that the program has to end after a signal.
ENDS_WITHIN_S = 10.0
# Number of lines of standard error that are kept, for a program that ends without a document.
_LINES_MAX = 20
# Longest code: the program reads no more of the line.
_CODE_MAX = 1000


def program() -> Path:
    """Returns the path of the program: the one of this package, or else the first one on PATH."""
    # Imported only when needed.
    import shutil
    import sysconfig
    from pathlib import Path

    schemes = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    for folder in schemes:
        found = Path(folder) / "polycast"
        if os.access(found, os.X_OK):
            return found
    if on_path := shutil.which("polycast"):
        return Path(on_path)
    raise ProgramMissing(f"there is no program polycast in {schemes[0]} nor on PATH: install the package again")


# Waits for a line, and starts nothing if this process ends before it has written the line.
_SHELL = "/bin/sh"
_GATE = (_SHELL, "-c", 'read -r go && exec "$@"', "polycast")


class _Said:
    """Output of a program on standard error. Its progress goes to `bar`."""

    def __init__(self, bar: Bar | None) -> None:
        import collections

        self.bar = bar
        self.event: dict[str, Any] | None = None
        self.lines: collections.deque[str] = collections.deque(maxlen=_LINES_MAX)
        # Set once there is an event, or once none can come.
        self.told = threading.Event()
        self.ended = threading.Event()


class Child:
    """A running program. It ends with this object or this process, even if the process is killed."""

    def __init__(self, arguments: Sequence[str], line: str | None = None, *, progress: bool = False) -> None:
        """Starts the program with `line` as its standard input. `progress` shows its progress."""
        import tempfile

        self._command, self._owner = arguments[0], os.getpid()
        # A document may be longer than a pipe holds.
        self._out: IO[bytes] = tempfile.TemporaryFile()
        self._said = _Said(bar_of_bytes() if progress else None)
        with _pipes.STARTS:
            output = self._start(arguments, line)
        self._finalizer = weakref.finalize(self, _end, self._owner, self._child, output)
        # The thread does not refer to this object, which could not be released otherwise.
        threading.Thread(target=_listen, args=(self._child, self._said), daemon=True, name="polycast-child").start()

    def _start(self, arguments: Sequence[str], line: str | None) -> int:
        """Starts the program, and returns the end of the pipe whose closing ends it."""
        import contextlib
        import subprocess

        gate = _GATE if os.access(_SHELL, os.X_OK) else ()
        said = ("go\n" if gate else "") + ("" if line is None else f"{line}\n")
        quiet = [] if self._said.bar else ["--quiet"]
        held, output = _pipes.make()
        try:
            self._child: subprocess.Popen[bytes] = subprocess.Popen(
                [*gate, str(program()), arguments[0], "--json", *quiet, *arguments[1:]],
                stdin=subprocess.PIPE,
                stdout=self._out,
                stderr=subprocess.PIPE,
                pass_fds=[held],
                # Ctrl-C is for the script, which ends the program.
                start_new_session=True,
            )
            assert self._child.stdin is not None
            # The program may already have ended.
            with contextlib.suppress(BrokenPipeError), self._child.stdin as given:
                _end_with(held, self._child.pid)
                given.write(said.encode("utf-8", "replace"))
        except BaseException as error:
            _pipes.close(output)
            self._out.close()
            # Arguments that the system refuses: a null byte, half a character, or too much text.
            if isinstance(error, ValueError | OSError) and not isinstance(error, PolycastError):
                raise Invalid(f"polycast {self._command} cannot be started like that: {error}") from None
            raise
        finally:
            os.close(held)
        return output

    def event(self) -> dict[str, Any] | None:
        """Returns the first event that the program reports, or `None` if it ends without one."""
        self._said.told.wait()
        return self._said.event

    def document(self, timeout: float | None = None) -> Any:
        """Returns the document that the program prints at its end. Raises the error that it reports, or `TimedOut`."""
        if os.getpid() != self._owner:
            raise Closed(f"polycast {self._command} runs for the process that began it: ask there")
        if timeout is not None and not timeout >= 0:
            raise Invalid(f"{timeout} is no time in seconds: give None to wait without a limit")
        if not self._said.ended.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise TimedOut(f"polycast {self._command} has not ended within {timeout:g} s")
        self._finalizer()
        printed = os.pread(self._out.fileno(), os.fstat(self._out.fileno()).st_size, 0)
        # A program that is not quiet prints notes among the errors.
        wrong = [one for one in self._said.lines if one.startswith("error: ")] or self._said.lines
        said = " ".join(wrong).removeprefix("error: ")
        try:
            document = json.loads(printed)
        except ValueError:
            raise PolycastError(said or f"polycast {self._command} ended with {self._child.returncode}") from None
        if isinstance(document, dict) and "receivers" not in document and "error" in document:
            raise _refusal(document)
        # A report without receivers names no receiver that could have failed.
        if isinstance(document, dict) and document.get("receivers") == [] and self._child.returncode != 0:
            raise of_kind("no-receivers", said)
        return document

    def end(self) -> None:
        """Ends the program, and waits until it has ended."""
        self._finalizer()


def _end_with(held: int, pid: int) -> None:
    """Has the kernel end a program when the last writer closes a pipe that the program holds and never reads."""
    # A program started by a thread that blocks SIGTERM blocks it too, and its peers learn of its death as quickly as of an orderly end. If
    # the kernel does not support this, the program ends by itself when its time is over.
    try:
        fcntl.fcntl(held, fcntl.F_SETOWN, pid)
        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(held, fcntl.F_SETFL, fcntl.fcntl(held, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        pass


def _listen(child: subprocess.Popen[bytes], said: _Said) -> None:
    """Reads the output of a program until it ends. Waiting calls are woken whatever goes wrong here."""
    assert child.stderr is not None
    try:
        with child.stderr:
            for line in io.TextIOWrapper(child.stderr, "utf-8", "replace"):
                _hear(line, said)
        _show(said, None, 0)
    finally:
        try:
            child.wait()
        finally:
            said.told.set()
            said.ended.set()


def _hear(line: str, said: _Said) -> None:
    """Reads one line: an event, or else a note."""
    try:
        event = json.loads(line) if line.startswith('{"event":') else None
    except ValueError:
        # The line is incomplete, as the program was killed.
        event = None
    if event is None:
        said.lines.append(line.strip())
    elif event["event"] == "progress":
        _show(said, event.get("bytes", 0), event.get("total", 0), event.get("spared_bytes", 0))
    elif said.event is None:
        said.event = event
        said.told.set()


def _show(said: _Said, done: int | None, total: int, spared: int = 0) -> None:
    """Reports the program's progress to the bar. A bar that fails, as on a closed standard error, is dropped, and the transfer goes on."""
    if said.bar is None:
        return
    try:
        said.bar(done, total, spared)
    except Exception:
        said.bar = None


def _end(owner: int, child: subprocess.Popen[bytes], output: int) -> None:
    # A forked process has copies of these, but no child.
    if os.getpid() != owner:
        return
    import subprocess

    if child.poll() is None:
        child.terminate()
        try:
            child.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    _pipes.close(output)


def _refusal(document: dict[str, Any]) -> PolycastError:
    """Builds the exception for an error that the program reports."""
    sentence, hint = str(document["error"]), document.get("hint")
    return of_kind(str(document.get("kind", "internal")), f"{sentence} ({hint})" if hint else sentence)


def run_json(arguments: Sequence[str], line: str | None = None, *, progress: bool = False) -> dict[str, Any]:
    """Runs the program with `--json` and returns its document, which has to be a JSON object. Ctrl-C in this process ends the program."""
    document = run_any(arguments, line, progress=progress)
    if not isinstance(document, dict):
        raise PolycastError(f"polycast {arguments[0]} said something unexpected: {str(document)[:200]}")
    return document


def run_any(arguments: Sequence[str], line: str | None = None, *, progress: bool = False) -> Any:
    """Runs the program like `run_json`. The document may also be a list."""
    child = Child(arguments, line, progress=progress)
    try:
        return child.document()
    finally:
        child.end()


def text_of(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UnsupportedType(f"{name}={value!r} has the type {type(value).__name__}: give a text")
    return value


def _number(name: str, value: object) -> str:
    try:
        return str(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise UnsupportedType(f"{name}={value!r} has the type {type(value).__name__}: give a whole number") from None


def _seconds(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedType(f"{name}={value!r} has the type {type(value).__name__}: give seconds, or None")
    return f"{value:.9f}s"


def path_text(value: object) -> str:
    """Returns a path as text, and refuses other types and what no path can be."""
    if not isinstance(value, str | bytes | os.PathLike):
        raise UnsupportedType(f"{value!r} has the type {type(value).__name__} and is no path: give a text or a pathlib.Path")
    text = os.fsdecode(value)
    if "\0" in text:
        raise Invalid(f"{text!r} is no path: it has a null byte")
    return text


def _path(value: object) -> str:
    text = path_text(value)
    # The program takes a dash as standard input, and a text that begins with one as an option.
    return f"./{text}" if text.startswith("-") else text


def one_or_more(name: str, value: str | Sequence[str]) -> list[str]:
    """Returns a list of texts. A single text becomes a list of one."""
    texts = [value] if isinstance(value, str) or not isinstance(value, Iterable) else value
    return [text_of(name, one) for one in texts]


def place(into: StrPath | None, out: StrPath | None, update: bool, force: bool) -> list[str]:
    """Returns the arguments for the place of an object."""
    arguments = [f"--into={_path(into)}"] if into is not None else []
    arguments += [f"--out={_path(out)}"] if out is not None else []
    return [*arguments, *["--update"] * bool(update), *["--force"] * bool(force)]


def cast(
    path: StrPath,
    receivers: int = 4,
    *,
    out: StrPath | None = None,
    loss: float = 0.0,
    seed: int = 1,
    force: bool = False,
    update: bool = False,
) -> Report:
    """Delivers a file or folder to receivers on this machine, with the protocol that runs between machines.

    `out` keeps the copies, one folder per receiver; `loss` is the fraction of packets that are dropped. Raises `TransferFailed` if a
    receiver has not verified every byte.
    """
    arguments = ["cast", _path(path), f"--receivers={_number('receivers', receivers)}", f"--loss={loss}", f"--seed={_number('seed', seed)}"]
    if out is not None:
        arguments.append(f"--out={_path(out)}")
    arguments += ["--force"] * force + ["--update"] * update
    return complete(Report.of(run_json(arguments)))


def complete(report: Report) -> Report:
    """Returns the report, or raises `TransferFailed` if a receiver lacks bytes."""
    failed = [f"{one.name}: {one.error or 'not verified'}" for one in report.receivers if not one.verified]
    if failed:
        error = TransferFailed("; ".join(failed))
        error.kind, error.report = "transfer-failed", report
        raise error
    return report


class Offer:
    """An open offer. Receivers pass `code`, which is also the text of this object, to `accept`. Dropping this object before the end cancels
    the offer, and so does the end of a `with`."""

    def __init__(self, child: Child, event: dict[str, Any]) -> None:
        self._child = child
        self.code: str = event["code"]
        """Code that receivers pass to `accept`."""
        self.name: str = event["name"]
        """Name of the object."""
        self.address: str = f"{event['address']}:{event['port']}"
        """Address of the offer: `from_` of `accept`, in a network without multicast."""

    def wait(self, timeout: float | None = None) -> Report:
        """Waits until every receiver has the whole object, and returns the report. Raises `TransferFailed` if a receiver lacks bytes, and
        `TimedOut` if none came. Also raises `TimedOut` after `timeout` seconds; the offer then stays open."""
        try:
            document = self._child.document(timeout)
        except (KeyboardInterrupt, SystemExit):
            self.cancel()
            raise
        return complete(Report.of(document))

    def cancel(self) -> None:
        """Ends the offer. Receivers keep the bytes that they have verified. An offer that has already ended is not changed."""
        self._child.end()

    def __str__(self) -> str:
        return self.code

    def __enter__(self) -> Offer:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


def offer(
    path: StrPath | Sequence[StrPath],
    receivers: int = 1,
    *,
    name: str | None = None,
    timeout: float | None = None,
    serve: bool = False,
    exclude: str | Sequence[str] = (),
    interface: str | None = None,
    progress: bool = False,
) -> Offer:
    """Offers a file, a folder, or several as one folder, to machines that `accept` its code. Needs no daemon. Returns as soon as there is a
    code.

    The transfer begins once `receivers` machines have come. Machines that do not come within `timeout` seconds (default: 30) have failed.
    With `serve` the offer stays open until `cancel`, and later receivers are served too. `name` is the object's name at receivers,
    `interface` the network interface, by name or address. `progress` shows progress on standard error: a tqdm bar, or a line for every
    tenth if tqdm is not installed.
    """
    paths = [path] if isinstance(path, str | bytes | os.PathLike) or not isinstance(path, Sequence) else path
    arguments = ["offer", *[_path(one) for one in paths], f"--receivers={_number('receivers', receivers)}"]
    arguments += [f"--as={text_of('name', name)}"] if name is not None else []
    arguments += [f"--timeout={_seconds('timeout', timeout)}"] if timeout is not None else []
    arguments += [f"--exclude={one}" for one in one_or_more("exclude", exclude)]
    arguments += [f"--interface={text_of('interface', interface)}"] if interface is not None else []
    arguments += ["--serve"] * bool(serve)
    child = Child(arguments, progress=progress)
    try:
        event = child.event()
        if event is None:
            raise PolycastError(f"polycast offer said something unexpected: {str(child.document())[:200]}")
    except BaseException:
        child.end()
        raise
    return Offer(child, event)


@dataclass(frozen=True)
class Accepted:
    """An accepted object: the document of `polycast accept --json`, which `document` holds in full. `path` is its location."""

    path: Path
    bytes: int
    name: str
    root: str
    unchanged: bool
    seconds: float
    document: dict[str, Any] = field(repr=False, compare=False)


def accept(
    code: str,
    into: StrPath | None = None,
    *,
    out: StrPath | None = None,
    timeout: float | None = None,
    update: bool = False,
    force: bool = False,
    from_: str | None = None,
    name: str | None = None,
    interface: str | None = None,
    progress: bool = False,
) -> Accepted:
    """Receives the object that another machine offers under this code, and returns once all of it has arrived and is verified.

    The object goes into the folder `into` under its own name (default: the working directory), or to the path `out`. An existing path is
    kept and raises `PathError`; with `update` only the differences are sent, and `force` replaces all of it. `timeout` limits the search
    for the offer, in seconds (default: no limit). `from_` is the machine that offers, in a network without multicast; `name` is this
    machine's name in the report there. `progress` shows progress on standard error.
    """
    from pathlib import Path

    # Other users of this machine can read arguments, but not standard input.
    arguments = ["accept", "-", *place(into, out, update, force)]
    arguments += [f"--timeout={_seconds('timeout', timeout)}"] if timeout is not None else []
    arguments += [f"--from={text_of('from_', from_)}"] if from_ is not None else []
    arguments += [f"--host={text_of('name', name)}"] if name is not None else []
    arguments += [f"--interface={text_of('interface', interface)}"] if interface is not None else []
    document = run_json(arguments, _code(code), progress=progress)
    fields = {name: document[name] for name in ("bytes", "name", "root", "unchanged", "seconds")}
    return Accepted(path=Path(document["path"]), document=document, **fields)


def _code(code: object) -> str:
    """Returns a code as one line. Exceptions do not quote it, since a wrong code may be nearly right."""
    if not isinstance(code, str):
        raise UnsupportedType(f"a code is a text, and this one has the type {type(code).__name__}")
    return code.strip()[:_CODE_MAX]


def fetch(
    wanted: str,
    into: StrPath | None = None,
    *,
    out: StrPath | None = None,
    agent: Agent | None = None,
    from_: str | None = None,
    timeout: float | None = None,
    update: bool = False,
    force: bool = False,
    progress: bool = False,
) -> Path:
    """Gets an object by its address (`https:`, `http:`, `s3:`, `hf:`, `oci:` or `file:`) or its key (`sha256:HEX`, `git:HEX`, `name:TEXT`) through the agent of
    this host, and returns the path of the copy. Hosts that ask at nearly the same time get it together, and only one of them contacts its
    origin.

    `from_` is the address from which a key is fetched. `agent` is an agent that is not at its usual socket. `timeout` limits the call in
    seconds, including the wait until an agent has the object. `into`, `out`, `update`, `force` and `progress` work as in `accept`.
    """
    from pathlib import Path

    # `--` keeps a text that begins with a dash from being read as an option.
    arguments = ["fetch", *place(into, out, update, force)]
    if agent is not None:
        # Raises if the agent was closed: its socket may by now belong to another one.
        agent._connection
        arguments.append(f"--socket={agent.socket}")
    arguments += [f"--from={text_of('from_', from_)}"] if from_ is not None else []
    arguments += [f"--timeout={_seconds('timeout', timeout)}"] if timeout is not None else []
    return Path(run_json([*arguments, "--", text_of("wanted", wanted)], progress=progress)["path"])


def publish(
    topic: str,
    path: StrPath | None = None,
    *,
    from_: str | None = None,
    files: bool = False,
    version: int | None = None,
    agent: Agent | None = None,
    token_env: str | None = None,
    timeout: float | None = None,
    progress: bool = False,
) -> Published:
    """Publishes a file or a folder, or with `from_` what is at an address (`https:`, `http:`, `s3:`, `hf:`, `oci:` or `file:`), as a new
    version of a topic. The agent of this host reads an address once, for all subscribers; a folder there becomes a set of files.

    With `files` each file of a folder is an object of its own. `token_env` names the variable of the environment whose value the server of
    the address gets as a token. `version`, `timeout` and the result are those of `Agent.publish`; `agent` and `progress` work as in `fetch`.
    """
    from polycast._agent import Published

    if (path is None) == (from_ is None):
        raise Invalid("publish takes either a path or from_, an address")
    arguments = ["publish", *(["--files"] if files else [])]
    if agent is not None:
        agent._connection
        arguments.append(f"--socket={agent.socket}")
    arguments += [f"--from={text_of('from_', from_)}"] if from_ is not None else []
    arguments += [f"--version={_number('version', version)}"] if version is not None else []
    arguments += [f"--token-env={text_of('token_env', token_env)}"] if token_env is not None else []
    arguments += [f"--timeout={_seconds('timeout', timeout)}"] if timeout is not None else []
    paths = [os.fsdecode(path)] if path is not None else []
    document = run_json([*arguments, "--", text_of("topic", topic), *paths], progress=progress)
    have = tuple(one["name"] for one in document["subscribers"] if one["verified"])
    missing = [one for one in document["subscribers"] if not one["verified"]]
    return Published(
        version=document["version"],
        have=have,
        missing={one["name"]: one["reason"] for one in missing},
        sent_bytes=document["sent_bytes"],
        spared_bytes=document["spared_bytes"],
        coded_bytes=document["coded_bytes"],
        kinds={one["name"]: one["kind"] for one in missing if one["kind"]},
    )
