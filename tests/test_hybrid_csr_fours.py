"""The kernel ``hybrid_csr`` reads elements of rows as aligned fours, where memory allows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sparse24 import _dtypes
from sparse24.kernels import hybrid_csr
from sparse24.kernels.csr import CsrRows

pytestmark = pytest.mark.stem("hybrid_csr")


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 8, 64])
@pytest.mark.parametrize("long", [0, 5000])
@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_nothing_beyond_the_elements_is_looked_up(rng, cupy, offset, start, long, n):
    """Rows are read as aligned fours, which hold more than the row, or are not aligned at all."""
    lengths = np.array([start, long, 0, 3, 0, 1, 0, 0])
    columns = np.concatenate([np.sort(rng.choice(6000, x, replace=False)) for x in lengths])
    there = slice(offset, offset + len(columns))
    wide = np.full(len(columns) + 64, 1 << 30, np.int32)
    wide[there] = columns
    values = cupy.full(len(wide), np.nan, np.float32)
    values[there] = 1
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = CsrRows(cupy.asarray(starts), cupy.asarray(wide)[there], values[there].view(np.uint32))
    dense = np.zeros((8, 6000), np.float32)
    dense[np.repeat(np.arange(8), lengths), columns] = 1
    b = (rng.random((6000, n)) < 0.1).astype(np.float32)
    out = cupy.full((8, n), cupy.nan, np.float32)
    layout = hybrid_csr.prepare(rows, (8, 6000), _dtypes.lookup("float32"))
    hybrid_csr.product(layout, cupy.asarray(b), out)
    np.testing.assert_array_equal(out.get(), dense @ b)


@pytest.mark.parametrize(
    ("start", "count", "room", "allowed"),
    [(0, 12, 48, True), (0, 10, 48, True), (0, 10, 40, False), (0, 9, 44, False), (4, 8, 48, False),
     (16, 10, 64, True), (16, 10, 56, False)],
)  # fmt: skip
def test_fours_end_within_the_allocation(start, count, room, allowed):
    memory = SimpleNamespace(ptr=1 << 20, size=room)
    array = SimpleNamespace(
        data=SimpleNamespace(ptr=memory.ptr + start, mem=memory), itemsize=4, nbytes=4 * count
    )
    assert hybrid_csr._in_fours(array) == allowed


@pytest.mark.gpu
def test_an_array_that_fills_its_allocation(rng, cupy):
    """Its 401 elements end within four that are not all there."""
    w = np.zeros((9, 100), np.float32)
    w.flat[rng.choice(w.size, 401, replace=False)] = 1
    row, column = np.nonzero(w)

    def alone(x):
        memory = cupy.cuda.Memory(x.nbytes)
        copy = cupy.ndarray(x.shape, x.dtype, cupy.cuda.MemoryPointer(memory, 0))
        copy[:] = cupy.asarray(x)
        return copy

    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=9))])
    columns, values = alone(column.astype(np.int32)), alone(w[row, column].view(np.uint32))
    rows = CsrRows(cupy.asarray(starts), columns, values)
    layout = hybrid_csr.prepare(rows, w.shape, _dtypes.lookup("float32"))
    assert not layout.aligned
    b, out = cupy.ones((100, 1), np.float32), cupy.full((9, 1), cupy.nan, np.float32)
    hybrid_csr.product(layout, b, out)
    np.testing.assert_array_equal(out.get()[:, 0], w.sum(1))
