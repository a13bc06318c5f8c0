"""Products of the scatter kernel: exact on whole numbers, in every form, every time."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hybrid_cases import assert_exact_on_whole_numbers

from sparse24 import _arrays, families
from sparse24._dtypes import lookup
from sparse24._to_hybrid import hybrid
from sparse24.kernels import block_sums, hybrid_scatter
from sparse24.kernels.block_sums import Sharing
from sparse24.kernels.hybrid_scatter_plan import Config, deal, tiles_of

pytestmark = pytest.mark.stem("hybrid_scatter")


def product(h, b, **options):
    import cupy

    return h.matmul(cupy.asarray(b), algorithm="scatter", **options).get()


def form(zeros, rows, columns=64):
    """2:4 tiles, which have all their rows, where few are zeros."""
    base = {"base": True} if zeros < 0.65 else {"base": False, "rows": rows}
    return base | {"columns": columns}


def whole_numbers(rng, shape, zeros, **units):
    """A layout, a matrix to multiply by, on the GPU, and the product, which is exact."""
    import cupy

    m, k, n = shape
    w = rng.integers(-3, 4, (m, k)) * (rng.random((m, k)) >= zeros)
    b = rng.integers(-1, 2, (k, n)) * (rng.random((k, 1)) < 0.05)
    bits = cupy.asarray(w.astype(np.float16)).view(np.uint16)
    layout = hybrid_scatter.prepare(bits, lookup("float16"), **units)
    return layout, cupy.asarray(b.astype(np.float16)), (w @ b).astype(np.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.85, 0.95, 0.998])
@pytest.mark.parametrize("n", [1, 3, 8, 16, 24, 32, 50, 64, 65, 96, 104, 128])
def test_exact_on_whole_numbers(rng, dtype, zeros, n):
    assert_exact_on_whole_numbers(product, rng, 3112, dtype, zeros, n)


@pytest.mark.gpu
@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("n", [1, 3, 8, 16, 24, 32, 50, 64, 65, 96, 104, 128])
def test_a_matrix_without_elements(rng, n, base):
    """Which is offered other paths alone."""
    layout, right, want = whole_numbers(rng, (333, 3112, n), 1.0, base=base)
    out = _arrays.cupy_module().full(want.shape, np.nan, np.float16)
    hybrid_scatter.product(layout, right, out)
    np.testing.assert_array_equal(out.get(), want)


@pytest.mark.gpu
@pytest.mark.parametrize("zeros", [0.6, 0.7, 0.95])
@pytest.mark.parametrize("n", [8, 16, 32, 64, 96, 128])
@pytest.mark.parametrize(
    ("blocks", "rows", "columns"),
    [
        (1, 128, 64), (5, 96, 64), (16, 128, 64), (33, 120, 64), (None, 128, 64),
        (7, 64, 128), (26, 56, 128), (None, 64, 128),
    ],
)  # fmt: skip
def test_every_way_again_and_again(rng, blocks, rows, columns, n, zeros):
    cupy = pytest.importorskip("cupy")
    layout, right, want = whole_numbers(rng, (700, 5000, n), zeros, **form(zeros, rows, columns))
    for _ in range(20):
        out = cupy.full(want.shape, cupy.nan, np.float16)
        hybrid_scatter.product(layout, right, out, blocks=blocks)
        np.testing.assert_array_equal(out.get(), want)


@pytest.mark.gpu
@pytest.mark.parametrize(("zeros", "rows"), [(0.6, 128), (0.7, 104), (0.95, 104)])
@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize(
    ("n", "cluster"),
    [
        *itertools.product([1, 3, 8], [1, 2]),
        *itertools.product([9, 16, 27, 32, 57, 64, 77, 128], [1, 2, 4]),
    ],
)
def test_blocks_that_have_a_band_together(rng, n, cluster, zeros, rows, columns):
    cupy = pytest.importorskip("cupy")
    how = form(zeros, min(rows, 8192 // columns), columns)
    layout, right, want = whole_numbers(rng, (300, 4096, n), zeros, **how)
    blocks = len(layout.units.sizes) * cluster + cluster // 4
    pieces = Config(tiles_of(n), layout.units.base, columns=columns).pieces
    if pieces % cluster == 0:
        assert deal(layout.units, blocks, tiles_of(n)).cluster == cluster
    wide = cupy.empty((300, n + 3), np.float16)
    whole, columns = cupy.empty((300, n), np.float16), cupy.empty((n, 300), np.float16).T
    for out in (whole, columns, wide[:, 2:-1]):
        for _ in range(5):
            out[:] = cupy.nan
            hybrid_scatter.product(layout, right, out, blocks=blocks)
            np.testing.assert_array_equal(out.get(), want)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 8, 64, 96, 128])
@pytest.mark.parametrize("k", [64, 128])
def test_fewer_steps_than_stages(rng, n, k):
    cupy = pytest.importorskip("cupy")
    layout, right, want = whole_numbers(rng, (3000, k, n), 0.8, base=False, columns=64)
    for _ in range(50):
        out = cupy.full(want.shape, cupy.nan, np.float16)
        hybrid_scatter.product(layout, right, out)
        np.testing.assert_array_equal(out.get(), want)


@pytest.mark.gpu
def test_more_bands_than_multiprocessors(rng):
    cupy = pytest.importorskip("cupy")
    m = 128 * 140 + 5
    w = (rng.integers(-3, 4, (m, 300)) * (rng.random((m, 300)) < 0.2)).astype(np.float16)
    b = rng.integers(-1, 2, (300, 16)).astype(np.float16)
    np.testing.assert_array_equal(product(hybrid(cupy.asarray(w)), b), w @ b)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["iid", "beta2", "row_skewed", "dead_columns", "banded", "block"])
@pytest.mark.parametrize("n", [16, 64, 128])
def test_error_is_that_of_a_dense_product(rng, name, n):
    cupy = pytest.importorskip("cupy")
    w = families.make(name, (1024, 2048), zeros=0.7, dtype="float16", rng=rng)
    b = rng.standard_normal((2048, n)).astype(np.float16)
    want = w.astype(np.float64) @ b.astype(np.float64)
    got = product(hybrid(cupy.asarray(w)), b)
    dense = (cupy.asarray(w) @ cupy.asarray(b)).get()

    def error(x):
        return np.linalg.norm(x - want) / np.linalg.norm(want)

    assert error(got) <= 2 * error(dense)


@pytest.mark.gpu
@pytest.mark.parametrize(("k", "density"), [(515, 0.2), (516, 0.5), (512, 0.2), (512, 0.5)])
@pytest.mark.parametrize("n", [1, 3, 8, 40, 100])
def test_operands_of_any_strides(rng, n, k, density):
    cupy = pytest.importorskip("cupy")
    w = rng.integers(-3, 4, (200, k)) * (rng.random((200, k)) < density)
    b = rng.integers(-1, 2, (k, n)) * (rng.random((k, 1)) < 0.1)
    h = hybrid(cupy.asarray(w.astype(np.float16)))
    want = (w @ b).astype(np.float16)
    right = cupy.asarray(b.astype(np.float16))
    spread = cupy.full((k, 2 * n + 3), cupy.nan, np.float16)[:, 1 : 2 * n + 1 : 2]
    close, wide = (cupy.full((k, to), cupy.nan, np.float16)[:, :n] for to in (-(-n // 8) * 8, 128))
    spread[:], close[:], wide[:] = right, right, right
    for view in (right, cupy.asfortranarray(right), spread, close, wide):
        for order in "CF":
            out = cupy.full(want.shape, cupy.nan, np.float16, order=order)
            h.matmul(view, out=out, algorithm="scatter")
            np.testing.assert_array_equal(out.get(), want)


@pytest.mark.gpu
def test_what_is_not_finite_stays_in_its_row():
    cupy = pytest.importorskip("cupy")
    w = np.zeros((300, 256), np.float16)
    w[5, 7], w[9, 200], w[140, 0], w[11, 3] = np.nan, np.inf, -np.inf, -0.0
    w[:, 100] = 1
    b = np.ones((256, 16), np.float16)
    with np.errstate(invalid="ignore"):
        want = w @ b
    np.testing.assert_array_equal(product(hybrid(cupy.asarray(w)), b), want)


@pytest.mark.gpu
@pytest.mark.parametrize("zeros", [0.6, 0.8])
@pytest.mark.parametrize("n", [3, 8, 32, 120])
@pytest.mark.parametrize("m", [1000, 200])  # of 200 rows, another launch adds up the sums
def test_the_same_bits_in_a_graph_and_on_two_streams(rng, m, n, zeros):
    cupy = pytest.importorskip("cupy")
    w = families.make("beta2", (m, 4096), zeros=zeros, dtype="float16", rng=rng)
    h = hybrid(cupy.asarray(w))
    b = cupy.asarray(rng.standard_normal((4096, n)).astype(np.float16))
    want = h.matmul(b, algorithm="scatter").get()
    for _ in range(2):
        stream = cupy.cuda.Stream(non_blocking=True)
        out = cupy.full(want.shape, cupy.nan, np.float16)
        cupy.cuda.Device().synchronize()
        with stream:
            h.matmul(b, out=out, algorithm="scatter")  # finds room for partial sums
            out.fill(cupy.nan)
            stream.begin_capture()
            for _ in range(3):
                h.matmul(b, out=out, algorithm="scatter")
            graph = stream.end_capture()
            for _ in range(5):
                graph.launch(stream)
            stream.synchronize()
        np.testing.assert_array_equal(out.get(), want)


@pytest.mark.gpu
@pytest.mark.parametrize("zeros", [0.6, 0.7, 0.95])
@pytest.mark.parametrize("n", [1, 8, 24, 64, 96, 128])
@pytest.mark.parametrize(("blocks", "columns"), [(5, 64), (None, 64), (7, 128)])
@pytest.mark.parametrize("sharing", Sharing)
def test_sums_are_added_in_every_way(rng, monkeypatch, sharing, blocks, columns, n, zeros):
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(block_sums, "sharing", lambda blocks, device: sharing)
    layout, right, want = whole_numbers(
        rng, (300, 5000, n), zeros, **form(zeros, 8192 // columns, columns)
    )
    for order in "CF" * 5:
        out = cupy.full(want.shape, cupy.nan, np.float16, order=order)
        hybrid_scatter.product(layout, right, out, blocks=blocks)
        np.testing.assert_array_equal(out.get(), want)


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n"), [(128, 16), (100, 1), (256, 64), (760, 16), (1000, 3)])
def test_streams_of_all_priorities_multiply_at_the_same_time(rng, m, n):
    """Few rows are shared by many blocks, which must not wait for others that may never start."""
    cupy = pytest.importorskip("cupy")
    w = families.make("iid", (m, 32768), zeros=0.8, dtype="float16", rng=rng)
    b = cupy.asarray(rng.standard_normal((32768, n)).astype(np.float16))
    matrices = [hybrid(cupy.asarray(w)) for _ in range(6)]
    want = [h.matmul(b, algorithm="scatter") for h in matrices]
    outs = [cupy.full_like(x, cupy.nan) for x in want]
    streams = [cupy.cuda.Stream(non_blocking=True, priority=-i) for i in range(6)]
    cupy.cuda.Device().synchronize()

    def multiply(h, out, stream):
        with stream:
            for _ in range(500):
                out.fill(cupy.nan)
                h.matmul(b, out=out, algorithm="scatter")

    with ThreadPoolExecutor(len(streams)) as pool:
        for done in [pool.submit(multiply, *each) for each in zip(matrices, outs, streams)]:
            done.result()
    cupy.cuda.Device().synchronize()
    for got, expected in zip(outs, want):
        np.testing.assert_array_equal(got.get(), expected.get())


def test_needs_a_gpu_in_words(rng):
    h = hybrid(np.eye(8, dtype=np.float16))
    if not _arrays.cuda_available():
        with pytest.raises(ValueError, match="algorithm must be one of 'auto', 'cpu'"):
            h.matmul(np.ones((8, 2), np.float16), algorithm="scatter")
