"""LoRA adapters from topics: vLLM asks for an adapter by its name, and gets the latest version of the topic PREFIX.NAME.

    POLYCAST_LORA_TOPICS=adapters VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve org/model --enable-lora

    polycast publish adapters.french ./french --files           # wherever an adapter is made

vLLM asks when a request names a model that it does not know. A slash in a name is a colon in the topic. See docs/howto/vllm.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

from polycast._agent import Agent, Object, Version, Versions
from polycast._shared import shared_agent
from polycast.errors import Invalid, PolycastError, TimedOut
from polycast.sglang import memory_folder, one_name, put_folder, remove_folders

_LOG = logging.getLogger("polycast.vllm")
# Name of the resolver among vLLM's others.
_NAME = "Polycast topics"
_LOCK = ".lock"
# Time for the manager to report that a topic has a version, and for a version to arrive.
_KNOWN_WITHIN_S = 2.0
_HERE_WITHIN_S = 60.0
# Number of topics that are followed. Beyond it the least recently requested topic is dropped, and gets its next version on request.
_FOLLOWED_MAX = 256


def register() -> None:
    """Registers the resolver with vLLM, for the prefix in POLYCAST_LORA_TOPICS."""
    prefix = os.environ["POLYCAST_LORA_TOPICS"]
    known = LoRAResolverRegistry.get_supported_resolvers()
    if _NAME not in known:
        LoRAResolverRegistry.register_resolver(_NAME, TopicResolver(prefix, os.environ.get("POLYCAST_LORA_CACHE")))


@dataclass
class _Followed:
    """A topic that has had a version: newer ones arrive even while none are requested."""

    versions: Versions
    lock: threading.Lock = field(default_factory=threading.Lock)
    last: Version | None = None
    # Folders of the last two versions: vLLM reads an adapter again that it has put aside.
    folders: list[Path] = field(default_factory=list)


class TopicResolver(LoRAResolver):
    """Finds adapters in topics. An adapter is a folder, as PEFT writes it, that was published as one object or with `--files`. It is put
    into a folder of the cache (in memory unless `cache` names one), where its files are links to the host's copy."""

    def __init__(self, prefix: str, cache: str | os.PathLike[str] | None = None, agent: Agent | None = None) -> None:
        self._prefix, self._agent = prefix, agent
        self._cache = cache
        # Folder of this server, made for the first adapter. While its lock is held, no other server removes it.
        self._home: Path | None = None
        self._lock_file: IO[str] | None = None
        self._followed: dict[str, _Followed] = {}
        self._lock = threading.Lock()
        self._said: dict[str, str] = {}

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
        """Returns the adapter's latest version, or None if its topic has none or it is for another model."""
        return await asyncio.to_thread(self._resolve, base_model_name, lora_name)

    def _resolve(self, base_model_name: str, lora_name: str) -> Any:
        # Names that no topic can have, and names whose topic would be another adapter's.
        if not lora_name or lora_name == base_model_name or re.search(r"[\s,:]", lora_name):
            return None
        try:
            followed = self._follow(lora_name)
            if followed is None:
                return None
            with followed.lock:
                self._take_newest(followed)
                if followed.last is None or followed.last.object is None:
                    raise TimedOut(f"no version of it has come within {_HERE_WITHIN_S:.0f} s")
                folder = self._put(lora_name, followed, followed.last, followed.last.object)
            self._check(folder, base_model_name)
        except (PolycastError, OSError) as error:
            # Another of vLLM's resolvers may have it. The next request subscribes again.
            with self._lock:
                if (gone := self._followed.pop(lora_name, None)) is not None:
                    gone.versions.cancel()
            self._say(lora_name, str(error))
            return None
        number = _number(lora_name, followed.last.version, followed.last.object.data_id)
        return LoRARequest(lora_name=lora_name, lora_int_id=number, lora_path=str(folder))

    def _follow(self, name: str) -> _Followed | None:
        with self._lock:
            if (followed := self._followed.pop(name, None)) is not None:
                # The topic that was requested last is the last in the table.
                self._followed[name] = followed
                return followed
        versions = (self._agent or shared_agent()).subscribe(f"{self._prefix}.{name.replace('/', ':')}", staged=True)
        followed = _Followed(versions)
        try:
            # The manager announces a version at once, before it is here.
            first = versions.next(_KNOWN_WITHIN_S)
        except TimedOut:
            first = None
        except BaseException:
            versions.cancel()
            raise
        if first is None:
            versions.cancel()
            return None
        if first.committed and first.object is not None:
            followed.last = first
        with self._lock:
            if (other := self._followed.get(name)) is not None:
                versions.cancel()
                return other
            self._followed[name] = followed
            if len(self._followed) > _FOLLOWED_MAX:
                self._followed.pop(next(iter(self._followed))).versions.cancel()
        return followed

    def _take_newest(self, followed: _Followed) -> None:
        """Waits for the first version, and not for any after it."""
        ends = time.monotonic() + _HERE_WITHIN_S
        while True:
            left = max(0.0, ends - time.monotonic()) if followed.last is None else 0.0
            try:
                version = followed.versions.next(left)
            except TimedOut:
                return
            if version is None:
                return
            if version.committed and version.object is not None:
                followed.last = version

    def _put(self, name: str, followed: _Followed, version: Version, found: Object) -> Path:
        """Returns the folder of the version. The previous version's folder stays, and older ones are removed."""
        home = self._own_home() / one_name(name)
        folder = home / f"{version.version}-{found.data_id}"
        if not folder.is_dir():
            put_folder(self._agent or shared_agent(), found, folder)
        if folder not in followed.folders:
            followed.folders = [*followed.folders[-1:], folder]
        remove_folders(home, keep=followed.folders)
        return folder

    def _own_home(self) -> Path:
        """Returns this server's folder in the cache, and removes those of servers that have ended."""
        with self._lock:
            if self._home is None:
                cache = memory_folder("lora") if self._cache is None else Path(self._cache).absolute()
                cache.mkdir(parents=True, exist_ok=True, mode=0o700)
                for one in cache.glob("server-*"):
                    with contextlib.suppress(OSError), open(one / _LOCK, "r+") as lock:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(one, ignore_errors=True)
                self._home = Path(tempfile.mkdtemp(prefix="server-", dir=cache))
                self._lock_file = open(self._home / _LOCK, "w")
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._home

    def _check(self, folder: Path, base_model_name: str) -> None:
        """Checks an adapter as vLLM's own resolvers do."""
        config = folder / "adapter_config.json"
        if not config.is_file():
            raise Invalid("it has no adapter_config.json: publish the folder that PEFT has written")
        try:
            said = json.loads(config.read_text())
            kind, base = said["peft_type"], said["base_model_name_or_path"]
        except (ValueError, KeyError, TypeError):
            raise Invalid("its adapter_config.json does not say peft_type and base_model_name_or_path") from None
        if kind != "LORA":
            raise Invalid(f"it is an adapter of the kind {kind}, and vLLM takes LORA")
        if base != base_model_name:
            raise Invalid(f"it is for the model '{base}', and '{base_model_name}' is served")

    def _say(self, name: str, what: str) -> None:
        """Logs a problem with this adapter once, until it has another one."""
        if self._said.get(name) != what:
            if len(self._said) >= _FOLLOWED_MAX:
                self._said.clear()
            self._said[name] = what
            _LOG.warning("the adapter '%s' is not taken from its topic: %s", name, what)


def _number(name: str, version: int, data_id: int) -> int:
    """Returns a number that no other version has: vLLM keeps adapters by it. Servers of vLLM 0.29 to 0.33 put one of their own there."""
    text = f"{name}\0{version}\0{data_id}".encode()
    return (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 2) + 1
