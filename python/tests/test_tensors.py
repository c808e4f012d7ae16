"""Tensors: the format, and the way from one agent to another."""

from __future__ import annotations

import json
import sys

import polycast
import pytest
from polycast import errors, tensors

numpy = pytest.importorskip("numpy")
Cluster = list[polycast.Agent]


def joined(parts: list[object]) -> memoryview:
    return memoryview(b"".join(bytes(memoryview(part)) for part in parts))  # type: ignore[arg-type]


def model() -> dict[str, object]:
    random = numpy.random.default_rng(7)
    names = [f"model.layers.{layer}.w" for layer in (10, 2, 0)]
    made = {name: random.standard_normal((33, 17)).astype("float32") for name in names}
    made |= {"model.embed": random.integers(0, 255, (5, 3), dtype="uint8"), "scalar": numpy.array(2.5)}
    return made | {"empty": numpy.zeros((0, 4), dtype="int64"), "flags": numpy.array([True, False])}


def test_tensors_come_back_as_views() -> None:
    sent = model()
    view = joined(tensors.pack(sent, {"format": "np"}))
    got = tensors.unpack(view)
    assert got.keys() == sent.keys()
    for name, array in sent.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape  # type: ignore[attr-defined]
        assert numpy.array_equal(got[name], array), name
        assert not got[name].flags.owndata or got[name].size == 0
    header, begin = tensors.header_of(view)
    assert begin % 8 == 0 and header["__metadata__"] == {"format": "np"}
    ends = 0
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] == ends, "without holes"
            ends = entry["data_offsets"][1]
    assert begin + ends == view.nbytes


def test_others_read_the_format() -> None:
    library = pytest.importorskip("safetensors.numpy")
    sent = model()
    got = library.load(bytes(joined(tensors.pack(sent))))
    assert all(numpy.array_equal(got[name], array) for name, array in sent.items())
    ours = tensors.unpack(memoryview(library.save(sent)))
    assert all(numpy.array_equal(ours[name], array) for name, array in sent.items())


def test_layers_are_in_the_order_of_their_use() -> None:
    names = ["embed", "layers.10.w", "layers.2.experts.7.w", "layers.2.experts.0.w", "norm", "layers.0.w", "head"]
    assert tensors.use_order(names) == [
        "embed", "layers.0.w", "layers.2.experts.7.w", "layers.2.experts.0.w", "layers.10.w", "norm", "head",
    ]


def test_tied_weights_travel_once() -> None:
    shared = numpy.ones((100, 100))
    view = joined(tensors.pack({"embed": shared, "head": shared}))
    assert view.nbytes < 100 * 100 * 8 + 1000
    got = tensors.unpack(view)
    assert numpy.array_equal(got["head"], shared) and numpy.array_equal(got["embed"], shared)


def test_scalars_have_their_own_bytes() -> None:
    sent = {name: numpy.float32(at) for at, name in enumerate("abcdefgh")} | {"n": numpy.int64(7), "m": numpy.int64(8)}
    got = tensors.unpack(joined(tensors.pack(sent)))
    assert got == sent and got["a"].shape == ()


def test_what_cannot_be_sent_says_so() -> None:
    with pytest.raises(errors.UnsupportedType, match=r"'m' has a mask.*filled\(\)"):
        tensors.pack({"m": numpy.ma.masked_array([1.0, 2.0], [True, False])})
    with pytest.raises(errors.Invalid, match="'step': 3.*text"):
        tensors.pack({"a": numpy.zeros(1)}, {"step": 3})  # type: ignore[dict-item]
    with pytest.raises(errors.UnsupportedType, match="'words' is of type object.*float32"):
        tensors.pack({"words": numpy.array(["a", None])})
    with pytest.raises(errors.UnsupportedType, match="'plain' is of type list"):
        tensors.pack({"plain": [1, 2]})
    with pytest.raises(errors.NotContiguous, match="ascontiguousarray"):
        tensors.pack({"t": numpy.zeros((4, 4)).T[1:]})
    with pytest.raises(errors.UnsupportedType, match="other order"):
        tensors.pack({"big": numpy.zeros(3, dtype=">f4")})
    with pytest.raises(errors.Invalid, match="__metadata__"):
        tensors.pack({"__metadata__": numpy.zeros(1)})
    with pytest.raises(errors.Invalid, match="framework"):
        tensors.unpack(joined(tensors.pack({})), "jax")


class Elsewhere:
    """An array as JAX has it: numpy's type and a way to be copied, but no address."""

    def __init__(self, array: object, addressable: bool = True) -> None:
        self._array = array
        self.dtype, self.shape, self.size = array.dtype, array.shape, array.size  # type: ignore[attr-defined]
        self.is_fully_addressable = addressable
        self.copies = 0

    def __array__(self, dtype: object = None, copy: object = None) -> object:
        self.copies += 1
        return self._array


class OnDevice:
    """An array as CuPy has it: copied by its own word alone."""

    def __init__(self, array: object) -> None:
        self._array = array
        self.dtype, self.shape, self.size = array.dtype, array.shape, array.size  # type: ignore[attr-defined]
        self.__cuda_array_interface__: dict[str, object] = {}

    def __array__(self, dtype: object = None, copy: object = None) -> object:
        raise TypeError("no conversion without being asked for it")

    def get(self) -> object:
        return self._array


def test_arrays_of_other_libraries_are_sent() -> None:
    numbers = numpy.arange(12, dtype="float32").reshape(3, 4)
    lazy = Elsewhere(numbers)
    parts = tensors.pack({"a": lazy, "also a": lazy, "turned": Elsewhere(numbers.T), "device": OnDevice(numbers.T), "none": Elsewhere(numbers[:0])})
    assert lazy.copies == 0, "copied when its turn comes"
    got = tensors.unpack(joined(parts))
    assert lazy.copies == 1, "one object under two names is one tensor"
    for name, array in {"a": numbers, "also a": numbers, "turned": numbers.T, "device": numbers.T, "none": numbers[:0]}.items():
        assert numpy.array_equal(got[name], array) and got[name].shape == array.shape, name
    with pytest.raises(errors.UnsupportedType, match="'far' is sharded over processes: send jax.experimental.multihost_utils"):
        tensors.pack({"far": Elsewhere(numbers, addressable=False)})

    with pytest.raises(errors.UnsupportedType, match="'big' has its bytes in the other order"):
        tensors.pack({"big": Elsewhere(numbers.astype(">f4"))})
    for other in (numbers.astype("float64"), numbers[:1]):
        changed = Elsewhere(numbers)
        changed._array = other
        with pytest.raises(errors.UnsupportedType, match="'changed' became .* when it was copied, not F32 with 12"):
            joined(tensors.pack({"changed": changed}))

    class Typed:
        dtype = numpy.dtype("float32")

    with pytest.raises(errors.UnsupportedType, match="'odd' is a Typed, which cannot be sent: give an array of numpy"):
        tensors.pack({"odd": Typed()})


def test_small_floats_are_of_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = pytest.importorskip("ml_dtypes")
    names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"]
    sent = {name: numpy.arange(1, 7).reshape(2, 3).astype(getattr(kinds, name)) for name in names}
    view = joined(tensors.pack({**sent, "lazy": Elsewhere(sent["bfloat16"])}))
    got = tensors.unpack(view)
    for name, array in {**sent, "lazy": sent["bfloat16"]}.items():
        assert got[name].dtype == array.dtype and got[name].tobytes() == array.tobytes(), name
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(errors.UnsupportedType, match="'bfloat16' is of type BF16.*framework='torch', or install ml_dtypes"):
        tensors.unpack(view)
    # Arrays that have two numbers in a byte are not those of any package.
    header = b'{"f":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}'
    with pytest.raises(errors.UnsupportedType, match="'f' is of type F4, which numpy has not: ask for framework='torch'$"):
        tensors.unpack(memoryview(len(header).to_bytes(8, "little") + header + b"1"))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"abc", b"\xff" * 64, (10**12).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"{]",
        (2).to_bytes(8, "little") + b"[]",
        *(
            len(text).to_bytes(8, "little") + text + bytes(8)
            for text in (
                b"[" * 200_000,
                b'{"a":{"dtype":"F32","shape":[1.5,1' + b"0" * 400 + b'],"data_offsets":[0,8]}}',
                b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
                '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.encode("utf-16"),
            )
        ),
        *(
            len(text).to_bytes(8, "little") + text + bytes(8)
            for text in (
                json.dumps({"a": entry}).encode()
                for entry in (
                    {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]},
                    {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
                    {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
                    {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]},
                    {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
                    {"dtype": "F32"}, 7, None,
                    {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]},
                    {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
                    {"dtype": "F32", "shape": [2], "data_offsets": [0.0, 8.0]},
                    {"dtype": "F32", "shape": [1] * 70 + [2], "data_offsets": [0, 8]},
                    {"dtype": "F32", "shape": [0, 1 << 70], "data_offsets": [0, 0]},
                    {"dtype": "F32", "shape": [0, 1 << 62, 1 << 62], "data_offsets": [0, 0]},
                )
            )
        ),
    ],
)
def test_a_wrong_header_is_refused(content: bytes) -> None:
    with pytest.raises(errors.Invalid):
        tensors.unpack(memoryview(content))


def test_from_one_agent_to_others(cluster: Cluster, number: int) -> None:
    sent = model()
    tensors.add(cluster[0], number, sent)
    cluster[0].send(number, "all").result(60)
    for agent in cluster[1:]:
        got = tensors.of(agent.read(number, 10))
        assert all(numpy.array_equal(got[name], array) for name, array in sent.items())


def test_torch(cluster: Cluster, number: int) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(20, 30).to(torch.bfloat16)
    sent = dict(layer.state_dict()) | {"tied": layer.weight, "nothing": torch.empty(0, 3), "one": torch.tensor(3)}
    tensors.add(cluster[0], number, sent)
    cluster[0].send(number, [cluster[1].name]).result(60)
    got = tensors.of(cluster[1].read(number, 10), "torch")
    assert all(torch.equal(got[name], tensor) for name, tensor in sent.items())
    with pytest.raises(errors.NotContiguous):
        tensors.pack({"t": torch.zeros(3, 4).T})


@pytest.mark.parametrize("metadata", [7, [], {"polycast.tied": "{"}, {"polycast.tied": "[]"}, {"polycast.tied": '{"a": "b"}'}, {"polycast.tied": 3}, {"polycast.tied": "[" * 100_000}])
def test_metadata_of_others_is_not_believed(metadata: object) -> None:
    text = json.dumps({"__metadata__": metadata}).encode()
    with pytest.raises(errors.Invalid):
        tensors.unpack(memoryview(len(text).to_bytes(8, "little") + text))


@pytest.mark.parametrize("metadata", [None, 7, [], "text", {"step": 3}, {"step": {}}])
def test_metadata_that_is_no_table_of_texts_is_refused(metadata: object) -> None:
    text = json.dumps({"__metadata__": metadata}).encode()
    # What readers of metadata alone ask, which look at no tensor.
    with pytest.raises(errors.Invalid, match="no table of texts"):
        tensors.header_of(memoryview(len(text).to_bytes(8, "little") + text))


def test_a_name_that_has_a_tensor_is_tied_to_none() -> None:
    entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    text = json.dumps({"__metadata__": {"polycast.tied": '{"a": "b"}'}, "a": entry, "b": entry}).encode()
    with pytest.raises(errors.Invalid, match="tensor of its own"):
        tensors.unpack(memoryview(len(text).to_bytes(8, "little") + text + b"1"))
