"""float32 at 1:2 in TF32: packing and refusals anywhere, products on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _planner, _spec
from sparse24._dtypes import TABLE
from sparse24._records import Problem
from sparse24.formats import tensor_float
from sparse24.kernels.chip import H200, Chip


def sparse_half(rng, shape, *, integers=False):
    """A float32 matrix with one element of each pair."""
    x = rng.integers(-8, 9, shape) if integers else rng.standard_normal(shape)
    return s24.prune(x.astype(np.float32), pattern=(1, 2))


def test_codes_lie_where_the_instruction_takes_them(rng):
    places = rng.integers(0, 2, (70, 50), np.uint8)
    packed = tensor_float.pack(places, 100)
    assert packed.shape == _spec.packed_shape(70, 100, atom_k=64)
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:2], -1)
    for row, pair in ((0, 0), (69, 49), (13, 40), (64, 31)):
        atom = nibbles[pair // 32, row // 64]
        code = atom[_spec.ATOM_NIBBLES_TF32[row % 64, pair % 32]]
        assert code == (0xE if places[row, pair] else 0x4)
    assert set(np.unique(nibbles)) == {0x4, 0xE}


@pytest.mark.parametrize(("m", "k"), [(3, 0), (0, 6), (0, 0)])
def test_an_empty_matrix_has_no_codes(m, k):
    packed = tensor_float.pack(np.zeros((m, k // 2), np.uint8), k)
    assert packed.shape == _spec.packed_shape(m, k, atom_k=64)
    assert packed.size == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "k"), [(3, 0), (0, 6)])
def test_products_of_an_empty_matrix(m, k):
    cp = pytest.importorskip("cupy")
    a = s24.compress(cp.zeros((m, k), np.float32), pattern=(1, 2))
    y = s24.matmul(a, cp.ones((k, 5), np.float32), precision="tf32")
    assert (y.shape, y.dtype) == ((m, 5), np.dtype(np.float32))
    assert not y.any()


@pytest.mark.parametrize(
    ("pattern", "dtype", "words"),
    [
        ((1, 2), np.float32, "needs a GPU; .* use precision='full' there"),
        ((1, 4), np.float32, r"needs pattern \(1, 2\), .* compress it with pattern=\(1, 2\)"),
        ((1, 2), np.float16, "is for float32, .* use precision='full'"),
    ],
)
def test_refusals_name_the_way_out(pattern, dtype, words):
    a = s24.compress(np.eye(8, dtype=dtype), pattern=pattern)
    with pytest.raises(s24.Sparse24Error, match=words):
        s24.matmul(a, np.ones((8, 2), dtype), precision="tf32")


@pytest.mark.parametrize(("capability", "words"), [("89", r"of 8\.9"), ("120", r"of 12\.0")])
def test_other_gpus_than_hopper_are_refused_with_a_way_out(monkeypatch, capability, words):
    chips = {1: H200, 2: Chip(128, 99 << 10, capability)}
    monkeypatch.setattr(tensor_float, "chip", chips.__getitem__)
    float32 = TABLE["float32"]
    tensor_float.check((1, 2), float32, "cuda:1")
    with pytest.raises(s24.UnsupportedError, match=words + ": use precision='full' there"):
        tensor_float.check((1, 2), float32, "cuda:2")


def test_other_formats_and_words_are_refused():
    a = s24.compress(np.eye(8, dtype=np.float32))
    with pytest.raises(s24.ArgumentError, match="got Sparse24Array; compress it"):
        s24.matmul(a, np.ones((8, 2), np.float32), precision="tf32")
    narrow = s24.compress(np.eye(8, dtype=np.float32), pattern=(1, 2))
    with pytest.raises(s24.ArgumentError, match="precision must be one of"):
        s24.matmul(narrow, np.ones((8, 2), np.float32), precision="half")


@pytest.mark.parametrize("n", [8, 4096])
@pytest.mark.parametrize("order", ["row", "column"])
def test_only_the_kernel_that_reads_this_metadata_is_a_candidate(order, n):
    types = ("float32", "float32", "float32")
    problem = Problem(4096, n, 4096, 1, *types, b_order=order, tensor_float=True)
    chip = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}
    ranked = _planner.rank(problem, chip, dense=True, scale=lambda name: 1.0)
    assert {candidate.kernel for candidate in ranked} == {"sparse_wgmma"}
    assert ranked[0].refusal is None
    assert ranked[0].variant.stage_b == (order == "row")


@pytest.mark.gpu
@pytest.mark.stem("sparse_wgmma")
@pytest.mark.parametrize("shape", [(1, 1, 2), (64, 64, 64), (70, 35, 101), (520, 300, 1030)])
@pytest.mark.parametrize("order", ["row", "column"])
def test_products_match(rng, shape, order):
    import cupy as cp

    m, n, k = shape
    for integers in (True, False):
        dense, b = sparse_half(rng, (m, k), integers=integers), rng.standard_normal((k, n))
        b = (np.round(b * 4) if integers else b).astype(np.float32)
        a = s24.compress(cp.asarray(dense), pattern=(1, 2))
        right = cp.asarray(b, order="C" if order == "row" else "F")
        cp.full(4 * m * n, np.nan, np.float32)  # freed: the result is likely to land here
        got = s24.matmul(a, right, precision="tf32")
        turned = s24.matmul(right.T, a.T, precision="tf32")
        want = dense.astype(np.float64) @ b
        if integers:
            np.testing.assert_array_equal(got.get(), want)
        else:  # operands of 11 bits: each product is off by at most 2^-10
            bound = 2**-10 * (np.abs(dense).astype(np.float64) @ np.abs(b)) + 1e-6
            assert (np.abs(got.get() - want) <= bound).all()
        cp.testing.assert_array_equal(got, turned.T)
        np.testing.assert_allclose((a @ right).get(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.stem("sparse_wgmma")
def test_vectors_and_wrong_operands(rng):
    import cupy as cp

    dense = sparse_half(rng, (40, 64), integers=True)
    a = s24.compress(cp.asarray(dense), pattern=(1, 2))
    x = cp.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(s24.matmul(a, x, precision="tf32").get(), dense @ x.get())
    with pytest.raises(s24.ShapeError, match="inner dimensions 64 and 63 differ"):
        s24.matmul(a, x[1:], precision="tf32")
    with pytest.raises(s24.DTypeError, match="needs float32 operands, got float64"):
        s24.matmul(a, x.astype(np.float64), precision="tf32")
    with pytest.raises(s24.UnsupportedError, match="groups run along the contracted"):
        s24.matmul(a, cp.ones((2, 64, 3), np.float32), precision="tf32")
