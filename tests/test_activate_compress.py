"""activate_compress.cu against the reference: bit for bit but for exp, which may round apart."""

from __future__ import annotations

import numpy as np
import pytest
from packing_cases import LAYOUTS, assert_same_bits, bits, matrix, place, poison

import sparse24 as s24
from sparse24 import _arrays, _dtypes
from sparse24._errors import UnsupportedError
from sparse24.kernels import activate_compress, reference

gpu = pytest.mark.gpu
stem = pytest.mark.stem("activate_compress")
SHAPES = ((64, 256), (70, 304), (3, 17), (5, 2056), (1, 1), (2, 17000))


def test_reference_scales_each_row():
    x = np.array([[1, 2, 3, -4], [0, 0, 0, 0]], np.float16)
    values, metadata, scales = reference.activate_compress(x, "relu", quantise=True)
    assert values.astype(np.float32).tolist() == [[288, 448], [0, 0]]  # 2 * 448 / 3 rounds
    np.testing.assert_array_equal(scales, np.float32([3 / 448, 1]))
    assert (metadata & 15).ravel().tolist() == [0x9, 0x4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_without_a_usable_scale(dtype):
    x = np.array([[2.0**-101, 2.0**-120, 0, 0], [2.0**-100, 2.0**-101, 0, 0]], dtype)
    array, scales = s24.activate_compress(x, "relu", quantise=True)
    assert scales[0] == 1
    assert not array.toarray()[0].astype(bool).any()
    np.testing.assert_array_equal(array.toarray()[1].astype(np.float32) * scales[1], x[1])
    large = np.array([[np.inf if dtype == np.float32 else 1e200, 2, 1, 0]], dtype)
    array, scales = s24.activate_compress(large, "relu", quantise=True)
    assert np.isinf(scales[0])
    assert np.isnan(s24.matmul(array, np.ones((4, 1), array.dtype), scales=(scales, 1.0))).all()


@gpu
@stem
@pytest.mark.parametrize("quantise", [False, True], ids=["same type", "fp8"])
@pytest.mark.parametrize("activation", ["relu", "relu2"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_matches_reference(rng, name, activation, quantise):
    row = _dtypes.TABLE[name]
    for shape in SHAPES:
        for kind, layout in zip(("normal", "odd", "sparse", "normal"), LAYOUTS, strict=True):
            x = matrix(rng, shape, row, kind)
            x[shape[0] // 2] = 0
            want, metadata, scales = reference.activate_compress(x, activation, quantise=quantise)
            poison()
            got, got_scales = activate_compress.launch(
                place(x, layout), row, activation=activation, quantise=quantise
            )
            assert_same_numbers(got.values, want)
            assert_same_bits(
                got.packed, reference.pack_metadata(metadata, shape[1], want.dtype.itemsize)
            )
            if quantise:
                assert_same_bits(got_scales, scales)


@gpu
@stem
@pytest.mark.parametrize("activation", ["relu", "relu2"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_quantises_rows_of_every_size(rng, name, activation):
    """A row for each number without a sign: subnormal and huge ones, infinity and every NaN."""
    row = _dtypes.TABLE[name]
    largest = np.arange(1 << 15, dtype=np.uint16).view(row.logical)
    x = np.nan_to_num(largest.astype(np.float32), nan=1, posinf=1)[:, None] * rng.random((1, 12))
    x = x.astype(row.logical)
    x[:, 5] = largest
    want, metadata, scales = reference.activate_compress(x, activation, quantise=True)
    poison()
    got, got_scales = activate_compress.launch(place(x), row, activation=activation, quantise=True)
    assert_same_bits(got_scales, scales)
    assert_same_numbers(got.values, want)
    assert_same_bits(got.packed, reference.pack_metadata(metadata, x.shape[1], 1))


def assert_same_numbers(got, want):
    """The same bits, any NaN for a NaN: arithmetic does not keep its payload."""
    got = np.ascontiguousarray(_arrays.to_numpy(got)).view(want.dtype)
    nan = np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    np.testing.assert_array_equal(np.where(nan, 0, bits(got)), np.where(nan, 0, bits(want)))


@gpu
@stem
def test_silu_gate_is_near(rng):
    """Two float32 exponentials differ in the last place, so almost all elements agree."""
    row = _dtypes.TABLE["bfloat16"]
    x, gate = matrix(rng, (128, 512), row), matrix(rng, (128, 512), row)
    got, _ = activate_compress.launch(place(x), row, activation="silu", gate=place(gate))
    want, metadata, _ = reference.activate_compress(x, "silu", gate)
    assert np.mean(bits(got.values.get()) != bits(want)) < 1e-3
    packed = reference.pack_metadata(metadata, 512, 2)
    assert np.mean(got.packed.get() != packed) < 1e-3


@gpu
@stem
def test_refuses_other_types():
    row = _dtypes.TABLE["float32"]
    with pytest.raises(UnsupportedError, match="float16 or bfloat16 matrix"):
        activate_compress.launch(place(np.zeros((4, 8), np.float32)), row)


@stem
@pytest.mark.parametrize("quantise", [False, True], ids=["same type", "fp8"])
@pytest.mark.parametrize("activation", ["relu", "relu2"])
@pytest.mark.parametrize("shape", [(37, 100), (3, 0), (0, 8)])
def test_array_function_follows_the_reference(xp, rng, activation, quantise, shape):
    x = matrix(rng, shape, _dtypes.TABLE["float16"], "odd")
    want, metadata, scales = reference.activate_compress(x, activation, quantise=quantise)
    got = s24.activate_compress(xp.asarray(x), activation, quantise=quantise)
    if quantise:
        got, got_scales = got
        assert isinstance(got_scales, xp.ndarray)
        assert_same_bits(got_scales, scales[:, None])
    assert got.shape == x.shape
    assert_same_numbers(got.values, want)
    assert_same_bits(got.metadata, metadata)


@stem
def test_scales_undo_the_quantisation_in_a_product(xp, rng):
    x, w = rng.standard_normal((64, 128)).astype(np.float16), rng.standard_normal((128, 32))
    y = reference.prune(np.maximum(x.astype(np.float32), 0) ** 2)
    array, scales = s24.activate_compress(xp.asarray(x), quantise=True)
    eighth = w.astype(_dtypes.TABLE["float8_e4m3fn"].logical)
    b = eighth if xp is np else xp.asarray(eighth.view(np.uint8))
    product = s24.matmul(array, b, scales=(scales, 1.0), b_dtype="float8_e4m3fn")
    got = _arrays.to_numpy(product).astype(np.float32)
    want = y @ w
    assert np.abs(got - want).max() < 0.1 * np.abs(want).max()


@stem
def test_gated_silu_in_float32_on_the_cpu(rng):
    x, gate = rng.standard_normal((2, 5, 12)).astype(np.float32)
    got = s24.activate_compress(x, "silu", gate=gate).toarray()
    np.testing.assert_array_equal(got, reference.prune(x / (1 + np.exp(-x)) * gate))


def test_refusals_of_the_array_function():
    x = np.ones((4, 8), np.float32)
    with pytest.raises(s24.ArgumentError, match="'silu' needs gate="):
        s24.activate_compress(x, "silu")
    with pytest.raises(s24.ArgumentError, match="'relu' takes no gate="):
        s24.activate_compress(x, "relu", gate=x)
    with pytest.raises(s24.ArgumentError, match="activation must be one of"):
        s24.activate_compress(x, "tanh")
    with pytest.raises(s24.ShapeError, match="tokens, features"):
        s24.activate_compress(x[None])
    with pytest.raises(s24.ShapeError, match="gate must have the shape"):
        s24.activate_compress(x, "silu", gate=x[:2])
    with pytest.raises(s24.DTypeError, match="gate must have the dtype"):
        s24.activate_compress(x, "silu", gate=x.astype(np.float16))
    with pytest.raises(s24.DTypeError, match="must be one of float16"):
        s24.activate_compress(x.astype(np.int8))
