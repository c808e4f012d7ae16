"""Polycast in a job of many processes that torchrun, Slurm or another launcher with RANK, WORLD_SIZE and MASTER_ADDR has started.

    from polycast import distributed

    distributed.broadcast_folder("/data/llama", src=0)    # in every process: from rank 0's host to all others, once a host
    distributed.broadcast_module(model, src=0)            # rank 0's weights into the module of every rank

The hosts need no daemon: the first call starts a manager beside rank 0, and an agent on each host, which serves all ranks there. Their
messages are sealed with a key that rank 0 makes. The processes meet in the store of torch.distributed, and the key goes through it: a
program that reads that store can take part. Without torch, `init(rendezvous="file:///FOLDER")` has them meet in a folder that all hosts
share.

Every rank makes the same calls in the same order. A call returns once all ranks have the data. If a rank fails, or does not come within
`timeout` seconds, the call raises at all ranks and names that rank.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import ipaddress
import os
import re
import shutil
import socket
import struct
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polycast import _rendezvous
from polycast._agent import Agent, Object, said_by, until
from polycast._embedded import parent
from polycast._native import VERSION
from polycast._program import StrPath, path_text, place, run_json, text_of
from polycast.errors import Closed, Invalid, ObjectUnknown, PolycastError, TimedOut, UnsupportedType, kind_of, of_kind

if TYPE_CHECKING:
    import torch

__all__ = ["Group", "barrier", "broadcast_folder", "broadcast_module", "init"]

# Timeout of a call, the same as torch.distributed's.
TIMEOUT_S = 1800.0
# Rank 0 knows best which ranks are missing: the others wait for its message a little longer than it waits for theirs.
_WORD_S = 10.0
# Time that rank 0, whose process may run the store, waits for the others to leave, and a host's first rank for the ranks beside it.
_LEAVES_WITHIN_S = 10.0
# Interval at which a rank that waits for bytes checks whether the call has failed elsewhere.
_LOOK_S = 0.5
# Request to the kernel for the address of an interface (linux/sockios.h).
_SIOCGIFADDR = 0x8915
# Addresses of IPv6, each with its interface and its scope: 0 for the network's, and others.
_ADDRESSES_V6 = "/proc/net/if_inet6"
# Addresses that are on no network here, so that the way to them is the default route (RFC 5737, RFC 3849).
_FAR = ("192.0.2.1", "2001:db8::1")


@dataclass(frozen=True)
class _Rank:
    """Description that a process gives of itself."""

    rank: int
    host: str
    node: str
    address: str
    version: str
    # Identifies this process, and no earlier one.
    nonce: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node}"


def init(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    rendezvous: object = None,
    interface: str | None = None,
    store: StrPath | None = None,
    timeout: float = TIMEOUT_S,
) -> Group:
    """Starts the manager and the agents of a job, and returns its group. Every process calls it, and it returns once all have come.

    `rank` and `world_size` default to those of torch.distributed, torchrun or Slurm. The processes meet in the store of torch.distributed's
    group, or of MASTER_ADDR and MASTER_PORT; `rendezvous` gives another place: a store of torch.distributed, or `"file:///FOLDER"`, a
    folder that all hosts share. `interface` is this host's network interface, by name or address (default: the one that reaches the
    others). `store` is a folder of this host for objects in transit (default: shared memory). `timeout` is the time in seconds that this
    call and every later one waits for the other processes.
    """
    global _DEFAULT
    own, count = _rendezvous.ranks(rank, world_size)
    _ends(timeout)
    folder = rendezvous if isinstance(rendezvous, str) else None
    number = _COUNTS.get(folder, 0)
    # Counted even if the rest fails here: the others may have got further.
    _COUNTS[folder] = number + 1
    where = _rendezvous.place(rendezvous, own, count, number, timeout)
    group = Group(where, own, count, interface, store, timeout)
    if _DEFAULT is None or _DEFAULT._is_over:
        _DEFAULT = group
    return group


class Group:
    """The processes of a job. `init` creates it. `close`, the end of a `with` or the end of the process ends everything that was started
    for it here."""

    def __init__(
        self, _place: _rendezvous.Place, rank: int, world_size: int, interface: str | None, store: StrPath | None, timeout: float
    ) -> None:
        self._place, self._interface, self._timeout = _place, interface, timeout
        self.rank: int = rank
        """Rank of this process."""
        self.world_size: int = world_size
        """Number of processes."""
        self._owner, self._lock, self._calls, self._is_over = os.getpid(), threading.Lock(), 0, False
        self._folder: str | None = None
        try:
            self._ranks, self._agent = self._begin(store, time.monotonic() + timeout)
        except BaseException:
            self._remove_folder()
            raise
        # The first rank of each host has its agent.
        self._first = dict(sorted({one.host: one.rank for one in reversed(self._ranks)}.items(), key=lambda one: one[1]))
        self._here = self._ranks[rank].host
        atexit.register(self.close)

    @property
    def agent(self) -> Agent:
        """This host's agent. Its objects and topics are the job's, and the job can use all of its methods."""
        self._check_owner()
        return self._agent

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the agents on the job's hosts."""
        return tuple(_called(self._ranks[one]) for one in self._first.values())

    # The start of the job.

    def _begin(self, store: StrPath | None, ends: float) -> tuple[list[_Rank], Agent]:
        """Meets the other processes. If this fails, they are notified."""
        nonce = uuid.uuid4().hex
        own: int | None = self.rank
        try:
            if self.rank == 0:
                self._place.begin()
            try:
                self._folder = None if store is None else _folder_below(store)
                mine = _this_process(self.rank, self._interface)
            except BaseException as error:
                self._place.put(f"rank.{self.rank}", {"nonce": nonce, **_failure(error, self.rank)})
                raise
            nonce, own = mine.nonce, None
            self._place.put(f"rank.{self.rank}", vars(mine))
            return self._begin_first(mine, ends) if self.rank == 0 else self._begin_other(mine, ends)
        except BaseException as error:
            with contextlib.suppress(PolycastError):
                if self.rank == 0:
                    self._tell_failure(error, own, ends)
                else:
                    # After Ctrl-C it does not wait.
                    self._leave_early(nonce, ends if isinstance(error, Exception) else 0.0)
            raise

    def _begin_other(self, mine: _Rank, ends: float) -> tuple[list[_Rank], Agent]:
        """Does the part of every rank but 0."""
        job = self._job(mine.nonce, ends + _WORD_S, f"rank 0 has not begun the job within {self._timeout:g} s")
        _said_well(job)
        ranks = [_Rank(**one) for one in job["ranks"]]
        first = next(one for one in ranks if one.host == mine.host)
        agent = self._bring_agent(mine, job) if first.rank == self.rank else None
        try:
            told = _rendezvous.wait(
                self._place,
                ["agents"],
                ends + _WORD_S,
                lambda _: f"{ranks[0]} has not said within {self._timeout:g} s that all agents are there",
            )
            sockets = _said_well(told["agents"])
            return ranks, agent or Agent(sockets[f"agent.{first.rank}"], job["run"])
        except BaseException:
            if agent is not None:
                agent.close()
            raise

    def _job(self, nonce: str, ends: float, late: str) -> dict[str, Any]:
        """Waits for rank 0's message about the job. A message that does not list this process belongs to an earlier job."""
        told = _rendezvous.wait(
            self._place,
            ["job"],
            ends,
            lambda _: late,
            valid=lambda job: nonce in job["nonces"] or ("error" in job and self._place.is_new),
        )
        self._place.begun()
        job: dict[str, Any] = told["job"]
        return job

    def _leave_early(self, nonce: str, ends: float) -> None:
        """Notifies rank 0 that this rank has failed. In a folder this may have to be repeated, as rank 0 deletes the messages that it finds
        on arrival."""
        if not self._place.is_new:
            with contextlib.suppress(TimedOut):
                self._job(nonce, min(ends, time.monotonic() + _WORD_S), "")
        self._place.put(f"left.{self.rank}", True)

    def _tell_failure(self, error: BaseException, own: int | None, ends: float) -> None:
        """Reports rank 0's failure to begin, its own or that of the whole job, to all ranks that come soon, and deletes the place once they
        have left. The key is overwritten at once."""
        others = range(1, self.world_size)
        soon = time.monotonic() + _WORD_S
        while True:
            found = self._place.found([f"{what}.{one}" for what in ("rank", "left") for one in others])
            here = [one for one in others if f"rank.{one}" in found]
            nonces = [found[f"rank.{one}"]["nonce"] for one in here]
            for step in ("job", "agents"):
                self._place.put(step, {"nonces": nonces, **_failure(error, own)})
            now = time.monotonic()
            if all(f"left.{one}" in found for one in (here if now >= ends else others)):
                return self._place.end()
            if self._place.is_new or now >= soon or not isinstance(error, Exception):
                return
            time.sleep(_rendezvous._PAUSE_MAX_S)

    def _begin_first(self, mine: _Rank, ends: float) -> tuple[list[_Rank], Agent]:
        """Does rank 0's part: it collects all others, runs the manager, and waits for the agents."""
        keys = [f"rank.{one}" for one in range(self.world_size)]
        found = _rendezvous.wait(self._place, keys, ends, lambda missing: f"{_ranks_in(missing)} {self._late()}", enough=_is_failure)
        nonces = [word["nonce"] for word in found.values()]
        for word in found.values():
            _said_well(word)
        ranks = [_Rank(**found[key]) for key in keys]
        _check_versions(ranks)
        run, key = str(uuid.uuid4()), run_json(["key", "new"])["key"]
        agent = self._bring_first_agent(mine, ranks, run, key)
        try:
            job = {"run": run, "manager": agent.manager, "key": key, "ranks": [vars(one) for one in ranks]}
            self._place.put("job", {"nonces": nonces, **job})
            firsts = {one.host: one for one in reversed(ranks)}
            keys = [f"agent.{one.rank}" for one in firsts.values() if one.rank]
            found = _rendezvous.wait(
                self._place,
                keys,
                ends,
                lambda missing: f"the agent of the host of {_ranks_in(missing)} {self._late()}",
                enough=_is_failure,
            )
            for word in found.values():
                _said_well(word)
            sockets = {key: word["socket"] for key, word in found.items()}
            self._place.put("agents", {**sockets, "agent.0": agent.socket})
            return ranks, agent
        except BaseException:
            agent.close()
            raise

    def _bring_first_agent(self, mine: _Rank, ranks: list[_Rank], run: str, key: str) -> Agent:
        others = [one for one in ranks if one.host != mine.host]
        if not others:
            address = mine.address if self._interface is not None else "127.0.0.1"
        elif self._interface is not None:
            address = mine.address
        else:
            # Address of this host on the way to the others, as far as they know their own.
            ways = [way for one in others if one.address and (way := _way_to(one.address))]
            address = next(iter(ways), "") or _way_out()
        if not address:
            raise Invalid("this host has no address by which the others reach rank 0: say interface=, a network interface by name or address")
        listen = f"[{address}]:0" if ":" in address else f"{address}:0"
        return self._bring(mine, run, key, interface=address, listen=listen)

    def _bring_agent(self, mine: _Rank, job: dict[str, Any]) -> Agent:
        """Starts the agent of this host, and reports it to rank 0."""
        manager = job["manager"]
        try:
            interface = mine.address if self._interface is not None else _way_to(manager.rpartition(":")[0].strip("[]"))
            if not interface:
                raise Invalid(f"there is no way to rank 0's manager at {manager}: say interface=, at rank 0 too")
            agent = self._bring(mine, job["run"], job["key"], interface=interface, manager=manager)
            status = agent.status()
            if not status.manager_connected:
                agent.close()
                raise of_kind("manager-unreachable", f"rank 0's manager at {manager} is not reached from {interface}: {status.manager_error}")
        except BaseException as error:
            self._place.put(f"agent.{self.rank}", _failure(error, self.rank))
            raise
        self._place.put(f"agent.{self.rank}", {"socket": agent.socket})
        return agent

    def _bring(self, mine: _Rank, run: str, key: str, *, interface: str, **where: str) -> Agent:
        with tempfile.NamedTemporaryFile("w", prefix="polycast-key-") as file:
            file.write(f"{key}\n")
            file.flush()
            return Agent.embedded(
                name=_called(mine), interface=interface, key_file=file.name, store=self._folder, app=run, **where
            )

    # The calls that all ranks make together.

    def broadcast_folder(
        self,
        path: StrPath,
        src: int = 0,
        *,
        into: StrPath | None = None,
        update: bool = False,
        force: bool = False,
        timeout: float | None = None,
        progress: bool = False,
    ) -> Path:
        """Copies a folder or a file from the host of rank `src` to every host, and returns its path there: the same path, or its own name
        in the folder `into`. Ranks of one host share one copy, and ranks on the host of `src` use the original.

        An existing path is kept and raises `PathError`; `update` replaces only the differences, and `force` all of it. With `progress`,
        rank `src` shows how far the slowest host is.
        """
        given: list[str] = []

        def prepare() -> dict[str, Any]:
            given.extend(place(into, None if into is not None else path, update, force))
            if self.rank == src:
                found = self._agent.put(path)
                return {"data_id": found.data_id, "path": os.path.abspath(os.fsdecode(path)), "name": found.name}
            if self._is_first and not self._is_beside(src):
                if into is not None:
                    _make_folder(into)
                elif not update and not force:
                    _check_free(path)
            return {}

        def work(call: _Call) -> dict[str, Any]:
            if self.rank == src:
                self._send(call, progress)
            elif self._is_first and not self._is_beside(src):
                if into is not None and not update and not force:
                    # By now the name is known, and hardly any bytes have arrived.
                    _check_free(os.path.join(path_text(into), call.told["name"]))
                self._read(call)
                if into is None:
                    # The program reports any problem with it.
                    with contextlib.suppress(OSError):
                        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
                return {"path": os.path.abspath(self._agent._copied(call.data_id, into, given))}
            return {}

        call = self._together("broadcast_folder", src, timeout, prepare, work)
        if self._is_beside(src):
            return Path(call.told["path"])
        return Path(call.done[str(self._first[self._here])]["path"])

    def broadcast_module(
        self, module: torch.nn.Module, src: int = 0, *, strict: bool = True, timeout: float | None = None, progress: bool = False
    ) -> None:
        """Copies the weights and buffers of the module of rank `src` into the modules of all ranks. Checks names and shapes before it
        changes the first tensor, as in `polycast.torch`. For weights that change repeatedly, `polycast.torch.publish` with
        `agent=group.agent` sends only the changes."""
        from polycast import tensors
        from polycast.torch import Weights, check_whole, state_of

        def prepare() -> dict[str, Any]:
            if not hasattr(module, "load_state_dict"):
                raise UnsupportedType(f"a {type(module).__name__} has no weights: give a torch.nn.Module")
            # Every rank checks, so that none waits for others in vain.
            check_whole(module)
            if self.rank != src:
                return {}
            data_id = uuid.uuid4().int >> 65
            tensors.add(self._agent, data_id, state_of(module))
            return {"data_id": data_id}

        def work(call: _Call) -> dict[str, Any]:
            if self.rank == src:
                self._send(call, progress)
            else:
                found = self._read(call)
                Weights(call.number, found, found.map(writable_copy=True)).load_into(module, strict=strict)
            return {}

        self._together("broadcast_module", src, timeout, prepare, work)

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until all ranks have called it."""
        self._together("barrier", 0, timeout, dict, lambda call: {})

    def close(self) -> None:
        """Ends everything that this process has started for the group. Rank 0 and the first rank of a host stay until the ranks that depend
        on them have left, for ten seconds at most."""
        if self._is_over or os.getpid() != self._owner:
            return
        self._is_over = True
        atexit.unregister(self.close)
        # Ctrl-C ends the wait, but everything that was started still ends.
        try:
            with contextlib.suppress(PolycastError):
                self._leave()
        finally:
            try:
                self._agent.close()
            finally:
                self._remove_folder()
                if self.rank == 0:
                    self._place.end()

    def _leave(self) -> None:
        self._place.put(f"left.{self.rank}", True)
        if self._is_first:
            keys = [f"left.{one.rank}" for one in self._ranks if self.rank == 0 or one.host == self._here]
            _rendezvous.wait(self._place, keys, time.monotonic() + _LEAVES_WITHIN_S, lambda _: "")

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How the calls work.

    @property
    def _is_first(self) -> bool:
        """True if this rank is the first one of its host."""
        return self._first[self._here] == self.rank

    def _is_beside(self, src: int) -> bool:
        """Returns true if rank `src` is on this host."""
        return self._ranks[src].host == self._here

    def _together(
        self,
        what: str,
        src: int,
        timeout: float | None,
        prepare: Callable[[], dict[str, Any]],
        work: Callable[[_Call], dict[str, Any]],
    ) -> _Call:
        """Runs one call of all ranks. Each rank prepares it and reports that it has come. Rank 0 reports when all have come. Each rank then
        does its work and reports that, and rank 0 reports the result."""
        with self._turn():
            call = _Call(self._calls, what, src, self._timeout if timeout is None else timeout)
            self._calls += 1
            try:
                call.ends = _ends(call.limit)
                self._check_source(src)
                mine = prepare()
                call.data_id = mine.get("data_id", 0)
                self._tell(call, {"call": str(call), **mine})
                self._all_come(call)
                call.step = "done"
                self._tell(call, work(call))
                self._all_done(call)
                return call
            except BaseException as error:
                word = error.word if isinstance(error, _Elsewhere) else _failure(error, self.rank)
                with contextlib.suppress(PolycastError):
                    self._put_failure(call, word)
                if isinstance(error, _Elsewhere):
                    raise error.made(call) from None
                raise
            finally:
                if call.data_id and (self._is_first or self.rank == src):
                    self._agent._forget_within(call.data_id, _LEAVES_WITHIN_S)

    def _all_come(self, call: _Call) -> None:
        """Waits until all ranks have come to the same call."""
        if self.rank == 0:
            found = self._gathered(call, "did not come to", lambda word: word["call"] != str(call))
            for rank, word in found.items():
                if word["call"] != str(call):
                    what = f"{self._ranks[rank]} is at {word['call']}, and rank 0 at {call}"
                    raise _Elsewhere({"kind": "invalid", "error": f"{what}: all ranks make the same calls in the same order"})
            # All ranks have left the previous call.
            if (before := call.number - 1) >= 0:
                keys = [f"{before}.{step}.{one}" for step in _STEPS for one in range(self.world_size)]
                self._place.forget([*keys, f"{before}.go", f"{before}.end"])
            self._place.put(f"{call.number}.go", found[call.src])
        call.told = self._word_of_first(call, "go", f"has not said that all have come to {call}")
        call.data_id = call.told.get("data_id", 0)

    def _all_done(self, call: _Call) -> None:
        """Waits until all ranks have done their work."""
        if self.rank == 0:
            found = self._gathered(call, "did not end", lambda word: False)
            self._place.put(f"{call.number}.end", {"done": {rank: word for rank, word in found.items() if word}})
        call.done = self._word_of_first(call, "end", f"has not said that all have ended {call}")["done"]

    def _gathered(self, call: _Call, late: str, enough: Callable[[Any], bool]) -> dict[int, Any]:
        """Returns the messages of all ranks for the current step of a call. Raises if a rank has failed."""
        keys = {f"{call.number}.{call.step}.{one.rank}": one for one in self._ranks}
        try:
            found = _rendezvous.wait(
                self._place,
                keys,
                call.ends,
                lambda missing: f"{_rendezvous.listed([str(keys[key]) for key in missing])} {late} {call} within {call.limit:g} s",
                enough=lambda word: "error" in word or enough(word),
                left=lambda missing: self._check_left(missing, [keys[key] for key in missing]),
            )
        except TimedOut as error:
            raise _Elsewhere(_failure(error)) from None
        for word in found.values():
            if "error" in word:
                raise _Elsewhere(word)
        return {keys[key].rank: word for key, word in found.items()}

    def _word_of_first(self, call: _Call, step: str, late: str) -> dict[str, Any]:
        """Returns a message of rank 0. Raises if rank 0 reports that the call has failed."""
        keys = dict.fromkeys([f"{call.number}.{step}", f"{call.number}.end"])
        late = f"{self._ranks[0]} {late} within {call.limit:g} s"

        def left(missing: list[str]) -> None:
            self._check_left(missing, self._ranks[:1])

        found = _rendezvous.wait(self._place, keys, call.ends + _WORD_S, lambda _: late, enough=lambda word: True, left=left)
        for word in found.values():
            if "error" in word:
                raise _Elsewhere(word)
        said: dict[str, Any] = found[f"{call.number}.{step}"]
        return said

    def _check_left(self, missing: list[str], ranks: list[_Rank]) -> None:
        """Raises if a rank has left the job and its message is missing."""
        gone = self._place.found([f"left.{one.rank}" for one in ranks])
        # The message may have come just before the rank left.
        if not gone or self._place.found(missing):
            return
        names = _rendezvous.listed([str(one) for one in ranks if f"left.{one.rank}" in gone])
        raise _Elsewhere({"kind": "transfer-failed", "error": f"{names} {'have' if len(gone) > 1 else 'has'} left the job"})

    def _put_failure(self, call: _Call, word: dict[str, Any]) -> None:
        if self.rank == 0:
            self._place.put(f"{call.number}.end", word)
            return
        # Rank 0 may have taken the message of this step: then it waits for that of the next one.
        for step in _STEPS[_STEPS.index(call.step) :]:
            self._place.put(f"{call.number}.{step}.{self.rank}", word)

    def _tell(self, call: _Call, word: dict[str, Any]) -> None:
        self._place.put(f"{call.number}.{call.step}.{self.rank}", word)

    def _send(self, call: _Call, progress: bool) -> None:
        """Sends an object to the other hosts."""
        others = [name for name in self.hosts if name != _called(self._ranks[self._first[self._here]])]
        if not others:
            return
        transfer = self._agent.send(call.data_id, others, timeout=call.left())
        try:
            transfer.result(progress=progress)
        except BaseException:
            transfer.cancel()
            raise

    def _read(self, call: _Call) -> Object:
        """Waits until an object has arrived. Raises if the call has failed elsewhere."""
        failed_at = [f"{call.number}.end", f"{call.number}.done.{call.src}"]
        while True:
            try:
                return self._agent.read(call.data_id, min(_LOOK_S, call.left()))
            except ObjectUnknown:
                time.sleep(min(_LOOK_S, call.left()))
            except TimedOut:
                pass
            for word in self._place.found(failed_at).values():
                if "error" in word:
                    raise _Elsewhere(word)
            if call.left() <= 0:
                raise TimedOut(f"what {self._ranks[call.src]} sends has not come within {call.limit:g} s")

    def _check_source(self, src: object) -> None:
        if isinstance(src, bool) or not isinstance(src, int):
            raise UnsupportedType(f"src={src!r} has the type {type(src).__name__}: give the number of a rank")
        if not 0 <= src < self.world_size:
            raise Invalid(f"src={src} is no rank: there are those from 0 to {self.world_size - 1}")

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise Closed(f"the group is that of process {self._owner}: a process that was forked has no rank of its own, call it there")
        if self._is_over:
            raise Closed("the group was closed: init() makes another one, where all ranks call it")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        self._check_owner()
        if not self._lock.acquire(blocking=False):
            raise Invalid("another thread of this process is in a call of this group: ranks make one call after the other")
        try:
            yield
        finally:
            self._lock.release()

    def _late(self) -> str:
        return f"did not come within {self._timeout:g} s"

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


# Steps that each rank reports of a call: it has come to it, and it has done its work.
_STEPS = ("here", "done")


@dataclass
class _Call:
    """One call of all ranks."""

    number: int
    what: str
    src: int
    limit: float
    ends: float = 0.0
    step: str = _STEPS[0]
    data_id: int = 0
    # Message of rank `src` when it came, and messages of all ranks at the end.
    told: dict[str, Any] = field(default_factory=dict)
    done: dict[str, Any] = field(default_factory=dict)

    def left(self) -> float:
        """Returns the number of seconds that are left."""
        return max(0.0, self.ends - time.monotonic())

    def __str__(self) -> str:
        return f"{self.what}()" if self.what == "barrier" else f"{self.what}(src={self.src})"


class _Elsewhere(PolycastError):
    """A failure that another rank reports, or that rank 0 reports for the whole call."""

    def __init__(self, word: dict[str, Any]) -> None:
        super().__init__(word["error"])
        self.word = word

    def made(self, call: _Call) -> PolycastError:
        """Builds the exception for the user."""
        if "at" in self.word:
            return of_kind("transfer-failed", f"{call} failed at {self.word['at']}: {self.word['error']}")
        return of_kind(self.word["kind"], self.word["error"])


def _failure(error: BaseException, rank: int | None = None) -> dict[str, str]:
    """Builds the message that reports an exception to the others, as this rank's own or as that of the whole call."""
    said = str(error) if isinstance(error, PolycastError) else said_by(error)
    at = {} if rank is None else {"at": f"rank {rank} on {os.uname().nodename}"}
    return {"kind": kind_of(error), "error": said.encode("utf-8", "backslashreplace").decode(), **at}


def _is_failure(word: dict[str, Any]) -> bool:
    return "error" in word


def _said_well(word: dict[str, Any]) -> dict[str, Any]:
    if "error" in word:
        at = f"{word['at']}: " if "at" in word else ""
        raise of_kind(word["kind"], f"{at}{word['error']}")
    return word


def _ends(limit: float | None) -> float:
    """Returns the end of a call that begins now. There must be a limit."""
    if limit is None:
        raise UnsupportedType("timeout=None would wait without an end for a rank that has died: give seconds")
    ends = until(limit)
    assert ends is not None
    return ends


def _ranks_in(keys: list[str]) -> str:
    return _rendezvous.listed([key.replace(".", " ").replace("agent", "rank") for key in keys])


def _called(first: _Rank) -> str:
    """Returns the name of the agent that the first rank of a host starts."""
    return f"rank-{first.rank}-on-{re.sub('[^A-Za-z0-9._-]', '-', first.node)}"


def _check_versions(ranks: list[_Rank]) -> None:
    for one in ranks:
        if one.version != ranks[0].version:
            raise of_kind("version", f"{one} has polycast {one.version}, and {ranks[0]} has {ranks[0].version}: install one version everywhere")


def _folder_below(store: StrPath) -> str:
    """Creates a folder for this process alone in the store."""
    below = path_text(store)
    try:
        os.makedirs(below, exist_ok=True)
        return tempfile.mkdtemp(prefix="polycast-", dir=below)
    except OSError as error:
        raise of_kind("path", f"cannot make a folder in store={below!r}: {error.strerror}") from None


def _make_folder(into: StrPath) -> None:
    """Creates the folder for a copy, before its bytes arrive."""
    try:
        os.makedirs(into, exist_ok=True)
    except OSError as error:
        raise of_kind("path", f"cannot make the folder into={path_text(into)!r}: {error.strerror}") from None


def _check_free(path: StrPath) -> None:
    if os.path.lexists(path):
        raise of_kind("path", f"{path_text(path)} is there already: say update=True to bring it up to date, or force=True to replace it")


def _this_process(rank: int, interface: str | None) -> _Rank:
    """Describes this process. Processes are on one host if they reach the same socket and see the same processes."""
    address = None if interface is None else _address_of(interface)
    folder = os.stat(parent())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.readlink(f"/proc/self/ns/{one}") for one in ("net", "pid")]
    host = " ".join([boot, *spaces, f"{folder.st_dev}:{folder.st_ino}", str(os.geteuid())])
    where = _rendezvous.master()
    address = address or (_way_to(where[0]) if where else "") or _way_out()
    return _Rank(rank, host, os.uname().nodename, address, VERSION, uuid.uuid4().hex)


def _way_to(host: str) -> str:
    """Returns the address of this host on the way to another one, or an empty text if there is no way, or only the loopback."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    # An address of IPv4 before one of IPv6, as agents choose theirs.
    for family, kind, number, _, there in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        with socket.socket(family, kind, number) as one:
            try:
                # No packet is sent.
                one.connect(there)
                address = ipaddress.ip_address(one.getsockname()[0].partition("%")[0])
            except OSError:
                continue
        if not address.is_loopback and not address.is_link_local:
            return str(address)
    return ""


def _way_out() -> str:
    """Returns the address of this host on the default route."""
    return next((way for far in _FAR if (way := _way_to(far))), "")


def _address_of(interface: str) -> str:
    """Returns the address of a network interface, given by its name or by this address; of IPv4 before IPv6. Raises `Invalid` if there is
    none."""
    name = text_of("interface", interface)
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            asked = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(one.fileno(), _SIOCGIFADDR, asked)[20:24])
        except OSError:
            pass
    for line in Path(_ADDRESSES_V6).read_text().splitlines() if os.path.exists(_ADDRESSES_V6) else []:
        digits, _, _, scope, _, its_name = line.split()
        if its_name == name and int(scope, 16) != 0x20:
            return str(ipaddress.IPv6Address(int(digits, 16)))
    raise Invalid(f"interface={interface!r} is no network interface of this host with an address")


_DEFAULT: Group | None = None
# Number of groups that this process has created, in each folder and in stores: each has its own part of the place.
_COUNTS: dict[str | None, int] = {}


def _default() -> Group:
    """Returns the job's group, which the first call creates."""
    return init() if _DEFAULT is None else _DEFAULT


def broadcast_folder(
    path: StrPath,
    src: int = 0,
    *,
    into: StrPath | None = None,
    update: bool = False,
    force: bool = False,
    timeout: float | None = None,
    progress: bool = False,
) -> Path:
    """Calls `Group.broadcast_folder` of the job's group, which the first call creates."""
    return _default().broadcast_folder(path, src, into=into, update=update, force=force, timeout=timeout, progress=progress)


def broadcast_module(
    module: torch.nn.Module, src: int = 0, *, strict: bool = True, timeout: float | None = None, progress: bool = False
) -> None:
    """Calls `Group.broadcast_module` of the job's group, which the first call creates."""
    _default().broadcast_module(module, src, strict=strict, timeout=timeout, progress=progress)


def barrier(timeout: float | None = None) -> None:
    """Calls `Group.barrier` of the job's group, which the first call creates."""
    _default().barrier(timeout)
