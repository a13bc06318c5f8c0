"""Activations on the CPU against the reference, and the conversion to fp8 that they need."""

from __future__ import annotations

import numpy as np
import pytest
from packing_cases import assert_same_bits, bits

from sparse24 import _dtypes
from sparse24.kernels import cpu, cpu_activate, reference
from sparse24.kernels.cpu_decode import encode_e4m3

EIGHTH = _dtypes.TABLE["float8_e4m3fn"].logical
ODD = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-30, 65504, -65504)
LAYOUTS = (lambda x: x, np.asfortranarray, lambda x: x[::-1, ::-1])


def numbers(rng, shape, name: str) -> np.ndarray:
    """Of every size, some of them odd."""
    x = rng.standard_normal(shape) * 10 ** rng.uniform(-8, 8, shape)
    odd = rng.random(shape) < 0.2
    x[odd] = rng.choice(ODD, np.count_nonzero(odd))
    with np.errstate(over="ignore"):
        return x.astype(_dtypes.TABLE[name].logical)


def assert_same(got, want) -> None:
    """The same bits, but any NaN for a NaN."""
    nan = np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), nan)
    np.testing.assert_array_equal(np.where(nan, 0, bits(got)), np.where(nan, 0, bits(want)))


@pytest.mark.parametrize("quantise", [False, True], ids=["same type", "fp8"])
@pytest.mark.parametrize("activation", ["relu", "relu2", "silu"])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_matches_the_reference(rng, monkeypatch, name, activation, quantise):
    monkeypatch.setattr(cpu_activate, "_RUN_BYTES", 1 << 12)  # several runs, on several threads
    for shape in ((1, 1), (0, 5), (5, 0), (3, 7), (17, 33), (400, 1030)):
        x, gate = numbers(rng, shape, name), numbers(rng, shape, name)
        for lay in LAYOUTS:
            given = lay(x), activation, lay(gate) if activation == "silu" else None
            got = cpu.activate_compress(*given, quantise=quantise)
            want = reference.activate_compress(*given, quantise=quantise)
            assert got[0].dtype == want[0].dtype
            assert_same(got[0], want[0])
            assert_same_bits(got[1], want[1])
            assert (got[2] is None) == (want[2] is None)
            if quantise:
                assert_same(got[2], want[2])


def test_conversion_to_fp8():
    every = np.arange(256, dtype=np.uint8).view(EIGHTH).astype(np.float32)
    every = np.sort(every[np.isfinite(every)])
    ties = (every[1:] + every[:-1]) / 2
    beside = [np.nextafter(ties, np.float32(to)) for to in (-np.inf, np.inf)]
    spread = np.arange(0, 1 << 32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    beyond = np.float32([448.1, 464, 465, 1e30, np.inf, -np.inf, -0.0])
    x = np.concatenate([every, ties, *beside, spread, beyond])
    got = np.empty(x.size, np.uint8)
    encode_e4m3(x, x.view(np.uint32), got)
    assert_same(got.view(EIGHTH), reference.to_dtype(x, EIGHTH))
