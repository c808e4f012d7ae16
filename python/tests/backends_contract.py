"""Runs a back end under its framework's own code. What is missing around that code (Ray, a configuration, a model) is put in its place.

    python backends_contract.py verl|nemo|shared_folder|trl SETTINGS

SETTINGS is JSON: `modules`, the folder with what was taken out of the wheel (or null); `frameworks`, a folder with sources that no wheel
has (or null); `work`, an empty folder; `app`; and the sockets of agents: `trainer`, two `hosts`, `late`, and `frozen` with its process.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import types
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polycast
import torch
from polycast import errors, tensors

HANG_S = 120.0
THREADS = ThreadPoolExecutor(32)
# What an agent has of another test need not be sent to it.
SALT = uuid.uuid4().int % 2**40


def weights(step: int) -> dict[str, torch.Tensor]:
    """Tensors of the types that matter, other ones at each step."""
    numbers = torch.Generator().manual_seed(SALT + step)
    made = torch.randn(300, 1000, generator=numbers)
    return {
        "embed": made.to(torch.bfloat16),
        "layers.0.a": made[:100].to(torch.float8_e4m3fn),
        "layers.0.b": made[100:200].to(torch.float8_e5m2),
        "layers.1.a": made[:50].t(),  # not contiguous
        "scale": torch.tensor(float(step)),
        "nothing": torch.empty(0, 3),
    }


def same(have: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert sorted(have) == sorted(want), sorted(have)
    for name, tensor in want.items():
        assert have[name].dtype == tensor.dtype and have[name].shape == tensor.shape, name
        bytes_of = [one.contiguous().reshape(-1).view(torch.uint8) for one in (have[name], tensor)]
        assert torch.equal(*bytes_of), f"the bytes of {name}"


def expect(error: type[BaseException], text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except error as raised:
        assert text in str(raised), raised
        assert str(raised).count("\n") == 0, raised
        return
    raise AssertionError(f"{error.__name__} was to be raised")


def module(name: str, path: Path | None = None, **content: Any) -> types.ModuleType:
    """A module that stands in for another one; with a path its own modules are those of that folder."""
    made = types.ModuleType(name)
    made.__dict__.update(content)
    made.__path__ = [] if path is None else [str(path)]
    sys.modules[name] = made
    if "." in name:
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, made)
    return made


class Log(logging.Handler):
    """What a back end has logged."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.said: list[str] = []
        logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())

    def has(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self.said)


@contextlib.contextmanager
def frozen(settings: dict[str, Any], app: str, topic: str) -> Iterator[str]:
    """A subscriber whose agent stands still: it can be reached by no one, and has not said that it ends. Gives its name."""
    with polycast.Agent(settings["frozen"], app) as agent:
        versions = agent.subscribe(topic)
        name = agent.name
        with contextlib.suppress(errors.TimedOut):
            versions.next(5)
        os.kill(settings["frozen_process"], signal.SIGSTOP)
        try:
            yield name
        finally:
            os.kill(settings["frozen_process"], signal.SIGCONT)
            versions.cancel()


def signatures(base: type, ours: type, but: tuple[str, ...] = ()) -> None:
    """What the framework may say to one of its own it may say to ours."""
    assert not inspect.isabstract(ours)
    for name, theirs in vars(base).items():
        if name.startswith("_") or not callable(getattr(base, name)) or name in but:
            continue
        want, have = (inspect.signature(getattr(one, name)).parameters for one in (base, ours))
        assert [(one.name, one.kind, one.default) for one in want.values()] == [
            (one.name, one.kind, one.default) for one in have.values()
        ], name
        del theirs


# verl


def verl(settings: dict[str, Any]) -> None:
    folder = Path(settings["modules"])

    def get(calls: list[Future[Any]]) -> list[Any]:
        return [call.result(HANG_S) for call in calls]

    class Group:
        """verl's group of workers, whose calls Ray would bring to them: here each has a thread."""

        def __init__(self, worker_handles: list[Any], ray_cls_with_init: Any = None) -> None:
            self.workers, self.world_size = worker_handles, len(worker_handles)

        @staticmethod
        def _call(worker: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            result = getattr(worker, name)(*args, **kwargs)
            return asyncio.run(result) if inspect.iscoroutine(result) else result

        def execute_checkpoint_engine(self, method: list[str], **kwargs: list[Any]) -> list[Future[Any]]:
            return [
                THREADS.submit(self._call, worker, "execute_checkpoint_engine", one, **{key: value[at] for key, value in kwargs.items()})
                for at, (worker, one) in enumerate(zip(self.workers, method, strict=True))
            ]

        def update_weights(self, **kwargs: Any) -> list[Future[Any]]:
            return [THREADS.submit(self._call, worker, "update_weights", **kwargs) for worker in self.workers]

    def auto_await(call: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            made = call(*args, **kwargs)
            # Inside of a loop its caller awaits it.
            return made if asyncio._get_running_loop() else asyncio.run(made)

        return called

    async def ensure_async_iterator(iterable: Any) -> Any:
        if hasattr(iterable, "__aiter__"):
            async for one in iterable:
                yield one
        else:
            for one in iterable:
                yield one

    module("ray", remote=lambda cls: cls, get=get)
    module("verl")
    module("verl.single_controller")
    module("verl.single_controller.base", Worker=object)
    words = types.SimpleNamespace(ONE_TO_ALL=1, DP_COMPUTE=2)
    module("verl.single_controller.base.decorator", Dispatch=words, register=lambda **_: lambda call: call)
    module("verl.single_controller.ray", RayClassWithInitArgs=lambda cls: cls, RayWorkerGroup=Group)
    module("verl.utils", folder)
    module("verl.utils.distributed", initialize_global_process_group_ray=lambda **_: None)
    module("verl.utils.ray_utils", auto_await=auto_await)
    module("verl.workers")
    module("verl.workers.config", CheckpointEngineConfig=object, HFModelConfig=object, RolloutConfig=object)
    module("verl.workers.rollout", BaseRollout=object, RolloutReplica=object, get_rollout_class=None)
    module("verl.workers.rollout.utils", ensure_async_iterator=ensure_async_iterator)
    module("verl.checkpoint_engine", folder)
    base = importlib.import_module("verl.checkpoint_engine.base")

    class Adapter:
        """What verl has in place of each kind of rollout. It keeps what it is given."""

        replica_rank, is_leader_rank = 0, True

        def __init__(self) -> None:
            self.model: dict[str, torch.Tensor] = {}
            self.steps: list[int | None] = []

        async def update_weights(self, given: Any, global_steps: int | None = None, wire_format: str = "") -> None:
            assert wire_format == "named_tensors"
            self.model = {name: tensor.clone() async for name, tensor in ensure_async_iterator(given)}
            self.steps.append(global_steps)

    class Replica:
        def __init__(self, *workers: Any) -> None:
            self.workers = list(workers)
            self.log: list[str] = []

        def __getattr__(self, name: str) -> Any:
            async def call(**_: Any) -> None:
                self.log.append(name)

            return call

    # What the trainer's worker does is its own code; the rest of it needs a model.
    (found,) = (
        node
        for cls in ast.parse((folder / "engine_workers.py").read_text()).body
        if isinstance(cls, ast.ClassDef)
        for node in cls.body
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "update_weights"
    )
    found.decorator_list = []
    space: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(ast.Module([found], [])), "engine_workers.py", "exec"), space)

    topic, app = f"verl-{uuid.uuid4()}", settings["app"]

    def config(socket: str, **more: Any) -> Any:
        kwargs = {"topic": topic, "app": app, "socket": socket, "timeout": HANG_S, "publish_timeout": 60, **more}
        return types.SimpleNamespace(
            name="vllm",
            mode="async",
            checkpoint_engine=types.SimpleNamespace(
                backend="polycast",
                engine_kwargs={"polycast": kwargs},
                custom_backend_module="polycast.verl",
                update_weights_bucket_megabytes=1,
            ),
        )

    passes: list[int] = []

    class Actor:
        update_weights = space["update_weights"]

        def __init__(self, rank: int, rollout: Any) -> None:
            self.rank, self.step = rank, 0
            self.config = types.SimpleNamespace(rollout=rollout)
            self.actor = types.SimpleNamespace(engine=self)
            engine = rollout.checkpoint_engine
            bucket = engine.update_weights_bucket_megabytes << 20
            kwargs = engine.engine_kwargs.get(engine.backend, {})
            made = base.CheckpointEngineRegistry.new(engine.backend, is_master=rank == 0, bucket_size=bucket, **kwargs)
            self.checkpoint_engine = made

        def get_per_tensor_param(self) -> tuple[Iterator[tuple[str, torch.Tensor]], None]:
            def gathered() -> Iterator[tuple[str, torch.Tensor]]:
                yield from weights(self.step).items()
                passes.append(self.rank)

            return gathered(), None

        def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
            return getattr(self.checkpoint_engine, method)(*args, **kwargs)

    def worker(socket: str) -> Any:
        return base.CheckpointEngineWorker(config(socket), None, server_adapter=Adapter())

    first, second = settings["hosts"]
    replicas = [Replica(worker(first), worker(first)), Replica(worker(second))]
    from polycast.verl import PolycastCheckpointEngine

    signatures(base.CheckpointEngine, PolycastCheckpointEngine, but=("init_process_group",))
    assert PolycastCheckpointEngine.wire_format == base.CheckpointEngine.wire_format == "named_tensors"
    log = Log("polycast.verl")
    # The second rank's host has no agent, and needs none.
    rollout = config(settings["trainer"], publish_timeout=6)
    group = Group([Actor(0, rollout), Actor(1, config("/nowhere"))])
    manager = base.CheckpointEngineManager(rollout.checkpoint_engine, group, replicas)
    sizes = sum(tensor.nbytes for tensor in weights(0).values())

    def update(step: int, version: int | None = None) -> dict[str, Any]:
        for actor in group.workers:
            actor.step = step
        passes.clear()
        metrics: dict[str, Any] = manager.update_weights(global_steps=step)
        assert sorted(passes) == [0, 1], "both ranks have walked through their tensors"
        assert metrics["polycast/version"] == (version or step), metrics
        for replica in manager.replicas:
            for one in replica.workers:
                same(one.server_adapter.model, weights(step))
                assert one.server_adapter.steps[-1] == step
        return metrics

    for step in (1, 2, 3):
        metrics = update(step)
        assert metrics["polycast/missing_hosts"] == 0 and metrics["polycast/hosts"] == 2, metrics
    print("sent", 3, sizes, flush=True)
    input()
    expected = ["abort_all_requests", "release_kv_cache", "resume_kv_cache", "resume_generation"]
    assert replicas[0].log == expected * 3, replicas[0].log
    # A replica on a host that comes late.
    manager.add_replicas([Replica(worker(settings["late"]))])
    assert update(4)["polycast/hosts"] == 3
    # One that has gone, and whose agent holds no other.
    with frozen(settings, app, topic) as name:
        metrics = update(5)
        assert metrics["polycast/missing_hosts"] == 1 and log.has(name, "has not got version 5"), (metrics, log.said)
        assert list(group.workers[0].checkpoint_engine.published.missing) == [name]
    # A run that begins with an earlier step; and one worker that is made anew.
    replicas[0].workers[1] = worker(first)
    assert update(2, version=6)["polycast/missing_hosts"] == 0
    assert log.has("is not above version 5", "This one is version 6"), log.said

    # A version that does not come, no agent, and what was not agreed.
    engine = base.CheckpointEngineRegistry.new("polycast", bucket_size=1, topic=topic, app=app, socket=first, timeout=0.5)
    publication = {"topic": topic, "app": app, "data_id": 17}

    def receive() -> None:
        async def all_of_it() -> None:
            async for _ in engine.receive_weights(global_steps=9):
                pass

        asyncio.run(all_of_it())

    expect(errors.Invalid, "init_process_group", receive)
    engine.init_process_group(role="receives", publication=publication)
    expect(errors.TimedOut, f"the version of step 9 of '{topic}' did not come to the agent at {first} within 0.5 s", receive)
    away = base.CheckpointEngineRegistry.new("polycast", bucket_size=1, is_master=True, socket="/nowhere")
    expect(errors.AgentNotRunning, "/nowhere", away.prepare)
    expect(errors.Invalid, "is_master", lambda: away.build_topology(1, 1, [{}, {}]))
    expect(errors.Invalid, "timeout", lambda: base.CheckpointEngineRegistry.new("polycast", bucket_size=1, timeout=-1))
    print("done")


# NeMo-RL


def stand_in_for_nemo() -> None:
    """What main of NeMo-RL has (7ea279abfb, 2026-08-22), as far as a back end meets it: the package on PyPI is empty."""

    class CheckpointEngine(ABC):
        shard_expert_weights = False

        def get_target_weight_layout(self) -> dict[str, Any] | None:
            return None

        @abstractmethod
        def prepare(self) -> Any: ...

        @abstractmethod
        def init_policy_process_group(
            self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
        ) -> None: ...

        @abstractmethod
        def init_rollout_process_group(
            self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
        ) -> None: ...

        def finalize(self) -> None: ...

        @abstractmethod
        async def send_weights(self, weights: Any) -> None: ...

        @abstractmethod
        def receive_weight_batches(self) -> Any: ...

    def create(backend: str, *, bucket_size_bytes: int, engine_kwargs: dict[str, Any]) -> Any:
        name, _, cls = backend.partition(":")
        return getattr(importlib.import_module(name), cls)(bucket_size=bucket_size_bytes, **engine_kwargs)

    module("nemo_rl.utils.checkpoint_engines.base", CheckpointEngine=CheckpointEngine, create_checkpoint_engine=create)


def nemo(settings: dict[str, Any]) -> None:
    for name in ("nemo_rl", "nemo_rl.utils"):
        module(name)
    frameworks = settings["frameworks"] and Path(settings["frameworks"]) / "nemo_rl/utils/checkpoint_engines"
    module("nemo_rl.utils.checkpoint_engines", frameworks or None)
    if not frameworks:
        stand_in_for_nemo()
    base = importlib.import_module("nemo_rl.utils.checkpoint_engines.base")
    topic, app, backend = f"nemo-{uuid.uuid4()}", settings["app"], "polycast.nemo:CheckpointEngine"
    bucket = 400_000

    def make(socket: str, **more: Any) -> Any:
        # As NeMo-RL's plug-in configuration gives them.
        kwargs = {"topic": topic, "app": app, "socket": socket, "timeout": HANG_S, "publish_timeout": 60, "release_after_refit": False, **more}
        return base.create_checkpoint_engine(backend, bucket_size_bytes=bucket, engine_kwargs=kwargs)

    first, second = settings["hosts"]
    policy = [make(settings["trainer"], publish_timeout=6), make("/nowhere")]
    rollouts = [make(first), make(first), make(second)]
    from polycast.nemo import CheckpointEngine

    signatures(base.CheckpointEngine, CheckpointEngine)
    assert policy[0].get_target_weight_layout() is None and policy[0].shard_expert_weights is False
    log = Log("polycast.nemo")

    def agree() -> None:
        """As NeMo-RL's synchronizer does it: the policy's metadata comes first, in the order of its ranks."""
        metadata = [{**engine.prepare(), "rank": rank} for rank, engine in enumerate(policy)]
        metadata += [{**engine.prepare(), "rank": rank} for rank, engine in enumerate(rollouts)]
        sizes = {"train_world_size": len(policy), "rollout_world_size": len(rollouts), "metadata": metadata}
        for rank, engine in enumerate(policy):
            engine.init_policy_process_group(worker_rank=rank, **sizes)
        for rank, engine in enumerate(rollouts):
            engine.init_rollout_process_group(rollout_rank=rank, **sizes)

    def refit(step: int) -> None:
        walked: list[int] = []

        def gathered(rank: int) -> Iterator[tuple[str, torch.Tensor]]:
            yield from weights(step).items()
            walked.append(rank)

        async def receive(engine: Any) -> tuple[dict[str, torch.Tensor], int]:
            model: dict[str, torch.Tensor] = {}
            batches = 0
            async for batch in engine.receive_weight_batches():
                assert len(batch) == 1 or sum(tensor.nbytes for _, tensor in batch) <= bucket
                model |= {name: tensor.clone() for name, tensor in batch}
                batches += 1
            return model, batches

        sends = [THREADS.submit(asyncio.run, engine.send_weights(gathered(rank))) for rank, engine in enumerate(policy)]
        got = [THREADS.submit(asyncio.run, receive(engine)) for engine in rollouts]
        for one in sends:
            one.result(HANG_S)
        assert sorted(walked) == [0, 1]
        for future in got:
            model, batches = future.result(HANG_S)
            same(model, weights(step))
            assert batches > 1

    expect(errors.Invalid, "no session", lambda: asyncio.run(policy[0].send_weights(iter([]))))
    agree()
    for step in (1, 2, 3):
        refit(step)
        assert len(policy[0].published.have) == 2 and not policy[0].published.missing
    print("sent", 3, sum(tensor.nbytes for tensor in weights(0).values()), flush=True)
    input()
    # All of it anew, with a host that was not there before, as NeMo-RL does after a failure.
    for engine in policy + rollouts:
        engine.finalize()
    rollouts.append(make(settings["late"]))
    agree()
    refit(4)
    assert len(policy[0].published.have) == 3
    with frozen(settings, app, topic) as name:
        refit(5)
        assert list(policy[0].published.missing) == [name] and log.has(name, "has not got version 5"), log.said
    rollouts[0] = make(first)
    agree()
    refit(6)

    waits = make(first, timeout=0.5)
    metadata = [{"topic": topic, "app": app, "session": "none", "rank": 0}]
    waits.init_rollout_process_group(rollout_rank=0, train_world_size=1, rollout_world_size=1, metadata=metadata)

    async def receive() -> None:
        async for _ in waits.receive_weight_batches():
            pass

    expect(errors.TimedOut, "the version of refit 1", lambda: asyncio.run(receive()))
    away = make("/nowhere")
    call = {"worker_rank": 0, "train_world_size": 1, "rollout_world_size": 1, "metadata": metadata}
    expect(errors.AgentNotRunning, "/nowhere", lambda: away.init_policy_process_group(**call))
    expect(errors.Invalid, "shard_expert_weights", lambda: make(first, shard_expert_weights=True))
    print("done")


# slime and miles


def write_version(folder: Path, number: int, content: dict[str, bytes], delta: bool) -> Path:
    """A version as both write it: shards, and an index that says what it builds on."""
    made = folder / f"weight_v{number:06d}"
    made.mkdir(parents=True)
    for name, some in content.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_bytes(some)
    metadata = {"version": f"{number:06d}", "base_version": f"{number - 1:06d}", "delta_encoding": "xor"} if delta else {}
    metadata |= {"compression_format": "zstd", "checksum_format": "adler32"} if delta else {}
    names = [name for name in content if name.endswith(".safetensors")]
    index = {"metadata": metadata, "weight_map": {f"tensor{at}": name for at, name in enumerate(names)}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    return made


def tree(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def shared_folder(settings: dict[str, Any]) -> None:
    from polycast.shared_folder import post_write, pre_read

    work, topic = Path(settings["work"]), f"slime-{uuid.uuid4()}"
    trainer = work / "trainer" / "deltas"
    first, second = settings["hosts"]
    args = types.SimpleNamespace(update_weight_disk_dir=str(trainer), polycast_topic=topic, polycast_socket=settings["trainer"])
    os.environ |= {"POLYCAST_TOPIC": topic, "POLYCAST_PUBLISH_TIMEOUT": "6", "POLYCAST_TIMEOUT": str(HANG_S)}
    log = Log("polycast.shared_folder")

    def read(host: str, folder: Path, version: int) -> Path:
        os.environ["POLYCAST_SOCKET"] = host
        pre_read(str(folder), version)
        return folder / f"weight_v{version:06d}"

    def content(number: int) -> dict[str, bytes]:
        return {"model-00000-of-00002.safetensors": os.urandom(2_000_000), "model-00001-of-00002.safetensors": os.urandom(3000 + number)}

    def begin() -> None:
        shutil.rmtree(trainer, ignore_errors=True)
        trainer.mkdir(parents=True)
        assert post_write(args, str(trainer), []) is None

    begin()
    hosts = {first: work / "first", second: work / "second"}
    total = 0
    for number in (1, 2, 3):
        version = write_version(trainer, number, content(number), delta=True)
        total += sum(map(len, tree(version).values()))
        published = post_write(args, str(version), [])
        assert published is not None and not published.missing
        # From the second version on the hosts have it before they read.
        assert len(published.have) == (0 if number == 1 else 2), published
        for host, folder in hosts.items():
            assert tree(read(host, folder, number)) == tree(version), host
            # The other processes of an engine ask for the same.
            read(host, folder, number)
    print("sent", 1, total, flush=True)
    input()
    # A host that comes late has no version yet, and needs all that build on one another.
    late = work / "late"
    read(settings["late"], late, 3)
    for number in (1, 2, 3):
        assert tree(late / f"weight_v{number:06d}") == tree(trainer / f"weight_v{number:06d}")
    # Several processes of a host at the same time.
    again = work / "again"
    line = [sys.executable, "-c", f"from polycast.shared_folder import pre_read; pre_read({str(again)!r}, 3)"]
    environment = {**os.environ, "POLYCAST_SOCKET": second}
    processes = [subprocess.Popen(line, env=environment) for _ in range(4)]
    assert [one.wait(HANG_S) for one in processes] == [0] * 4
    assert tree(again / "weight_v000003") == tree(trainer / "weight_v000003")
    assert sorted(one.name for one in again.iterdir()) == [".polycast", *(f"weight_v{one:06d}" for one in (1, 2, 3))]
    # On the trainer's own host, in its own folder, all is there.
    assert read(settings["trainer"], trainer, 3) == trainer / "weight_v000003"
    assert not list((trainer / ".polycast").glob("*.put.json"))

    # A host that has gone.
    with frozen(settings, str(uuid.UUID(int=0)), topic) as name:
        version = write_version(trainer, 4, content(4), delta=True)
        published = post_write(args, str(version), [])
        assert published is not None and list(published.missing) == [name] and log.has(name, "has not got"), (published, log.said)
        assert tree(read(first, hosts[first], 4)) == tree(version)

    # A whole version: what was before it is needed by none. It has a file without bytes, and one in a folder.
    whole = {**content(5), "config.json": b"{}", "code/__init__.py": b"", "code/model.py": b"pass\n"}
    version = write_version(trainer, 5, whole, delta=False)
    post_write(args, str(version), [])
    # slime removes it here when the engines have it.
    wanted = tree(version)
    assert tree(read(first, hosts[first], 5)) == wanted
    assert sorted(one.name for one in hosts[first].glob("weight_*")) == ["weight_v000005"]
    shutil.rmtree(version)
    assert tree(read(second, hosts[second], 5)) == wanted, "from a host that has it"

    # Other runs with the same numbers: no host takes a version of the run before for one of this run, in the first of them after a whole
    # version and in the second after deltas.
    for over in (1, 2):
        begin()
        os.environ["POLYCAST_TIMEOUT"] = "1"
        said = f"version {over} of '{topic}' did not come to the agent at {first} within 1 s"
        expect(errors.TimedOut, said, lambda over=over: read(first, hosts[first], over))
        os.environ["POLYCAST_TIMEOUT"] = str(HANG_S)
        for number in (1, 2):
            version = write_version(trainer, number, content(number), delta=True)
            post_write(args, str(version), [])
            assert tree(read(first, hosts[first], number)) == tree(version)
        assert sorted(one.name for one in hosts[first].glob("weight_*")) == ["weight_v000001", "weight_v000002"]

    # What is refused.
    lacking = write_version(trainer, 3, content(3), delta=True)
    (lacking / "model-00001-of-00002.safetensors").unlink()
    expect(errors.Invalid, "has not got 'model-00001-of-00002.safetensors'", lambda: post_write(args, str(lacking), []))
    foreign = work / "foreign"
    (foreign / "weight_v000002").mkdir(parents=True)
    expect(errors.Invalid, "is there already and is not of this run", lambda: read(first, foreign, 2))
    # Without a name for the topic both sides make one of the folder's path.
    del args.polycast_topic, os.environ["POLYCAST_TOPIC"]
    version = write_version(trainer, 4, content(4), delta=False)
    post_write(args, str(version), [])
    read(first, trainer, 4)
    args.polycast_socket = "/nowhere"
    expect(errors.AgentNotRunning, "/nowhere", lambda: post_write(args, str(version), []))
    os.environ["RANK"] = "1"
    assert post_write(args, str(version), []) is None, "other ranks do nothing"
    print("done")
    if settings["frameworks"]:
        with_slimes_reader(settings, work)


def with_slimes_reader(settings: dict[str, Any], work: Path) -> None:
    """slime's own reader, which SGLang has from slime's patch, with deltas as slime and miles write them."""
    import zlib

    import numpy
    import safetensors.numpy
    import zstandard
    from polycast.shared_folder import post_write

    sys.path.insert(0, str(Path(settings["frameworks"]) / "sglang"))
    reader = importlib.import_module("local_checkpoint")
    os.environ["RANK"] = "0"
    os.environ["POLYCAST_TOPIC"] = topic = f"slime-{uuid.uuid4()}"
    random = numpy.random.default_rng(1)
    state = {name: random.integers(0, 256, 500_000, dtype=numpy.uint8) for name in ("a", "b", "c")}
    start = work / "start"
    start.mkdir()
    safetensors.numpy.save_file(state, start / "model-00000-of-00001.safetensors")
    trainer = work / "slime" / "deltas"
    trainer.mkdir(parents=True)
    args = types.SimpleNamespace(polycast_topic=topic, polycast_socket=settings["trainer"])
    post_write(args, str(trainer), [])

    def pull(host: str, name: str, target: int) -> None:
        os.environ["POLYCAST_SOCKET"] = host
        local, deltas = work / name / "checkpoint", work / name / "deltas"
        reader.pull(str(local), str(start), str(deltas), target, "polycast.shared_folder.pre_read")
        found = safetensors.numpy.load_file(local / "model-00000-of-00001.safetensors")
        assert all(numpy.array_equal(found[one], state[one]) for one in state), name

    for number in (1, 2, 3):
        changed = {}
        sums = {}
        for name in ("a", "b"):
            mask = numpy.where(random.random(state[name].size) < 0.01, 255, 0).astype(numpy.uint8)
            state[name] = state[name] ^ mask
            packed = zstandard.ZstdCompressor(level=1).compress(mask.tobytes())
            changed[name] = numpy.frombuffer(packed, dtype=numpy.uint8)
            sums[name] = f"{zlib.adler32(state[name]):08x}"
        blob = safetensors.numpy.save(changed, metadata=sums)
        post_write(args, str(write_version(trainer, number, {"model-00000-of-00001.safetensors": blob}, delta=True)), [])
        for at, host in enumerate(settings["hosts"]):
            pull(host, f"slime-{at}", number)
    pull(settings["late"], "slime-late", 3)
    print("slime's reader: done")


# TRL and transformers


def trl(settings: dict[str, Any]) -> None:
    folder = Path(settings["modules"])
    module("tqdm")
    module("tqdm.auto", tqdm=None)
    module("transformers", folder)
    words = types.SimpleNamespace(STEPS="steps", EPOCH="epoch", NO="no", BEST="best")
    module("transformers.trainer_utils", IntervalStrategy=words, SaveStrategy=words, has_length=None)
    module("transformers.training_args", TrainingArguments=object)
    module("transformers.utils", logging=types.SimpleNamespace(get_logger=logging.getLogger))
    theirs = importlib.import_module("transformers.trainer_callback")
    sys.modules["transformers"].TrainerCallback = theirs.TrainerCallback  # type: ignore[attr-defined]
    from polycast import torch as polycast_torch
    from polycast.trl import PolycastCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Parameter(torch.zeros(300, 1000, dtype=torch.bfloat16))
            self.head = self.embed
            self.scale = torch.nn.Parameter(torch.zeros(40, 7).to(torch.float8_e4m3fn), requires_grad=False)
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    model, topic, app = Model(), f"trl-{uuid.uuid4()}", settings["app"]
    agent = polycast.Agent(settings["trainer"], app)
    readers = [polycast.Agent(one, app) for one in settings["hosts"]]
    callback = PolycastCallback(topic, every=2, agent=agent, timeout=6)
    log = Log("polycast.trl")
    handler = theirs.CallbackHandler([callback], model, None, None, None)
    args = types.SimpleNamespace(fsdp=None)
    subscriptions = [polycast_torch.subscribe(topic, agent=one) for one in readers]

    def train(begin: int, end: int, zero: bool = True, **more: Any) -> None:
        state, control = theirs.TrainerState(is_world_process_zero=zero, global_step=begin), theirs.TrainerControl()
        handler.on_train_begin(types.SimpleNamespace(**{**vars(args), **more}), state, control)
        for step in range(begin + 1, end + 1):
            state.global_step = step
            with torch.no_grad():
                model.embed.fill_(step)
                model.scale.copy_(torch.full((40, 7), float(step)).to(torch.float8_e4m3fn))
                model.count.fill_(step)
            handler.on_step_end(args, state, control)
            if zero and step % 2 == 0:
                check(step)
        handler.on_train_end(args, state, control)

    def check(step: int, version: int | None = None) -> None:
        for one in subscriptions:
            found = one.next(HANG_S)
            assert found is not None and found.version == (version or step), found
            same(found.state_dict(), model.state_dict())
            assert found.metadata == {"global_step": str(step)}

    train(0, 5)
    check(5)
    assert callback.published is not None and callback.published.version == 5 and len(callback.published.have) == 2
    assert [one.name for one in agent.list() if one.name.startswith("tensors-")], "the last version stays, for those that come late"
    late = polycast_torch.subscribe(topic, agent=polycast.Agent(settings["late"], app))
    found = late.next(HANG_S)
    assert found is not None and found.version == 5
    same(found.state_dict(), model.state_dict())
    late.close()
    train(5, 9, zero=False)
    assert callback.published.version == 5, "process 1 publishes nothing"
    with frozen(settings, app, topic) as name:
        train(5, 6)
        assert list(callback.published.missing) == [name] and log.has(name, "has not got version 6"), log.said

    # What is sharded is refused, by each process.
    for more in ({"fsdp": "full_shard"}, {"fsdp": True}):
        expect(errors.Invalid, "spread over processes (FSDP)", lambda more=more: train(0, 1, zero=False, **more))
    model.embed.ds_id = 1
    expect(errors.Invalid, "ZeRO-3", lambda: train(0, 1))
    del model.embed.ds_id
    expect(errors.Invalid, "every=0", lambda: PolycastCallback(topic, every=0))
    os.environ["POLYCAST_SOCKET"] = "/nowhere"
    handler.callbacks[:] = [PolycastCallback(topic)]
    expect(errors.AgentNotRunning, "/nowhere", lambda: train(0, 1))
    print("done")


if __name__ == "__main__":
    began = time.monotonic()
    torch.set_num_threads(2)
    {"verl": verl, "nemo": nemo, "shared_folder": shared_folder, "trl": trl}[sys.argv[1]](json.loads(sys.argv[2]))
    THREADS.shutdown()
