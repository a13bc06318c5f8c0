"""Rows that do not begin on 16 bytes: what is copied for a product, and what graphs keep."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _memory_order, _planner, _staging
from sparse24._dtypes import TABLE
from sparse24._records import Problem

FACTS = {"sms": 132, "clock_hz": 1.7e9, "bandwidth": 4.2e12}
STEMS = ("sparse_fma", "sparse_mma", "sparse_wgmma", "sparse_skinny")


def problem(m=4096, n=646, k=4096, dtype="float16", capability=90, **more) -> Problem:
    types = (dtype, dtype, TABLE[dtype].result)
    return Problem(m, n, k, 1, *types, compute_capability=capability, **more)


def copies(case: Problem) -> set[tuple[bool, bool, bool]]:
    found = _staging.variants(case)
    return {(v.stage_b, v.stage_out, v.kernels is not None) for v in found}


def best(case: Problem) -> _planner.Candidate:
    return _planner.rank(case, FACTS, dense=False, scale=lambda kernel: 1.0)[0]


def test_what_fits_is_not_copied():
    assert copies(problem()) == {(False, False, False)}
    assert copies(problem(dtype="int8", b_order="column")) == {(False, False, False)}


def test_what_does_not_fit_is_copied_or_left_to_kernels_that_store_any_result():
    as_it_is, only_some, scratch = (False, False, False), (False, False, True), (False, True, False)
    unaligned = {"aligned": False}
    of_out = problem(**unaligned, b_aligned=True)
    assert copies(of_out) == {as_it_is, only_some, scratch}
    of_b = problem(**unaligned, out_aligned=True)
    assert copies(of_b) == {as_it_is, (True, False, False)}
    of_both = problem(**unaligned)
    assert copies(of_both) == {as_it_is, (True, False, True), (True, True, False)}
    assert copies(problem(out_order="strided")) == {as_it_is, scratch}
    assert copies(problem(b_order="strided")) == {as_it_is, (True, False, False)}
    assert copies(problem(dtype="int8")) == {as_it_is, (True, False, False)}


def test_rows_inside_lines_of_memory_may_be_copied_for_the_kernel_that_asks_for_lines():
    off = problem(n=424, b_in_lines=False)
    assert copies(off) == {(False, False, False), (True, False, True)}
    copied = _staging.variants(off)[1]
    assert copied.kernels == ("sparse_wgmma", "sparse_mixed")
    assert copied.problem.b_in_lines
    assert copied.problem.b_order == "column"
    assert best(problem(14336, 1000, 4096, b_in_lines=False)).variant.stage_b
    assert not best(problem(n=64, b_in_lines=False)).variant.stage_b


@pytest.mark.parametrize("dtype", ["float16", "int8", "float32"])
@pytest.mark.parametrize("n", [1, 13, 509])
@pytest.mark.parametrize("known", [{}, {"aligned": False, "out_aligned": True}])
def test_kernels_that_store_by_16_bytes_get_scratch_for_lines_that_end_earlier(dtype, n, known):
    case = problem(n=n, dtype=dtype, b_order="column", out_spills=True, **known)
    found = _planner.rank(case, FACTS, dense=True, scale=lambda kernel: 1.0)
    able = [c for c in found if c.refusal is None]
    on_hopper = "sparse_split" if dtype == "float32" else "sparse_wgmma"
    assert {on_hopper, "sparse_fma", "dense"} <= {c.kernel for c in able}
    for candidate in able:
        assert candidate.variant.stage_out or candidate.kernel in _staging.STORES_NO_MORE
        assert candidate.kernel != on_hopper or not candidate.problem.out_spills


@pytest.mark.parametrize(
    ("out", "spills"),
    [
        (np.zeros((40, 64), np.float32)[:, :61], True),  # the next columns would be written
        (np.zeros((40, 64), np.float32)[:, :60], False),
        (np.zeros((40, 61), np.float32), False),  # rows do not begin on 16 bytes
        (np.zeros((40, 64), np.float32)[:, :61].T, True),
        (np.zeros((61, 1), np.float32), True),
        (np.zeros((60, 1), np.float32), False),
        (np.zeros((40, 64), np.float32)[:, :1], True),  # a column of a matrix
        (np.zeros((40, 64), np.float32)[:, ::2], False),  # stored element by element
    ],
)
def test_which_results_16_byte_stores_pass_the_end_of(out, spills):
    assert _memory_order.spills(at_zero(out)) == spills


def at_zero(x):
    """How a matrix lies, as if its first element lay at address 0."""
    facts = {name: getattr(x, name) for name in ("shape", "strides", "dtype", "ndim")}
    return SimpleNamespace(data=SimpleNamespace(ptr=0), **facts)


@pytest.mark.parametrize(
    ("x", "aligned"),
    [
        (np.zeros((40, 64), np.int8), True),
        (np.zeros((40, 64), np.int8).T, True),
        (np.zeros((40, 64), np.int8)[::2], True),
        (np.zeros((40, 64), np.int8)[:1, :3], True),  # a line advances to no other
        (np.zeros((40, 60), np.int8), False),
        (np.zeros((40, 64), np.int8)[::-1], False),  # the TMA takes no negative strides
        (np.zeros((40, 64), np.int8)[::-2].T, False),
        (np.zeros((3, 40, 64), np.int8)[::-1], False),
        (np.zeros((3, 40, 64), np.int8)[::-1][:1], True),
        (np.broadcast_to(np.zeros((40, 64), np.int8), (3, 40, 64)), True),
    ],
)
def test_which_lines_begin_on_16_bytes(x, aligned):
    assert _memory_order.aligned(at_zero(x)) == aligned


@pytest.mark.parametrize("known", [{}, {"b_aligned": True}, {"out_aligned": True}])
@pytest.mark.parametrize("order", ["row", "column"])
def test_large_products_of_odd_sizes_run_on_warpgroups(known, order):
    case = problem(aligned=False, b_order=order, **known)
    found = best(case)
    assert found.kernel == "sparse_wgmma"
    assert not found.variant.stage_out
    assert found.variant.stage_b == ("b_aligned" not in known)


def test_without_warpgroups_odd_sizes_are_copied():
    case = problem(aligned=False, capability=89)
    found = best(case)
    assert found.kernel == "sparse_mma"
    assert found.variant.stage_b
    assert found.variant.stage_out


# --- on a GPU ---------------------------------------------------------------------------------


def weight(cupy, rng, dtype: str, m: int, k: int):
    w = rng.integers(-3, 4, (m, k)).astype(np.float32)
    return s24.compress(cupy.asarray(w), dtype=dtype, on_excess="prune")


def operands(cupy, rng, dtype: str, m: int, n: int, k: int, order: str):
    b = rng.integers(-2, 3, (k, n)).astype(TABLE[dtype].logical)
    on_device = cupy.asarray(b, order="C" if order == "row" else "F")
    return weight(cupy, rng, dtype, m, k), on_device, b


@pytest.mark.gpu
@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float32"])
@pytest.mark.parametrize("order", ["row", "column"])
@pytest.mark.parametrize(
    "shape", [(256, 77, 512), (640, 301, 1204), (1024, 646, 320), (96, 9, 36), (5376, 424, 1000)]
)
def test_odd_sizes_are_exact(rng, dtype, order, shape):
    cupy = pytest.importorskip("cupy")
    m, n, k = shape
    a, b, host = operands(cupy, rng, dtype, m, n, k, order)
    want = a.toarray().get().astype(np.float64) @ host.astype(np.float64)
    outs = [None]
    if dtype != "int8":
        wide = cupy.full((m + 1, n + 3), np.nan, b.dtype)
        outs += [wide[1:, 3:], cupy.full((n, m + 1), np.nan, b.dtype).T[1:]]
    for out in outs:
        got = s24.matmul(a, b, out=out).get()
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(got.dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "int8", "float32"])
@pytest.mark.parametrize("order", ["row", "column"])
def test_operands_and_results_that_run_backwards(rng, dtype, order):
    cupy = pytest.importorskip("cupy")
    a, b, host = operands(cupy, rng, dtype, 256, 64, 512, order)
    want = a.toarray().get().astype(np.float64) @ host.astype(np.float64)
    lines = b if order == "row" else b.T
    backwards = lines[::-1].copy()[::-1]
    assert backwards.strides[0] < 0
    turned = backwards if order == "row" else backwards.T
    got = s24.matmul(a, turned)
    np.testing.assert_array_equal(got.get().astype(np.float64), want.astype(got.dtype))
    whole = cupy.empty(got.shape, got.dtype)
    s24.matmul(a, turned, out=whole[::-1])
    np.testing.assert_array_equal(whole.get(), got.get()[::-1])


@pytest.mark.gpu
@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("algorithm", ["auto", "sparse_mma", "sparse_fma"])
@pytest.mark.parametrize(
    ("shape", "order"), [((448, 872, 4408), "row"), ((640, 301, 1204), "column")]
)
def test_a_graph_keeps_the_memory_that_its_products_need(rng, algorithm, shape, order):
    cupy = pytest.importorskip("cupy")
    m, n, k = shape
    a, b, host = operands(cupy, rng, "float16", m, n, k, order)
    want = a.toarray().get().astype(np.float64) @ host.astype(np.float64)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        out = cupy.empty((m, n), np.float16)
        for _ in range(2):  # the second call is remembered
            s24.matmul(a, b, out=out, algorithm=algorithm)
        stream.begin_capture()
        s24.matmul(a, b, out=out, algorithm=algorithm)
        graph = stream.end_capture()
        others = [cupy.full(1 << size, 7, np.uint8) for size in range(9, 26) for _ in range(3)]
        for _ in range(2):
            out.fill(cupy.nan)
            graph.launch(stream)
            np.testing.assert_array_equal(out.get(), want.astype(np.float16))
        assert all(bool((x == 7).all()) for x in others)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 13, 509])
@pytest.mark.parametrize("order", ["row", "column"])
@pytest.mark.parametrize(
    ("algorithm", "dtype"),
    [
        *itertools.product(
            ["auto", "sparse_fma"], ["float16", "int8", "float32", "float8_e4m3fn"]
        ),
        ("sparse_wgmma", "float16"), ("sparse_wgmma", "int8"), ("sparse_split", "float32"),
    ],
)  # fmt: skip
def test_nothing_is_written_behind_the_lines_of_a_result(rng, dtype, n, order, algorithm):
    cupy = pytest.importorskip("cupy")
    m, k = 301, 256
    a = weight(cupy, rng, dtype, m, k)
    wanted = "bfloat16" if dtype.startswith("float8") else TABLE[dtype].result
    b = cupy.ones((k, n), np.float32).astype(np.float16 if dtype != "float32" else np.float32)
    b = cupy.ones((n, k), np.int8).T if dtype == "int8" else b
    options = {"dtype": wanted}
    lines, extent = (m, n) if order == "row" else (n, m)
    whole = cupy.empty((lines, -(-extent // 16) * 16), s24._dtypes.numpy_dtype(wanted))
    whole.view(np.uint8).fill(0x55)
    before = whole.view(np.uint8).get()
    out = whole[:, :extent] if order == "row" else whole[:, :extent].T
    for _ in range(2):  # the second call is remembered
        s24.matmul(a, b, out=out, algorithm=algorithm, **options)
    after, size = whole.view(np.uint8).get(), extent * whole.itemsize
    np.testing.assert_array_equal(after[:, size:], before[:, size:])
    assert (after[:, :size] != before[:, :size]).any()


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["slots", "regrouped"])
@pytest.mark.parametrize("columns", [500, 509])
@pytest.mark.parametrize("order", ["row", "column"])
def test_nothing_is_written_behind_the_lines_of_an_unstructured_result(rng, path, columns, order):
    cupy = pytest.importorskip("cupy")
    m, k = 301, 512
    w = rng.integers(-3, 4, (m, k)) * (rng.random((m, k)) < 0.2)
    h = s24.hybrid(cupy.asarray(w.astype(np.float16)))
    b = cupy.asarray(rng.integers(-2, 3, (k, columns)).astype(np.float16))
    lines, extent = (m, columns) if order == "row" else (columns, m)
    whole = cupy.full((lines, -(-extent // 16) * 16), 77, np.float16)
    out = whole[:, :extent] if order == "row" else whole[:, :extent].T
    for _ in range(2):
        out.fill(np.nan)
        h.matmul(b, out=out, algorithm=path)
        np.testing.assert_array_equal(out.get(), (w @ b.get().astype(int)).astype(np.float16))
    assert (whole[:, extent:] == 77).all()
