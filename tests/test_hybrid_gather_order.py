"""The order of the gather kernel's words: by the rules on the CPU, the same on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24 import families
from sparse24._dtypes import lookup
from sparse24.kernels import hybrid_gather, hybrid_gather_order
from sparse24.kernels.hybrid_gather_order import LANES, STEP

pytestmark = pytest.mark.stem("hybrid_gather_order")


def made(rng, shape, zeros, most_words=None, family="iid"):
    """A matrix of bits, and its layout."""
    w = families.make(family, shape, zeros=zeros, dtype="float16", rng=rng).view(np.uint16)
    return w, hybrid_gather.prepare(w, lookup("float16"), most_words=most_words)


def slots_of(layout):
    """Elements and columns that the lanes of a warp take together."""
    words = layout.arrays.words.reshape(-1, LANES, STEP).swapaxes(1, 2).reshape(-1, LANES)
    return words >> 16, (words & 0xFFFF) // 16


def fullest(columns, banks):
    """How many lines the fullest bank serves, on average; lanes may share a line."""
    return np.mean([np.bincount(np.unique(x) % banks).max() for x in columns.reshape(-1, banks)])


@pytest.mark.parametrize(
    ("most_words", "most"),
    [
        (32 * 4096, {8: 1.05, 16: 1.15, 32: 1.25}),
        (4096, {8: 1.1, 16: 1.25, 32: 1.45}),
        (400, {8: 1.1, 16: 1.4, 32: 1.85}),
    ],
)
def test_lanes_that_read_at_once_read_different_banks(rng, most_words, most):
    """Lines of 16, 8 and 4 bytes, which 8, 16 and 32 neighbouring lanes read at once."""
    _, columns = slots_of(made(rng, (64, 4096), 0.8, most_words)[1])
    for at_once, bound in most.items():  # by chance 2.6, 3.1 and 3.5
        assert fullest(columns, at_once) < bound


def test_lanes_without_an_element_read_a_line_of_another(rng):
    values, columns = slots_of(made(rng, (40, 3000), 0.97)[1])
    assert 0 < np.count_nonzero(values) < values.size
    eights = zip(values.reshape(-1, 8), columns.reshape(-1, 8))
    for value, column in eights:
        wanted = set(column[value != 0]) or {0}
        assert set(column[value == 0]) <= wanted


def test_the_fullest_bank_comes_first():
    """A row whose elements lie in two banks, three and five of them, takes them by turns."""
    bits = np.zeros((1, 4096), np.uint16)
    bits[0, [0, 32, 64]] = [1, 2, 3]
    bits[0, [5, 37, 69, 101, 133]] = [4, 5, 6, 7, 8]
    layout = hybrid_gather.prepare(bits, lookup("float16"), most_words=1)
    values, columns = slots_of(layout)
    assert layout.arrays.heights.tolist()[0] == 1
    in_order = [
        values[s, (i // 8 + s) % 4 * 8 + (i + 3 * s) % 8] for s in range(4) for i in range(32)
    ]
    assert [x for x in in_order if x] == [4, 1, 5, 2, 6, 3, 7, 8]
    assert set(columns[values != 0]) == set(np.flatnonzero(bits[0]))


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["iid", "row_skewed", "power_law", "banded"])
@pytest.mark.parametrize("most_words", [1, 3000, 1 << 20, None])
@pytest.mark.parametrize(
    ("shape", "zeros"), [((1, 1), 0.0), ((70, 1500), 0.0), ((300, 9001), 0.95), ((40, 70), 1.0)]
)
def test_words_equal_those_of_the_cpu(rng, family, most_words, shape, zeros):
    cupy = pytest.importorskip("cupy")
    bits, layout = made(rng, shape, zeros, most_words, family)
    words, begins, heights, rows = layout.arrays
    how = [cupy.asarray(x) for x in (rows, heights, begins)]
    got = hybrid_gather_order.order(cupy.asarray(bits), *how)
    np.testing.assert_array_equal(got.get(), words)
    every_second = cupy.zeros((shape[0], 2 * shape[1]), np.uint16)
    every_second[:, ::2] = cupy.asarray(bits)
    got = hybrid_gather_order.order(every_second[:, ::2], *how)
    np.testing.assert_array_equal(got.get(), words)
