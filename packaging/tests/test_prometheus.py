"""Alert rules and the dashboard, with the real promtool and a real Prometheus that watches real daemons."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HANG_S, PACKAGING, Cluster, Daemon, ending_with_us, free_port, tool, until

RULES = PACKAGING / "prometheus/polycast.rules.yml"
RULES_TEST = PACKAGING / "prometheus/polycast.rules.test.yml"
DASHBOARD = PACKAGING / "grafana/polycast.json"
# A metric's name in an expression.
METRIC = re.compile(r"\bpolycast_[a-z_]+\b")
# What Grafana puts in place of its variables: at least four scrapes.
VARIABLES = {"$__rate_interval": "4s", "$agent": ".*", "${datasource}": "prometheus"}
# 16 MB at this rate take 3 s: Prometheus looks twice a second.
SETTINGS = '[ip-multicast]\nrate = "40mbit"\n'
OBJECT_BYTES = 16_000_000


def promtool(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs promtool beside the rules."""
    command = [tool("promtool"), *arguments]
    return subprocess.run(command, cwd=RULES.parent, input=text, capture_output=True, text=True, timeout=HANG_S, check=False)


def must(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stdout + result.stderr


def test_rules_are_rules_and_fire_when_they_have_to() -> None:
    must(promtool("check", "config", "prometheus.yml"))
    must(promtool("check", "rules", RULES.name))
    must(promtool("test", "rules", RULES_TEST.name))


def alerts() -> dict[str, str]:
    """The text of each rule, from its name to the next one's."""
    parts = re.split(r"^ +- alert: ", RULES.read_text(), flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0]: part for part in parts}


def test_the_tests_of_the_rules_see_every_condition(tmp_path: Path) -> None:
    """A rule whose comparison is turned round, or that waits twice as long, is found."""
    (tmp_path / RULES_TEST.name).write_text(RULES_TEST.read_text())
    text, seen = RULES.read_text(), 0
    for name, rule in alerts().items():
        turned = re.sub(r" (==|>|<) (?=[0-9.]+[\n)])", lambda found: " < " if found[1] == ">" else " > ", rule, count=1)
        longer = re.sub(r"for: ([0-9]+)m", lambda found: f"for: {int(found[1]) * 2 + 1}m", rule)
        assert turned != rule, name
        for changed in {turned, longer} - {rule}:
            (tmp_path / RULES.name).write_text(text.replace(rule, changed))
            result = subprocess.run([tool("promtool"), "test", "rules", RULES_TEST.name], cwd=tmp_path, capture_output=True, check=False)
            assert result.returncode != 0, f"no test sees this change of {name}:\n{changed}"
            seen += 1
    assert seen >= len(alerts()) > 10


def expressions() -> list[tuple[str, str]]:
    """The title of each panel that asks for something, with what it asks for."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


class Prometheus:
    """A Prometheus that watches the daemons of a cluster, with the rules that are given away."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        jobs = {"polycast-manager": [cluster.manager], "polycast-agent": list(cluster.agents.values())}
        scrapes = [
            {"job_name": job, "static_configs": [{"targets": [daemon.ready["http"] for daemon in daemons]}]} for job, daemons in jobs.items()
        ]
        settings = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": scrapes,
        }
        (folder / "prometheus.yml").write_text(json.dumps(settings))
        self.address = f"127.0.0.1:{free_port()}"
        self.log = (folder / "prometheus.log").open("w+")
        options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={self.address}"]
        self.process = subprocess.Popen(ending_with_us(tool("prometheus"), *options), stderr=self.log)
        self.began = time.time()
        until("Prometheus is ready", self._is_ready)

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            self.log.seek(0)
            raise AssertionError(f"Prometheus has ended: {self.log.read()}")
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=HANG_S):
                return True
        except OSError:
            return False

    def ask(self, what: str, **query: str) -> Any:
        """An answer of its interface."""
        address = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=HANG_S) as answer:
            return json.load(answer)["data"]

    def series(self, expression: str) -> list[Any]:
        """What an expression was since Prometheus began, as a panel asks for it."""
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        answer = self.ask("query_range", query=expression, start=str(self.began), end=str(time.time()), step="0.5")
        return [series for series in answer["result"] if any(value not in ("NaN", "+Inf", "-Inf") for _, value in series["values"])]

    def alerts(self, state: str) -> set[tuple[str, str]]:
        """The alerts that are in a state, each with the name of its agent."""
        found = self.ask("alerts")["alerts"]
        return {(alert["labels"]["alertname"], alert["labels"].get("name", "")) for alert in found if alert["state"] == state}

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(HANG_S)
        self.log.close()


@pytest.fixture
def watched(short_folder: Path) -> Iterator[tuple[Cluster, Prometheus]]:
    """A cluster, and a Prometheus that watches it."""
    tool("prometheus")
    cluster = Cluster(short_folder, ["a", "b", "c"], SETTINGS)
    try:
        prometheus = Prometheus(short_folder, cluster)
        try:
            yield cluster, prometheus
        finally:
            prometheus.end()
    finally:
        cluster.end()


def highest(series: list[Any]) -> float:
    return max((float(value) for one in series for _, value in one["values"] if value != "NaN"), default=0.0)


def last(series: list[Any]) -> float:
    return float(series[0]["values"][-1][1]) if series else 0.0


def begin(cluster: Cluster, number: int) -> subprocess.Popen[str]:
    """Begins to send an object that no receiver has."""
    file = cluster.folder / f"{number}.bin"
    file.write_bytes(number.to_bytes(16, "little") * (OBJECT_BYTES // 16))
    return cluster.begin("a", "send", str(file), "--to", "b,c")


def send(cluster: Cluster, number: int) -> int:
    """Sends such an object, and gives the status."""
    sending = begin(cluster, number)
    sending.communicate(timeout=HANG_S)
    return sending.returncode


def runs(agent: Daemon) -> bool:
    return 'polycast_transfers{direction="sending"} 1\n' in agent.page("/metrics")


def test_every_panel_has_data_and_alerts_fire(watched: tuple[Cluster, Prometheus]) -> None:
    cluster, prometheus = watched
    until("all daemons are scraped", lambda: len(prometheus.series("up == 1")) == 4)

    # A machine that is busy may not look while one runs: then another one does.
    def is_seen() -> bool:
        return highest(prometheus.series('polycast_transfers{direction="sending"}')) >= 1 and bool(prometheus.series("polycast_leases"))

    sent = 0
    while not is_seen():
        sent += 1
        assert send(cluster, sent) == 0
    received = 'polycast_received_bytes_total * on (instance, job) group_left (name) polycast_agent_info{name=~"b|c"}'
    until("both receivers are seen", lambda: len([one for one in prometheus.series(received) if highest([one]) == sent * OBJECT_BYTES]) == 2)
    for page in [cluster.manager.page("/metrics"), cluster.agents["a"].page("/metrics")]:
        must(promtool("check", "metrics", text=page))

    for title, expression in expressions():
        until(f"{title}: {expression}", lambda expression=expression: prometheus.series(expression))  # type: ignore[misc]
    copies = next(expression for title, expression in expressions() if title == "Bytes received for each byte sent")
    # Two receivers, one copy: 2, but Prometheus extends what few samples say to the whole time.
    # While Prometheus has seen what receivers count and not yet what the source does, it is anything.
    until("two copies of each that was sent", lambda: 1.5 < last(prometheus.series(copies)) < 2.5)
    names = prometheus.ask("label/name/values", **{"match[]": "polycast_agent_info"})
    assert set(names) >= {"a", "b", "c"}
    assert prometheus.alerts("firing") | prometheus.alerts("pending") == set()

    # A receiver that is killed in the middle, and then the manager.
    sending = begin(cluster, sent + 1)
    until("it runs, or has ended", lambda: sending.poll() is not None or runs(cluster.agents["a"]))
    cluster.agents["c"].end(signal.SIGKILL)
    sending.communicate(timeout=HANG_S)
    # If it had ended, this one has a receiver that is gone.
    assert sending.returncode == 1 or send(cluster, sent + 2) == 1
    until("failed receivers alert", lambda: ("PolycastReceiversFail", "a") in prometheus.alerts("firing"))
    until("a silent daemon alerts", lambda: ("PolycastUnreachable", "") in prometheus.alerts("pending"))
    until("a lost agent alerts", lambda: ("PolycastAgentsLost", "") in prometheus.alerts("pending"))
    cluster.manager.end(signal.SIGKILL)
    away = {("PolycastAgentAway", "a"), ("PolycastAgentAway", "b")}
    until("agents without a manager alert", lambda: away <= prometheus.alerts("pending"))
    groups = prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == set(alerts())
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []


def test_nothing_asks_for_a_metric_that_no_daemon_has(short_folder: Path) -> None:
    """A misspelt name in a rule or a panel would be silent for all time."""
    # Nothing has to listen there: that is what its metric says.
    endpoints = '[oci]\nlisten = "127.0.0.1:0"\n'
    cluster = Cluster(short_folder, ["a"], '[scheduler]\naddress = "http://127.0.0.1:9"\n', endpoints)
    try:
        pages = cluster.manager.page("/metrics") + cluster.agents["a"].page("/metrics")
    finally:
        cluster.end()
    reported = set(re.findall(r"^# TYPE (\w+)", pages, flags=re.MULTILINE))
    asked = {metric for _, expression in expressions() for metric in METRIC.findall(expression)}
    # Names in the rules: those in texts for people end a sentence or are in a path.
    asked |= {metric for rule in alerts().values() for metric in METRIC.findall(rule.split("annotations:")[0])}
    # A histogram is asked for by its parts.
    whole = {metric: re.sub(r"_(bucket|sum|count)$", "", metric) for metric in asked}
    asked = {whole[metric] if whole[metric] in reported else metric for metric in asked}
    assert asked <= reported, f"no daemon reports {sorted(asked - reported)}"
    assert reported <= asked, f"no rule and no panel shows {sorted(reported - asked)}"
