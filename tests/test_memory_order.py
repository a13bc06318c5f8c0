"""How matrices lie in memory: what kernels ask of CuPy's arrays, and NumPy's answer, too."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24 import _memory_order

X = np.zeros((6, 8), np.float32)


@pytest.mark.parametrize(
    ("x", "order", "packed"),
    [
        (X, "row", True),
        (X.T, "column", True),
        (X[::2], "row", False),
        (X[:, :4], "row", False),
        (X.T[:, ::2], "column", False),
        (X.T[:4], "column", False),
        (X[::-1], "row", False),
        (X[:1, :4], "row", True),
        (X[:, :1], "row", False),
        (X[:, :1].copy(), "column", True),
        (X[:1, :1], "row", True),
        (X[:1, ::2], "strided", True),
    ],
)
def test_lines_and_what_lies_between_them(x, order, packed):
    assert _memory_order.order(x) == order
    assert _memory_order.packed(x) == packed


@pytest.mark.parametrize(
    ("shape", "whole"), [((2, 3), True), ((1, 4), True), ((1, 3), False), ((5, 1), False)]
)
def test_a_single_line_ends_on_16_bytes_or_not(shape, whole):
    assert _memory_order._ends_on_16_bytes(np.zeros(shape, np.float32)) == whole
