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
from dataclasses import dataclass
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
        finalize_layerwise_reload=lambda model, config: model.log.append("finish"),
    )
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


def make_worker(worker: type, socket: str, rank: int) -> Any:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    config = VllmConfig(types.SimpleNamespace(data_parallel_index=0, world_size=3), "a model's configuration")
    made = worker()
    made.socket, made.rank, made.vllm_config = socket, rank, config
    made.model, made._weight_update_active, made._weight_update_is_draft = Model(), False, False
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
    info = TrainerInfo(rank=0, topic=f"vllm-{folder.name}", app=app, socket=trainer_socket, deadline=60)
    make = factory.WeightTransferTrainerFactory.trainer_init
    trainer = make(info, client=client, source=base.ModuleSource(model))
    assert type(trainer) is Trainer
    published = rounds(trainer, model)
    published += a_worker_that_fails(trainer, model)
    others(info, make, client, base, model)
    trainer.shutdown()
    for one in Server.workers:
        one.weight_transfer_engine.shutdown()
    server.shutdown()
    print(published, sum(parameter.nbytes for parameter in model.parameters()))


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
    from dataclasses import replace

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
