"""Quantised arrays of integers, codes and scales that are there already."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy

M, K = 40, 768
BFLOAT16 = _dtypes.TABLE["bfloat16"].logical


def given(bits, k=K):
    """Integers of all values, and codes."""
    half = 1 << bits - 1
    codes = s24.random((M, k), dtype="int8", rng=0)
    integers = np.resize(np.arange(-half, half, dtype=np.int8), codes.values.shape)
    return integers, codes.metadata


def scales_of(groups, dtype=np.float16):
    return (1 + np.arange(M * groups).reshape(M, groups) % 61 / 64).astype(dtype)


def product(integers, metadata, scales, k=K):
    """The dense matrix in float64, of scales of groups that have equal sizes."""
    kept = s24.convert.from_parts(integers.astype(np.float64), metadata, (M, k)).toarray()
    return kept * np.repeat(scales.astype(np.float64), k // scales.shape[1], axis=1)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("bits", [4, 8])
def test_elements_are_integers_times_scales(bits, groups, dtype):
    integers, metadata = given(bits)
    scales = scales_of(groups, dtype)
    q = s24.convert.from_quantised(integers, metadata, scales, (M, K), bits=bits)
    assert (q.dtype, q.bits, q.shape, q.device) == (dtype, bits, (M, K), "cpu")
    np.testing.assert_array_equal(q.integers, integers)
    np.testing.assert_array_equal(q.metadata, metadata)
    np.testing.assert_array_equal(q.scales, np.repeat(scales.astype("f4"), 6 // groups, 1))
    want = product(integers, metadata, scales)
    np.testing.assert_array_equal(q.dequantise("float64").toarray(), want)
    np.testing.assert_array_equal(q.toarray(), want.astype(dtype))


@pytest.mark.parametrize("k", [768, 700, 5, 0])
def test_a_scale_for_each_row(k):
    integers, metadata = given(4, k)
    integers[:, -1:] = 0  # may lie beyond the last column
    scales = scales_of(1, np.float32)
    dense = s24.convert.from_parts(integers, metadata, (M, k)).toarray()
    for x in (scales, scales[:, 0]):
        q = s24.convert.from_quantised(integers, metadata, x, (M, k), bits=4, dtype="float64")
        np.testing.assert_array_equal(q.scales, np.repeat(scales, -(-k // 128), 1))
        np.testing.assert_array_equal(q.toarray(), dense * scales.astype(np.float64))


def test_the_last_of_several_scales_may_have_fewer_columns():
    integers, metadata = given(4, 700)
    scales = scales_of(6, np.float32)
    q = s24.convert.from_quantised(integers, metadata, scales, (M, 700), bits=4)
    np.testing.assert_array_equal(q.scales, scales)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_parts_of_a_quantised_array_give_it_again(bits):
    q = s24.quantise(s24.random((M, 200), dtype="bfloat16", rng=0), bits=bits)
    parts = (q.integers, q.metadata, q.scales, q.shape)
    again = s24.convert.from_quantised(*parts, bits=bits, dtype=q.dtype)
    assert again.dtype == q.dtype
    np.testing.assert_array_equal(again.toarray(), q.toarray())
    x = np.ones((2, 200), q.dtype)
    np.testing.assert_array_equal(x @ again.T, x @ q.T)


def test_parts_may_be_tensors_or_not_contiguous():
    torch = pytest.importorskip("torch")
    integers, metadata = given(4)
    scales = scales_of(3, np.float32)
    want = product(integers, metadata, scales)
    strided = [np.repeat(x, 2, axis=1)[:, ::2] for x in (integers, metadata, scales)]
    tensors = [torch.from_numpy(x.copy()) for x in (integers, metadata, scales)]
    for parts in (strided, tensors):
        q = s24.convert.from_quantised(*parts, (M, K), bits=4)
        np.testing.assert_array_equal(q.dequantise("float64").toarray(), want)
    tensors[2] = tensors[2].to(torch.bfloat16)
    assert s24.convert.from_quantised(*tensors, (M, K), bits=4).dtype == BFLOAT16


def test_the_parts_are_left_as_they_are():
    parts = [*given(8), scales_of(6, np.float32)]
    before = [x.copy() for x in parts]
    q = s24.convert.from_quantised(*parts, (M, K), bits=8)
    for part, x in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part, x)
        assert not np.shares_memory(part, q._operand.stored.values)


def at(x, place, value):
    changed = x.copy()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        (0, lambda x: x.astype(np.int16), r"integers must be int8 of shape \(40, 384\), got int16"),
        (0, lambda x: x.view(np.uint8), "integers must be int8 of shape .*, got uint8"),
        (0, lambda x: x[:, :-1], r"integers must be int8 of shape .* of shape \(40, 383\)"),
        (0, lambda x: x[0], r"integers must be int8 of shape .* of shape \(384,\)"),
        (0, lambda x: at(x, (3, 5), 8), r"integers\[3, 5\] is 8, beyond the 4 bits of -8 to 7"),
        (0, lambda x: at(x, (0, 9), -9), r"integers\[0, 9\] is -9, beyond the 4 bits of -8 to 7"),
        (1, lambda x: x.view(np.int8), r"metadata must be uint8 of shape \(40, 96\), got int8"),
        (1, lambda x: x[1:], r"metadata must be uint8 of shape \(40, 96\), got .* \(39, 96\)"),
        (1, lambda x: at(x, (7, 9), 0), r"metadata\[7, 9\] is 0x00, which holds an illegal code"),
        (2, lambda x: at(x, (1, 2), np.nan), r"scales\[1, 2\] is nan, no finite number"),
        (2, lambda x: at(x, (1, 2), np.inf), r"scales\[1, 2\] is inf, no finite number"),
        (2, lambda x: x[:, :4], r"\(40,\), \(40, 1\) or \(40, 6\) for .* equal .*, got \(40, 4\)"),
        (2, lambda x: x[:, :0], r"scales must have shape .*, got \(40, 0\)"),
        (2, lambda x: np.repeat(x, 2, 1), r"scales must have shape .*, got \(40, 12\)"),
        (2, lambda x: x[1:], r"scales must have shape .*, got \(39, 6\)"),
        (2, lambda x: x[1:, 0], r"scales must have shape .*, got \(39,\)"),
        (2, lambda x: x[None], r"scales must have shape .*, got \(1, 40, 6\)"),
        (2, lambda x: x[0, 0], r"scales must have shape .*, got \(\)"),
    ],
)
def test_parts_that_do_not_fit_are_refused(part, change, message):
    parts = [*given(4), scales_of(6, np.float32)]
    parts[part] = change(parts[part])
    with pytest.raises(s24.FormatError, match=message):
        s24.convert.from_quantised(*parts, (M, K), bits=4)


def test_an_integer_beyond_the_last_column_is_refused():
    codes = s24.compress(np.int8([[0, 0, 0, 1, 0, 1]]))
    parts = (np.ones((1, 4), np.int8), codes.metadata, np.ones(1, np.float32))
    with pytest.raises(s24.FormatError, match="lies beyond the last of 6 columns"):
        s24.convert.from_quantised(*parts, (1, 6), bits=4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"bits": 2}, s24.ArgumentError, "bits must be one of 4, 8, got 2"),
        ({"bits": "4"}, s24.ArgumentError, "bits must be one of 4, 8, got '4'"),
        ({"dtype": "int8"}, s24.DTypeError, "dtype must be one of float16, .*, got int8"),
        ({"dtype": "int64"}, s24.DTypeError, "dtype must be one of float16, .*float64, got"),
        ({"shape": (M,)}, s24.ShapeError, r"shape must be \(\.\.\., m, k\), whole numbers from"),
        (
            {"shape": (1, M, K)},
            s24.FormatError,
            r"scales must have shape \(1, 40\), \(1, 40, 1\) or",
        ),
        ({"scales": np.ones((M, 6))}, s24.DTypeError, "scales must be .*, got float64; .*float32"),
        ({"scales": np.ones((M, 6), int)}, s24.DTypeError, "scales must be one of .*, got int64"),
        ({"scales": [[1.0], [1.0, 2.0]]}, s24.ShapeError, "scales must be an array"),
    ],
)
def test_other_arguments_are_refused(change, error, message):
    integers, metadata = given(4)
    parts = {"integers": integers, "metadata": metadata, "scales": scales_of(6), "shape": (M, K)}
    with pytest.raises(error, match=message):
        s24.convert.from_quantised(**{**parts, "bits": 4, **change})


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 8])
def test_parts_may_lie_on_a_gpu(bits):
    cupy = pytest.importorskip("cupy")
    parts = [*given(bits), scales_of(3)]
    q = s24.convert.from_quantised(*map(cupy.asarray, parts), (M, K), bits=bits)
    assert q.device == "cpu"
    moved = q.to_device("cuda")
    np.testing.assert_array_equal(to_numpy(moved.toarray()), product(*parts).astype(np.float16))
