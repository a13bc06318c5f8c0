"""Quantised matrices on the CPU, bit for bit as by operations on whole arrays."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from quantised_cases import random_parts

import sparse24 as s24
from sparse24 import _dtypes, _quantise, _storage
from sparse24._quantised import FLOATS, Parts, dequantised, record_of
from sparse24._records import Compressed24
from sparse24.kernels import bricks, cpu, reference_quantised

SHAPES = [
    (0, 8), (3, 0), (1, 1), (1, 4), (16, 128), (17, 126), (50, 300), (130, 1001), (5, 2000),
    (1000, 9),
]  # fmt: skip
BITS = [4, 8]
METHODS = {"mse": _quantise.SHARES, "absmax": (1.0,)}


def same_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(want).view(np.uint8))


def elements(rng, shape, scale=1.0):
    """Normal numbers, among them ties, zeros of both signs and rows of zeros."""
    x = rng.standard_normal(shape)
    x = np.where(rng.random(shape) < 0.3, rng.choice([0, -0.0, 1, -1, 0.5], shape), x)
    x[rng.random(len(x)) < 0.1] = 0
    return (x * scale).astype(np.float32)


def rounded(x, bits, shares):
    """What the CPU makes of stored elements of any float type."""
    own = _dtypes.lookup(x.dtype)
    return cpu.quantise(x, own, bits, shares, _quantise.TINY)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_integers_and_factors_are_those_of_whole_arrays(rng, shape, bits, method):
    m, k = shape
    stored = (m, 2 * -(-k // 4))
    for name in FLOATS:
        x = elements(rng, stored).astype(_dtypes.TABLE[name].logical)
        got = rounded(x, bits, METHODS[method])
        want = _quantise.rounded(x.astype(np.float32), bits, METHODS[method])
        for one, other in zip(got, want, strict=True):
            same_bits(one, other)


@pytest.mark.parametrize("scale", [1e-45, 1e-39, 1.2e-38, 9e-38, 2e-37, 1e-20, 1e20, 3e37])
@pytest.mark.parametrize("bits", BITS)
def test_subnormal_and_large_elements(rng, bits, scale):
    x = elements(rng, (40, 200), scale)
    for shares in METHODS.values():
        for one, other in zip(
            rounded(x, bits, shares), _quantise.rounded(x, bits, shares), strict=True
        ):
            same_bits(one, other)


@pytest.mark.parametrize("bits", BITS)
def test_absmax_is_the_reference(rng, bits):
    x = rng.standard_normal((70, 500)).astype(np.float32)
    for one, other in zip(
        rounded(x, bits, (1.0,)), reference_quantised.quantise(x, bits), strict=True
    ):
        same_bits(one, other)


def test_strided_and_read_only_elements(rng):
    x = elements(rng, (80, 260))
    x.flags.writeable = False
    for view in (x[::3], x[:, ::2], x[::-1, 4:]):
        want = rounded(view.copy(), 4, _quantise.SHARES)
        for one, other in zip(rounded(view, 4, _quantise.SHARES), want, strict=True):
            same_bits(one, other)


@pytest.mark.parametrize("beyond", [np.inf, -np.inf, np.nan, -np.nan, 1e39])
@pytest.mark.parametrize("place", [0, 1, 255])
def test_elements_that_are_not_finite_are_refused(beyond, place):
    dense = np.zeros((3, 1020))
    dense[:, ::4] = 1
    dense[1, 4 * place if place < 255 else -4] = beyond
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(s24.ArgumentError, match="infinite, NaN or beyond float32"):
            s24.quantise(dense)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bricks_are_those_of_whole_arrays(rng, shape, bits):
    parts, (m, k) = random_parts(rng, shape, bits), shape
    codes = _storage.packed(
        Compressed24(parts.integers, parts.metadata, None, shape, _dtypes.TABLE["float16"])
    )
    packed = cpu.pack_bricks(*parts, bits)
    same_bits(packed, bricks.pack(bricks.Parts(parts.integers, codes, parts.factors), bits))
    for got, want in zip(cpu.unpack_bricks(packed, m, k, bits), parts, strict=True):
        same_bits(got, want)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dequantised_elements_are_products_rounded_once(rng, shape, bits):
    parts = random_parts(rng, shape, bits)
    record = record_of(parts, shape, bits, _dtypes.TABLE["float32"])
    exact = reference_quantised.dequantise(parts.integers, parts.factors)
    single = exact.astype(np.float32)  # rounded as the product of an integer and a factor
    for name in FLOATS:
        dtype = _dtypes.TABLE[name].logical
        got = dequantised(record, _dtypes.TABLE[name])
        same_bits(got.values, (exact if name == "float64" else single).astype(dtype))
        same_bits(got.metadata, parts.metadata)


def test_parts_in_any_memory(rng):
    """Strided, misaligned and read-only."""
    parts, shape = random_parts(rng, (50, 300), 4), (50, 300)
    want = cpu.pack_bricks(*parts, 4)
    turned = Parts(*(np.asfortranarray(x) for x in parts))
    same_bits(cpu.pack_bricks(*turned, 4), want)
    raw = np.zeros(want.nbytes + 1, np.uint8)
    shifted = raw[1:].reshape(want.shape)
    shifted[...] = want
    shifted.flags.writeable = False
    for got, part in zip(cpu.unpack_bricks(shifted, *shape, 4), parts, strict=True):
        same_bits(got, part)
    assert cpu.bricks_fit(shifted, 4, _dtypes.TABLE["float16"])


def test_an_element_beyond_a_type_is_infinite_with_a_warning(rng):
    q = s24.quantise(np.array([[0, 70000, 0, -70000]], np.float32))
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert np.isinf(q.dequantise("float16").values).any()
    np.testing.assert_array_equal(np.sign(q.toarray()), [[0, 1, 0, -1]])
