"""`advise`: what it refuses, what it marks, and how near it is to the recorded runs."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _advise
from sparse24._dtypes import TABLE

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs" / "_extensions"))
import advice_figures

LARGE, SMALL = (14336, 4096), (384, 384)


@pytest.fixture(scope="module")
def compared():
    found = advice_figures.compared()
    if not found:
        pytest.skip("no product has been recorded")
    return found


def test_sixteen_bits_are_predicted_within_a_quarter(compared):
    """All but smaller weights, whose dense products are often slower than the model says."""
    rows = [row for row in compared if row.dtype in advice_figures.SIXTEEN and not row.small]
    assert len(rows) > 50
    off = [row for row in rows if not 0.75 < row.speedup < 1.25]
    assert not off


def test_nothing_recorded_is_promised_far_too_much(compared):
    plain = [row for row in compared if row.dtype != "float32"]
    assert max(row.speedup for row in plain) < 1.25


def test_float32_is_predicted_within_a_third(compared):
    rows = [row.speedup for row in compared if row.dtype == "float32"]
    assert len(rows) > 20
    assert 2 / 3 < min(rows) <= max(rows) < 4 / 3


def test_every_plain_case_is_in_one_class(compared):
    for row in compared:
        homes = [
            title
            for title, dtypes, low, high, small in advice_figures.CLASSES
            if row.dtype in dtypes and low <= row.n <= high and row.small == small
        ]
        assert len(homes) == 1


def test_products_that_are_mostly_their_launch_are_marked():
    large, small = (s24.advise(shape, tokens=(1, 64)) for shape in (LARGE, SMALL))
    assert not any(ratio.startswith("~") for ratio in large.ratios)
    assert all(ratio.startswith("~") for ratio in small.ratios)
    assert "~ mostly the launch" in str(small)
    assert "~" not in str(large)


# Multiprocessors, clock and bytes a second; TFLOP/s of dense int8 and fp8 by the data sheets, with
# FP32 sums, of float16 where fp8 is widened to that.
CHIPS = {
    80: ((108, 1.41e9, 1.4e12), 624, 312),  # A100
    86: ((84, 1.74e9, 0.6e12), 299, 150),  # A40
    89: ((128, 2.52e9, 0.9e12), 661, 330),  # RTX 4090
    90: ((132, 1.98e9, 4.2e12), 1979, 1979),  # H200
    120: ((170, 2.41e9, 1.6e12), 838, 419),  # RTX 5090
}


@pytest.mark.parametrize(("capability", "chip"), CHIPS.items(), ids=CHIPS)
def test_dense_products_of_eight_bits_are_no_faster_than_the_chip(capability, chip):
    (sms, clock, bandwidth), int8, float8 = chip
    facts = {"sms": sms, "clock_hz": clock, "bandwidth": bandwidth}
    of = _advise.Chip("a chip", facts, capability, _advise.h200().scale)
    flops = {
        name: 2 * 8192**3 / _advise.estimate((8192, 8192), (8192,), TABLE[name], of).dense[0]
        for name in ("bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")
    }
    assert flops["bfloat16"] < flops["int8"] < 1e12 * int8
    assert flops["float8_e4m3fn"] == flops["float8_e5m2"]
    assert flops["float8_e4m3fn"] < 1e12 * float8


@pytest.mark.parametrize("tokens", [16, np.int64(16), [16], np.array([16])], ids=repr)
def test_tokens_are_one_number_or_several(tokens):
    assert s24.advise(LARGE, tokens).tokens == (16,)


@pytest.mark.parametrize("tokens", [0, -1, [], (1, 0), 1.5, (1.5,), "16", None], ids=repr)
def test_other_tokens_are_refused(tokens):
    with pytest.raises(s24.ArgumentError, match="tokens must be positive whole numbers"):
        s24.advise(LARGE, tokens)


def test_what_no_kernel_takes_is_refused_and_not_predicted():
    with pytest.raises(s24.ArgumentError, match=r"at most 2147483392, .* 1000000000000"):
        s24.advise(LARGE, (1, 10**12))
    with pytest.raises(s24.UnsupportedError, match=r"up to 2147483392 rows and columns, .*; split"):
        s24.advise((64, 1 << 31), 1)


@pytest.mark.parametrize("shape", [(3,), (0, 4), (-1, 4), (4.5, 3), "ab", 7], ids=repr)
def test_shapes_are_two_sizes(shape):
    with pytest.raises(s24.ShapeError, match="shape must be"):
        s24.advise(shape)


def test_a_weight_and_a_layer_are_asked_for_their_shape():
    weight = s24.random((64, 32), rng=0)
    with pytest.raises(s24.ShapeError, match=r"got Sparse24Array of shape .*; pass its \.shape"):
        s24.advise(weight)
    with pytest.raises(s24.ShapeError, match=r"pass its \.weight\.shape"):
        s24.advise(SimpleNamespace(weight=weight))
    with pytest.raises(s24.ShapeError, match="shape must be"):
        s24.advise(np.ndarray)


def test_a_size_of_zero_is_told_that_sizes_are_positive():
    with pytest.raises(s24.ShapeError, match=r"whole numbers from 1 on, got \(0, 4\)"):
        s24.advise((0, 4))


def test_more_tokens_never_take_less_time():
    advice = s24.advise(LARGE)
    for seconds in (advice.dense, advice.sparse):
        assert all(a <= b for a, b in itertools.pairwise(seconds))
