"""How matrices lie in memory: what kernels ask of CuPy's arrays, and NumPy's answer, too."""

from __future__ import annotations

import fake_device
import numpy as np
import pytest

from sparse24 import _arrays, _memory_order

X = np.zeros((6, 8), np.float32)
STACK = np.zeros((2, 6, 8), np.float32)


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
        (X[:1, :1].copy(), "row", True),
        (X[:1, ::8], "row", True),
        (X[:1, ::2], "strided", True),
        (X[:4:2], "row", False),
        (np.broadcast_to(np.float32(1), (6, 8)), "strided", False),
        (STACK, "row", True),
        (STACK.swapaxes(1, 2), "column", True),
        (STACK[:, :, :4].swapaxes(1, 2), "column", False),
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


@pytest.fixture
def lines():
    """Twelve rows of 32 numbers, the first of which begins on a line of memory."""
    room = fake_device.array(np.zeros(13 * 32, np.float32))
    start = -room.data.ptr % _arrays.LINE // 4
    return room[start : start + 12 * 32].reshape(12, 32)


def test_lines_are_aligned_where_all_of_them_begin_on_a_boundary(lines):
    aligned = _memory_order.aligned
    assert aligned(lines, _arrays.LINE)
    assert aligned(lines.T, _arrays.LINE)
    assert aligned(lines[:, 4:])
    assert not aligned(lines[:, 4:], _arrays.LINE)
    assert not aligned(lines[:, 1:])
    assert not aligned(lines[::-1])
    odd = lines.reshape(-1)[: 2 * 33].reshape(2, 33)
    assert not aligned(odd)
    assert not aligned(odd.T)
    assert aligned(odd[:1])  # nothing is as far from it as the next line
    stack = lines.reshape(2, 6, 32)
    assert aligned(stack.swapaxes(1, 2))
    assert not aligned(lines.reshape(-1)[:66].reshape(2, 1, 33))


def test_what_problems_hold_of_the_places_of_b_and_the_result(lines):
    b, out = lines[:6], lines[6:]
    plain = {
        "b_order": "row", "out_order": "row", "aligned": True, "b_aligned": True,
        "out_aligned": True, "out_spills": False, "b_in_lines": True, "b_packed": True,
    }  # fmt: skip
    facts = _memory_order.facts
    assert facts(b, out) == plain
    assert facts(b.T, out.T) == plain | {"b_order": "column", "out_order": "column"}
    shifted = {"b_in_lines": False, "b_packed": False}
    assert facts(b[:, 4:], out) == plain | shifted
    assert facts(b[:, 1:], out) == plain | shifted | {"aligned": False, "b_aligned": False}
    assert facts(b, out[:, 1:]) == plain | {"aligned": False, "out_aligned": False}
    assert facts(b, out[:, :-1]) == plain | {"out_spills": True}
    assert facts(b, out[:-1].T) == plain | {"out_order": "column"}
    assert facts(b, out[:, :-1].T) == plain | {"out_order": "column", "out_spills": True}
    assert facts(b, out[:, :30:2]) == plain | {"out_order": "strided"}
    short = b[:1, :3]  # which the last copy of 16 bytes would read past
    assert facts(short, out) == plain | {"aligned": False, "b_aligned": False}


def test_a_stack_is_even_where_one_distance_leads_from_each_matrix_to_the_next():
    stack = np.zeros((4, 3, 6, 8), np.float32)
    assert _memory_order.batch_axes(stack[:, :1]) == [(4, 576)]
    assert _memory_order.is_even(stack)
    assert _memory_order.is_even(stack[::2, :1])
    assert not _memory_order.is_even(stack[:, :2])
    assert _memory_order.is_even(stack[:, :, :5])
    assert not _memory_order.is_even(stack[:, :, :5], 1)
