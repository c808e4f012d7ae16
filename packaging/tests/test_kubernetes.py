"""The Helm chart and the files made of it: by Helm, against the schemas of Kubernetes, and with the real program."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HANG_S, NO_REGISTRY, PACKAGING, Daemon, ending_with_us, free_port, program, tool, until

helm_python = pytest.importorskip("helm_python", reason=f"{NO_REGISTRY} helm-python-sdk")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=f"{NO_REGISTRY} kubernetes-validate")
yaml = pytest.importorskip("yaml", reason=f"{NO_REGISTRY} PyYAML")

import chart  # noqa: E402
from helm_python import chart as helm  # noqa: E402

ROOT = PACKAGING.parent
VERSIONS = ["1.35", "1.36", "1.37"]
KEY = "0123456789abcdef" * 4
# What operators may ask for, by a name.
VALUES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "three managers": {"manager": {"replicas": 3}, "etcd": {"endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"], "secret": "etcd-tls"}},
    "no policy": {"networkPolicy": {"enabled": False}},
    "everything": {
        "image": {"repository": "registry.example:5000/polycast", "tag": "0.1.0-1", "pullSecrets": [{"name": "registry"}]},
        "key": {"secret": "own-key", "value": KEY},
        "manager": {
            "replicas": 3,
            "settings": 'fabrics = ["tcp-chain"]\nlink-rate = "25gbit"\n[ip-multicast]\nport = 7411\n',
            "tolerations": [{"key": "control", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
            "podAnnotations": {"note": "1"},
        },
        "etcd": {"endpoints": ["10.0.0.7:2379"], "prefix": "/other"},
        "agent": {
            "interface": "eth1",
            "multicastPort": 7411,
            "store": {"path": "/var/lib/polycast/store", "max": "100GiB"},
            "socketMode": "666",
            "settings": "dscp = 34\nsends-max = 32\n",
            "zones": False,
            "resources": {"limits": {"memory": "12Gi"}},
            "podAnnotations": {"note": "2"},
        },
        "hub": {"enabled": True, "port": 7491, "upstream": "https://mirror.example", "allow": ["127.0.0.0/8"]},
        "oci": {"enabled": True, "port": 7492, "registries": ["docker.io", "http://10.0.0.5:5000"], "hosts": {"enabled": True}},
        "networkPolicy": {"nodes": ["10.0.0.0/16"], "metricsFrom": {"kubernetes.io/metadata.name": "monitoring"}},
        "metrics": {
            "agentsForAll": True,
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True},
            "dashboard": {"enabled": True},
        },
    },
}
each = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
Documents = list[dict[str, Any]]


def one(documents: Documents, kind: str, part: str) -> dict[str, Any]:
    """The document of this kind that belongs to a part."""
    found = [document for document in documents if document["kind"] == kind and document["metadata"]["name"].endswith(part)]
    assert len(found) == 1, f"{len(found)} of {kind} {part}"
    return found[0]


@each
def test_helm_finds_no_fault(values: dict[str, Any]) -> None:
    report = helm.lint(chart.CHART, values, strict=True, namespace=chart.NAMESPACE)
    said = [message["error"] for message in report["messages"] if message["severity"] >= 2]
    assert (report["errors"], said) == ([], [])


def test_the_chart_is_of_this_version() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), flags=re.MULTILINE)
    assert version
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (version[1], version[1])


@pytest.mark.parametrize("version", VERSIONS)
@each
def test_kubernetes_takes_it(values: dict[str, Any], version: str) -> None:
    for document in chart.documents(chart.render(values)):
        if not document["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_files_and_the_page(version: str) -> None:
    page = (ROOT / "docs/deploy/kubernetes.md").read_text()
    texts = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    texts = [text for text in texts if "apiVersion:" in text]
    texts += [path.read_text() for path in sorted((PACKAGING / "kubernetes").glob("*.yaml"))]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    assert len(documents) >= 7
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_is_found() -> None:
    agent = one(chart.documents(chart.render()), "DaemonSet", "agent")
    agent["spec"]["template"]["spec"]["hostNetworks"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(agent, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("path", chart.PLAIN, ids=lambda path: path.name)
def test_the_files_are_of_this_chart(path: Path) -> None:
    made = chart.plain(chart.render(), chart.PLAIN[path])
    assert path.read_text() == made, f"{path.name} is not of this chart: run python3 packaging/tests/chart.py"


@each
def test_parts_fit_together(values: dict[str, Any]) -> None:
    """What no schema sees: selectors choose the pods, and volumes, ports and settings are there."""
    documents = chart.documents(chart.render(values))
    names = {(document["kind"], document["metadata"]["name"]) for document in documents}
    workloads = [document for document in documents if "template" in document.get("spec", {})]
    assert len(workloads) == 2
    for workload in workloads:
        spec, pod = workload["spec"], workload["spec"]["template"]["spec"]
        labels = spec["template"]["metadata"]["labels"].items()
        assert spec["selector"]["matchLabels"].items() <= labels
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = [mount for one in (container, *pod.get("initContainers", [])) for mount in one["volumeMounts"]]
        assert {mount["name"] for mount in mounts} == set(volumes)
        for mount in mounts:
            folder = volumes[mount["name"]].get("hostPath", {}).get("path", mount["mountPath"])
            assert folder == mount["mountPath"]
        assert ("ConfigMap", volumes["settings"]["configMap"]["name"]) in names
        ports = {port["name"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    chosen = {"manager": one(documents, workloads[1]["kind"], "manager"), "agent": one(documents, "DaemonSet", "agent")}
    for document in documents:
        selectors = [document.get("spec", {}).get("selector"), document.get("spec", {}).get("podSelector")]
        if document["kind"] not in ("Service", "NetworkPolicy", "PodDisruptionBudget"):
            continue
        for selector in filter(None, selectors):
            wanted = selector.get("matchLabels", selector)
            pods = [workload for workload in chosen.values() if wanted.items() <= workload["spec"]["template"]["metadata"]["labels"].items()]
            assert len(pods) == 1, document
            ports = {port["name"] for port in pods[0]["spec"]["template"]["spec"]["containers"][0]["ports"]}
            named = [port["targetPort"] for port in document["spec"].get("ports", [])]
            named += [port["port"] for rule in document["spec"].get("ingress", []) for port in rule["ports"]]
            assert set(named) <= ports
    for monitor in [document for document in documents if document["kind"] == "ServiceMonitor"]:
        services = [
            service for service in documents
            if service["kind"] == "Service" and monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        ]
        assert len(services) == 1
        assert {end["port"] for end in monitor["spec"]["endpoints"]} <= {port["name"] for port in services[0]["spec"]["ports"]}


def test_what_is_switched_off_is_not_there() -> None:
    def kinds(values: dict[str, Any]) -> set[str]:
        return {document["kind"] for document in chart.documents(chart.render(values))}

    usual = {"ConfigMap", "DaemonSet", "Deployment", "NetworkPolicy", "Service"}
    assert kinds({}) == usual
    assert kinds(VALUES["no policy"]) == usual - {"NetworkPolicy"}
    assert kinds(VALUES["three managers"]) == usual - {"Deployment"} | {"PodDisruptionBudget", "StatefulSet"}
    every = kinds(VALUES["everything"])
    assert {"Secret", "ServiceMonitor", "PrometheusRule", "PodDisruptionBudget"} <= every
    documents = chart.documents(chart.render(VALUES["everything"]))
    dashboard = one(documents, "ConfigMap", "dashboard")["data"]["polycast.json"]
    assert json.loads(dashboard) == json.loads((PACKAGING / "grafana/polycast.json").read_text())
    rules = one(documents, "PrometheusRule", "polycast")["spec"]
    assert rules == yaml.safe_load((PACKAGING / "prometheus/polycast.rules.yml").read_text())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image": {"repository": ""}}, "at '/image/repository': minLength: got 0, want 1"),
        ({"agnet": {}}, "additional properties 'agnet' not allowed"),
        ({"agent": {"store": {"maximum": "8GiB"}}}, "at '/agent/store': additional properties 'maximum' not allowed"),
        ({"key": {"value": "secret"}}, "at '/key/value': 'secret' does not match pattern"),
        ({"agent": {"socketMode": "777"}}, "at '/agent/socketMode': value must be one of '600', '666'"),
        ({"etcd": {"endpoints": ["http://etcd:2379"]}}, "at '/etcd/endpoints/0': 'http://etcd:2379' does not match pattern"),
        ({"manager": {"replicas": 0}}, "at '/manager/replicas': minimum: got 0, want 1"),
        ({"manager": {"replicas": 3}}, "manager.replicas is 3: several managers need etcd.endpoints, where they agree on which one leads"),
        ({"hub": {"enabled": True}}, "hub.enabled needs hub.allow: the networks of the pods that may ask"),
        ({"hub": {"allow": ["pods"]}}, "at '/hub/allow/0': 'pods' does not match pattern"),
        ({"oci": {"hosts": {"enabled": True}}}, "oci.hosts.enabled needs oci.enabled"),
        ({"oci": {"enabled": True, "registries": ["https://ghcr.io"]}}, "at '/oci/registries/0': 'https://ghcr.io' does not match pattern"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "metrics.serviceMonitor.enabled needs metrics.agentsForAll"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_bad_value_is_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises((helm_python.errors.HelmValuesError, helm_python.errors.HelmRenderError)) as raised:
        chart.render(values)
    said = [line for line in str(raised.value).splitlines() if line.strip() and not line.startswith(("polycast:", "values don't meet"))]
    assert len(said) == 1 and words in said[0], str(raised.value)


class Node:
    """A node: files where a pod's volumes are, and the program started as its container is."""

    def __init__(self, folder: Path, documents: Documents) -> None:
        self.folder, self.documents, self.daemons = folder, documents, []
        for name in ("etc", "etc/key", "store", "run", "hosts"):
            (folder / name).mkdir()
        key = folder / "etc/key/cluster.key"
        key.write_text(KEY)
        key.chmod(0o400)

    def start(self, kind: str, part: str, environment: dict[str, str], *instead: str) -> Daemon:
        """Starts a container, with its own arguments and settings; addresses are those of this machine."""
        pod = one(self.documents, kind, part)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        for first in pod.get("initContainers", []):
            self._write_settings(part)
            command = [program(), *(self._here(argument) for argument in first["args"])]
            subprocess.run(command, capture_output=True, timeout=HANG_S, check=True)
        asked = {variable["name"] for variable in container.get("env", [])}
        assert asked == set(environment)
        self._write_settings(part)
        arguments = [self._here(re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], text)) for text in container["args"]]
        self.daemons.append(Daemon(*arguments, *instead))
        return self.daemons[-1]

    def _write_settings(self, part: str) -> None:
        (settings,) = one(self.documents, "ConfigMap", part)["data"].items()
        (self.folder / "etc" / settings[0]).write_text(self._here(settings[1]))

    def _here(self, text: str) -> str:
        mounts = {"/etc/polycast/": "etc/", "/etc/containerd/certs.d": "hosts", "/dev/shm/polycast": "store", "/var/lib/polycast/store": "store", "/run/polycast": "run"}
        text = re.sub("|".join(mounts), lambda found: f"{self.folder}/{mounts[found[0]]}", text)
        return re.sub(r'http = ".*"', 'http = "127.0.0.1:0"', text).replace('interface = "eth1"', 'interface = "lo"')

    def end(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.end()


@pytest.fixture
def nodes(short_folder: Path) -> Iterator[list[Node]]:
    """Nodes that end with the test."""
    made: list[Node] = []
    try:
        yield made
    finally:
        for node in reversed(made):
            node.end()


def add(nodes: list[Node], folder: Path, name: str, values: dict[str, Any]) -> Node:
    (folder / name).mkdir()
    nodes.append(Node(folder / name, chart.documents(chart.render(values))))
    return nodes[-1]


def run(socket: Path, *arguments: str) -> Any:
    """Runs a command at an agent."""
    command = [program(), "--json", *arguments, "--socket", str(socket)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert result.returncode == 0, result.stderr + result.stdout
    return json.loads(result.stdout)


def is_ready(agent: Daemon) -> bool:
    try:
        return bool(agent.page("/readyz"))
    except urllib.error.HTTPError:
        return False


def test_its_containers_deliver(nodes: list[Node], short_folder: Path) -> None:
    """A manager and two agents, started with what the chart says, deliver; a pod as in the example fetches."""
    control = add(nodes, short_folder, "control", {})
    manager = control.start("Deployment", "manager", {}, "--listen", "127.0.0.1:0")
    names = ["node-1.example.internal", "node-2.example.internal"]
    # A node that tells its zone, and one that has none.
    zones = {names[0]: "zone-a", names[1]: ""}
    for name in names:
        node = add(nodes, short_folder, name.split(".")[0], {})
        address = ["--manager", manager.ready["listening"], "--interface", "lo", "--port", str(free_port())]
        agent = node.start("DaemonSet", "agent", {"NODE_NAME": name, "NODE_ZONE": zones[name]}, *address)
        assert agent.ready["name"] == name
        until("the agent is ready", lambda agent=agent: is_ready(agent))  # type: ignore[misc]
    file = short_folder / "model.bin"
    file.write_bytes(os.urandom(300_000))
    sockets = [node.folder / "run/agent.sock" for node in nodes[1:]]
    assert run(sockets[0], "send", str(file), "--to", names[1])["receivers"][0]["verified"] is True
    assert {node["name"]: node["zone"] or "" for node in run(sockets[0], "nodes")} == zones
    example = yaml.safe_load((PACKAGING / "kubernetes/example.yaml").read_text())
    fetch = example["spec"]["initContainers"][0]["args"]
    out = short_folder / "out.bin"
    own = {"https://example.org/model.bin": f"file://{file}", "/models/model.bin": str(out)}
    run(sockets[1], *[own.get(argument, argument) for argument in fetch])
    assert out.read_bytes() == file.read_bytes()


def test_several_managers_find_their_etcd(nodes: list[Node], short_folder: Path) -> None:
    client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    data = ["--data-dir", str(short_folder / "etcd"), "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    etcd = subprocess.Popen(ending_with_us(tool("etcd"), *urls, *data), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        values = VALUES["everything"] | {"etcd": {"endpoints": [client.removeprefix("http://")], "prefix": "/other"}}
        node = add(nodes, short_folder, "m", values)
        pod = {"POD_NAME": "polycast-manager-0"}
        manager = node.start("StatefulSet", "manager", pod, "--listen", f"127.0.0.1:{free_port()}")
        until("it leads", lambda: "polycast_manager_leads 1\n" in manager.page("/metrics"))
        advertised = "polycast-manager-0.polycast-manager.polycast.svc:7400"
        known = re.search(r'manager = "(.+)"', one(node.documents, "ConfigMap", "agent")["data"]["agent.toml"])
        assert known and advertised in known[1].split(",")
        first, last = (base64.b64encode(key).decode() for key in (b"/other", b"/othes"))
        question = json.dumps({"key": first, "range_end": last}).encode()
        with urllib.request.urlopen(f"{client}/v3/kv/range", question, timeout=HANG_S) as answer:
            records = [base64.b64decode(record["value"]) for record in json.load(answer)["kvs"]]
        assert any(advertised.encode() in record for record in records), records
        # All settings that an operator can have are known to the agent as well.
        agent = node.start("DaemonSet", "agent", {"NODE_NAME": "node-1"}, "--manager", manager.ready["listening"], "--port", str(free_port()))
        until("the agent is ready", lambda: is_ready(agent))
        # With its endpoints, of which the init container has told containerd.
        with urllib.request.urlopen("http://127.0.0.1:7492/v2/", timeout=HANG_S) as answer:
            assert answer.status == 200
        assert "http://127.0.0.1:7492" in (node.folder / "hosts/docker.io/hosts.toml").read_text()
        assert 'server = "http://10.0.0.5:5000"' in (node.folder / "hosts/10.0.0.5:5000/hosts.toml").read_text()
        assert ":7491" in agent.ready["hub"], agent.ready
    finally:
        for daemon in node.daemons:
            daemon.end(signal.SIGKILL)
        node.daemons.clear()
        etcd.kill()
        etcd.wait()
