"""Stacks of quantised 2:4 matrices: what they hold, their parts, joins and files."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from file_cases import FORMATS

import sparse24 as s24
from sparse24.kernels import bricks

gpu = pytest.mark.gpu
BITS = [4, 8]
# Of one matrix: whole and partial bricks, atoms of 64 rows, and nothing.
SHAPES = [(1, 4), (16, 128), (50, 300), (64, 256), (130, 1001), (3, 0), (0, 8)]
FIELDS = ("integers", "metadata", "scales")


def stack_of(rng, shape, bits=4, dtype="float32"):
    return s24.quantise(s24.random(shape, dtype=dtype, rng=rng), bits=bits)


def bricks_of(q):
    return q._operand.stored.values


def assert_same(got, want):
    assert type(got) is type(want) is s24.Quantised24Array
    assert (got.shape, got.dtype, got.bits, got.axis) == (
        want.shape, want.dtype, want.bits, want.axis
    )  # fmt: skip
    np.testing.assert_array_equal(bricks_of(got), bricks_of(want))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("method", ["mse", "absmax"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_stack_is_its_matrices(rng, bits, method, shape):
    a = s24.random((3, *shape), rng=rng)
    q = s24.quantise(a, bits=bits, method=method)
    blocks = bricks.counts(*shape)
    assert (q.shape, q.ndim, len(q), q.axis) == (a.shape, 3, 3, -1)
    assert bricks_of(q).shape == (3, *blocks, bricks.size(bits))
    assert bricks_of(q).flags.c_contiguous
    assert q.nbytes == bricks_of(q).nbytes
    for i, (one, of_stack) in enumerate(zip(a, q, strict=True)):
        alone = s24.quantise(one, bits=bits, method=method)
        assert_same(of_stack, alone)
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(q, name)[i], getattr(alone, name))
        np.testing.assert_array_equal(q.toarray()[i], alone.toarray())
    assert q.nnz == sum(x.nnz for x in q)
    np.testing.assert_array_equal(q.metadata, a.metadata)


@pytest.mark.parametrize("batch", [(0,), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_any_batch_axes_and_types(rng, batch, dtype):
    q = stack_of(rng, (*batch, 18, 132), dtype=dtype)
    assert (q.shape, q.dtype.name) == ((*batch, 18, 132), dtype)
    for name in (dtype, "float64", "float8_e4m3fn"):
        whole = q.astype(name) if name != dtype else q.dequantise()
        assert whole.shape == q.shape
        for at in np.ndindex(*batch):
            np.testing.assert_array_equal(whole[at].toarray(), q[at].dequantise(name).toarray())
    assert s24.quantise(s24.random((2, 8, 40), rng=rng).mT).shape == (2, 40, 8)


def test_parts_stay_quantised(rng):
    q = stack_of(rng, (4, 40, 300))
    dense = q.toarray()
    keys = [
        np.s_[1], np.s_[-1], np.s_[1:3], np.s_[::-2], np.s_[[3, 0, 0]], np.s_[2, 3:20],
        np.s_[:, 16:32], np.s_[:, 3:20], np.s_[:, ::3], np.s_[:, [5, 1, 1]], np.s_[1:, :, 128:],
        np.s_[..., :128], np.s_[:0], np.s_[:, :0], dense[:, 0, 0] > -9,
    ]  # fmt: skip
    for key in keys:
        assert type(q[key]) is s24.Quantised24Array, key
        assert bricks_of(q[key]).flags.c_contiguous
        np.testing.assert_array_equal(q[key].toarray(), dense[key], str(key))
    assert type(q[1:, :, 4:12]) is s24.Sparse24Array
    for key in (np.s_[:, 7], np.s_[:, :, 9], np.s_[2, 7, 9], np.s_[1:, :, 4:12]):
        np.testing.assert_array_equal(
            q[key].toarray() if hasattr(q[key], "toarray") else q[key], dense[key]
        )
    turned = q.mT
    assert (turned.shape, turned.axis, turned.mT) == ((4, 300, 40), -2, q)
    for key in (np.s_[1], np.s_[::2], np.s_[:, :, 3:20], np.s_[:, :128]):
        np.testing.assert_array_equal(turned[key].toarray(), turned.toarray()[key])
    with pytest.raises(IndexError, match=r"A\[4\] is out of range for 4 matrices"):
        q[4]


def test_matrices_that_lie_together_are_views(rng):
    q = stack_of(rng, (4, 40, 300))
    for key in (np.s_[1], np.s_[1:3], np.s_[:]):
        assert np.shares_memory(bricks_of(q[key]), bricks_of(q))
    for key in (np.s_[::2], np.s_[[0, 1]], np.s_[:, 16:32]):
        assert not np.shares_memory(bricks_of(q[key]), bricks_of(q))


@pytest.mark.parametrize("bits", BITS)
def test_stacks_are_joined(rng, bits):
    a, b = (stack_of(rng, (40, 256), bits) for _ in range(2))
    both = np.stack([a, b])
    assert_same(both[0], a)
    assert_same(both[1], b)
    assert_same(np.stack([a.T, b.T]).mT, both)
    assert_same(np.stack([both, both], axis=1)[:, 1], both)
    assert_same(np.concatenate([both, both[:1]]), np.stack([a, b, a]))
    assert_same(np.concatenate([both.mT, both.mT[1:]])[2], b.T)
    over = np.concatenate([both, both[:, :20]], axis=1)  # as of gates over other projections
    np.testing.assert_array_equal(over.toarray()[:, 40:], both.toarray()[:, :20])
    beside = np.concatenate([both, both], axis=2)
    assert (beside.shape, beside.bits) == ((2, 40, 512), bits)
    np.testing.assert_array_equal(beside[:, :, 256:].toarray(), both.toarray())
    with pytest.raises(s24.ArgumentError, match=r"4 and of 8 bits.*bits="):
        np.stack([a, stack_of(rng, (40, 256), 12 - bits)])
    with pytest.raises(s24.ArgumentError, match="must come before rows and columns"):
        np.stack([a, b], axis=1)


def test_copies_and_pickles(rng):
    q = stack_of(rng, (3, 40, 260))
    for other in (q.copy(), copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert_same(other, q)
        assert_same(pickle.loads(pickle.dumps(other.mT)), q.mT)
    assert "shape (3, 40, 260)" in repr(q)
    out = np.empty(q.shape, q.dtype)
    assert q.toarray(out) is out
    np.testing.assert_array_equal(out, q.toarray())
    np.testing.assert_array_equal((q * 2).toarray(), 2 * out)
    np.testing.assert_allclose(q.sum(axis=2), out.sum(axis=2), rtol=1e-4)


@pytest.mark.parametrize("bits", BITS)
def test_parts_give_a_stack_again(rng, bits):
    q = stack_of(rng, (2, 3, 18, 256), bits)
    parts = (q.integers, q.metadata)
    assert_same(s24.convert.from_quantised(*parts, q.scales, q.shape, bits=bits), q)
    of_rows = q.scales[..., :1]
    same = [s24.convert.from_quantised(*parts, x, q.shape, bits=bits)
            for x in (of_rows, of_rows[..., 0], np.repeat(of_rows, 2, axis=-1))]  # fmt: skip
    assert_same(same[1], same[0])
    assert_same(same[2], same[0])
    with pytest.raises(s24.FormatError, match=r"must have shape \(2, 3, 18\), \(2, 3, 18, 1\) or"):
        s24.convert.from_quantised(*parts, of_rows[0], q.shape, bits=bits)
    with pytest.raises(s24.FormatError, match=r"integers must be int8 of shape \(2, 3, 18, 128\)"):
        s24.convert.from_quantised(parts[0][0], parts[1], q.scales, q.shape, bits=bits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(3, 33, 260), (2, 2, 5, 3), (0, 16, 128), (2, 0, 8)], ids=str)
def test_files(suffix, rng, bits, shape, tmp_path):
    save, load = FORMATS[suffix]
    q = stack_of(rng, shape, bits, "bfloat16")
    for array in (q, q.mT):
        save(tmp_path / f"a.{suffix}", {"experts": array, "first": s24.random((4, 8), rng=rng)})
        assert_same(load(tmp_path / f"a.{suffix}")["experts"], array)


@gpu
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(3, 64, 256), (2, 2, 128, 300), (3, 50, 1001), (0, 64, 128)])
def test_on_a_gpu_as_on_the_cpu(cupy, rng, bits, dtype, shape):
    a = s24.random(shape, dtype=dtype, rng=rng)
    here = s24.quantise(a, bits=bits, method="absmax")
    moved = here.to_device("cuda")
    for there in (moved, s24.quantise(a.to_device("cuda"), bits=bits, method="absmax")):
        assert_same(there.to_device("cpu"), here)
    np.testing.assert_array_equal(moved.toarray().get(), here.toarray())
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(moved, name).get(), getattr(here, name))
    for key in (np.s_[1:], np.s_[::-1], np.s_[..., 3:20, :], np.s_[..., :128]):
        np.testing.assert_array_equal(moved[key].toarray().get(), here[key].toarray())
    joined = np.concatenate([moved, moved[:1]])
    assert_same(joined.to_device("cpu"), np.concatenate([here, here[:1]]))
    stack = np.stack([moved, moved])
    assert_same(stack.to_device("cpu"), np.stack([here, here]))
