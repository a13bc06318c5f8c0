"""Epilogues on the CPU keep vectors of any type as they are."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24

BIG = np.array([2**24 + 1, -(2**24 + 3)], np.int32)
FORMATS = {
    "2:4": s24.compress,
    "1:4": lambda w: s24.compress(w, pattern=(1, 4)),
    "hybrid": s24.hybrid,
    "plain": lambda w: w,
}


@pytest.mark.parametrize("form", FORMATS)
def test_an_integer_bias_is_not_rounded(form):
    weight = np.array([[1, 0, 0, 0], [0, 2, 0, 0]], np.int8)
    a, x = FORMATS[form](weight), np.ones((1, 4), np.int8)
    for _ in range(3):  # the second call is remembered
        np.testing.assert_array_equal(s24.linear(x, a, BIG), np.array([[1, 2]]) + BIG)
    if form == "plain":
        return
    e = s24.Epilogue(bias=2**24 + 1)
    np.testing.assert_array_equal(s24.matmul(x, a.T, epilogue=e), [[2**24 + 2, 2**24 + 3]])


def test_an_integer_bias_of_experts_is_not_rounded():
    As = s24.compress(np.array([[[1, 0, 0, 0], [0, 2, 0, 0]]] * 2, np.int8))
    y = s24.grouped_linear(np.ones((2, 4), np.int8), As, bias=[BIG, BIG + 1], offsets=[0, 1, 2])
    np.testing.assert_array_equal(y, np.array([[1, 2], [2, 3]]) + BIG)


@pytest.mark.parametrize(
    ("bias", "dtype"),
    [(1 + 2**-11 + 2**-40, "float16"), (0.5 + 2**-30, "int8"), (1 + 0.6 * 2**-23, "float32")],
)
def test_a_bias_of_float64_is_rounded_with_the_result(bias, dtype):
    a = s24.compress(np.zeros((1, 4)))
    y = s24.linear(np.ones(4), a, np.array([bias]), dtype=dtype)
    want = np.rint(bias) if dtype == "int8" else bias
    assert y[0] == np.array(want).astype(dtype)


def test_factors_of_float64_are_rounded_with_the_result():
    a, factor = s24.compress(np.array([[3.0, 0, 0, 0]])), np.array([1 / 3])
    for options in ({"scales": (factor, None)}, {"epilogue": s24.Epilogue(alpha_vector=factor)}):
        assert s24.matmul(a, np.ones((4, 1)), dtype="float32", **options) == 1
