"""Stacks of packed matrices as tensors: their matrices and parts, copies, states and files."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch_quantised_cases import KINDS, K, M, packed, packed_as  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import FormatError, OutOfRangeError, ShapeError, UnsupportedError  # noqa: E402

E = 3
SHAPE = (E, M, K)


def stack(bits=4, shape=SHAPE, dtype=torch.float32, device="cpu"):
    return packed(bits, shape, dtype, device)


@pytest.mark.parametrize("bits", KINDS)
@pytest.mark.parametrize("shape", [SHAPE, (2, 50, 300), (1, 3, 10), (0, 16, 128), (2, 16, 0)])
@pytest.mark.parametrize("turn", [lambda a: a, lambda a: a.mT], ids=["rows", "turned"])
def test_it_stands_for_its_matrices(device, turn, shape, bits):
    weight, dense = (turn(a) for a in stack(bits, shape, device=device))
    assert (weight.shape, weight.bits, weight.stacked) == (dense.shape, bits, True)
    assert torch.equal(weight.to_dense(), dense)
    assert len(weight.unbind()) == len(list(weight)) == shape[0]
    for i, (one, want) in enumerate(zip(weight, dense, strict=True)):
        assert not one.stacked
        for other in (one, weight[i], weight[torch.tensor(i)], weight.select(0, i - shape[0])):
            assert torch.equal(other.to_dense(), want)
    assert torch.equal(weight.sum(), dense.sum())
    name = "Quantised24Tensor" if bits else "Sparse24Tensor"
    assert repr(weight).startswith(f"{name}(shape={tuple(dense.shape)}, ")


@pytest.mark.parametrize("bits", KINDS)
def test_parts_are_cut(device, bits):
    weight, dense = stack(bits, device=device)
    whole = slice(None)
    cuts = [
        (slice(1, 3), whole, whole), (slice(1, 1), whole, whole), (whole, slice(16, M), whole),
        (whole, whole, slice(128, K)), (slice(2), slice(16), slice(128)), (whole, slice(5, 5)),
    ]  # fmt: skip
    for cut in cuts:
        assert torch.equal(weight[cut].to_dense(), dense[cut])
        assert torch.equal(weight[cut].mT.to_dense(), dense[cut].mT)
    assert torch.equal(weight.mT[:, 128:, 16:32].to_dense(), dense.mT[:, 128:, 16:32])
    assert torch.equal(weight[1:][0].to_dense(), dense[1])
    for part, want in zip(weight.split([16, 32], 1), dense.split([16, 32], 1), strict=True):
        assert torch.equal(part.to_dense(), want)


@pytest.mark.parametrize("bits", KINDS)
def test_a_cut_through_a_block_is_refused(bits):
    weight, dense = stack(bits)
    axis, block = (1, "block of 16 ") if bits else (2, "group of 4 ")
    for turned, given in ((False, weight), (True, weight.mT)):
        along = 3 - axis if turned else axis
        with pytest.raises(ShapeError, match=rf"cuts a {block}.*along axis {along} .* multiples"):
            given.narrow(along, 0, 6)
    if not bits:  # whose rows are cut anywhere
        assert torch.equal(weight[:, 5:7].to_dense(), dense[:, 5:7])


@pytest.mark.parametrize("bits", [0, 4])
def test_matrices_share_memory_and_columns_do_not(bits):
    weight, other = stack(bits)[0].clone(), stack(bits)[0]
    first, some, columns = weight[1], weight[1:], weight[:, :, 128:]
    of_first = first[:, 128:]
    for part in (first, some, columns, of_first):
        with pytest.raises(UnsupportedError, match="no memory of their own"):
            part.copy_(part.clone())
    weight.copy_(other)
    assert torch.equal(first.to_dense(), other.to_dense()[1])
    assert torch.equal(some.to_dense(), other.to_dense()[1:])
    for copied in (columns, of_first):
        with pytest.raises(UnsupportedError, match="take the part anew"):
            copied.to_dense()


@pytest.mark.parametrize("bits", [0, 4])
def test_copies_have_memory_of_their_own(bits):
    weight, dense = stack(bits)
    negative = packed_as(bits, -dense)
    for other in (weight.clone(), copy.deepcopy(weight), weight.to("cpu", copy=True)):
        other.copy_(negative)
        assert torch.equal(other.to_dense(), -dense)
    repeated = weight.clone()
    repeated.copy_(negative[0].expand(SHAPE))  # one matrix at every place
    assert torch.equal(repeated.to_dense(), -dense[:1].expand(SHAPE))
    assert torch.equal(weight.to_dense(), dense)
    with pytest.raises(UnsupportedError, match=r"packed along axis 2.* goes"):
        weight.clone().copy_(negative.mT.clone())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_another_type_has_the_same_integers(dtype):
    weight, _ = stack(8)
    new = weight.to(dtype)
    assert (new.dtype, new.shape, new.bits) == (dtype, weight.shape, 8)
    assert torch.equal(new.parts[0], weight.parts[0])


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize(
    "operation",
    [
        lambda a: a.expand(2, *SHAPE), lambda a: a.view(E * M, K), lambda a: a.permute(1, 0, 2),
        lambda a: a[::2], lambda a: a[:, 0], lambda a: a.unbind(1),
        lambda a: a[0][0], lambda a: a + 1,
    ],
)  # fmt: skip
def test_what_stacks_do_not_have_is_refused(operation, bits):
    with pytest.raises(UnsupportedError, match=r"is not defined .*; call \.to_dense\(\) first"):
        operation(stack(bits)[0])


@pytest.mark.parametrize("bits", [0, 4])
def test_a_layer_of_one_matrix_refuses_a_stack(bits):
    weight, _ = stack(bits)
    for call in (lambda: torch.nn.functional.linear(torch.ones(1, K), weight), weight.t):
        with pytest.raises(UnsupportedError, match=r"use a\.mT, or a\[i\] .*grouped_linear"):
            call()


@pytest.mark.parametrize("operation", [lambda a: 2 * a, lambda a: a + a])
def test_a_quantised_stack_is_not_rounded_again(operation):
    with pytest.raises(UnsupportedError, match=r"is not defined .*; call \.to_dense\(\) first"):
        operation(stack()[0])


def test_a_number_beyond_the_stack_is_refused():
    weight, _ = stack()
    for number in (E, -E - 1):
        with pytest.raises(IndexError, match="out of"):
            weight[number]
        with pytest.raises(OutOfRangeError, match=rf"{number} is out of range .* are -3 to 2"):
            torch.select(weight, 0, number)


# --- arrays, states and files -------------------------------------------------------------


@pytest.mark.parametrize("make", [s24.compress, s24.quantise])
@pytest.mark.parametrize("shape", [SHAPE, (5, 3, 10)])
def test_arrays_become_tensors_and_tensors_arrays(device, make, shape):
    array = make(s24.prune(torch.randn(shape, device=device)))
    for given in (array, array.mT, array[1:], array[::2]):
        tensor = st.to_sparse_semi_structured(given)
        back = tensor.to_array()
        assert (type(back), back.shape, back.axis) == (type(array), given.shape, given.axis)
        want = s24.convert.to_torch(given)
        assert torch.equal(s24.convert.to_torch(back), want)
        assert torch.equal(tensor.to_dense(), want)
    with pytest.raises(ShapeError, match=r"a matrix or a stack \(e, m, k\), got shape"):
        st.to_sparse_semi_structured(make(s24.prune(torch.randn(2, *SHAPE))))


@pytest.mark.parametrize("bits", [0, 4])
def test_a_layer_is_loaded_copied_and_pickled(bits):
    layer = torch.nn.Module()
    layer.up = torch.nn.Parameter(stack(bits)[0], requires_grad=False)
    other, in_place = torch.nn.Module(), copy.deepcopy(layer)
    other.up = torch.nn.Parameter(torch.zeros(SHAPE), requires_grad=False)
    other.load_state_dict(layer.state_dict(), assign=True)
    in_place.up.copy_(stack(bits)[0])
    in_place.load_state_dict(layer.state_dict())
    for again in (other, in_place, pickle.loads(pickle.dumps(layer))):
        assert isinstance(again.up, torch.nn.Parameter)
        assert torch.equal(again.up.to_dense(), layer.up.to_dense())


@pytest.mark.parametrize("bits", [0, 4])
def test_a_state_is_written_without_torch(tmp_path, bits):
    weight, dense = stack(bits)
    s24.save_safetensors(tmp_path / "a.safetensors", {"up": weight})
    loaded = s24.load_safetensors(tmp_path / "a.safetensors")["up"]
    assert isinstance(loaded, s24.Quantised24Array if bits else s24.Sparse24Array)
    assert torch.equal(torch.from_numpy(loaded.toarray()), dense)


@pytest.mark.parametrize("damage", ["codes", "size", "a matrix less", "another axis"])
def test_damaged_files_of_quantised_stacks_are_refused(damage):
    weight, _ = stack()
    bricks = weight.parts[0].clone()
    make, (_, *facts) = weight.__reduce_ex__(2)
    if damage == "codes":
        bricks[-1, ..., 512:768] = 0xFF
    other = {
        "codes": bricks, "size": bricks[..., 1:], "a matrix less": bricks[1:],
        "another axis": bricks[None],
    }[damage]  # fmt: skip
    with pytest.raises(FormatError, match="code" if damage == "codes" else "a stack of them"):
        make(other, *facts)


@pytest.mark.parametrize("damage", ["codes", "size", "a matrix less", "another axis", "one way"])
def test_damaged_files_are_refused(damage):
    weight = st.sparsify24(torch.randn(SHAPE))
    make, (pairs, *facts) = weight.__reduce_ex__(2)
    (values, codes), of_columns = pairs
    damaged = {
        "codes": lambda: ((values, torch.zeros_like(codes)), of_columns),
        "size": lambda: ((values[..., 1:], codes), of_columns),
        "a matrix less": lambda: tuple((a[1:], b[1:]) for a, b in pairs),
        "another axis": lambda: tuple((a[None], b[None]) for a, b in pairs),
        "one way": lambda: ((values, codes), tuple(part[0] for part in of_columns)),
    }[damage]()
    with pytest.raises((FormatError, ShapeError), match=r"code|shape|stored"):
        make(damaged, *facts)
    more = tuple((a[None], b[None]) for a, b in pairs)
    with pytest.raises(FormatError, match=r"stored with these axes, got \(1, 3\)"):
        make(more, *facts[:-1], (1, E))  # a stack of stacks
    assert torch.equal(make(pairs, *facts).to_dense(), weight.to_dense())
