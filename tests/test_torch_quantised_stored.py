"""`Quantised24Tensor` converted, copied, cut, and in states and files."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch_quantised_cases import BITS, TYPES, K, M, close, layers, packed  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import FormatError, ShapeError, UnsupportedError  # noqa: E402

# --- types, devices, copies ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
def test_another_type_has_the_same_integers(dtype):
    weight, _ = packed(8)
    new = weight.to(dtype)
    want = weight.to_array().dequantise(str(dtype).removeprefix("torch.")).toarray
    assert (new.dtype, new.bits) == (dtype, 8)
    assert torch.equal(new.to_dense().double(), torch.from_numpy(want().astype("float64")))
    assert torch.equal(new.parts[0], weight.parts[0])


def test_a_model_changes_its_type(device):
    ours, wanted = layers(device=device)
    x = torch.randn(3, K, device=device)
    close(ours.bfloat16()(x.bfloat16()), wanted.bfloat16()(x.bfloat16()))
    assert isinstance(ours.float().weight, st.Quantised24Tensor)
    for refused in (torch.int8, torch.float8_e4m3fn):
        with pytest.raises(
            UnsupportedError, match=r"of one of the types float16, .*\.to_dense\(\)"
        ):
            ours.weight.to(refused)


def test_copies_have_memory_of_their_own():
    weight, dense = packed()
    with pytest.raises(UnsupportedError, match=r"made of an array, .* into a \.clone\(\)"):
        weight.copy_(weight.clone())
    others = (weight.clone(), copy.deepcopy(weight), weight.to("cpu", copy=True))
    for other in others:
        other.copy_(st.to_sparse_semi_structured(s24.quantise(-dense)))
        assert torch.equal(other.to_dense(), -dense)
    assert torch.equal(weight.to_dense(), dense)
    with pytest.raises(UnsupportedError, match="have no memory of their own"):
        others[0].half().copy_(weight)


@pytest.mark.parametrize("given", [8, None])
def test_only_a_matrix_of_as_many_bits_is_copied(given):
    weight, dense = packed(4)
    array = s24.compress(dense) if given is None else s24.quantise(dense, bits=given)
    other = st.to_sparse_semi_structured(array)
    for to, source in ((weight.clone(), other), (other.clone(), weight)):
        with pytest.raises(UnsupportedError, match=r"of 4 bits.*use that one in its place"):
            to.copy_(source)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(M, K), (50, 300), (3, 10), (16, 0)])
def test_rows_and_columns_are_cut_at_blocks(device, bits, shape):
    weight, dense = packed(bits, shape, device=device)
    (m, k), x = shape, torch.randn(3, shape[1], device=device)
    cuts = [(slice(0, m), slice(0, k)), (slice(16, m), slice(0, k)), (slice(0, m), slice(128, k))]
    for rows, columns in (*cuts, (slice(16, 32), slice(128, 256)), (slice(5, 5), slice(0, k))):
        part, want = weight[rows, columns], dense[rows, columns]
        assert torch.equal(part.to_dense(), want)
        assert torch.equal(part.t().to_dense(), want.t())
        close(x[:, columns] @ part.t(), x[:, columns] @ want.t())
        assert torch.equal(weight.t()[columns, rows].to_dense(), want.t())


def test_a_cut_through_a_block_is_refused():
    weight, _ = packed()
    for cut, multiple in ((lambda: weight[8:], 16), (lambda: weight[:, :64], 128)):
        with pytest.raises(ShapeError, match=rf"cuts a block of 16 .* multiples of {multiple}, or"):
            cut()
    first, second = weight.split(32)
    assert (first.shape, second.shape) == ((32, K), (16, K))


def test_copied_columns_do_not_outlive_what_was_written_into_the_whole():
    weight, other = packed()[0].clone(), packed()[0]
    part = weight[:, 128:]
    weight.copy_(other)
    with pytest.raises(UnsupportedError, match="take the part anew"):
        part.to_dense()


def test_what_would_round_again_is_refused():
    weight, _ = packed()
    for operation in (
        lambda: 2 * weight, lambda: -weight, lambda: weight + weight, lambda: weight / 2,
        lambda: weight.mul_(2), lambda: torch.zeros_like(weight),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=r"is not defined .*call \.to_dense\(\) first"):
            operation()
    with pytest.raises(UnsupportedError, match="data of a Quantised24Tensor must be another one"):
        weight.data = st.to_sparse_semi_structured(torch.zeros(M, K))


# --- states and files ---------------------------------------------------------------------


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(50, 300), (2, 50, 300), (3, M, K)])
def test_a_state_is_saved_and_loaded(tmp_path, device, shape, bits, turned):
    weight, _ = packed(bits, shape, torch.bfloat16, device)
    weight = weight.mT if turned else weight
    torch.save({"weight": weight}, tmp_path / "a.pt")
    for place in ("cpu", device):
        again = torch.load(tmp_path / "a.pt", map_location=place)["weight"]
        assert repr(again) == repr(weight).replace(str(weight.device), str(again.device))
        assert torch.equal(again.to_dense().cpu(), weight.to_dense().cpu())
    assert torch.load(tmp_path / "a.pt", map_location="meta")["weight"].shape == weight.shape
    assert st.restored_quantised.__module__ == "sparse24.torch"  # by which the file names it


def test_a_file_holds_bits(tmp_path):
    weight, _ = packed(4, (256, 1024), torch.float16)
    torch.save(weight, tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size < 3.3 / 8 * 256 * 1024 + 4096


def test_a_layer_is_loaded_copied_and_pickled():
    ours, _ = layers()
    x, state = torch.randn(3, K), ours.state_dict()
    other = torch.nn.Linear(K, M)
    other.load_state_dict(state, assign=True)
    in_place = copy.deepcopy(ours)
    in_place.weight.copy_(packed()[0])
    in_place.load_state_dict(state)
    for layer in (other, in_place, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert isinstance(layer.weight, torch.nn.Parameter)
        assert isinstance(layer.weight, st.Quantised24Tensor)
        assert torch.equal(layer(x), ours(x))
    with pytest.raises(RuntimeError, match="pass assign=True to load_state_dict"):
        torch.nn.Linear(K, M).load_state_dict(ours.state_dict())


@pytest.mark.parametrize("damage", ["codes", "size", "type"])
def test_damaged_files_are_refused(tmp_path, damage):
    weight, _ = packed()
    bricks = weight.parts[0].clone()
    if damage == "codes":
        bricks[..., 512:768] = 0xFF
    other = {"codes": bricks, "size": bricks[:, :, 1:], "type": bricks.int()}[damage]
    weight.parts = [other]
    saved = type(weight).__reduce_ex__(weight, 2)
    torch.save(saved[1][0], tmp_path / "part.pt")
    part = torch.load(tmp_path / "part.pt")
    with pytest.raises(FormatError, match="code" if damage == "codes" else r"stored as uint8 of "):
        saved[0](part, *saved[1][1:])


def test_what_a_file_holds_around_a_matrix_is_dropped():
    weight, dense = packed(4, (3, 10))
    bricks = weight.parts[0].clone()
    around = copy.deepcopy(weight)
    around.parts[0][..., 256:512] = 0x77  # integers of columns 64 to 128
    assert torch.equal(around.to_dense(), dense)
    assert torch.equal(pickle.loads(pickle.dumps(around)).parts[0], bricks)


def test_arrays_become_tensors_and_tensors_arrays(device):
    array = s24.quantise(s24.prune(torch.randn(M, K, device=device)), bits=8)
    for given in (array, array.T):
        tensor = st.to_sparse_semi_structured(given)
        back = tensor.to_array()
        assert isinstance(back, s24.Quantised24Array)
        assert (back.bits, back.axis, back.dtype) == (8, given.axis, array.dtype)
        assert back.nbytes == array.nbytes
        want = s24.convert.to_torch(given)
        assert torch.equal(s24.convert.to_torch(back), want)
        assert torch.equal(tensor.to_dense(), want)
    with pytest.raises(ShapeError, match="before expand"):
        tensor.expand(2, -1, -1).to_array()
