"""Products of n:m matrices with few columns on the CPU: exact, careful, and remembered."""

from __future__ import annotations

import functools
import timeit

import numpy as np
import pytest
from ready_cases import misaligned

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._records import PLAIN, Fused
from sparse24.kernels import _numba, _simd_expand, cpu, cpu_n_m_few, cpu_n_m_rows, reference

PATTERNS = [(3, 4), (7, 8), (4, 8), (3, 5), (31, 32), (29, 31), (3, 32)]
SHAPES = [(1, 1), (5, 33), (90, 64), (19, 50), (3, 130), (130, 1111)]
COLUMNS = [1, 2, 3, 4, 7, 16]
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "int8": 0, "float16": 2e-3}

spreads = pytest.mark.skipif(
    not _simd_expand.AVAILABLE, reason="this machine spreads no vectors: other kernels multiply"
)


def numbers(rng, shape, name):
    return (4 * rng.standard_normal(shape)).astype(_dtypes.TABLE[name].logical)


def compressed(rng, shape, name, pattern):
    return s24.compress(numbers(rng, shape, name), pattern=pattern, on_excess="prune")


def assert_near(got, want, name):
    tolerance = TOLERANCE.get(name, 1e-2)
    atol = tolerance * max(1, np.abs(want).max(initial=0))
    np.testing.assert_allclose(got.astype(float), want, rtol=tolerance, atol=atol)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_matches_the_reference_along_and_across_the_groups(rng, name, pattern):
    for m, k in SHAPES:
        a = compressed(rng, (m, k), name, pattern)
        dense = a.toarray()
        for n in COLUMNS:
            b, x = numbers(rng, (k, n), name), numbers(rng, (n, m), name)
            along, across = reference.matmul(dense, b), reference.matmul(x, dense)
            for _ in range(2):
                assert_near(a @ b, along, name)
                assert_near(np.ascontiguousarray(b.T) @ a.T, along.T, name)
                assert_near(x @ a, across, name)
                assert_near(a.T @ x.T, across.T, name)
            np.testing.assert_array_equal(a @ b[:, 0], (a @ b[:, :1])[:, 0])
            np.testing.assert_array_equal(x[0] @ a, (x[:1] @ a)[0])


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("n", [1, 5, 40, 300])
def test_any_layout_and_a_stack_of_tokens(rng, name, n):
    a, b, x = compressed(rng, (70, 90), name, (7, 8)), *(
        numbers(rng, shape, name) for shape in ((90, n), (n, 70))
    )  # fmt: skip
    along, across = a @ b, x @ a
    double = np.zeros((180, 2 * n), b.dtype)
    double[::2, ::2] = b
    for same in (b.copy("F"), double[::2, ::2], misaligned(b), b[::-1, ::-1].copy()[::-1, ::-1]):
        for _ in range(2):
            if n == 300 and name in ("float32", "float64"):  # by BLAS, as layout has it
                assert_near(a @ same, along.astype(float), name)
            else:
                np.testing.assert_array_equal(a @ same, along)
    for _ in range(2):
        assert_near(x.copy("F") @ a, across.astype(float), name)
        assert_near((b.T[None] @ a.T)[0].T, along.astype(float), name)
        assert_near((x[None] @ a)[0], across.astype(float), name)
    assert (b.T[:0] @ a.T).shape == (0, 70)
    assert (x[:0] @ a).shape == (0, 90)


@pytest.mark.parametrize("shape", [(0, 16), (3, 0), (0, 0)], ids=str)
def test_nothing_to_add_up(shape):
    m, k = shape
    a = s24.compress(np.zeros(shape, np.float32), pattern=(7, 8))
    for n in (0, 1, 5):
        for _ in range(2):
            np.testing.assert_array_equal(a @ np.ones((k, n), np.float32), np.zeros((m, n)))
            np.testing.assert_array_equal(np.ones((n, m), np.float32) @ a, np.zeros((n, k)))


@spreads
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_no_number_counts_where_nothing_is_stored(rng, name):
    if cpu_n_m_few.work_type(_dtypes.TABLE[name]).name not in _simd_expand.AVAILABLE:
        return
    dense = numbers(rng, (9, 64), name)
    dense[:, 3::8] = 0
    a = s24.compress(dense, pattern=(7, 8))
    x, y = (numbers(rng, (count,), name) for count in (64, 9))
    want, across = a @ x, y @ a
    x[3::8] = [np.nan, np.inf, -np.inf, np.nan, -0.0, np.inf, 1, np.nan]
    np.testing.assert_array_equal(a @ x, want)
    x[5] = np.inf
    assert not np.isfinite((a @ x).astype(float)).any()
    y[4] = np.nan
    np.testing.assert_array_equal(np.isnan((y @ a).astype(float)), across.astype(float) != 0)


@spreads
def test_special_numbers_as_the_reference(rng):
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0], np.float32)
    dense = rng.choice(special, (40, 48), p=[0.4, 0.1, 0.01, 0.02, 0.02, 0.45])
    dense[:, ::8] = 0
    a = s24.compress(dense, pattern=(7, 8))
    for b in (np.ones((48, 3), np.float32), np.full((48, 3), -1, np.float32)):
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(a @ b, dense @ b)
            np.testing.assert_array_equal(b[:40].T @ a, b[:40].T @ dense)


@pytest.mark.parametrize("name", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("n", [1, 6, 16])
def test_any_number_of_threads_gives_the_same_bits(monkeypatch, rng, name, n):
    a, results = compressed(rng, (300, 1100), name, (7, 8)), []
    b, x = numbers(rng, (1100, n), name), numbers(rng, (n, 300), name)
    for count in (1, 2, 5):
        monkeypatch.setattr(_numba, "threads", lambda count=count: count)
        monkeypatch.setattr(_numba, "WAKING", 1)
        again = a.copy()
        results.append((again @ b, x @ again))
    for along, across in results[1:]:
        np.testing.assert_array_equal(along, results[0][0])
        np.testing.assert_array_equal(across, results[0][1])


@spreads
def test_explain_names_the_kernel_from_either_side(rng):
    a = compressed(rng, (64, 128), "float32", (7, 8))
    dtype = _dtypes.TABLE["float32"]
    few = max(n for n in range(20) if cpu_n_m_rows.pays(n, dtype))
    for n, chosen in ((few, "cpu_n_m"), (few + 1, "dense")):
        assert s24.explain(np.ones((n, 64), np.float32), a).chosen == chosen
        assert s24.explain(a.T, np.ones((64, n), np.float32)).chosen == chosen


@pytest.mark.parametrize("n", [1, 8, 64, 300])
def test_a_call_is_remembered_by_its_layout(rng, n):
    a = compressed(rng, (64, 128), "float32", (7, 8))
    b, x = numbers(rng, (128, n), "float32"), numbers(rng, (n, 64), "float32")
    for call in (lambda: a @ b, lambda: x @ a, lambda: a.T @ x.T, lambda: b.T @ a.T):
        first = call()
        again = call()
        assert again is not first
        np.testing.assert_array_equal(again, first)
    kept = 1 if n < 300 else 0  # more columns are multiplied by BLAS, along the groups
    assert len(a._plans) == len(a.T._plans) == 1 + kept
    b[...] = x[...] = 0
    assert not (a @ b).any()
    assert not (x @ a).any()
    a @ b.astype(np.float64)  # a type that is converted at each call
    assert len(a._plans) == 1 + kept


def test_masks_are_made_once_for_both_sides_and_counted(rng):
    a = compressed(rng, (64, 128), "float32", (7, 8))
    before = a.nbytes
    _ = a @ np.ones(128, np.float32)
    held = a.nbytes - before
    _ = np.ones(64, np.float32) @ a, np.ones((2, 128), np.float32) @ a.T
    assert a.nbytes == a.T.nbytes == before + held
    assert held == (64 * 128 // 8 if _simd_expand.AVAILABLE else 0)


def test_torch_tensors_are_remembered_as_arrays(rng):
    torch = pytest.importorskip("torch")
    a = compressed(rng, (64, 128), "float32", (7, 8))
    b = numbers(rng, (128,), "float32")
    want, known = a @ b, len(a._plans)
    for _ in range(2):
        got = a @ torch.from_numpy(b)
        assert torch.is_tensor(got)
        np.testing.assert_array_equal(got.numpy(), want)
    assert len(a._plans) == known


@spreads
def test_an_epilogue_passes_over_the_sums(rng):
    dense = reference.prune_n_m(numbers(rng, (21, 40), "bfloat16"), 7, 8)
    values, places, _ = cpu.compress_n_m(dense, 7, 8)
    masks, bias = cpu.masks_of(places, 7, 8, 40), np.arange(21, dtype=np.float32)
    b, out = numbers(rng, (40, 3), "bfloat16"), np.empty((21, 3), np.float32)
    epilogue = Fused(row_bias=bias, activation="relu")
    cpu.FewColumns(values, masks, 40, b)(b, out, epilogue)
    want = reference.matmul(dense, b) + bias[:, None]
    np.testing.assert_allclose(out, np.maximum(want, 0), rtol=1e-4, atol=1e-4)
    across, x = np.empty((40, 2), np.float32), numbers(rng, (21, 2), "bfloat16")
    cpu.FewRows(values, masks, (7, 8), 40, x)(x, across, Fused(activation="relu"))
    want = np.maximum(reference.matmul(dense.T, x), 0)
    np.testing.assert_allclose(across, want, rtol=1e-4, atol=1e-4)


@spreads
def test_sums_err_at_most_twice_as_much_as_numpy(rng):
    a = compressed(rng, (64, 4096), "float32", (7, 8))
    across = compressed(rng, (4096, 64), "float32", (7, 8))
    for sparse, x in ((a, numbers(rng, (4096, 4), "float32")),
                      (across.T, numbers(rng, (4096, 4), "float32"))):  # fmt: skip
        exact = sparse.toarray().astype(float) @ x
        ours, numpys = (np.abs(y - exact).max() for y in (sparse @ x, sparse.toarray() @ x))
        assert ours <= 2 * numpys


@spreads
def test_few_columns_take_a_fraction_of_the_time_of_many(rng):
    a = compressed(rng, (512, 512), "int8", (7, 8))
    b, out = numbers(rng, (512, 1), "int8"), np.empty((512, 1), np.int32)
    masks = cpu.masks_of(a._indices, 7, 8, 512)
    few = cpu.FewColumns(a._values, masks, 512, b)
    many = cpu.many_columns(a._values, a._indices, (7, 8), 512, b)
    times = []
    for product in (few, many):
        call = functools.partial(product, b, out, PLAIN)
        call()
        times.append(min(timeit.repeat(call, number=1, repeat=20)))
    assert times[0] < times[1] / 3  # measured: a twentieth


def test_strips_begin_with_groups_and_vectors(monkeypatch, rng):
    monkeypatch.setattr(cpu_n_m_rows, "_STRIP", 1)
    for pattern in PATTERNS:
        a = compressed(rng, (23, 1111), "float32", pattern)
        x = numbers(rng, (2, 23), "float32")
        assert_near(x @ a, reference.matmul(x, a.toarray()), "float32")


@pytest.mark.parametrize(
    ("vector_bytes", "threads", "dtype", "most"),
    [
        (64, 1, "float32", 16), (32, 2, "float32", 16), (32, 1, "float32", 7),
        (32, 1, "bfloat16", 7), (32, 1, "int8", 12),
    ],
)  # fmt: skip
def test_one_thread_with_short_vectors_leaves_more_columns_to_blas(
    monkeypatch, vector_bytes, threads, dtype, most
):
    monkeypatch.setattr(_simd_expand, "VECTOR_BYTES", vector_bytes)
    monkeypatch.setattr(_simd_expand, "SPREAD", ("float32", "int32", "float64"))
    monkeypatch.setattr(cpu_n_m_rows, "threads", lambda: threads)
    assert cpu_n_m_rows.pays(most, _dtypes.TABLE[dtype])
    assert not cpu_n_m_rows.pays(most + 1, _dtypes.TABLE[dtype])


@pytest.mark.parametrize(
    ("vector_bytes", "threads", "pattern", "most"),
    [(64, 2, (3, 5), 16), (32, 2, (3, 5), 8), (32, 1, (3, 5), 7), (32, 2, (2, 4), 16)],
)
def test_float64_in_fours_leaves_more_columns_to_blas(
    monkeypatch, vector_bytes, threads, pattern, most
):
    monkeypatch.setattr(_simd_expand, "VECTOR_BYTES", vector_bytes)
    monkeypatch.setattr(_simd_expand, "SPREAD", ("float32", "int32", "float64"))
    monkeypatch.setattr(cpu_n_m_rows, "threads", lambda: threads)
    assert cpu_n_m_rows.pays(most, _dtypes.TABLE["float64"], pattern)
    assert not cpu_n_m_rows.pays(most + 1, _dtypes.TABLE["float64"], pattern)
