"""The view of manager and agent, in a real Chromium: it is live, it shows what fails by its name, and everyone can use it."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium
from conftest import HANG_S, Cluster, Daemon, until

# A name that an agent may have: whoever puts it into the page as markup runs its script.
ODD = "<script>alert(1)<script>"
TOKEN = "0123456789abcdef0123456789abcdef"
# 120 MB at this rate take 24 s: long enough to see one receiver fail and the others go on.
SETTINGS = '[ip-multicast]\nrate = "40mbit"\n'
OBJECT_BYTES = 120_000_000
# Hosts on one page. More of them take 6 MB of memory each, and with 1,000 the test takes a minute.
HOSTS = int(os.environ.get("POLYCAST_VIEW_HOSTS", "100"))
# All come from one address, and some get no processor for a while. What they say of themselves comes with a heartbeat.
CROWD_SETTINGS = """address-agents-max = 4096
heartbeat-ms = 5000
silence-ms = 120000
lease-ms = 600000
objects.settle-ms = 4000
[ip-multicast]
rate = "2mbit"
"""
CROWD_BYTES = 40_000_000
# A receiver that was killed is on the page by then.
SEEN_S = 2.0


@pytest.fixture()
def chromium(tmp_path: Path) -> Iterator[Chromium]:
    browser = Chromium(tmp_path)
    yield browser
    browser.end()


@pytest.fixture()
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    token = tmp_path / "view.token"
    token.touch(mode=0o600)
    token.write_text(TOKEN + "\n")
    cluster = Cluster(tmp_path, ["source", "b", ODD, "d"], SETTINGS, f'view-token-file = "{token}"\n')
    yield cluster
    cluster.end()


def rows(browser: Chromium, section: str) -> dict[str, list[str]]:
    """The rows of a section's tables, by their first cells."""
    script = f"[...document.querySelectorAll('#{section} tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))"
    return {row[0]: row[1:] for row in browser.run(script)}


def open_live(browser: Chromium, daemon: Daemon, query: str = "") -> None:
    browser.open(f"http://{daemon.ready['http']}/view{query}")
    until("the page is live", lambda: browser.run("document.querySelector('#link')?.textContent === 'live'"))


def check_looks(browser: Chromium, folder: Path, name: str) -> None:
    """Nothing is cut off in a narrow window, and dark is dark."""
    grounds = set()
    for width in [1280, 320]:
        for scheme in ["light", "dark"]:
            browser.show(width, scheme)
            browser.picture(folder / f"{name}-{width}-{scheme}.png")
            assert browser.run("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than {width}"
            grounds.add((scheme, browser.run("getComputedStyle(document.body).backgroundColor")))
    assert len(grounds) == 2, grounds
    browser.show(1280, "light", motion="reduce")
    assert not browser.run("[...document.querySelectorAll('.bar > div')].some((bar) => getComputedStyle(bar).transitionDuration !== '0s')")


def test_an_agent_shows_a_receiver_that_fails(cluster: Cluster, chromium: Chromium, tmp_path: Path) -> None:
    (tmp_path / "object.bin").write_bytes(bytes(range(256)) * (OBJECT_BYTES // 256))
    open_live(chromium, cluster.agents["source"], f"?token={TOKEN}")
    assert chromium.run("location.search") == "", "the token leaves the address"
    sending = cluster.begin("source", "send", str(tmp_path / "object.bin"), "--to", f"b,{ODD},d")

    def running() -> bool:
        return any(state[1] == "receiving" and re.fullmatch(r"[1-9]\d* %", state[0]) for state in rows(chromium, "sending").values())

    until("the page shows how far receivers are", running)
    assert set(rows(chromium, "sending")) == {"b", ODD, "d"}
    spoken = chromium.spoken()
    bars = {name: value for role, name, value in spoken if role == "progressbar"}
    assert set(bars) == {f"{name}: object.bin" for name in ["b", ODD, "d"]}, "a screen reader hears whose bar it is"
    assert all(value.isdigit() for value in bars.values()), bars
    assert {"Receiver", "Progress", "State", "Rate", "Reason"} <= {name for role, name, _ in spoken if role == "columnheader"}
    cluster.agents[ODD].end(signal.SIGKILL)
    killed = time.monotonic()
    until("the page shows who has failed", lambda: rows(chromium, "sending").get(ODD, ["", ""])[1] == "failed")
    took = time.monotonic() - killed
    print(f"a killed receiver was on the page after {took:.2f} s")
    assert took < SEEN_S
    shown = rows(chromium, "sending")
    assert list(shown)[0] == ODD and shown[ODD][3] not in {"", "–"}, "it is the first, with a reason"
    assert shown["b"][1] == "receiving"
    until("it is told once more", lambda: f"{ODD} failed to receive object.bin" in chromium.run("document.querySelector('#log').textContent"))
    check_looks(chromium, tmp_path, "agent")
    sending.communicate(timeout=HANG_S)
    until("the transfer has ended", lambda: rows(chromium, "past").get("b", ["", ""])[1] == "done")
    assert rows(chromium, "past")[ODD][1] == "failed"
    assert "object.bin" in rows(chromium, "objects")
    assert not chromium.errors, chromium.errors
    assert chromium.run("document.querySelectorAll('main script, main img').length") == 0


def test_a_manager_shows_its_nodes(cluster: Cluster, chromium: Chromium, tmp_path: Path) -> None:
    open_live(chromium, cluster.manager)
    until("all nodes are ready", lambda: [row[0] for row in rows(chromium, "nodes").values()] == ["ready"] * 4)
    shown = rows(chromium, "nodes")
    assert list(shown) == sorted(["source", "b", ODD, "d"])
    until("a node tells of its store", lambda: " of " in rows(chromium, "nodes")["b"][3])
    cluster.agents["b"].end(signal.SIGKILL)
    until("it is lost", lambda: rows(chromium, "nodes")["b"][0] == "lost")
    assert list(rows(chromium, "nodes"))[0] == "b", "one that someone has to look after is the first"
    until("it is told once more", lambda: "b is lost; it was" in chromium.run("document.querySelector('#log').textContent"))
    # By the keyboard alone: first past the head, then to each list.
    chromium.press("Tab")
    assert chromium.run("document.activeElement.className") == "skip"
    reached = []
    for _ in range(6):
        chromium.press("Tab")
        reached.append(chromium.run("document.activeElement.getAttribute('aria-label')"))
    assert "Nodes" in reached, reached
    check_looks(chromium, tmp_path, "manager")
    cluster.manager.end(signal.SIGKILL)
    until("the page says that it is old", lambda: "no connection" in chromium.run("document.querySelector('#link').textContent"))
    assert all("ERR_" in error for error in chromium.errors), chromium.errors


@pytest.fixture()
def crowd(short_folder: Path) -> Iterator[Cluster]:
    """Many hosts on one machine."""
    cluster = Cluster(short_folder, ["source"], CROWD_SETTINGS, 'control-port = 0\n')
    try:
        cluster.crowd([f"node-{number:04}" for number in range(1, HOSTS)])
        yield cluster
    finally:
        # One after the other in good order takes longer than the test.
        for agent in cluster.agents.values():
            agent.process.kill()
        cluster.end()


def laid_out_in_s(browser: Chromium) -> float:
    """How long the page takes to lay out all that it has."""
    script = """(() => {
      const main = document.querySelector("main"); main.style.display = "none"; document.body.offsetHeight;
      const began = performance.now(); main.style.display = ""; document.body.offsetHeight;
      return performance.now() - began;
    })()"""
    return float(browser.run(script)) / 1e3


def test_many_hosts_are_shown(crowd: Cluster, chromium: Chromium, tmp_path: Path) -> None:
    open_live(chromium, crowd.manager)
    until("all nodes are ready", lambda: [row[0] for row in rows(chromium, "nodes").values()] == ["ready"] * HOSTS)
    print(f"{HOSTS} nodes are laid out in {laid_out_in_s(chromium):.3f} s")
    chromium.show(1280, "light")
    chromium.picture(tmp_path / "nodes.png")
    gone = f"node-{HOSTS // 2:04}"
    crowd.agents[gone].end(signal.SIGKILL)
    killed = time.monotonic()
    until("a node is lost", lambda: rows(chromium, "nodes").get(gone, [""])[0] == "lost")
    print(f"a node that was killed was on the page after {time.monotonic() - killed:.2f} s")
    assert list(rows(chromium, "nodes"))[0] == gone, "it is the first"
    # A transfer to all of them, as the source shows it. Two processors do not deliver to so many.
    file = tmp_path / "object.bin"
    file.write_bytes(bytes(range(256)) * (CROWD_BYTES // 256))
    open_live(chromium, crowd.agents["source"])
    sending = crowd.begin("source", "send", str(file), "--to", "all", "--id", "1")
    until("all receivers are on the page", lambda: len(rows(chromium, "sending")) == HOSTS - 2)
    print(f"{HOSTS - 2} receivers are laid out in {laid_out_in_s(chromium):.3f} s")
    chromium.picture(tmp_path / "receivers.png")
    sending.kill()
    sending.communicate(timeout=HANG_S)
    until("it has ended", lambda: not rows(chromium, "sending"))
    # To some of them, while the others are there.
    some = [f"node-{number:04}" for number in range(1, 17)]
    sending = crowd.begin("source", "send", str(file), "--to", ",".join(some), "--id", "2")
    failing = some[0]
    until("one of them receives", lambda: rows(chromium, "sending").get(failing, ["", ""])[1] == "receiving")
    crowd.agents[failing].end(signal.SIGKILL)
    killed = time.monotonic()
    until("a receiver has failed", lambda: rows(chromium, "sending").get(failing, ["", ""])[1] == "failed")
    print(f"a receiver that was killed was on the page after {time.monotonic() - killed:.2f} s")
    assert list(rows(chromium, "sending"))[0] == failing and rows(chromium, "sending")[failing][3] not in {"", "–"}
    sending.kill()
    sending.communicate(timeout=HANG_S)
    assert not chromium.errors, chromium.errors


def refused(daemon: Daemon, path: str, headers: dict[str, str]) -> str:
    """What is said to one who is refused."""
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{daemon.ready['http']}{path}", headers=headers), timeout=HANG_S):
            pytest.fail(f"{path} was shown")
    except urllib.error.HTTPError as error:
        assert error.code == 403
        assert not [name for name in error.headers if name.lower().startswith("access-control")]
        return error.read().decode()


def test_the_view_is_for_those_who_may_see_it(cluster: Cluster) -> None:
    agent = cluster.agents["d"]
    for path in ["/", "/view", "/view/events", "/view?token=0123", f"/view?token={TOKEN}0"]:
        assert "view-token-file" in refused(agent, path, {})
    for headers in [{"Host": "evil.example"}, {"Host": "evil.example:7480"}]:
        assert "localhost" in refused(agent, f"/view/events?token={TOKEN}", headers)
    assert "alone" in refused(agent, f"/view/events?token={TOKEN}", {"Origin": "http://evil.example"})
    assert "alone" in refused(cluster.manager, "/view/events", {"Sec-Fetch-Site": "cross-site"})
