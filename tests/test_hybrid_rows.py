"""The rows kernel: its layout on the CPU, its products on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24 import families
from sparse24._dtypes import lookup
from sparse24._hybrid import hybrid
from sparse24.kernels import hybrid_rows

pytestmark = pytest.mark.stem("hybrid_rows")


def walk(layout):
    """The dense matrix, read as the kernel reads it."""
    m, k = layout.shape
    deltas = layout.deltas.reshape(-1, 32, 4)
    values = layout.values.reshape(-1, 32, 4)
    dense = np.zeros((m, k), layout.values.dtype)
    for s in range(layout.slices.size - 1):
        first, steps = layout.slices[s], layout.slices[s + 1] - layout.slices[s]
        for warp in range(layout.warps):
            column = layout.begins[s, warp].astype(np.int64)
            for step in range(steps * warp // layout.warps, steps * (warp + 1) // layout.warps):
                for i in range(4):
                    column = column + deltas[first + step, :, i]
                    value = values[first + step, :, i]
                    for lane in np.flatnonzero(value != 0):
                        dense[layout.rows[32 * s + lane], column[lane]] += value[lane]
    return dense


@pytest.mark.parametrize("shape", [(1, 1), (33, 70), (70, 1500), (40, 3000)])
@pytest.mark.parametrize("zeros", [0.0, 0.7, 0.999, 1.0])
def test_layout_holds_every_element_once(rng, shape, zeros):
    w = families.make("iid", shape, zeros=zeros, rng=rng)
    layout = hybrid_rows.prepare(w, lookup("float32"), warps=3)
    np.testing.assert_array_equal(walk(layout), w)


def test_refuses_in_words():
    assert hybrid_rows.refuses(4096, lookup("float16"), 4) is None
    assert "4 columns, not 5" in hybrid_rows.refuses(4096, lookup("float16"), 5)
    assert "shared memory" in hybrid_rows.refuses(1 << 20, lookup("float16"), 1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["iid", "row_skewed", "banded"])
def test_product(rng, dtype, n, name):
    cupy = pytest.importorskip("cupy")
    w = families.make(name, (500, 1300), zeros=0.8, dtype=dtype, rng=rng)
    w[3:40] = 0
    b = families.make("iid", (1300, n), zeros=0.0, dtype=dtype, rng=rng)
    wide = np.int64 if dtype == "int8" else np.float64
    want = w.astype(wide) @ b.astype(wide)
    h = hybrid(cupy.asarray(w))
    got = h.matmul(cupy.asarray(b), algorithm="rows")
    again = h.matmul(cupy.asarray(b.T.copy()).T, algorithm="rows")
    assert (got.view(np.uint8) == again.view(np.uint8)).all()
    rounding = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5, "float64": 1e-13, "int8": 0}
    error = np.abs(got.get().astype(wide) - want).max()
    assert error <= rounding[dtype] * np.abs(want).max()


@pytest.mark.gpu
def test_long_gaps_and_empty_matrix():
    cupy = pytest.importorskip("cupy")
    w = np.zeros((70, 9000), np.float32)
    w[5, [0, 255, 256, 4000, 8999]] = [1, 2, 3, 4, 5]
    b = np.arange(9000, dtype=np.float32)[:, None]
    got = hybrid(cupy.asarray(w)).matmul(cupy.asarray(b), algorithm="rows").get()
    np.testing.assert_array_equal(got, w @ b)
    empty = hybrid(cupy.zeros((70, 90), np.float32))
    assert not empty.matmul(cupy.ones((90, 1), np.float32), algorithm="rows").any()
