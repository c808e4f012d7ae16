"""Polycast in a job of many processes, which torchrun, Slurm or another launcher with RANK, WORLD_SIZE and MASTER_ADDR has started.

    from polycast import distributed

    distributed.broadcast_folder("/data/llama", src=0)    # in every process: from rank 0's host to all others, once a host
    distributed.broadcast_module(model, src=0)            # rank 0's weights into the module of every rank

No daemon runs on the hosts: the first call starts a manager beside rank 0, and an agent on each host, which serves all ranks there. They are
sealed with a key that rank 0 makes. The processes meet in the store of torch.distributed, and the key goes through it: a program that reads that
store can take part. Without torch, `init(rendezvous="file:///FOLDER")` has them meet in a folder that all hosts share.

Every rank makes the same calls in the same order. A call returns when all ranks have what was sent; where one of them fails or does not come
within `timeout` seconds, it raises at all ranks, and says which one.
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

# How long a call waits for others, as torch.distributed does.
TIMEOUT_S = 1800.0
# Rank 0 knows best who has not come: the others wait for its word a little longer than it waits for theirs.
_WORD_S = 10.0
# How long rank 0 stays until the others have left, whose store may be in its process, and a host's first rank until those beside it have.
_LEAVES_WITHIN_S = 10.0
# How often one that waits for bytes looks whether the call has failed elsewhere.
_LOOK_S = 0.5
# To the kernel: which address an interface has (linux/sockios.h).
_SIOCGIFADDR = 0x8915
# An address that is on no network here, so that the way to it is the default route (RFC 5737).
_FAR = "192.0.2.1"


@dataclass(frozen=True)
class _Rank:
    """What a process says of itself."""

    rank: int
    host: str
    node: str
    address: str
    version: str
    # Of this process, and of none before.
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
    """Starts the manager and the agents of a job, and gives its group. Every process calls it, and it returns when all have come.

    `rank` and `world_size` are those of torch.distributed, torchrun or Slurm, unless they are said. The processes meet in the store of
    torch.distributed's group, or of MASTER_ADDR and MASTER_PORT; `rendezvous` names another place: a store of torch.distributed, or
    `"file:///FOLDER"`, a folder that all hosts share. `interface` is this host's network interface, by name or IPv4 address (default: the one that
    reaches the others). `store` is a folder of this host for the objects that are on their way (default: shared memory). `timeout` is how
    many seconds this and every later call waits for the other processes.
    """
    global _DEFAULT
    own, count = _rendezvous.ranks(rank, world_size)
    _ends(timeout)
    folder = rendezvous if isinstance(rendezvous, str) else None
    number = _COUNTS.get(folder, 0)
    # Also where the rest fails here: the others may have come further.
    _COUNTS[folder] = number + 1
    where = _rendezvous.place(rendezvous, own, count, number, timeout)
    group = Group(where, own, count, interface, store, timeout)
    if _DEFAULT is None or _DEFAULT._is_over:
        _DEFAULT = group
    return group


class Group:
    """The processes of a job. `init` makes it. The end of a `with`, `close` or the end of the process ends what was started for it here."""

    def __init__(
        self, _place: _rendezvous.Place, rank: int, world_size: int, interface: str | None, store: StrPath | None, timeout: float
    ) -> None:
        self._place, self._interface, self._timeout = _place, interface, timeout
        self.rank: int = rank
        """Which process this is."""
        self.world_size: int = world_size
        """How many there are."""
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
        """This host's agent, whose objects and topics are the job's: what else it can do is there for the job too."""
        self._check_owner()
        return self._agent

    @property
    def hosts(self) -> tuple[str, ...]:
        """The agents of the job's hosts."""
        return tuple(_called(self._ranks[one]) for one in self._first.values())

    # How it begins.

    def _begin(self, store: StrPath | None, ends: float) -> tuple[list[_Rank], Agent]:
        """Meets the others. Where this fails, they hear of it."""
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
                    # A Ctrl-C does not wait.
                    self._leave_early(nonce, ends if isinstance(error, Exception) else 0.0)
            raise

    def _begin_other(self, mine: _Rank, ends: float) -> tuple[list[_Rank], Agent]:
        """The part of all ranks but 0."""
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
        """What rank 0 says of the job. A word that does not know of this process is an earlier job's."""
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
        """Has rank 0 know that this rank has failed. In a folder it may have to be said again, as rank 0 takes away what it finds as it comes."""
        if not self._place.is_new:
            with contextlib.suppress(TimedOut):
                self._job(nonce, min(ends, time.monotonic() + _WORD_S), "")
        self._place.put(f"left.{self.rank}", True)

    def _tell_failure(self, error: BaseException, own: int | None, ends: float) -> None:
        """Rank 0's failure to begin, its own or that of the whole: tells it to all that come soon, and takes the place away when they have left.
        The key goes at once."""
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
        """Rank 0's part: it knows all others, has the manager, and waits for the agents."""
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
            # Where the others come from, as far as they know.
            ways = [way for one in others if one.address and (way := _way_to(one.address))]
            address = next(iter(ways), "") or _way_to(_FAR)
        if not address:
            raise Invalid("this host has no address by which the others reach rank 0: say interface=, a network interface by name or IPv4 address")
        return self._bring(mine, run, key, interface=address, listen=f"{address}:0")

    def _bring_agent(self, mine: _Rank, job: dict[str, Any]) -> Agent:
        """Starts the agent of this host, and tells rank 0 of it."""
        manager = job["manager"]
        try:
            interface = mine.address if self._interface is not None else _way_to(manager.rpartition(":")[0])
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

    # What all ranks do together.

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
        """Gives every host a folder, or a file, of the host of rank `src`, and says where it is: at the same path, or in the folder `into` under
        its own name. Ranks of one host share one copy, and those of the host of `src` have the original.

        What is there already stays, and raises `PathError`; `update` keeps what is equal, and `force` replaces it. With `progress` rank `src`
        shows how far the slowest host is.
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
                    # Now its name is known, and hardly anything has come.
                    _check_free(os.path.join(path_text(into), call.told["name"]))
                self._read(call)
                if into is None:
                    # What is wrong with it is the program's to say.
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
        """Gives the weights and buffers of the module of rank `src` to the modules of all ranks. Names and shapes are looked at before the
        first is changed, as in `polycast.torch`. For weights that change again and again, `polycast.torch.publish` with `agent=group.agent` sends
        only what has changed."""
        from polycast import tensors
        from polycast.torch import Weights, check_whole, state_of

        def prepare() -> dict[str, Any]:
            if not hasattr(module, "load_state_dict"):
                raise UnsupportedType(f"a {type(module).__name__} has no weights: give a torch.nn.Module")
            # At every rank, so that none waits for others in vain.
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
        """Waits until all ranks have come to it."""
        self._together("barrier", 0, timeout, dict, lambda call: {})

    def close(self) -> None:
        """Ends what this process has started for the group. The first rank of a host, and rank 0, stay until those have left too that need what
        they have, for ten seconds at most."""
        if self._is_over or os.getpid() != self._owner:
            return
        self._is_over = True
        atexit.unregister(self.close)
        # A Ctrl-C ends the wait, and what was started ends all the same.
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

    # How they do it.

    @property
    def _is_first(self) -> bool:
        """Whether this rank is the first one of its host."""
        return self._first[self._here] == self.rank

    def _is_beside(self, src: int) -> bool:
        """Whether a rank is on this host."""
        return self._ranks[src].host == self._here

    def _together(
        self,
        what: str,
        src: int,
        timeout: float | None,
        prepare: Callable[[], dict[str, Any]],
        work: Callable[[_Call], dict[str, Any]],
    ) -> _Call:
        """One call of all ranks. Each prepares it and says that it has come; rank 0 says when all have, each does its work and says so, and rank 0
        says how it has ended."""
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
                    self._place.put(f"{call.number}.end" if self.rank == 0 else f"{call.number}.{call.step}.{self.rank}", word)
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
            # All have left the call before.
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
        """What all ranks say of the step that a call is at, or one that has failed, which raises."""
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
        """What rank 0 says, where it does not say that the call has failed."""
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
        """Raises where words are missing of ranks that have left, and say no more."""
        gone = self._place.found([f"left.{one.rank}" for one in ranks])
        # It may have said its word just before it left.
        if not gone or self._place.found(missing):
            return
        names = _rendezvous.listed([str(one) for one in ranks if f"left.{one.rank}" in gone])
        raise _Elsewhere({"kind": "transfer-failed", "error": f"{names} {'have' if len(gone) > 1 else 'has'} left the job"})

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
        """Waits until an object is here, as long as the call has not failed elsewhere."""
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


# What each rank says of a call: that it has come to it, and that it has done its work.
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
    # What rank `src` has said as it came, and what ranks have said at the end.
    told: dict[str, Any] = field(default_factory=dict)
    done: dict[str, Any] = field(default_factory=dict)

    def left(self) -> float:
        """How many seconds there are left."""
        return max(0.0, self.ends - time.monotonic())

    def __str__(self) -> str:
        return f"{self.what}()" if self.what == "barrier" else f"{self.what}(src={self.src})"


class _Elsewhere(PolycastError):
    """What another rank has said of its failure, or rank 0 of the whole call."""

    def __init__(self, word: dict[str, Any]) -> None:
        super().__init__(word["error"])
        self.word = word

    def made(self, call: _Call) -> PolycastError:
        """The exception for the user."""
        if "at" in self.word:
            return of_kind("transfer-failed", f"{call} failed at {self.word['at']}: {self.word['error']}")
        return of_kind(self.word["kind"], self.word["error"])


def _failure(error: BaseException, rank: int | None = None) -> dict[str, str]:
    """An exception, as it is told to the others: of this rank's own, or of the whole."""
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
    """When a call ends that begins now."""
    if limit is None:
        raise UnsupportedType("timeout=None would wait without an end for a rank that has died: give seconds")
    ends = until(limit)
    assert ends is not None
    return ends


def _ranks_in(keys: list[str]) -> str:
    return _rendezvous.listed([key.replace(".", " ").replace("agent", "rank") for key in keys])


def _called(first: _Rank) -> str:
    """The name of the agent that the first rank of a host starts."""
    return f"rank-{first.rank}-on-{re.sub('[^A-Za-z0-9._-]', '-', first.node)}"


def _check_versions(ranks: list[_Rank]) -> None:
    for one in ranks:
        if one.version != ranks[0].version:
            raise of_kind("version", f"{one} has polycast {one.version}, and {ranks[0]} has {ranks[0].version}: install one version everywhere")


def _folder_below(store: StrPath) -> str:
    """A folder of this process's own for the store."""
    below = path_text(store)
    try:
        os.makedirs(below, exist_ok=True)
        return tempfile.mkdtemp(prefix="polycast-", dir=below)
    except OSError as error:
        raise of_kind("path", f"cannot make a folder in store={below!r}: {error.strerror}") from None


def _make_folder(into: StrPath) -> None:
    """Makes the folder for a copy, before its bytes come."""
    try:
        os.makedirs(into, exist_ok=True)
    except OSError as error:
        raise of_kind("path", f"cannot make the folder into={path_text(into)!r}: {error.strerror}") from None


def _check_free(path: StrPath) -> None:
    if os.path.lexists(path):
        raise of_kind("path", f"{path_text(path)} is there already: say update=True to bring it up to date, or force=True to replace it")


def _this_process(rank: int, interface: str | None) -> _Rank:
    """What this process says of itself. Those are on one host that reach the same socket and see the same processes."""
    address = None if interface is None else _address_of(interface)
    folder = os.stat(parent())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.readlink(f"/proc/self/ns/{one}") for one in ("net", "pid")]
    host = " ".join([boot, *spaces, f"{folder.st_dev}:{folder.st_ino}", str(os.geteuid())])
    where = _rendezvous.master()
    address = address or (_way_to(where[0]) if where else "") or _way_to(_FAR)
    return _Rank(rank, host, os.uname().nodename, address, VERSION, uuid.uuid4().hex)


def _way_to(host: str) -> str:
    """The address of this host from which it reaches another one; nothing where it does not, or only itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            # Nothing is sent.
            one.connect((host, 9))
            address: str = one.getsockname()[0]
        except OSError:
            return ""
    return "" if address.startswith("127.") else address


def _address_of(interface: str) -> str:
    """The IPv4 address of a network interface that is said by its name or by this address."""
    name = text_of("interface", interface)
    try:
        return str(ipaddress.IPv4Address(name))
    except ValueError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            asked = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(one.fileno(), _SIOCGIFADDR, asked)[20:24])
        except OSError:
            raise Invalid(f"interface={interface!r} is no network interface of this host with an IPv4 address") from None


_DEFAULT: Group | None = None
# How many groups this process has made, in each folder and in stores: each has a part of the place for itself.
_COUNTS: dict[str | None, int] = {}


def _default() -> Group:
    """The group of the calls without one. The first of them makes it."""
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
    """`Group.broadcast_folder` of the job's group, which the first call makes."""
    return _default().broadcast_folder(path, src, into=into, update=update, force=force, timeout=timeout, progress=progress)


def broadcast_module(
    module: torch.nn.Module, src: int = 0, *, strict: bool = True, timeout: float | None = None, progress: bool = False
) -> None:
    """`Group.broadcast_module` of the job's group, which the first call makes."""
    _default().broadcast_module(module, src, strict=strict, timeout=timeout, progress=progress)


def barrier(timeout: float | None = None) -> None:
    """`Group.barrier` of the job's group, which the first call makes."""
    _default().barrier(timeout)
