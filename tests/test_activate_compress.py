"""activate_compress.cu against the reference: bit for bit but for exp, which may round apart."""

from __future__ import annotations

import numpy as np
import pytest
from packing_cases import LAYOUTS, bits, matrix, place, poison, same

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
            same_numbers(got.values, want)
            same(got.packed, reference.pack_metadata(metadata, shape[1], want.dtype.itemsize))
            if quantise:
                same(got_scales, scales)


def same_numbers(got, want):
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
