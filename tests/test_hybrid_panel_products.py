"""Products of the panel kernel on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24 import families
from sparse24._dtypes import lookup
from sparse24._to_hybrid import hybrid
from sparse24.kernels import hybrid_panel
from sparse24.kernels.chip import chip
from sparse24.kernels.hybrid_panel_plan import Config, most_columns

pytestmark = [pytest.mark.stem("hybrid_panel"), pytest.mark.gpu]
TYPES = ("float16", "bfloat16", "float32", "float64")


def draw(family, shape, zeros, rng, dtype="float32"):
    return families.make(family, shape, zeros=zeros, dtype=dtype, rng=rng)


def lay_out(cupy, w):
    dtype = lookup(w.dtype)
    return hybrid_panel.prepare(cupy.asarray(w).view(dtype.storage), dtype, cupy)


def on_gpu(cupy, x, order="rows"):
    """A CuPy matrix by rows, by columns, or as every second element of a larger one."""
    if order == "rows":
        return cupy.asarray(x)
    if order == "columns":
        return cupy.asarray(np.ascontiguousarray(x.T)).T
    wide = np.full((x.shape[0], 2 * x.shape[1] + 3), np.nan, x.dtype)
    wide[:, 1::2][:, : x.shape[1]] = x
    return cupy.asarray(wide)[:, 1::2][:, : x.shape[1]]


def poisoned(cupy, shape, dtype, order="rows"):
    """A result that is not a number wherever nothing is written."""
    return on_gpu(cupy, np.full(shape, np.nan, lookup(dtype).logical), order)


def numbers(x):
    """A CuPy matrix on the host, in float64."""
    return x.view(lookup(x.dtype).storage).get().view(x.dtype).astype(np.float64)


def whole(rng, shape, share, dtype):
    return (rng.integers(-3, 4, shape) * (rng.random(shape) < share)).astype(lookup(dtype).logical)


@pytest.mark.parametrize("n", [1, 5, 8, 12, 13, 64, 100, 513])
@pytest.mark.parametrize("shape", [(500, 70), (301, 4096), (77, 9001), (3000, 4097)])
@pytest.mark.parametrize("order", ["rows", "columns", "strided"])
@pytest.mark.parametrize("dtype", TYPES)
def test_error_is_near_that_of_a_dense_product(cupy, rng, n, shape, order, dtype):
    w = draw("row_skewed", shape, 0.93, rng, dtype)
    w[3:40] = 0
    b = rng.standard_normal((shape[1], n)).astype(w.dtype)
    want = w.astype(np.float64) @ b.astype(np.float64)  # of float64 itself right to some bits
    layout, right = lay_out(cupy, w), on_gpu(cupy, b, order)
    out, again = (poisoned(cupy, want.shape, dtype, order) for _ in range(2))
    hybrid_panel.product(layout, right, out)
    dense = hybrid(cupy.asarray(w)).matmul(cupy.asarray(b), algorithm="cublas")
    error, usual = (np.linalg.norm(numbers(x) - want) for x in (out, dense))
    assert error <= 2 * usual + 1e-15 * np.linalg.norm(want)
    assert not numbers(out)[3:40].any()
    hybrid_panel.product(layout, right, again)
    np.testing.assert_array_equal(numbers(out), numbers(again))


@pytest.mark.parametrize("zeros", [0.3, 0.8, 0.97])
@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (64, 512), (700, 1100)])
@pytest.mark.parametrize("n", [1, 7, 24, 50])
@pytest.mark.parametrize("dtype", TYPES)
def test_whole_numbers_are_exact(cupy, rng, zeros, shape, n, dtype):
    """Units of 1 row to the tallest there are; every element of `b` counts."""
    w, b = whole(rng, shape, 1 - zeros, dtype), whole(rng, (shape[1], n), 0.1, dtype)
    w[::5][rng.random(w[::5].shape) < 0.8] = 0
    out = poisoned(cupy, (shape[0], n), dtype)
    hybrid_panel.product(lay_out(cupy, w), cupy.asarray(b), out)
    np.testing.assert_array_equal(numbers(out), w.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("planes", [1, 2, 3])
@pytest.mark.parametrize("shares", [1, 2, 7])
@pytest.mark.parametrize("n", [4, 24, 29])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_way_of_cutting_up_gives_the_same_bits(cupy, rng, planes, shares, n, dtype):
    k = 2500 if lookup(dtype).itemsize == 2 else 5000  # all planes in one panel, or several
    w = draw("row_skewed", (400, k), 0.9, rng, dtype)
    b = cupy.asarray(rng.standard_normal((k, n)).astype(w.dtype))
    layout = lay_out(cupy, w)
    want, out = (poisoned(cupy, (400, n), dtype) for _ in range(2))
    hybrid_panel.product(layout, b, want)
    config = Config(planes, shares, layout.dtype.itemsize)
    hybrid_panel.product(layout, b, out, config=config)
    np.testing.assert_array_equal(numbers(out), numbers(want))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_not_finite_stays_where_it_counts(cupy, rng, dtype):
    w = draw("iid", (200, 5000), 0.9, rng, dtype)
    w[11, 70], w[150, 4500] = np.nan, np.inf
    b = rng.standard_normal((5000, 16)).astype(w.dtype)
    b[[0, 4096, 4999], [1, 2, 3]] = np.nan, np.inf, np.nan
    out = cupy.empty((200, 16), w.dtype)
    hybrid_panel.product(lay_out(cupy, w), cupy.asarray(b), out)
    touched = np.zeros((200, 16), bool)
    touched[[11, 150]] = True
    for row, column in ((0, 1), (4096, 2), (4999, 3)):
        touched[w[:, row] != 0, column] = True
    np.testing.assert_array_equal(~np.isfinite(out.get()), touched)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_not_finite_reaches_its_own_rows_and_columns(cupy, rng, dtype):
    """Zeros of other rows may meet it too, but in no other column."""
    w = draw("iid", (200, 3000), 0.95, rng, dtype)
    w[11, 70] = np.inf
    b = rng.standard_normal((3000, 16)).astype(w.dtype)
    b[[0, 2999], [1, 3]] = np.nan, np.inf
    out = cupy.zeros((200, 16), w.dtype)
    hybrid_panel.product(lay_out(cupy, w), cupy.asarray(b), out)
    strange = ~np.isfinite(numbers(out))
    assert strange[11].all()
    for row, column in ((0, 1), (2999, 3)):
        assert strange[w[:, row] != 0, column].all()
    strange[11] = False
    assert not strange[:, [0, 2, *range(4, 16)]].any()


@pytest.mark.parametrize("dtype", TYPES)
def test_negative_zeros(cupy, rng, dtype):
    """As an element of the matrix, in `b`, and as all there is."""
    w, b = whole(rng, (40, 300), 0.1, dtype), whole(rng, (300, 9), 0.3, dtype)
    w[rng.random(w.shape) < 0.05] = -0.0
    b[rng.random(b.shape) < 0.1] = -0.0
    w[7] = -0.0
    out = poisoned(cupy, (40, 9), dtype)
    hybrid_panel.product(lay_out(cupy, w), cupy.asarray(b), out)
    np.testing.assert_array_equal(numbers(out), w.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("dtype", TYPES)
def test_a_product_can_be_captured(cupy, rng, dtype):
    h = hybrid(cupy.asarray(draw("iid", (512, 1024), 0.95, rng, dtype)))
    b = cupy.asarray(rng.standard_normal((1024, 40)).astype(lookup(dtype).logical))
    want = h.matmul(b, algorithm="panel")
    out = poisoned(cupy, want.shape, dtype)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        h.matmul(b, out=out, algorithm="panel")
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(numbers(out), numbers(want))


@pytest.mark.parametrize("dtype", TYPES)
def test_empty_matrix(cupy, dtype):
    dtype = lookup(dtype)
    layout = hybrid_panel.prepare(cupy.zeros((70, 90), dtype.storage), dtype, cupy)
    out = poisoned(cupy, (70, 9), dtype.name)
    hybrid_panel.product(layout, cupy.asarray(np.ones((90, 9), dtype.logical)), out)
    assert not numbers(out).any()


def test_the_longest_rows_that_fit(cupy, rng):
    k = most_columns(chip().most_shared)
    w, b = whole(rng, (100, k), 0.01, "float16"), whole(rng, (k, 11), 0.05, "float16")
    out = poisoned(cupy, (100, 11), "float16", "columns")
    hybrid_panel.product(lay_out(cupy, w), cupy.asarray(b), out)
    np.testing.assert_array_equal(numbers(out), w.astype(np.float64) @ b.astype(np.float64))
