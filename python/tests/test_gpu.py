"""Tensors that are on a GPU: of torch, of JAX, of CuPy."""

from __future__ import annotations

import resource
import uuid
from typing import Any

import polycast
import pytest
from conftest import NO_GPU
from polycast import _gpu, errors, tensors

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip(NO_GPU, allow_module_level=True)

from polycast import torch as weights  # noqa: E402
from test_torch import Model, equal, joined, of_all_types  # noqa: E402

Cluster = list[polycast.Agent]
GPU = torch.device("cuda", 0)


@pytest.fixture
def topic() -> str:
    return f"policy-{uuid.uuid4()}"


def test_all_types_come_from_a_gpu() -> None:
    sent = of_all_types()
    got = tensors.unpack(joined(tensors.pack({name: tensor.to(GPU) for name, tensor in sent.items()})), "torch")
    assert got.keys() == sent.keys()
    for name, tensor in sent.items():
        assert equal(got[name], tensor), name


@pytest.mark.parametrize("piece", [1, 3, 64, 4096])
def test_pieces_are_put_together(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu, "PIECE_BYTES", piece)
    generator = torch.Generator().manual_seed(piece)
    sent = {
        f"layers.{at}.w": torch.randint(0, 255, (max(0, pieces * piece + more),), dtype=torch.uint8, generator=generator)
        for at, (pieces, more) in enumerate([(0, 1), (1, -1), (1, 0), (1, 1), (2, -1), (2, 0), (2, 1), (5, 0), (7, 3)])
    }
    on_gpu = {name: tensor.to(GPU) for name, tensor in sent.items()}
    for got in (tensors.unpack(joined(tensors.pack(on_gpu)), "torch"), written_one_by_one(on_gpu)):
        for name, tensor in sent.items():
            assert torch.equal(got[name], tensor), name
    filled = {name: torch.zeros_like(tensor) for name, tensor in on_gpu.items() if tensor.numel()}
    _gpu.fill((tensor, sent[name]) for name, tensor in filled.items())
    for name, tensor in filled.items():
        assert torch.equal(tensor.cpu(), sent[name]), name


def written_one_by_one(given: dict[str, Any]) -> dict[str, Any]:
    with polycast.Agent.embedded(app=uuid.uuid4()) as agent:
        return {name: tensor.clone() for name, tensor in tensors.of(tensors.add(agent, 1, iter(given.items())), "torch").items()}


def test_a_part_of_a_tensor_is_that_part_and_what_is_not_contiguous_is_refused() -> None:
    whole = torch.arange(1000, device=GPU, dtype=torch.float32).reshape(10, 100)
    got = tensors.unpack(joined(tensors.pack({"rows": whole[3:5]})), "torch")
    assert torch.equal(got["rows"], whole[3:5].cpu())
    with pytest.raises(errors.NotContiguous, match=r"'columns'.*tensor\.contiguous\(\)"):
        tensors.pack({"columns": whole[:, 3:5]})


def test_a_version_goes_from_one_module_on_a_gpu_to_others(cluster: Cluster, topic: str) -> None:
    trained, others = Model(1.0).to(GPU), [Model().to(GPU) for _ in cluster[1:]]
    subscriptions = [weights.subscribe(topic, agent=agent) for agent in cluster[1:]]
    for step in range(1, 4):
        trained.fill(float(step))
        published = weights.publish(trained, topic, agent=cluster[0])
        # What is changed now is of the next version.
        trained.fill(-1.0)
        assert not published.missing
        for subscription, model in zip(subscriptions, others, strict=True):
            version = subscription.next(30)
            assert version is not None
            version.load_into(model)
            assert model.values() == {float(step)} and model.embed.weight.device == GPU
            assert model.head.weight.data_ptr() == model.embed.weight.data_ptr(), "tied weights stay tied"


def test_a_view_of_the_hosts_copy_is_on_no_gpu(cluster: Cluster, topic: str) -> None:
    subscription = weights.subscribe(topic, agent=cluster[1])
    weights.publish(Model(2.0).to(GPU), topic, agent=cluster[0])
    version, model = subscription.next(30), Model(1.0).to(GPU)
    assert version is not None
    with pytest.raises(errors.Invalid, match="is on cuda:0.*leave assign away"):
        version.load_into(model, assign=True)
    assert model.values() == {1.0}
    version.load_into(model)
    assert model.values() == {2.0}


def test_what_a_module_does_when_it_is_loaded_is_done(cluster: Cluster, topic: str) -> None:
    class Marked(torch.nn.Linear):  # type: ignore[misc, name-defined]
        def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
            super()._load_from_state_dict(state, prefix, *rest)
            self.loaded = True

    def module(value: float) -> Any:
        made = torch.nn.Sequential(Marked(8, 8), torch.nn.BatchNorm1d(8)).to(GPU)
        with torch.no_grad():
            for tensor in made.state_dict().values():
                tensor.fill_(value)
        return made

    subscription = weights.subscribe(topic, agent=cluster[1])
    weights.publish(module(3.0), topic, agent=cluster[0])
    version, model = subscription.next(30), module(0.0)
    assert version is not None
    # Another type is converted, as load_state_dict does it.
    model[0].bias.data = model[0].bias.data.double()
    version.load_into(model)
    assert model[0].loaded and all(tensor.eq(3).all() for tensor in model.state_dict().values())
    assert model[0].bias.dtype == torch.float64
    with pytest.raises(errors.WeightsMismatch, match="'0.weight' is"):
        version.load_into(torch.nn.Sequential(Marked(9, 8), torch.nn.BatchNorm1d(8)).to(GPU))


def test_a_weight_that_is_a_part_of_another_is_no_tied_one(cluster: Cluster, topic: str) -> None:
    class Parts(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, value: float) -> None:
            super().__init__()
            self.whole = torch.nn.Parameter(torch.full((100,), value, device=GPU))
            self.part = torch.nn.Parameter(self.whole.data[:10])

    subscription = weights.subscribe(topic, agent=cluster[1])
    weights.publish(Parts(5.0), topic, agent=cluster[0])
    version, model = subscription.next(30), Parts(0.0)
    assert version is not None
    version.load_into(model)
    assert model.whole.eq(5).all() and model.part.eq(5).all()


@pytest.mark.parametrize("own_stream", [False, True])
def test_what_the_gpu_still_computes_is_in_the_version(own_stream: bool) -> None:
    stream = torch.cuda.Stream(GPU) if own_stream else torch.cuda.current_stream(GPU)
    busy = torch.randn(4096, 4096, device=GPU)
    weight = torch.zeros(3 << 20, device=GPU)
    with torch.cuda.stream(stream):
        # What is used for the first time is loaded first, which waits for the device.
        busy = busy @ busy / 64
        weight += 0
        torch.cuda.synchronize()
        for _ in range(200):
            busy = busy @ busy / 64
        weight += 7
        assert not stream.query(), "the work is done before it is looked at: make it longer"
        got = tensors.unpack(joined(tensors.pack({"w": weight})), "torch")
    assert got["w"].eq(7).all()


def test_tensors_go_to_a_gpu_as_they_come(cluster: Cluster, number: int) -> None:
    sent = {f"layers.{at}.w": torch.full((1 << 18,), float(at), device=GPU) for at in range(8)}
    tensors.add(cluster[0], number, sent)
    transfer = cluster[0].send(number, to=[cluster[1].name])
    got = {name: tensor.to(GPU) for name, tensor in tensors.arriving(cluster[1], number, "torch", timeout=30)}
    transfer.result()
    assert got.keys() == sent.keys() and all(torch.equal(got[name], tensor) for name, tensor in sent.items())


def test_a_large_tensor_needs_no_copy_of_its_length_here(cluster: Cluster, number: int) -> None:
    weight = torch.ones(1 << 28, device=GPU)
    tensors.pack({"warm": torch.ones(1 << 23, device=GPU)}).__next__()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensors.add(cluster[0], number, {"w": weight})
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < weight.nbytes // 4, f"{grown >> 20} MiB more for a tensor of {weight.nbytes >> 20}"
    cluster[0].remove(number)


def test_arrays_of_jax_and_cupy_are_sent_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # JAX takes most of the GPU's memory otherwise.
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax", reason="JAX is not here")
    cupy = pytest.importorskip("cupy", reason="CuPy is not here")
    jnp = jax.numpy
    of_jax = {f"jax.{name}": jnp.arange(100, dtype=name).reshape(10, 10) for name in ("float32", "bfloat16", "int32", "float8_e4m3fn")}
    of_jax["jax.scalar"] = jnp.float32(2.5)
    of_cupy = {"cupy.w": cupy.arange(1000, dtype="float32"), "cupy.turned": cupy.arange(12, dtype="int64").reshape(3, 4).T}
    got = tensors.unpack(joined(tensors.pack({**of_jax, **of_cupy})))
    for name, array in of_jax.items():
        assert got[name].dtype == array.dtype and (jax.device_put(got[name]) == array).all(), name
    for name, array in of_cupy.items():
        assert (cupy.asarray(got[name]) == array).all(), name
