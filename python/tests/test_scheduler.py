"""Schedulers in programs of their own: the example, which gets objects there sooner, and others that break down or talk nonsense."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import HANG_S, free_port, until
from polycast._program import program

pytest.importorskip("grpc")
pytest.importorskip("grpc_tools")

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "crates/api/proto"
EXAMPLE = str(ROOT / "examples/python/scheduler.py")

# In processes of their own: what protoc makes is called as this package is. This one is all agents of a cluster, with transfers that
# take the time that their bytes take at a rate, and no byte moves.
HOSTS = """
import json, queue, random, sys, threading, time
import grpc
from polycast.manager.v1 import manager_pb2 as m
from polycast.manager.v1.manager_pb2_grpc import ManagerStub

address, version, mode = sys.argv[1:]
RATE = 256 << 10  # bytes a millisecond
HOSTS = 8

class Host:
    def __init__(self, number):
        self.name, self.said, self.granted, self.next = f"h{number}", queue.Queue(), {}, 0
        self.channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.told = ManagerStub(self.channel).Session(iter(self.said.get, None))
        agent = m.AgentId(name=self.name, incarnation=1 + time.time_ns())
        self.said.put(m.AgentMessage(join=m.Join(protocol_version=int(version), agent=agent, address="127.0.0.1", control_port=1)))
        assert next(self.told).WhichOneof("message") == "joined"
        threading.Thread(target=self.hear, daemon=True).start()

    def hear(self):
        for told in self.told:
            if told.WhichOneof("message") == "granted":
                self.granted.pop(told.granted.request_id).put((told.granted, time.monotonic()))
            elif told.WhichOneof("message") == "denied":
                self.granted.pop(told.denied.request_id).put((told.denied, time.monotonic()))

    def ask(self, bytes, receiver):
        self.next += 1
        answer = self.granted[self.next] = queue.Queue()
        request = m.PathRequest(
            request_id=self.next, app_id=bytes_of(self), data_id=self.next, data_size=bytes, remaining_size=bytes, receivers=[receiver]
        )
        self.said.put(m.AgentMessage(request=request))
        return answer, time.monotonic()

    def transfer(self, answer, asked_at):
        granted, _ = answer.get(timeout=60)
        time.sleep(granted.accepted_size / RATE / 1000)
        self.said.put(m.AgentMessage(release=m.Release(request_id=granted.request_id, response_id=granted.response_id)))
        return time.monotonic() - asked_at

def bytes_of(host):
    return host.name.encode().rjust(16, b"\\0")

hosts = [Host(number) for number in range(HOSTS)]
receivers = [host.name for host in hosts]

def demands(seed):
    random.seed(seed)
    # From 1 to 64 MiB, each doubling as likely.
    for _ in range(32):
        source, receiver = random.sample(hosts, 2)
        yield source, int(2 ** random.uniform(20, 26)), receiver.name

if mode == "two":
    running = [(host, *host.ask(1 << 20, "h7")) for host in hosts[:2]]
else:
    # One that takes 200 ms, behind which the others gather.
    running = [(hosts[0], *hosts[0].ask(50 << 20, "h1"))]
    running += [(source, *source.ask(bytes, receiver)) for source, bytes, receiver in [*demands(mode)]]
took = []
threads = [threading.Thread(target=lambda one=one: took.append(one[0].transfer(*one[1:]))) for one in running]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(took) == len(running), "each has had its path"
result = sum(took) / len(took)
status = ManagerStub(hosts[0].channel).Status(m.StatusRequest(protocol_version=int(version)))
external = status.external_scheduler
outcomes = {name: getattr(external, name) for name in ("followed", "late", "wrong", "unreached")}
print(json.dumps({"seconds": result, "scheduler": status.scheduler, "trouble": external.trouble, **outcomes}))
for host in hosts:
    host.said.put(None)
"""

# Answers in a way that cannot be, once there is something to decide.
STRANGE = """
import sys, time
from concurrent import futures
import grpc
from polycast.scheduler.v1 import scheduler_pb2 as m, scheduler_pb2_grpc as s

address, mode, *files = sys.argv[1:]
accept = lambda id: m.Decision(id=id, accept=m.Accept())

class Strange(s.SchedulerServicer):
    def Decide(self, question, context):
        asked = [request.id for request in question.requests]
        if not asked:
            return m.Answer()
        if mode == "late":
            time.sleep(2)
        if mode == "refuses":
            context.abort(grpc.StatusCode.INTERNAL, "division by zero")
        decisions = [accept(id) for id in asked]
        if mode == "unknown":
            decisions.append(accept(1 << 40))
        if mode == "both":
            decisions += [m.Decision(id=id, reject=m.Reject(reason="no")) for id in asked]
        if mode == "nothing":
            decisions = [m.Decision(id=id) for id in asked]
        return m.Answer(decisions=[] if mode == "idle" else decisions)

server = grpc.server(futures.ThreadPoolExecutor(4))
s.add_SchedulerServicer_to_server(Strange(), server)
if files:
    cert, key = (open(file, "rb").read() for file in files)
    server.add_secure_port(address, grpc.ssl_server_credentials([(key, cert)]))
else:
    server.add_insecure_port(address)
server.start()
server.wait_for_termination()
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    protos = [*(f"polycast/manager/v1/{name}.proto" for name in ("manager", "directory", "status")), "polycast/scheduler/v1/scheduler.proto"]
    line = ["-m", "grpc_tools.protoc", f"-I{PROTOS}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([sys.executable, *line, *protos], check=True)
    for package in ("polycast", "polycast/manager", "polycast/manager/v1", "polycast/scheduler", "polycast/scheduler/v1"):
        (folder / package / "__init__.py").touch()
    return folder


class Manager:
    """A manager with one multicast address: one path at a time."""

    def __init__(self, folder: Path, stubs: Path, scheduler: str) -> None:
        self.port, self.page, self.stubs, self.log = free_port(), free_port(), stubs, folder / f"{free_port()}.log"
        settings = folder / f"{self.port}.toml"
        settings.write_text(
            f'http = "127.0.0.1:{self.page}"\nfabrics = ["ip-multicast"]\nheartbeat-ms = 60000\nsilence-ms = 240000\nlease-ms = 240000\n'
            f'{scheduler}\n[ip-multicast]\npool = "239.255.64.0/32"\n'
        )
        line = [str(program()), "manager", "--listen", f"127.0.0.1:{self.port}", "--config", str(settings)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log)
        until("the manager is there", lambda: bool(self.metrics()))

    def metrics(self) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.page}/metrics", timeout=HANG_S) as page:
                return str(page.read().decode())
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return ""

    def is_followed(self) -> bool:
        return "polycast_scheduler_followed 1\n" in self.metrics()

    def hosts(self, mode: str) -> dict[str, Any]:
        """The mean seconds from the requests of agents to the ends of their transfers, and how the external scheduler stands."""
        from polycast import _native

        line = [sys.executable, "-c", HOSTS, f"127.0.0.1:{self.port}", str(_native.PROTOCOL_VERSION), mode]
        done = subprocess.run(line, env=environment(self.stubs), capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 0, (done.stderr, self.log.read_text())
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def environment(stubs: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(stubs)}


@contextmanager
def manager(folder: Path, stubs: Path, scheduler: str) -> Iterator[Manager]:
    one = Manager(folder, stubs, scheduler)
    try:
        yield one
    finally:
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(HANG_S) == 0, one.log.read_text()


@contextmanager
def started(stubs: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *arguments], env=environment(stubs))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def section(port: int, deadline_ms: int) -> str:
    return f'[scheduler]\naddress = "http://127.0.0.1:{port}"\ndeadline-ms = {deadline_ms}\n'


def test_shortest_first_beats_first_come_first_served(stubs: Path, tmp_path: Path) -> None:
    port = free_port()
    # On a machine that is busy an answer takes its time, and that is not what is compared.
    with ExitStack() as stack:
        stack.enter_context(started(stubs, EXAMPLE, f"127.0.0.1:{port}"))
        external = stack.enter_context(manager(tmp_path, stubs, section(port, 5_000)))
        built_in = stack.enter_context(manager(tmp_path, stubs, ""))
        until("the scheduler is followed", external.is_followed)
        means = []
        for seed in ("1", "2", "3"):
            first_come, shortest = built_in.hosts(seed), external.hosts(seed)
            assert (shortest["trouble"], shortest["late"], shortest["wrong"]) == ("", 0, 0), shortest
            print(f"seed {seed}: first come {first_come['seconds'] * 1e3:.0f} ms, shortest {shortest['seconds'] * 1e3:.0f} ms")
            means.append((first_come["seconds"], shortest["seconds"]))
        assert all(shortest < first_come for first_come, shortest in means), means
        assert sum(shortest for _, shortest in means) < 0.9 * sum(first_come for first_come, _ in means), means


def test_one_that_is_not_there_comes_and_is_killed(stubs: Path, tmp_path: Path) -> None:
    port = free_port()
    with manager(tmp_path, stubs, section(port, 300)) as one:
        until("it is said", lambda: "is not followed: fcfs decides" in one.log.read_text())
        before = one.hosts("two")
        assert "it cannot be reached" in before["trouble"] and before["followed"] == 0, before
        with started(stubs, EXAMPLE, f"127.0.0.1:{port}"):
            until("it is followed once it is there", one.is_followed)
            until("that is said", lambda: "the external scheduler decides" in one.log.read_text())
        # It is killed, and nothing waits for another one.
        after = one.hosts("two")
        assert "it cannot be reached" in after["trouble"], after
        assert one.log.read_text().count("is not followed") == 2, one.log.read_text()


def certified(folder: Path) -> tuple[Path, Path, Path]:
    """An authority's certificate, and one of 127.0.0.1 with its key."""
    ca, ca_key, cert, key, names = (folder / name for name in ("ca.pem", "ca.key", "cert.pem", "cert.key", "names"))
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    new = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    lines = [
        f"{new} -x509 -subj /CN=authority -days 2 -keyout {ca_key} -out {ca}",
        f"{new} -subj /CN=scheduler -keyout {key} -out {folder}/request",
        f"openssl x509 -req -in {folder}/request -CA {ca} -CAkey {ca_key} -days 2 -extfile {names} -out {cert}",
    ]
    for line in lines:
        subprocess.run(line.split(), check=True, capture_output=True)
    return ca, cert, key


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates")
def test_over_tls_only_one_with_the_right_certificate_is_asked(stubs: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (ca, cert, key), (other, _, _) = certified(tmp_path), certified(tmp_path / "other")
    port = free_port()
    settings = section(port, 1_000).replace("http:", "https:")
    with started(stubs, "-c", STRANGE, f"127.0.0.1:{port}", "both", str(cert), str(key)):
        with manager(tmp_path, stubs, f'{settings}ca = "{ca}"\n') as one:
            until("it is followed", one.is_followed)
        with manager(tmp_path, stubs, f'{settings}ca = "{other}"\n') as one:
            until("it is refused", lambda: "has issued its certificate" in one.log.read_text())
            assert not one.is_followed()


@pytest.mark.parametrize(
    ("mode", "outcome", "why"),
    [
        ("late", "late", "it has not answered within 300 ms"),
        ("unknown", "wrong", "which was not in the question"),
        ("both", "wrong", "it decides twice about request"),
        ("capacity", "wrong", "and nothing is free for that"),
        ("nothing", "wrong", "neither accepts it, nor has it wait, nor rejects it"),
        ("idle", "wrong", "waiting while nothing is lent"),
        ("refuses", "unreached", "it answers with the error Internal: division by zero"),
    ],
)
def test_nonsense_is_not_followed(stubs: Path, tmp_path: Path, mode: str, outcome: str, why: str) -> None:
    port = free_port()
    with manager(tmp_path, stubs, section(port, 300)) as one, started(stubs, "-c", STRANGE, f"127.0.0.1:{port}", mode):
        until("it is followed as long as nothing waits", one.is_followed)
        came_to = one.hosts("two")
        # After a rest it may have been asked about nothing, and have answered that.
        assert came_to[outcome] >= 1, came_to
        assert came_to["scheduler"] == "fcfs", came_to
        assert why in one.log.read_text()
        assert f'polycast_scheduler_questions_total{{outcome="{outcome}"}}' in one.metrics()
