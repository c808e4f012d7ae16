"""Runs the back end under vLLM's own code: its modules for new weights, and what its worker does with them, all from one wheel. What
is missing around them (its configuration, its models) is put in their place here.

    python vllm_contract.py FOLDER APP TRAINER_SOCKET WORKER_SOCKET...
"""

from __future__ import annotations

import ast
import contextlib
import http.server
import importlib
import inspect
import json
import logging
import os
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from polycast import errors

MEGABYTES = 4


class Model(torch.nn.Module):
    """Loads as vLLM's models do: from pairs, of which it keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1000, 500, dtype=torch.bfloat16) for _ in range(MEGABYTES))
        self.log: list[str] = []
        self.fails = False

    def load_weights(self, pairs: Iterator[tuple[str, torch.Tensor]]) -> None:
        own = dict(self.named_parameters())
        for name, tensor in pairs:
            if self.fails:
                raise RuntimeError("this worker is out of order")
            own.pop(name).data.copy_(tensor)
        assert not own, own.keys()

    def finish(self) -> None:
        self.log.append("finish")


class Checkpoint(torch.nn.Module):
    """What a trainer has: tensors of several types, under the names of a file."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)

        def bf16(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(*shape, dtype=torch.bfloat16), requires_grad=False)

        self.embed = bf16(2000, 64)
        self.layers = torch.nn.ModuleList()
        for _ in range(3):
            layer = torch.nn.Module()
            layer.q, layer.k, layer.v = bf16(64, 64), bf16(64, 64), bf16(64, 64)
            layer.norm = torch.nn.Parameter(torch.randn(64), requires_grad=False)
            self.layers.append(layer)
        self.table = torch.nn.Parameter(torch.arange(100), requires_grad=False)


class Shard(torch.nn.Module):
    """The part of it that one of two ranks has, as vLLM's models do it: q, k and v are one parameter, of which a rank has half the rows,
    and the norms have another type than in the file."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

        def bf16(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.zeros(*shape, dtype=torch.bfloat16), requires_grad=False)

        self.embed = bf16(2000, 64)
        self.qkv = torch.nn.ParameterList([bf16(96, 64) for _ in range(3)])
        self.norm = torch.nn.ParameterList([bf16(64) for _ in range(3)])
        self.table = torch.nn.Parameter(torch.zeros(100, dtype=torch.int64), requires_grad=False)
        self.log: list[str] = []
        self.fails = False
        # Loaders that vLLM's patches are not for, and what a model is after vLLM has laid it out for its kernels.
        self.writes = "copy"
        self.is_turned = False

    def load_weights(self, pairs: Any) -> set[str]:
        loaded = set()
        for name, tensor in pairs:
            if self.fails:
                raise RuntimeError("this worker is out of order")
            parts = name.split(".")
            if parts[0] != "layers":
                self.put(getattr(self, name), tensor)
            elif parts[2] == "norm":
                self.put(self.norm[int(parts[1])], tensor)
            else:
                own = self.qkv[int(parts[1])].data.narrow(0, 32 * "qkv".index(parts[2]), 32)
                self.put(own, tensor.narrow(0, 32 * self.rank, 32))
            loaded.add(name)
        return loaded

    def put(self, own: torch.Tensor, tensor: torch.Tensor) -> None:
        if self.writes == "copy":
            own.data.copy_(tensor)
        elif self.writes == "set":
            own.data[...] = tensor.to(own.dtype)
        else:
            # One of another shape, which is spread out.
            own.data.unsqueeze(0).copy_(tensor)

    def finish(self) -> None:
        self.log.append("finish")
        if self.is_turned:
            self.embed.data.copy_(self.embed.data.flip(0))


@dataclass
class WeightTransferConfig:
    backend: str = "polycast"


@dataclass
class VllmConfig:
    parallel_config: Any = None
    model_config: Any = None


def stand_in(folder: Path) -> None:
    """vLLM's modules of the folder under their names, and what they import under the others'."""

    def module(name: str, **content: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__dict__.update(content)
        made.__path__ = []
        sys.modules[name] = made
        return made

    for name in ("vllm", "vllm.distributed", "vllm.model_executor", "vllm.model_executor.model_loader"):
        module(name)
    module("vllm.config", VllmConfig=VllmConfig)
    module("vllm.config.parallel", ParallelConfig=object)
    module("vllm.config.weight_transfer", WeightTransferConfig=WeightTransferConfig)
    module("vllm.logger", init_logger=logging.getLogger)
    module(
        "vllm.model_executor.model_loader.reload",
        initialize_layerwise_reload=lambda model: model.log.append("start"),
        finalize_layerwise_reload=lambda model, config: model.finish(),
    )
    # The module that loads patches is vLLM's own.
    sys.modules["vllm.model_executor.model_loader"].__path__ = [str(folder)]
    module("vllm.distributed.weight_transfer").__path__ = [str(folder)]
    # Its __init__ imports engines that need more; the names are what matters.
    sys.modules["vllm.distributed.weight_transfer"].__file__ = str(folder / "__init__.py")


WORKER = [
    "_check_weight_transfer_engine", "init_weight_transfer_engine", "start_weight_update", "_start_weight_update", "update_weights",
    "finish_weight_update",
]


def worker_class(folder: Path) -> type:
    """The methods of vLLM's worker that have to do with new weights, as they are."""
    tree = ast.parse((folder / "gpu_worker.py").read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Worker")
    methods = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name in WORKER]
    assert [method.name for method in methods] == sorted(WORKER, key=[method.name for method in methods].index), methods
    assert len(methods) == len(WORKER), [method.name for method in methods]
    made = ast.Module([ast.ClassDef("Worker", [], [], methods, [])], [])
    space: dict[str, Any] = {"set_current_vllm_config": lambda _: contextlib.nullcontext()}
    exec(compile(ast.fix_missing_locations(made), "gpu_worker.py", "exec"), space)
    return space["Worker"]


class Server(http.server.BaseHTTPRequestHandler):
    """The routes of vLLM's server that its client calls: each goes to all workers."""

    workers: list[Any] = []
    said: list[tuple[str, dict[str, Any]]] = []

    def do_POST(self) -> None:
        route = self.path.strip("/")
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}") or {}
        self.said.append((route, body))
        try:
            for worker in self.workers:
                if route == "init_weight_transfer_engine":
                    worker.init_weight_transfer_engine(body["init_info"])
                elif route == "update_weights":
                    worker.update_weights(body["update_info"])
                else:
                    assert route in ("start_weight_update", "finish_weight_update"), route
                    getattr(worker, route)()
            self.send_response(200)
        except Exception as error:
            print("the server says", repr(error), file=sys.stderr)
            self.send_response(500)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def make_worker(worker: type, socket: str, rank: int, model: Any = None) -> Any:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    config = VllmConfig(types.SimpleNamespace(data_parallel_index=0, world_size=3), "a model's configuration")
    made = worker()
    made.socket, made.rank, made.vllm_config = socket, rank, config
    made.model, made._weight_update_active, made._weight_update_is_draft = model or Model(), False, False
    made.get_draft_model = lambda: None
    made.model_runner = types.SimpleNamespace(reset_lora_state=lambda: made.model.log.append("no adapters"))
    engine = WeightTransferEngineFactory.create_engine(WeightTransferConfig(), config, torch.device("cpu"), made.model)
    plain = engine.init_transfer_engine

    def at_its_host(init_info: Any) -> None:
        os.environ["POLYCAST_SOCKET"] = socket
        plain(init_info)

    engine.init_transfer_engine = at_its_host
    made.weight_transfer_engine = engine
    return made


def check_signatures(base: Any, ours: type) -> None:
    """What vLLM may say to one of its own it may say to ours."""
    for name, method in inspect.getmembers(ours, callable):
        theirs = getattr(base, name, None)
        if name.startswith("_") or theirs is None or name not in vars(ours):
            continue
        want, have = inspect.signature(theirs).parameters, inspect.signature(method).parameters
        assert [(one.name, one.kind) for one in want.values()] == [(one.name, one.kind) for one in have.values()], name
    assert not inspect.isabstract(ours)


def fill(model: Model, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def values(model: Model) -> set[float]:
    return {float(value) for parameter in model.parameters() for value in parameter.detach().unique()}


def expect(error: type[Exception], text: str, call: Any) -> None:
    try:
        call()
    except error as raised:
        assert text in str(raised), raised
        return
    raise AssertionError(f"{error.__name__} was to be raised")


def main(folder: Path, app: str, trainer_socket: str, worker_sockets: list[str]) -> None:
    stand_in(folder)
    base = importlib.import_module("vllm.distributed.weight_transfer.base")
    clients = importlib.import_module("vllm.distributed.weight_transfer.clients")
    factory = importlib.import_module("vllm.distributed.weight_transfer.factory")
    import polycast.vllm

    assert "PolycastEngine" not in vars(polycast.vllm), "who registers imports nothing of it"
    polycast.vllm.register()
    polycast.vllm.register()
    from polycast.vllm import PolycastEngine, Trainer, TrainerInfo

    check_signatures(base.WeightTransferEngine, PolycastEngine)
    check_signatures(base.TrainerWeightTransferEngine, Trainer)
    # Two workers of the first host, one of the second.
    worker = worker_class(folder)
    sockets = [worker_sockets[0], *worker_sockets]
    Server.workers = [make_worker(worker, socket, rank) for rank, socket in enumerate(sockets)]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = clients.HTTPVLLMWeightSyncClient(f"http://127.0.0.1:{server.server_port}")
    assert isinstance(client, base.VLLMWeightSyncClient)

    first = Server.workers[0]
    expect(ValueError, "colour", lambda: first.init_weight_transfer_engine({"colour": "red"}))
    engine = first.weight_transfer_engine
    expect(errors.Invalid, "comes first", lambda: engine.receive_weights(engine.parse_update_info({"data_id": 1})))

    model = Model()
    info = TrainerInfo(rank=0, topic=f"vllm-{folder.name}", app=app, socket=trainer_socket, publish_timeout=60)
    make = factory.WeightTransferTrainerFactory.trainer_init
    trainer = make(info, client=client, source=base.ModuleSource(model))
    assert type(trainer) is Trainer
    published = rounds(trainer, model)
    published += a_worker_that_fails(trainer, model)
    others(info, make, client, base, model)
    trainer.shutdown()
    for one in Server.workers:
        one.weight_transfer_engine.shutdown()
    # The trainer's host has sent these; what comes now is not counted.
    print(published, sum(parameter.nbytes for parameter in model.parameters()), flush=True)
    sys.stdin.readline()
    Patches(folder, replace(info, topic=f"{info.topic}-patches", patches=True), make, client, base, worker, sockets).run()
    server.shutdown()


class Patches:
    """Workers that load of each version what differs from the one before, by vLLM's own loader of patches."""

    def __init__(self, folder: Path, info: Any, make: Any, client: Any, base: Any, worker: type, sockets: list[str]) -> None:
        self.source = Checkpoint()
        self.worker, self.sockets = worker, sockets
        Server.workers = [self.new(at) for at in range(3)]
        expect(Exception, "500", lambda: make(replace(info, patches_part=0.0), client=client, source=base.ModuleSource(self.source)))
        self.trainer = make(info, client=client, source=base.ModuleSource(self.source))
        self.said = Server.said[-1]

    def new(self, at: int) -> Any:
        return make_worker(self.worker, self.sockets[at], at, Shard(at % 2))

    def run(self) -> None:
        assert self.said[1]["init_info"]["patches"] is True, self.said
        self.ten_versions()
        self.what_no_patch_can_say()
        self.other_ways_to_change_a_model()
        self.models_that_take_none()
        self.trainer.shutdown()
        for one in Server.workers:
            one.weight_transfer_engine.shutdown()

    def step(self, part: float = 0.01, tensors: Any = None) -> None:
        """Changes so much of each float tensor, at random places."""
        for tensor in tensors or [one for one in self.source.parameters() if one.is_floating_point()]:
            flat = tensor.data.view(-1)
            at = torch.randperm(flat.numel())[: max(1, int(flat.numel() * part))]
            flat[at] = torch.randn(len(at)).to(flat.dtype)

    def send(self, *ways: str) -> None:
        """Sends a version, which each worker has to load in this way, and compares all bits with those of a model that loads it whole."""
        self.trainer.send_weights()
        engines = [one.weight_transfer_engine for one in Server.workers]
        assert [one.loaded_as for one in engines] == list(ways or ["patches"] * 3), [(one.loaded_as, one.whole_because) for one in engines]
        for one in Server.workers:
            self.check(one)

    def check(self, worker: Any) -> None:
        wanted = Shard(worker.model.rank)
        wanted.load_weights((name, tensor.detach()) for name, tensor in self.source.named_parameters())
        wanted.is_turned = worker.model.is_turned
        wanted.finish()
        for (name, want), (_, have) in zip(wanted.named_parameters(), worker.model.named_parameters(), strict=True):
            bits = torch.int16 if want.element_size() == 2 else torch.int64
            assert torch.equal(want.data.view(bits), have.data.view(bits)), name

    def why(self, text: str, *workers: int) -> None:
        for at in workers or range(3):
            because = Server.workers[at].weight_transfer_engine.whole_because
            assert text in because, because

    def ten_versions(self) -> None:
        self.send("whole", "whole", "whole")
        self.why("no version into this model yet")
        logs = [list(one.model.log) for one in Server.workers]
        assert logs == [["start", "finish", "no adapters"]] * 3, logs
        for _ in range(10):
            self.step()
            # What has a sign, or is no number that compares.
            self.source.embed.data[0, :4] *= -1
            self.source.embed.data[0, 4] = float("inf")
            self.source.embed.data[0, 5] = -0.0 if self.source.embed.data[0, 5] == 0 else 0.0
            self.send()
        changed = [one.weight_transfer_engine.patched_elements for one in Server.workers]
        assert len(set(changed)) == 1 and 1000 < changed[0] < 2500, changed
        assert [one.model.log for one in Server.workers] == [["start", "finish"] + ["no adapters"] * 11] * 3, "vLLM rebuilt no layers"
        self.send()
        assert Server.workers[0].weight_transfer_engine.patched_elements == 0

    def what_no_patch_can_say(self) -> None:
        self.source.embed.data[3, 3] = float("nan")
        self.send("whole", "whole", "whole")
        self.why("has a NaN that is new")
        # It is in both files now, and stays.
        self.step(tensors=[self.source.layers[0].q])
        self.send()
        self.source.table.data[7] = 700
        self.send("whole", "whole", "whole")
        self.why("which has changed, is of torch.int64")
        self.step(0.2)
        self.send("whole", "whole", "whole")
        self.why("more than 10% have changed")
        self.step()
        self.send()

    def begin_anew(self) -> None:
        """All workers anew: their first version is a whole one."""
        for one in Server.workers:
            one.weight_transfer_engine.shutdown()
        Server.workers = [self.new(at) for at in range(3)]
        for one in Server.workers:
            one.init_weight_transfer_engine(self.said[1]["init_info"])
        self.step()
        self.send("whole", "whole", "whole")

    def other_ways_to_change_a_model(self) -> None:
        # As after a sleep that keeps no weights.
        Server.workers[0].model.embed.data.zero_()
        self.step()
        self.send("whole", "patches", "patches")
        self.why("something else has changed the model", 0)
        # One misses versions, and compares the next one with the last that it has.
        everyone = Server.workers
        Server.workers = everyone[:2]
        for _ in range(3):
            self.step(0.005)
            self.send("patches", "patches")
        Server.workers = everyone
        self.step(0.005)
        self.send()
        assert everyone[2].weight_transfer_engine.patched_elements > 2 * everyone[0].weight_transfer_engine.patched_elements
        # One begins anew between two.
        everyone[1].weight_transfer_engine.shutdown()
        everyone[1] = self.new(1)
        everyone[1].init_weight_transfer_engine(self.said[1]["init_info"])
        self.step()
        self.send("patches", "whole", "patches")
        self.step()
        self.send()
        # One raises while it loads: what it has is not known.
        everyone[2].model.fails = True
        self.step()
        expect(Exception, "500", self.trainer.send_weights)
        everyone[2].model.fails = False
        for one in everyone:
            if one._weight_update_active:
                one.finish_weight_update()
        self.step()
        self.send("patches", "patches", "whole")

    def models_that_take_none(self) -> None:
        self.begin_anew()
        one, other, third = (worker.model for worker in Server.workers)
        one.writes, other.writes, third.is_turned = "set", "spread", True
        self.step(0.2)
        self.send("whole", "whole", "whole")
        for _ in range(2):
            self.step()
            self.send("whole", "whole", "whole")
            self.why("in a way of their own", 0)
            self.why("same-shaped", 1)
            self.why("not where the file has them", 2)
        self.begin_anew()
        Server.workers[0].vllm_config.model_config = None
        Server.workers[0].weight_transfer_engine.model_config = types.SimpleNamespace(quantization="fp8")
        Server.workers[1].model.qkv.W_UK_T = "made of its weights"
        self.step()
        self.send("whole", "whole", "patches")
        self.why("the model is quantised (fp8)", 0)
        self.why("keeps tensors that vLLM has made of its weights", 1)
        # A vLLM that has no such module.
        package = sys.modules["vllm.model_executor.model_loader"]
        del package.checkpoint_weight_patch
        sys.modules[f"{package.__name__}.checkpoint_weight_patch"] = None  # type: ignore[assignment]
        self.begin_anew()
        self.step()
        self.send("whole", "whole", "whole")
        self.why("this vLLM loads no patches")


def rounds(trainer: Any, model: Model) -> int:
    """Versions, one after the other."""
    for step in (1.0, 2.0, 3.0):
        fill(model, step)
        trainer.send_weights()
        assert [values(one.model) for one in Server.workers] == [{step}] * 3
        assert Server.said[-1] == ("finish_weight_update", {"weight_version": str(trainer.published.version)}), Server.said[-1]
        assert not trainer.published.missing
    assert len(trainer.published.have) == 2, "both hosts had it before vLLM was told"
    assert [one.model.log for one in Server.workers] == [["start", "finish", "no adapters"] * 3] * 3
    return 3


def a_worker_that_fails(trainer: Any, model: Model) -> int:
    """Ends that round, and not the next one."""
    Server.workers[1].model.fails = True
    fill(model, 4.0)
    try:
        trainer.send_weights()
        raise AssertionError("the server has said 500")
    except Exception as error:
        assert "500" in str(error), error
    Server.workers[1].model.fails = False
    for one in Server.workers:
        # vLLM begins a round anew only where the one before has ended.
        if one._weight_update_active:
            one.finish_weight_update()
    fill(model, 5.0)
    trainer.send_weights()
    assert [values(one.model) for one in Server.workers] == [{5.0}] * 3
    return 2


def others(info: Any, make: Any, client: Any, base: Any, model: Model) -> None:
    """Ranks that do not send, and a source whose first rank has not got everything."""
    passes = []

    # As each version of vLLM names what gives the tensors.
    gives = "iter_full" if hasattr(base.WeightSource, "iter_full") else "__iter__"

    def with_tensors(change: Any) -> Any:
        def iterate(self: Any) -> Any:
            return change(getattr(base.ModuleSource, gives)(self))

        return type("Source", (base.ModuleSource,), {gives: iterate})(model)

    def counted(tensors: Any) -> Any:
        passes.append(1)
        return tensors

    def half(tensors: Any) -> Any:
        for name, tensor in tensors:
            if ".0." in name:
                yield name, tensor
            elif gives == "__iter__":
                # As an early vLLM has it: nothing in place of what another rank has.
                yield name, None

    said = len(Server.said)
    rank = make(replace(info, rank=1, socket="/nowhere"), client=client, source=with_tensors(counted))
    rank.send_weights()
    assert passes == [1] and len(Server.said) == said

    lacking = make(info, client=client, source=with_tensors(half))
    said = len(Server.said)
    expect(errors.WeightsMismatch, "has not got 'layers.1.bias' and 5 others", lacking.send_weights)
    assert len(Server.said) == said, "vLLM was told nothing"
    lacking.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
