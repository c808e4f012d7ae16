"""Unchanged jobs of an unchanged Spark, with its own broadcasts and with Polycast's: the same results, and the bytes are counted.

Needs the jar in spark/target, and the program at POLYCAST_PROGRAM. Executors are processes of their own (`local-cluster`), each with
an agent of its own unless a test says otherwise.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from cluster import Cluster, until

HERE = Path(__file__).parent
HOME = Path(pyspark.__file__).parent
NAMES = ("driver", "0", "1")
PATIENCE_S = 600
READ = re.compile(r"executor (\d+) has broadcast (\d+) of (\d+) bytes from agent (\S+) ")
PUBLISHED = re.compile(r"broadcast (\d+) of (\d+) bytes is at agent (\S+) ")


def jar() -> Path:
    found = [path for path in (HERE.parent / "target").glob("polycast-spark-*.jar") if not path.name.endswith("-tests.jar")]
    assert len(found) == 1, f"one jar was to be in spark/target: {found}"
    return found[0]


class Application:
    """spark-submit, and what driver and executors have said."""

    def __init__(self, folder: Path, script: str, *arguments: str, conf: dict[str, str] | None = None) -> None:
        folder.mkdir()
        self.folder = folder
        all_conf = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
        all_conf |= {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false", "spark.task.maxFailures": "8"}
        line = [str(HOME / "bin/spark-submit"), "--master", "local-cluster[2,1,1024]"]
        for name, value in (all_conf | (conf or {})).items():
            line += ["--conf", f"{name}={value}"]
        if script.endswith(".jar"):
            line += ["--class", "Job"]
        environment = dict(os.environ) | {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"SPARK_LOCAL_DIRS": str(folder / "local")}
        # Four virtual machines for a few seconds: it is not worth it to compile much.
        environment |= {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        self.begun = time.time()
        self.log = folder / "driver.log"
        with open(self.log, "w") as log:
            self.child = subprocess.Popen(
                [*line, str(HERE / script), *arguments],
                cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def end(self) -> str:
        """Waits for the end, a good one; gives what the job has printed."""
        try:
            out, _ = self.child.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            raise
        assert self.child.returncode == 0, self.driver()[-6000:] + self.executors()[-6000:]
        return out

    def result(self) -> dict[str, object]:
        found = re.search(r"^RESULT (.*)$", self.end(), re.M)
        assert found
        return dict(json.loads(found.group(1)))

    def driver(self) -> str:
        return self.log.read_text(errors="replace")

    def executors(self) -> str:
        """What the executors of this application have logged."""
        found = re.search(r"app-\d{14}-\d{4}", self.driver())
        assert found, self.driver()[-3000:]
        logs = sorted(HOME.glob(f"work/{found.group(0)}/*/stderr"))
        return "".join(path.read_text(errors="replace") for path in logs if path.stat().st_mtime >= self.begun)

    def warnings(self) -> list[str]:
        return re.findall(r"WARN PolycastPlugin: (.*)", self.driver() + self.executors())


def with_polycast(cluster: Cluster, **more: str) -> dict[str, str]:
    conf = {"spark.plugins": "io.polycast.spark.PolycastPlugin", "spark.jars": str(jar()), "spark.polycast.socket": cluster.socket}
    # No value that is late goes through Torrent.
    return conf | {f"spark.polycast.{name}": value for name, value in ({"patience": "600s"} | more).items()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    one = Cluster(os.environ["POLYCAST_PROGRAM"], NAMES)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def torrent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The results without Polycast."""
    return Application(tmp_path_factory.mktemp("torrent") / "job", "job.py").result()


def test_jobs_have_torrents_results_and_every_executor_its_bytes_from_agents(
    cluster: Cluster, torrent: dict[str, object], tmp_path: Path
) -> None:
    sent = cluster.count("driver", "polycast_sent_bytes_total")
    job = Application(tmp_path / "job", "job.py", conf=with_polycast(cluster, threshold="100k"))
    assert job.result() == torrent
    published = {int(id_): int(length) for id_, length, _ in PUBLISHED.findall(job.driver())}
    # The Python value, two tables, two models in each of Word2Vec's two iterations, and topics in each of LDA's two.
    assert len(published) >= 8, job.driver()
    read: dict[str, dict[int, int]] = {"0": {}, "1": {}}
    for executor, id_, length, agent in READ.findall(job.executors()):
        assert agent == executor
        assert published[int(id_)] == int(length)
        read[executor][int(id_)] = int(length)
    for executor in read:
        assert len(read[executor]) >= 0.8 * len(published), (executor, published, read)
    assert job.warnings() == []
    assert "through Torrent" not in job.driver() + job.executors()
    left = cluster.count("driver", "polycast_sent_bytes_total") - sent
    received = [sum(lengths.values()) for lengths in read.values()]
    # One copy serves both; a second one is only sent to an executor that asked when the first had ended.
    assert max(received) <= left <= 1.1 * sum(received), (left, received)
    # The application has taken everything with it.
    until("executors keep nothing", lambda: [cluster.objects(name) for name in ("0", "1")] == [0, 0])
    until("the driver keeps nothing", lambda: cluster.count("driver", 'polycast_objects{state="added"}') == 0)


@pytest.mark.long
def test_executors_of_one_host_share_a_copy(cluster: Cluster, torrent: dict[str, object], tmp_path: Path) -> None:
    sent = cluster.count("driver", "polycast_sent_bytes_total")
    conf = with_polycast(cluster) | {"spark.polycast.socket": str(cluster.folder / "agent-driver.sock")}
    job = Application(tmp_path / "job", "job.py", "python", conf=conf)
    assert job.result()["python"] == torrent["python"]
    assert {executor for executor, *_ in READ.findall(job.executors())} == {"0", "1"}
    assert cluster.count("driver", "polycast_sent_bytes_total") == sent
    assert job.warnings() == []


@pytest.fixture(scope="module")
def scala_job(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Job.scala, compiled by the compiler that Spark has for its shell."""
    made = tmp_path_factory.mktemp("scala") / "job.jar"
    compiler = ["java", "-cp", f"{HOME}/jars/*", "scala.tools.nsc.Main", "-usejavacp", "-d", str(made), str(HERE / "Job.scala")]
    subprocess.run(compiler, check=True, timeout=PATIENCE_S)
    return str(made)


@pytest.mark.long
def test_a_job_in_scala_has_torrents_results(cluster: Cluster, scala_job: str, tmp_path: Path) -> None:
    torrent = Application(tmp_path / "torrent", scala_job).result()
    assert set(torrent) == {"values", "join", "word2vec", "lda"}
    job = Application(tmp_path / "job", scala_job, conf=with_polycast(cluster, threshold="100k"))
    assert job.result() == torrent
    published = {int(id_): int(length) for id_, length, _ in PUBLISHED.findall(job.driver())}
    # The array, the map, a table, two models in each of Word2Vec's two iterations, and topics in each of LDA's two.
    assert len(published) >= 7 and 8_000_000 < max(published.values()) < 8_100_000, published
    for executor in ("0", "1"):
        read = [int(id_) for reader, id_, *_ in READ.findall(job.executors()) if reader == executor]
        assert len(read) >= 0.8 * len(published), (executor, published, read)
    assert job.warnings() == []


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in found.splitlines()]
    own = [child for child, parent in pairs if parent == pid]
    return own + [deeper for child in own for deeper in children_of(child)]


def executor_process(job: Application) -> int:
    for pid in children_of(job.child.pid):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if any(b"CoarseGrainedExecutorBackend" in word for word in line):
            return pid
    raise AssertionError("no executor runs")


@pytest.mark.long
def test_what_dies_in_mid_broadcast_does_not_end_the_job(tmp_path: Path) -> None:
    """Agents, the manager and executors die while values are on their way; all values are read rightly."""
    names = ["nothing", "executor", "agent-of-executor", "manager", "manager-back", "agent-of-driver", "agents-back"]
    # The third is for the executor that comes in place of the one that is killed.
    cluster = Cluster(os.environ["POLYCAST_PROGRAM"], [*NAMES, "2"])
    try:
        job = Application(tmp_path / "job", "faults.py", *names, conf=with_polycast(cluster, patience="6s"))
        assert job.child.stdout
        breaks = {"executor": lambda: os.kill(executor_process(job), signal.SIGKILL), "agent-of-executor": lambda: cluster.kill("0")}
        breaks |= {"manager": lambda: cluster.kill("manager"), "agent-of-driver": lambda: cluster.kill("driver")}
        killer = threading.Timer(PATIENCE_S, job.child.kill)
        killer.start()
        for line in job.child.stdout:
            if not line.startswith("NEXT "):
                continue
            name = line.split()[1]
            if name == "manager-back":
                cluster.start("manager")
                cluster.start("0")
            if name == "agents-back":
                cluster.start("driver")
            if name.endswith("-back"):
                # The driver leaves an agent alone for 10 s that has failed.
                time.sleep(12)
            before = len(PUBLISHED.findall(job.driver()))
            (job.folder / f"go-{name}").touch()
            if name in breaks:
                until("the value is published", lambda: len(PUBLISHED.findall(job.driver())) > before)
                breaks[name]()
        killer.cancel()
        assert job.child.wait(PATIENCE_S) == 0, job.driver()[-6000:]
        assert len(PUBLISHED.findall(job.driver())) == len(names), job.driver()
        # What broke was said once each: that the manager is gone, and the agent.
        driver = re.findall(r"WARN PolycastPlugin: (.*)", job.driver())
        assert len(driver) == len(set(driver)) <= 2, driver
    finally:
        cluster.close()


@pytest.mark.long
def test_what_a_member_puts_in_a_values_place_is_not_unpacked(tmp_path: Path) -> None:
    """A member of the cluster that knows a value's number has the executors' agents take another object for it, a value of the same length."""
    program = os.environ["POLYCAST_PROGRAM"]
    cluster = Cluster(program, [*NAMES, "member"])
    try:
        spool = tmp_path / "spool"
        job = Application(tmp_path / "job", "replaced.py", conf=with_polycast(cluster, spool=str(spool)))
        assert job.child.stdout
        assert any(line == "PUBLISHED\n" for line in job.child.stdout), job.driver()[-3000:]
        (one, length), (value, other_length) = [(id_, int(length)) for id_, length, _ in PUBLISHED.findall(job.driver())]
        assert length == other_length, "its length tells nothing"
        line = [program, "ls", "--json", "--socket", str(cluster.folder / "agent-driver.sock")]
        listed = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
        (id_,) = [document["object"] for document in listed if document["object"].endswith(f"/{value}")]
        (bytes_,) = spool.glob(f"*/broadcast-{one}")
        line = [program, "send", str(bytes_), "--id", id_, "--to", "0,1", "--socket", str(cluster.folder / "agent-member.sock")]
        subprocess.run(line, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
        (job.folder / "go").touch()
        result = job.result()
        assert result["read"] == [result["wrote"]] * 4
        assert len(job.warnings()) == 2, job.warnings()
        for executor in ("0", "1"):
            says = f"agent {executor} has something else as broadcast {value}: the bytes of .* are not those that the driver has written"
            assert any(re.match(says, warning) for warning in job.warnings()), job.warnings()
        assert f"broadcast {value} goes through Torrent too" in job.driver()
        assert not READ.findall(job.executors()), "none came from an agent"
    finally:
        cluster.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("no agent", "there is no agent's socket at"),
        ("encryption", "spark.authenticate asks for encryption"),
        ("store", r"is more than the agents' store holds, 1048576 \(store-max\)"),
    ],
)
def test_what_speaks_against_it_is_said_once_and_torrent_does_it(
    wrong: str, says: str, torrent: dict[str, object], tmp_path: Path
) -> None:
    cluster = Cluster(os.environ["POLYCAST_PROGRAM"], [] if wrong == "no agent" else NAMES)
    try:
        conf = with_polycast(cluster, threshold="100k")
        if wrong == "encryption":
            conf |= {"spark.authenticate": "true", "spark.authenticate.secret": "secret", "spark.network.crypto.enabled": "true"}
        if wrong == "store":
            cluster.kill("driver")
            cluster.start("driver", "--store-max", "1MiB")
        job = Application(tmp_path / "job", "job.py", "python", conf=conf)
        result = job.result()
        assert result == {name: torrent[name] for name in result}
        assert len(job.warnings()) == 1, job.warnings()
        assert re.search(says, job.warnings()[0])
        assert not PUBLISHED.findall(job.driver())
    finally:
        cluster.close()
