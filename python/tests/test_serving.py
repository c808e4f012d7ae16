"""Servers that get new weights and adapters from topics: SGLang's requests and vLLM's adapters, as their wheels have the contracts."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import http.server
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import types
import typing
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polycast
import pytest
from conftest import HANG_S, free_port, until
from polycast import errors, sglang, tensors

Cluster = list[polycast.Agent]
SGLANG = "0.5.23"
OF_SGLANG = [
    "sglang/srt/managers/io_struct.py", "sglang/srt/entrypoints/http_server.py", "sglang/srt/plugins/__init__.py",
    "sglang/srt/plugins/hook_registry.py",
]
OF_VLLM = [
    *(f"vllm/distributed/weight_transfer/{name}.py" for name in ("base", "factory", "clients")), "vllm/v1/worker/gpu_worker.py",
    *(f"vllm/model_executor/model_loader/{name}.py" for name in ("checkpoint_weight_patch", "mtp_validation")),
    *(f"vllm/lora/{name}.py" for name in ("resolver", "request")), "vllm/entrypoints/openai/models/serving.py",
]


def from_wheel(config: pytest.Config, package: str, version: str, names: list[str]) -> Path:
    """The folder that has these files of a package's wheel, without their folders; the rest is not kept. Skips where the wheel cannot be
    had, and where torch is left out: these wheels are as large."""
    pytest.importorskip("torch")
    folder = Path(config.cache.mkdir(package)) / version  # type: ignore[union-attr]

    def kept(name: str) -> Path:
        own = "plugins.py" if name.endswith("/__init__.py") else Path(name).name
        return folder / own

    if all(kept(name).exists() for name in names):
        return folder
    folder.mkdir(exist_ok=True)
    line = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps", "--only-binary", ":all:"]
    try:
        done = subprocess.run([*line, "--dest", str(folder), f"{package}=={version}"], capture_output=True, text=True, timeout=900)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
            pytest.skip(f"the wheel of {package} {version} cannot be downloaded: {why}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            for name in names:
                kept(name).write_bytes(packed.read(name))
    except subprocess.TimeoutExpired:
        pytest.skip(f"the wheel of {package} {version} has not come within 900 s")
    finally:
        for wheel in folder.glob("*.whl"):
            wheel.unlink()
    return folder


def taken(file: Path, names: list[str], space: dict[str, Any]) -> dict[str, Any]:
    """These classes of a file, as they are, without the modules that it imports."""
    found = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef) and node.name in names]
    assert [node.name for node in found] == names
    # The types of fields are looked up by the name of the class's module.
    module = types.ModuleType(f"taken_{file.stem}")
    sys.modules[module.__name__] = module
    module.__dict__.update({**vars(typing), **space})
    exec(compile(ast.Module(found, []), str(file), "exec"), module.__dict__)
    return vars(module)


# SGLang


class Server(http.server.ThreadingHTTPServer):
    """A server that takes what SGLang's own class for the request takes, and reads the folder as its loader does."""

    def __init__(self, kind: Any, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Route)
        self.kind = kind
        self.weight_version = "default"
        self.loaded: list[tuple[str, dict[str, Any]]] = []
        self.bodies: list[dict[str, Any]] = []
        self.refuses = False
        self.key = ""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def load(self, body: dict[str, Any]) -> tuple[bool, str]:
        self.bodies.append(body)
        pytest.importorskip("torch")
        msgspec = pytest.importorskip("msgspec")
        hints = typing.get_type_hints(self.kind, vars(sys.modules[self.kind.__module__]))
        for name, value in body.items():
            msgspec.convert(value, hints[name], strict=True)
        asked = self.kind(**body)
        if self.refuses:
            return False, "Failed to update weights: out of order."
        files = sorted(Path(asked.model_path).glob("*.safetensors"))
        assert files and asked.load_format == "auto"
        found: dict[str, Any] = {}
        for file in files:
            found |= {name: array.copy() for name, array in tensors.unpack(memoryview(file.read_bytes())).items()}
        self.weight_version = asked.weight_version
        self.loaded.append((asked.weight_version, found))
        return True, f"Succeeded to update model weights. Weight version updated to {asked.weight_version}."

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Route(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        assert self.path == "/model_info"
        self.answer(200, {"model_path": "org/model", "weight_version": self.server.weight_version})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/update_weights_from_disk" and self.headers["Content-Type"] == "application/json"
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.answer(401, {"error": "Unauthorized"})
            return
        try:
            ok, message = self.server.load(body)
        except Exception as error:
            # What a test asserts in this thread it sees as a refusal.
            ok, message = False, repr(error)
        self.answer(200 if ok else 400, {"success": ok, "message": message, "num_paused_requests": 0})

    def answer(self, code: int, said: dict[str, Any]) -> None:
        text = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def of_sglang(request: pytest.FixtureRequest) -> Path:
    return from_wheel(request.config, "sglang", SGLANG, OF_SGLANG)


@pytest.fixture
def request_class(of_sglang: Path) -> Any:
    """SGLang's class for the request."""
    pytest.importorskip("torch")
    msgspec = pytest.importorskip("msgspec")
    name = "UpdateWeightFromDiskReqInput"
    return taken(of_sglang / "io_struct.py", ["BaseReq", name], {"msgspec": msgspec})[name]


@pytest.fixture
def server(request_class: Any) -> Iterator[Server]:
    made = Server(request_class)
    yield made
    made.close()


class Following:
    """What follows a topic, in a thread of its own."""

    def __init__(self, settings: sglang.Settings, agent: polycast.Agent | None) -> None:
        self.updates: list[sglang.Update] = []
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(settings, agent), daemon=True)
        self.thread.start()

    def run(self, settings: sglang.Settings, agent: polycast.Agent | None) -> None:
        try:
            for update in sglang.follow(settings, agent=agent, stop=self.stop):
                self.updates.append(update)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.stop.set()
        self.thread.join(HANG_S)
        assert self.error is None, self.error


@contextlib.contextmanager
def following(settings: sglang.Settings, agent: polycast.Agent | None) -> Iterator[Following]:
    made = Following(settings, agent)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "_AGAIN_S", 0.05)
    monkeypatch.setattr(sglang, "_LOOK_S", 0.2)


@pytest.fixture
def numpy() -> Any:
    return pytest.importorskip("numpy")


def test_what_sglang_says_of_it(of_sglang: Path) -> None:
    """The route, its answer and what tells of a server that has begun anew are in the wheel's own server."""
    routes = {}
    for node in ast.parse((of_sglang / "http_server.py").read_text()).body:
        if isinstance(node, ast.AsyncFunctionDef):
            for one in node.decorator_list:
                if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.args and isinstance(one.args[0], ast.Constant):
                    routes[one.func.attr, one.args[0].value] = ast.unparse(node)
    update = routes["post", "/update_weights_from_disk"]
    assert "UpdateWeightFromDiskReqInput" in update and "HTTPStatus.BAD_REQUEST" in update
    assert all(f"'{name}'" in update for name in ("success", "message"))
    assert "'weight_version'" in routes["get", "/model_info"]


def test_versions_reach_a_server(server: Server, cluster: Cluster, tmp_path: Path, numpy: Any) -> None:
    topic, model = f"sglang-{uuid.uuid4()}", tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"):
        (model / name).write_text("{}")
    # The store of these agents is in memory too, so that links are possible.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as into, following(
        sglang.Settings(topic, server.url, into=into, model=model), cluster[1]
    ) as one:
        for step in (1, 2, 3):
            tensors.publish(cluster[0], topic, {"w": numpy.full(100_000, float(step))})
            until("the server has it", lambda step=step: len(server.loaded) == step)
        until("it is said", lambda: len(one.updates) == 3)
        assert [(version, float(found["w"][0])) for version, found in server.loaded] == [("1", 1.0), ("2", 2.0), ("3", 3.0)]
        assert all(update.ok for update in one.updates), one.updates
        folder = Path(server.bodies[-1]["model_path"])
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
        assert (folder / "config.json").is_symlink()
        assert [path for path in folder.parent.iterdir() if path.is_dir()] == [folder], "older ones have gone"
        (here,) = (found for found in cluster[1].list() if f"-{found.data_id}" in folder.name)
        # The server's file is the host's copy itself, which stays when the agent gives it up.
        assert os.path.samefile(here.path, folder / "model.safetensors")
        cluster[1].delete(here.data_id)
        assert (folder / "model.safetensors").stat().st_size == here.length


def test_a_set_of_files_and_a_directory(server: Server, cluster: Cluster, tmp_path: Path, number: int, numpy: Any) -> None:
    topic, made = f"sglang-{uuid.uuid4()}", tmp_path / "made"
    (made / "sub").mkdir(parents=True)
    (made / "config.json").write_text('{"of": "the version"}')
    (made / "sub/more.txt").write_text("more")
    for shard in (1, 2):
        tensors.add(cluster[0], number + shard, {f"w{shard}": numpy.full(50_000, float(shard))})
        (made / f"model-{shard}.safetensors").write_bytes(cluster[0].read(number + shard).map())
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"of": "the server"}')
    # One agent that gets it, and the one that has published it: its files are where they were.
    for at, agent in enumerate((cluster[1], cluster[0])):
        settings = sglang.Settings(topic, server.url, into=tmp_path / f"into-{at}", model=model)
        with following(settings, agent) as one:
            for files in (True, False):
                said, data_id = len(server.loaded), uuid.uuid4().int >> 65
                cluster[0].add(data_id, made, files=files)
                cluster[0].publish(topic, data_id)
                until("the server has it", lambda said=said: len(server.loaded) > said)
                assert sorted(server.loaded[-1][1]) == ["w1", "w2"]
            until("it is said", lambda: len(one.updates) >= 2)
        folder = Path(server.bodies[-1]["model_path"])
        assert json.loads((folder / "config.json").read_text()) == {"of": "the version"}
        assert (folder / "sub/more.txt").read_text() == "more"


def test_a_server_that_refuses_and_one_that_begins_anew(
    server: Server, cluster: Cluster, tmp_path: Path, numpy: Any, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"sglang-{uuid.uuid4()}"
    caplog.set_level(logging.INFO, "polycast.sglang")

    def publish(value: float) -> None:
        tensors.publish(cluster[0], topic, {"w": numpy.full(1000, value)})

    with following(sglang.Settings(topic, server.url, into=tmp_path), cluster[1]) as one:
        publish(1.0)
        until("the server has it", lambda: server.weight_version == "1")
        server.refuses = True
        for value in (2.0, 3.0):
            asked = len(server.bodies)
            publish(value)
            until("the server was asked", lambda asked=asked: len(server.bodies) > asked)
        until("it is said", lambda: len(one.updates) == 2)
        # An object that no server can load does not get to it.
        asked = len(server.bodies)
        cluster[0].add_buffer(data_id := uuid.uuid4().int >> 65, b"no tensors")
        cluster[0].publish(topic, data_id)
        until("it is said", lambda: len(one.updates) == 3)
        assert len(server.bodies) == asked and "no safetensors file" in one.updates[-1].message
        server.refuses = False
        publish(5.0)
        until("the server has it", lambda: server.weight_version == "5")
        # It begins anew with the weights of its start, and gets the last version again.
        server.weight_version = "default"
        until("the server has it again", lambda: server.weight_version == "5")
    assert [(update.version, update.ok) for update in one.updates] == [(1, True), (2, False), (4, False), (5, True), (5, True)]
    assert "out of order" in one.updates[1].message, "said once"
    assert "has begun anew" in caplog.text


def test_a_server_that_comes_later(request_class: Any, cluster: Cluster, tmp_path: Path, numpy: Any, quick: None) -> None:
    topic, port = f"sglang-{uuid.uuid4()}", free_port()
    settings = sglang.Settings(topic, f"http://127.0.0.1:{port}", into=tmp_path, key="secret")
    tensors.publish(cluster[0], topic, {"w": numpy.ones(1000)})
    with following(settings, cluster[2]) as one:
        until("it is said", lambda: len(one.updates) == 1)
        assert "does not answer: Connection refused" in one.updates[0].message
        late = Server(request_class, port)
        late.key = "secret"
        until("the server has it", lambda: late.weight_version == "1")
        # Another one for the same topic and folder is refused.
        with pytest.raises(errors.Invalid, match="another process puts versions into"):
            next(sglang.follow(settings, agent=cluster[2]))
        late.close()
        tensors.publish(cluster[0], topic, {"w": numpy.full(1000, 2.0)})
        until("it is said", lambda: len(one.updates) == 3)
        tensors.publish(cluster[0], topic, {"w": numpy.full(1000, 3.0)})
        again = Server(request_class, port)
        until("the server has it", lambda: again.weight_version == "3")
        again.close()
    assert [update.ok for update in one.updates] == [False, True, False, True], one.updates


class Unwilling(Server):
    """A server that refuses every version, and looks at how many folders there are."""

    def __init__(self) -> None:
        super().__init__(None)
        self.folders: list[int] = []

    def load(self, body: dict[str, Any]) -> tuple[bool, str]:
        self.folders.append(len(folders_of(Path(body["model_path"]).parent)))
        return False, "Failed to update weights: out of order."


def folders_of(home: Path) -> list[str]:
    return [one.name for one in home.iterdir() if one.is_dir()]


@pytest.mark.parametrize("why", ["it refuses them", "it is down", "they have no weights"])
def test_versions_that_no_server_loads_do_not_pile_up(
    cluster: Cluster, tmp_path: Path, numpy: Any, quick: None, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    topic, plain, put = f"sglang-{uuid.uuid4()}", sglang.put_folder, []

    def counted(agent: polycast.Agent, found: polycast.Object, folder: Path, model: Any = None) -> None:
        plain(agent, found, folder, model)
        put.append(folder.name)

    monkeypatch.setattr(sglang, "put_folder", counted)
    unwilling = Unwilling()
    url = f"http://127.0.0.1:{free_port()}" if why == "it is down" else unwilling.url
    # Left by a command that was killed.
    (tmp_path / "9-9").mkdir()
    with following(sglang.Settings(topic, url, into=tmp_path), cluster[1]) as one:
        for step in (1, 2, 3, 4):
            if why == "they have no weights":
                cluster[0].add_buffer(data_id := uuid.uuid4().int >> 65, b"no tensors")
                cluster[0].publish(topic, data_id)
            else:
                tensors.publish(cluster[0], topic, {"w": numpy.full(1000, float(step))})
            until("it has its folder", lambda step=step: len(put) == step or one.error is not None)
        until("it is said", lambda: bool(one.updates) or one.error is not None)
    assert len(put) == 4
    left = folders_of(tmp_path)
    assert left == ([] if why == "they have no weights" else [put[-1]])
    assert all(count <= 2 for count in unwilling.folders) and bool(unwilling.folders) == (why == "it refuses them")
    unwilling.close()


def answering(answer: bytes) -> tuple[socket.socket, str]:
    """A server that gives every request this answer, until its socket is closed."""
    listens = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = listens.accept()
                with one:
                    one.sendall(answer)
                    one.shutdown(socket.SHUT_WR)
                    # Otherwise the client could see that the connection was reset, and not the answer.
                    while one.recv(1 << 16):
                        pass

    threading.Thread(target=serve, daemon=True).start()
    return listens, f"http://127.0.0.1:{listens.getsockname()[1]}"


@pytest.mark.parametrize(
    "answer", [b"\0\0\0\n", *(b"HTTP/1.1 %s\r\nContent-Length: 9\r\n\r\n{}" % said for said in (b"200 OK", b"500 No"))]
)
def test_an_answer_that_cannot_be_read_is_a_failure(cluster: Cluster, tmp_path: Path, numpy: Any, quick: None, answer: bytes) -> None:
    topic = f"sglang-{uuid.uuid4()}"
    listens, url = answering(answer)
    with listens, following(sglang.Settings(topic, url, into=tmp_path), cluster[1]) as one:
        tensors.publish(cluster[0], topic, {"w": numpy.ones(1000)})
        until("it is said", lambda: bool(one.updates) or one.error is not None)
    (update,) = one.updates
    assert not update.ok and f"the server at {url} does not answer: " in update.message and update.message.isprintable(), update


@pytest.mark.parametrize(
    ("url", "key"), [("http://127.0.0.1:port", None), ("127.0.0.1", None), ("127.0.0.1:30000", None),
     ("localhost:30000", None), ("http://a b:1", None), ("http://127.0.0.1:1", "a\nsecret")]
)
def test_settings_that_make_no_request_are_refused(cluster: Cluster, tmp_path: Path, numpy: Any, url: str, key: str | None) -> None:
    topic = f"sglang-{uuid.uuid4()}"
    tensors.publish(cluster[0], topic, {"w": numpy.ones(1000)})
    with pytest.raises(errors.Invalid, match=f"no request can be made to '{url}'") as raised:
        next(sglang.follow(sglang.Settings(topic, url, into=tmp_path, key=key), agent=cluster[0]))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "localhost:30000", "ftp://localhost:1", "http://"])
def test_an_address_without_a_server_is_refused_at_once(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sglang.main(["--topic", "t", "--server", url, "--into", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"polycast: no request can be made to '{url}': give an address such as {sglang.SERVER}\n"


def test_an_agent_that_ends_is_waited_for(
    server: Server, cluster: Cluster, tmp_path: Path, numpy: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, app = f"sglang-{uuid.uuid4()}", uuid.UUID(bytes=cluster[0]._app)
    first = polycast.Agent.embedded(cluster[0].manager, app=app)
    where = [first.socket]
    monkeypatch.setattr(sglang, "Agent", lambda: polycast.Agent(where[0], app))
    with following(sglang.Settings(topic, server.url, into=tmp_path), None) as one:
        tensors.publish(cluster[0], topic, {"w": numpy.ones(1000)})
        until("the server has it", lambda: server.weight_version == "1")
        first.close()
        until("it is said", lambda: len(one.updates) == 2)
        tensors.publish(cluster[0], topic, {"w": numpy.full(1000, 2.0)})
        with polycast.Agent.embedded(cluster[0].manager, app=app) as second:
            where[0] = second.socket
            until("the server has it", lambda: server.weight_version == "2")
            until("it is said", lambda: len(one.updates) == 3)
            one.end()
    assert [(update.version, update.ok) for update in one.updates] == [(1, True), (0, False), (2, True)], one.updates


def test_a_key_that_is_wrong_is_said(server: Server, cluster: Cluster, tmp_path: Path, numpy: Any) -> None:
    topic, server.key = f"sglang-{uuid.uuid4()}", "another"
    with following(sglang.Settings(topic, server.url, into=tmp_path), cluster[1]) as one:
        tensors.publish(cluster[0], topic, {"w": numpy.ones(1000)})
        until("it is said", lambda: len(one.updates) == 1)
    assert "has answered with 401" in one.updates[0].message


def test_the_command(server: Server, cluster: Cluster, tmp_path: Path, numpy: Any) -> None:
    topic = f"sglang-{uuid.uuid4()}"
    with polycast.Agent.embedded(cluster[0].manager) as default:
        published = threading.Thread(target=tensors.publish, args=(default, topic, {"w": numpy.ones(1000)}))
        published.start()
        published.join()
        line = [sys.executable, "-m", "polycast.sglang", "--topic", topic, "--server", server.url, "--into", str(tmp_path), "--once"]
        env = {**os.environ, "POLYCAST_SOCKET": default.socket}
        done = subprocess.run(line, capture_output=True, text=True, timeout=HANG_S, env=env)
        assert done.returncode == 0 and "version 1: the server has it" in done.stdout, done.stdout + done.stderr
        assert server.weight_version == "1"
        done = subprocess.run([*line, "--model", "/nowhere"], capture_output=True, text=True, timeout=HANG_S, env=env)
        assert done.returncode == 1 and "/nowhere is no folder on this host" in done.stderr, done.stdout + done.stderr


def test_sglang_finds_the_plug_in(of_sglang: Path, server: Server, cluster: Cluster, numpy: Any, tmp_path: Path) -> None:
    """SGLang's own loader of plug-ins, in a process as the server's, and in one that multiprocessing makes."""
    from importlib.metadata import entry_points

    if not entry_points(group="sglang.srt.plugins", name="polycast"):
        pytest.fail("the package that is installed has no entry point for SGLang")
    topic = f"sglang-{uuid.uuid4()}"
    program = f"""
import multiprocessing, sys, time, types
def module(name, **content):
    made = types.ModuleType(name); made.__dict__.update(content); made.__path__ = []; sys.modules[name] = made
def load():
    for name in ("sglang", "sglang.srt"): module(name)
    module("sglang.srt.environ", envs=types.SimpleNamespace(
        SGLANG_PLUGINS=types.SimpleNamespace(get=lambda: None), SGLANG_PLATFORM=types.SimpleNamespace(get=lambda: None)))
    import importlib.util
    for name, file in (("sglang.srt.plugins.hook_registry", "hook_registry"), ("sglang.srt.plugins", "plugins")):
        if name.endswith("hook_registry"): module("sglang.srt.plugins")
        spec = importlib.util.spec_from_file_location(name, r"{of_sglang}/" + file + ".py")
        made = importlib.util.module_from_spec(spec); sys.modules[name] = made; spec.loader.exec_module(made)
    made.load_plugins()
    import threading
    return [one.name for one in threading.enumerate() if one.name == "polycast"]
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("of a scheduler", pool.apply(load), flush=True)
    print("of the server", load(), flush=True)
    time.sleep({HANG_S})
"""
    (tmp_path / "program.py").write_text(program)
    with polycast.Agent.embedded(cluster[0].manager) as default:
        env = {**os.environ, "POLYCAST_SOCKET": default.socket, "POLYCAST_TOPIC": topic, "POLYCAST_SGLANG_INTO": str(tmp_path / "into")}
        line = [sys.executable, str(tmp_path / "program.py"), "--port", str(server.server_port), "--host", "0.0.0.0"]
        with subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            try:
                assert running.stdout is not None and running.stderr is not None
                said = running.stdout.readline() + running.stdout.readline()
                assert said == "of a scheduler []\nof the server ['polycast']\n", said
                tensors.publish(default, topic, {"w": numpy.ones(1000)})
                until("the server has it", lambda: server.weight_version == "1")
            finally:
                running.kill()


def test_where_the_servers_own_address_is() -> None:
    assert sglang._own_server(["sglang", "serve", "--model-path", "x"]) == sglang.SERVER
    assert sglang._own_server(["x", "--host", "0.0.0.0", "--port", "31000"]) == "http://127.0.0.1:31000"
    assert sglang._own_server(["x", "--host=::", "--port=31000"]) == "http://[::1]:31000"


def test_folders_of_others_are_refused(tmp_path: Path, cluster: Cluster, number: int) -> None:
    with pytest.raises(errors.Invalid, match="would not be in its folder"):
        sglang._inside(tmp_path, "../x")
    with pytest.raises(errors.Invalid, match="would not be in its folder"):
        sglang._inside(tmp_path, "/etc/x")
    kind = f"test-{uuid.uuid4().hex}"
    folder = Path(f"/dev/shm/polycast-{kind}-{os.getuid()}")
    folder.mkdir()
    folder.chmod(0o777)
    try:
        with pytest.raises(errors.Invalid, match="not this user's alone"):
            sglang.memory_folder(kind)
    finally:
        folder.rmdir()
    assert len(sglang.one_name("ä/" * 200)) <= 200


# vLLM's adapters

VERSIONS = ["0.29.0", "0.33.0"]


class Manager:
    """vLLM's own method that asks resolvers, with what it needs around it."""

    def __init__(self, folder: Path, resolver: Any) -> None:
        tree = ast.parse((folder / "serving.py").read_text())
        (found,) = (
            node for cls in tree.body if isinstance(cls, ast.ClassDef) and cls.name == "OpenAIServingModels"
            for node in cls.body if isinstance(node, ast.AsyncFunctionDef) and node.name == "resolve_lora"
        )
        numbers = iter(range(1, 100))
        space: dict[str, Any] = {
            "LoRARequest": Any, "ErrorResponse": Any, "logger": logging.getLogger("vllm"),
            "create_error_response": lambda message, err_type, status_code: int(status_code), "HTTPStatus": http.HTTPStatus,
        }
        exec(compile(ast.Module([found], []), "serving.py", "exec"), space)
        self.added: list[Any] = []

        async def add_lora(one: Any) -> None:
            assert json.loads((Path(one.lora_path) / "adapter_config.json").read_text())["peft_type"] == "LORA"
            self.added.append(one)

        self.self = types.SimpleNamespace(
            lora_resolver_lock=types.SimpleNamespace(), lora_requests={}, model_config=types.SimpleNamespace(model="org/base"),
            lora_id_counter=types.SimpleNamespace(inc=lambda by: next(numbers)), lora_resolvers=[resolver],
            engine_client=types.SimpleNamespace(add_lora=add_lora),
        )
        self.method = space["resolve_lora"]

    def resolve(self, name: str) -> Any:
        self.self.lora_resolver_lock = {name: asyncio.Lock()}
        return asyncio.run(self.method(self.self, name))


@pytest.fixture(params=VERSIONS)
def vllm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """vLLM's modules for adapters under their names."""
    pytest.importorskip("torch")
    pytest.importorskip("msgspec")
    folder = from_wheel(request.config, "vllm", request.param, OF_VLLM)

    def module(name: str, **content: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__dict__.update(content)
        made.__path__ = []
        monkeypatch.setitem(sys.modules, name, made)
        return made

    class Factory:
        _registry: typing.ClassVar[dict[str, Any]] = {}

        @classmethod
        def register_engine(cls, name: str, module: str, of: str) -> None:
            cls._registry[name] = (module, of)

    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        module(name)
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.distributed.weight_transfer.factory", WeightTransferEngineFactory=Factory, WeightTransferTrainerFactory=Factory)
    module("vllm.lora").__path__ = [str(folder)]
    made = ("vllm.lora.request", "vllm.lora.resolver", "polycast.vllm.lora")
    for name in made:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import polycast.vllm

    yield folder
    for name in made:
        sys.modules.pop(name, None)
    # A package keeps its modules as attributes too.
    vars(polycast.vllm).pop("lora", None)


def adapter(folder: Path, value: float, base: str = "org/base", kind: str = "LORA") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": kind, "base_model_name_or_path": base}))
    (folder / "adapter_model.safetensors").write_bytes(str(value).encode() * 1000)
    return folder


def test_the_resolver_is_registered_where_it_is_asked_for(vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import polycast.vllm

    polycast.vllm.register()
    assert "polycast.vllm.lora" not in sys.modules
    monkeypatch.setenv("POLYCAST_LORA_TOPICS", "adapters")
    polycast.vllm.register()
    polycast.vllm.register()
    from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

    (name,) = LoRAResolverRegistry.get_supported_resolvers()
    assert isinstance(LoRAResolverRegistry.get_resolver(name), LoRAResolver)


def test_adapters_come_from_topics(
    vllm: Path, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from polycast.vllm import lora

    monkeypatch.setattr(lora, "_KNOWN_WITHIN_S", 1.0)
    prefix, source = f"adapters-{uuid.uuid4()}", cluster[0]
    (tmp_path / "cache/server-gone").mkdir(parents=True)
    (tmp_path / "cache/server-gone/.lock").touch()
    resolver = lora.TopicResolver(prefix, tmp_path / "cache", cluster[1])
    manager = Manager(vllm, resolver)

    def publish(name: str, folder: Path, files: bool) -> None:
        data_id = uuid.uuid4().int >> 65
        source.add(data_id, folder, files=files)
        source.publish(f"{prefix}.{name.replace('/', ':')}", data_id)

    def ask(name: str) -> Any:
        return asyncio.run(resolver.resolve_lora("org/base", name))

    assert [manager.resolve(name) for name in ("french", "../up", "a name", "of:another")] == [404] * 4
    assert not caplog.text
    monkeypatch.setattr(lora, "_KNOWN_WITHIN_S", HANG_S)
    # It is at another host only, and gets here when it is asked for.
    publish("french", adapter(tmp_path / "1", 1.0), files=True)
    first = manager.resolve("french")
    assert (first.lora_name, Path(first.lora_path).joinpath("adapter_model.safetensors").read_bytes()) == ("french", b"1.0" * 1000)
    assert not (tmp_path / "cache/server-gone").exists(), "what a server has left that has ended"
    one = ask("french")
    assert one.lora_int_id == ask("french").lora_int_id >= 1 and one.lora_path == first.lora_path
    # A newer version, as one object. vLLM has the one before until it is unloaded.
    publish("french", adapter(tmp_path / "2", 2.0), files=False)
    assert manager.resolve("french") is first
    until("the newer version is here", lambda: ask("french").lora_int_id != one.lora_int_id)
    del manager.self.lora_requests["french"]
    second = manager.resolve("french")
    assert second.lora_int_id != first.lora_int_id and second.lora_path != first.lora_path
    assert Path(second.lora_path).joinpath("adapter_model.safetensors").read_bytes() == b"2.0" * 1000
    assert Path(first.lora_path).is_dir(), "vLLM may read the one before again"
    publish("french", adapter(tmp_path / "3", 3.0), files=True)
    until("the newest version is here", lambda: ask("french").lora_path not in (first.lora_path, second.lora_path))
    assert not Path(first.lora_path).exists() and Path(second.lora_path).exists()
    # What vLLM's own resolvers refuse too.
    publish("of/another", adapter(tmp_path / "4", 4.0, base="org/another"), files=True)
    publish("ia3", adapter(tmp_path / "5", 5.0, kind="IA3"), files=True)
    (tmp_path / "6").mkdir()
    (tmp_path / "6/x").write_text("x")
    publish("none", tmp_path / "6", files=True)
    for name, why in (("of/another", "is for the model 'org/another'"), ("ia3", "of the kind IA3"), ("none", "no adapter_config.json")):
        assert ask(name) is None and ask(name) is None
        assert caplog.text.count(why) == 1, caplog.text
