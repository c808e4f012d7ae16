"""The client of the Hugging Face Hub with hf-xet, unchanged, at hub endpoints: files that a host has come by Xet from there, and a relay between the
client and the endpoint counts what it is asked, as the hub behind it does."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_hub
from conftest import HANG_S
from relay import Relay
from test_hub import TOKEN, Hub, begin, endpoints, files_of, hub

pytest.importorskip("hf_xet")
__all__ = ["endpoints", "hub"]

# Three xorbs, of 16 MiB at most.
LARGE = random.Random(11).randbytes(40_000_003)


@pytest.fixture
def right(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Digests of all files, one of them a large one."""
    monkeypatch.setitem(test_hub.FILES, "large.bin", LARGE)
    return {name: hashlib.sha256(body).hexdigest() for name, body in test_hub.FILES.items()}


@pytest.fixture
def relay(endpoints: list[str]) -> Iterator[Relay]:
    relay = Relay(endpoints[1])
    yield relay
    relay.shutdown()


def packed(length: int) -> int:
    """Bytes of a file in xorbs: each chunk of 64 KiB has a header."""
    return length + 8 * -(-length // 65_536)


IN_XET = [body for body in test_hub.FILES.values() if len(body) >= test_hub.LARGE] + [LARGE]


def test_a_host_that_has_the_files_gives_them_by_xet(right: dict[str, str], hub: Hub, relay: Relay, tmp_path: Path) -> None:
    assert files_of(begin(relay.address, tmp_path / "first")) == right
    assert relay.count("/cas/") == 0 and relay.file_bytes["resolve"] >= sum(map(len, IN_XET)), "plain HTTP while they come"
    given, before = hub.body_bytes, relay.file_bytes["resolve"]
    assert files_of(begin(relay.address, tmp_path / "second")) == right
    assert relay.count("/xet-read-token/") >= 1 and relay.count("/reconstructions/") >= len(IN_XET), relay.asked
    assert relay.file_bytes["xorbs"] == sum(packed(len(body)) for body in IN_XET)
    small = sum(len(body) for body in test_hub.FILES.values() if len(body) < test_hub.LARGE)
    assert relay.file_bytes["resolve"] - before == small, relay.asked
    # Past the endpoint no client has asked.
    assert hub.body_bytes == given and not any("xet" in line or "/cas/" in line for line in hub.asked), hub.asked


def test_a_cache_that_was_filled_from_the_hub_itself_is_no_hindrance(
    right: dict[str, str], hub: Hub, relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    assert files_of(begin(hub.address, cache, HF_HUB_DISABLE_XET="1")) == right
    folder = cache / "hub" / "models--org--m"
    for file in [*folder.glob("snapshots/*/*"), *folder.glob("blobs/*")]:
        if file.is_file() and file.stat().st_size >= test_hub.LARGE:
            file.unlink()
    # A client waits for a file that comes slowly, and hears now and then that it is not forgotten.
    give = test_hub.Answers.give

    def give_late(answers: test_hub.Answers, headers: dict[str, str], body: bytes) -> None:
        time.sleep(6)
        give(answers, headers, body)

    monkeypatch.setattr(test_hub.Answers, "give", give_late)
    given, asked = hub.body_bytes, len(hub.asked)
    assert files_of(begin(relay.address, cache)) == right
    # Clients that keep lists ask by Xet for files that no host has yet.
    kept = any(folder.glob("trees/*"))
    assert (relay.count("/reconstructions/") > 0) == kept, relay.asked
    assert hub.body_bytes - given == sum(map(len, IN_XET)), "each comes from the hub once"
    assert not any("xet" in line for line in hub.asked[asked:]), hub.asked[asked:]


def test_by_xet_private_files_are_for_those_whom_the_hub_lets_see_them(right: dict[str, str], relay: Relay, tmp_path: Path) -> None:
    for cache in ("first", "second"):
        assert files_of(begin(relay.address, tmp_path / cache, "org/private", TOKEN)) == right
    assert relay.file_bytes["xorbs"] == sum(packed(len(body)) for body in IN_XET)
    for token in ("hf_wrong", ""):
        client = begin(relay.address, tmp_path / f"others-{token}", "org/private", token)
        _, said = client.communicate(timeout=HANG_S)
        assert client.returncode != 0 and "Repository" in said, said
    assert relay.file_bytes["xorbs"] == sum(packed(len(body)) for body in IN_XET)
    assert not any(TOKEN in line for line in relay.asked), "no address says a token"
