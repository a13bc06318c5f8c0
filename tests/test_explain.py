"""`explain`: the table, the reasons, and what it refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest
from planner_cases import problem

import sparse24 as s24
from sparse24 import _explanation, _planner, _tuning_cache
from sparse24.formats import n_m_products


def printed(case, *, dense, measured=()):
    """What is told of a problem, and the cells of its table."""
    ranked = tuple(_planner.candidates(case, 0, dense=True))
    chosen = _planner.choose(case, 0, dense=dense)
    told = _explanation.Explanation(chosen.name, ranked, dict(measured), "why", dense)
    lines = str(told).splitlines()
    assert lines[0] == f"{chosen.name}: why"
    return ranked, [re.split(r"\s{2,}", line) for line in lines[4:]]


def test_an_explanation_has_a_line_for_each_kernel(h200):
    ranked, rows = printed(problem(n=16), dense=False)
    able = {c.kernel for c in ranked if c.refusal is None}
    assert [row[0].split("/")[0] for row in rows[: len(able)]] == list(
        dict.fromkeys(c.kernel for c in ranked if c.refusal is None)
    )
    assert rows[0][-1] == "runs"
    assert [row[-1] for row in rows if row[0] == "dense/cublas"] == ["not kept"]
    other = len({c.name for c in ranked if c.refusal is None}) - len(able)
    assert rows[len(able)] == [f"and {other} other configurations: see .candidates"]
    assert any(row[0].startswith("sparse_matvec cannot: ") for row in rows)


def test_an_explanation_shows_what_was_measured(h200):
    case = problem(n=16)
    skinny = [c.name for c in _planner.candidates(case, 0, dense=False)
              if c.kernel == "sparse_skinny"]  # fmt: skip
    times = {skinny[0]: 3e-5, skinny[-1]: 2e-5, "dense/cublas": 4e-5}
    _tuning_cache.record_winner(0, case, dense=True, seconds=times)
    _, rows = printed(case, dense=True, measured=times)
    told = {row[0]: row[1:] for row in rows}
    assert told[skinny[-1]][1:] == ["20.0 µs", "runs"]
    assert skinny[0] not in told
    assert told["dense/cublas"][1:] == ["40.0 µs"]


def test_explain_on_the_cpu_gives_a_reason():
    a = s24.random((64, 64), rng=0)
    told = s24.explain(a, np.ones((64, 8), np.float32))
    assert told.chosen in ("cpu_sparse", "cpu_dense")
    assert "keep_dense=True would let it run" in str(told)
    turned = s24.explain(a.T, np.ones((64, 64), np.float32))
    assert turned.chosen == "dense"
    assert "transposable=True" in turned.reason
    assert s24.explain(a, np.ones((64, 8), np.float32), algorithm="dense").chosen == "cpu_dense"


@pytest.mark.parametrize(
    ("pattern", "n", "chosen", "words"),
    [
        ((1, 4), 8, "cpu_sparse", "skips the zeros"),  # as the 2:4 matrix that it is
        ((6, 8), 8, "cpu_n_m", "6:8 skips the zeros"),
        ((14, 16), 1024, "dense", "dense matrix by BLAS wins at this size of 14:16$"),
        ((7, 8), 1024, "dense", "dense matrix by BLAS wins at this size of 7:8$"),
        ((7, 8), 64, "cpu_n_m", "7:8 skips the zeros"),
        ((4, 8), 1024, "cpu_n_m", "4:8 skips the zeros"),
    ],
)
def test_explain_of_other_patterns(rng, pattern, n, chosen, words):
    dense = rng.standard_normal((64, 64)).astype(np.float32)
    a = s24.compress(dense, pattern=pattern, on_excess="prune")
    b = np.ones((64, n), np.float32)
    tokens = b.T.reshape(2, n // 2, 64)
    for told in (s24.explain(a, b), s24.explain(b.T, a.T), s24.explain(tokens, a.T)):
        assert told.chosen == chosen
        assert re.search(words, told.reason)
    assert s24.explain(a, b.astype(np.float64)).chosen in ("cpu_sparse", "dense")  # promoted
    with pytest.raises(s24.ShapeError, match="inner dimensions 64 and 3 differ"):
        s24.explain(a, b[:3])


def test_explain_of_matrices_without_elements():
    a = s24.compress(np.zeros((0, 8), np.float32))
    assert s24.explain(np.ones((3, 0), np.float32), a).chosen == "dense"  # zeros
    for b in (np.ones((2, 0, 0), np.float32), np.ones((0, 0), np.float32)):
        told = s24.explain(b, a)
        assert told.chosen == "none"
        assert told.reason == "the result has no elements, so nothing runs"
    assert s24.plan(a, ((8, 3), np.float32)).chosen == "none"


def test_explain_names_a_way_to_the_dense_product_that_works():
    dense = np.eye(64, dtype=np.float32)
    a, kept = s24.compress(dense), s24.compress(dense, keep_dense=True)
    x = np.ones((64, 64))  # of float64, in which nothing dense is kept
    assert s24.explain(a, x.astype(np.float32)).reason.count("and keep_dense=True would let it run")
    for array in (a, kept):
        told = s24.explain(array, x)
        assert told.chosen == "cpu_sparse"
        assert "a matrix compressed in float64 with keep_dense=True would let it run" in told.reason
    wide = s24.compress(dense, keep_dense=True, dtype="float64")
    assert s24.explain(wide, x).chosen == "cpu_dense"
    assert "the array is decompressed" in s24.explain(a.T, x).reason
    assert "the kept dense matrix is multiplied" in s24.explain(kept.T, dense).reason


def test_explain_names_a_way_to_the_stored_elements_that_works():
    rows = np.eye(64, dtype=np.float32)
    a = s24.compress(rows, pattern=(4, 8))
    told = s24.explain(a.T, rows)
    assert told.reason.startswith("the groups do not run along the contracted axis")
    assert "windows" not in told.reason
    told = s24.explain(a, rows, dtype="float64")
    assert told.chosen == "cpu_n_m"
    told = s24.explain(a, rows.astype(np.float64))
    assert "convert both to float64 first" in told.reason
    assert s24.explain(a.astype("float64"), rows.astype(np.float64)).chosen == "cpu_n_m"
    half = s24.explain(a.astype("float16"), rows.astype(np.float16), dtype="float32")
    assert half.chosen == "cpu_n_m"
    assert s24.explain(a.astype("float16"), rows).chosen == "cpu_n_m"
    half = s24.explain(a.astype("float16"), rows.astype(np.float64))
    assert "operands of float16 and float64 meet in the dense matrix" in half.reason


def test_stacks_of_other_patterns_are_not_said_to_lack_a_kernel(rng):
    dense = rng.standard_normal((2, 64, 64)).astype(np.float32)
    a = s24.compress(dense, pattern=(5, 8), on_excess="prune")
    for operands in ((a, dense[0]), (dense[0], a.mT), (a[0], dense)):
        told = s24.explain(*operands)
        assert told.chosen == "dense"
        assert told.reason.endswith("densely; the Numba kernel for 5:8 takes one matrix at a time")
    assert s24.explain(a[0], dense[0]).chosen == "cpu_n_m"


def test_on_a_gpu_other_patterns_are_dense_unless_windows_are_made(rng, monkeypatch):
    dense = rng.standard_normal((64, 64)).astype(np.float32)
    made = [s24.compress(dense, pattern=p, on_excess="prune") for p in ((14, 16), (7, 8))]
    monkeypatch.setattr(type(made[0]), "device", "cuda:0")
    with_windows, without = (n_m_products.why_dense(a, dense, left=True) for a in made)
    assert re.search(r"^14:16 does not embed into 2:4.*\.windows\(\)", with_windows)
    assert without == "7:8 does not embed into 2:4, so the product is dense"


@pytest.mark.parametrize("make", [s24.compress, s24.hybrid])
def test_explain_takes_no_number_of_columns(make):
    a = make(np.eye(8, dtype=np.float32))
    with pytest.raises(s24.ShapeError, match=r"b must have at least one axis, .*, 16; pass an"):
        s24.explain(a, 16)
    with pytest.raises(s24.ShapeError, match=r"a must have at least one axis, got a scalar, np"):
        s24.explain(np.float32(16), a)


@pytest.mark.parametrize("dtype", [np.float32, "float32", np.dtype("float64")])
@pytest.mark.parametrize("make", [
    s24.compress, s24.hybrid, lambda w: s24.compress(w, pattern=(5, 8), on_excess="prune"),
])  # fmt: skip
def test_explain_takes_the_shape_and_dtype_of_an_operand(make, dtype):
    a = make(np.eye(48, 64, dtype=np.float32))
    b = np.ones((64, 40), dtype)
    assert s24.explain(a, ((64, 40), dtype)) == s24.explain(a, b)
    assert s24.explain(((2, 5, 64), dtype), a.T) == s24.explain(np.ones((2, 5, 64), dtype), a.T)
    assert s24.explain(a, (64, dtype)) == s24.explain(a, b[:, 0])


def test_explain_takes_the_shape_and_dtype_of_fp8_and_of_the_tokens_of_experts():
    a = s24.random((8, 16), dtype="float8_e4m3fn", rng=0)
    assert s24.explain(a, ((16, 4), "float8_e4m3fn")).chosen == "cpu_sparse"
    experts = s24.random((3, 8, 16), rng=0)
    told = s24.explain(experts, ((16, 4), "float32"), offsets=[0, 1, 1, 4])
    assert told == s24.explain(experts, np.ones((16, 4), np.float32), offsets=[0, 1, 1, 4])


@pytest.mark.parametrize("make", [s24.compress, s24.hybrid])
def test_explain_says_what_a_shape_or_a_number_lacks(make):
    a, pair = make(np.eye(8, 16, dtype=np.float32)), r"its shape and dtype such as "
    with pytest.raises(s24.ArgumentError, match=pair + r"\(\(16, 3\), 'float32'\), got \(16, 3\)"):
        s24.explain(a, (16, 3))
    with pytest.raises(s24.ArgumentError, match=pair + r"\(\(16, 3\), 'float32'\), got"):
        s24.explain(a, tuple(np.array([16, 3])))
    with pytest.raises(s24.ArgumentError, match=r"^a must .*\(\(3, 8\), 'float32'\), got \(3, 8\)"):
        s24.explain((3, 8), a)
    with pytest.raises(s24.ShapeError, match=pair + r"\(\(16, 3\), 'float32'\)$"):
        s24.explain(a, 3)
    with pytest.raises(s24.ShapeError, match=pair + r"\(\(1, 8\), 'float32'\)$"):
        s24.explain(2.5, a)
    with pytest.raises(s24.ArgumentError, match="a size in b must be a whole number from 0 on"):
        s24.explain(a, ((16, -3), "float32"))
    with pytest.raises(s24.DTypeError, match=r"the dtype in b must be one of .*, got 'complex64'"):
        s24.explain(a, ((16, 3), "complex64"))
    assert s24.explain(a, (1.0,) * 16) == s24.explain(a, np.ones(16))  # a vector, as for matmul


def test_explain_of_other_patterns_refuses_what_matmul_refuses():
    a, b = s24.compress(np.eye(64), pattern=(4, 8)), np.ones((64, 4))
    stack = s24.compress(np.zeros((3, 8, 64)), pattern=(4, 8))
    for more, error, words in (
        ({"algorithm": "dense"}, s24.ArgumentError, "algorithm=, operand types"),
        ({"b_dtype": "float64"}, s24.ArgumentError, "are for Sparse24Array operands"),
        ({"epilogue": "relu"}, s24.ArgumentError, "must be a sparse24.Epilogue"),
        ({"beta": 1.0}, s24.ArgumentError, "beta=1 needs c"),
    ):
        for call in (s24.explain, s24.matmul):
            with pytest.raises(error, match=words):
                call(a, b, **more)
    for call in (s24.explain, s24.matmul):
        with pytest.raises(s24.ShapeError, match=r"batch axes \(2,\) and \(3,\) do not broadcast"):
            call(np.ones((2, 4, 64)), stack.mT)
        two_four = s24.random((3, 8, 64), rng=0)
        with pytest.raises(s24.ShapeError, match=r"batch axes \(2,\) and \(3,\) do not broadcast"):
            call(np.ones((2, 4, 64)), two_four.mT)


def test_explain_tells_of_calls_that_take_longer_than_their_product():
    words = "the overhead of the call dominates; a plain NumPy array is quicker"
    for keep_dense in (False, True):
        a = s24.compress(np.eye(64, dtype=np.float32), keep_dense=keep_dense)
        assert words in s24.explain(a, np.ones((64, 8), np.float32)).reason
        assert words not in s24.explain(a, np.ones((64, 512), np.float32)).reason
    stack = s24.random((9, 64, 64), rng=0)
    assert words not in s24.explain(stack, np.ones((64, 8), np.float32)).reason


@pytest.mark.parametrize(
    ("side", "n", "dtype", "wins"),
    [
        (512, 256, "float32", False), (512, 256, "float64", False), (513, 256, "float32", True),
        (512, 16, "float32", True), (256, 256, "int8", True),
    ],
)  # fmt: skip
def test_explain_promises_no_gain_for_small_matrices_that_blas_multiplies(side, n, dtype, wins):
    a = s24.random((side, side), dtype=dtype, rng=0)
    reason = s24.explain(a, np.ones((side, n), dtype)).reason
    assert ("wins at this size" in reason) is wins
    assert ("a plain NumPy array may be quicker" in reason) is not wins


@pytest.mark.parametrize(
    ("b", "more", "error", "words"),
    [
        (np.ones((3, 3), np.float32), {}, s24.ShapeError, "inner dimensions 64 and 3 differ"),
        (3.0, {}, s24.ShapeError, "at least one axis"),
        (np.ones(64), {"algorithm": "fast"}, s24.ArgumentError, "algorithm must be one of"),
        (np.ones(64, complex), {}, s24.DTypeError, "b.dtype must be one of"),
        (np.ones(64, np.uint8), {}, s24.DTypeError, "b.dtype must be one of"),
        (np.ones(64), {"dtype": "double precision"}, s24.DTypeError, "dtype must be one of"),
        (np.ones(64), {"epilogue": "relu"}, s24.ArgumentError, "must be a sparse24.Epilogue"),
    ],
)
def test_explain_refuses_what_matmul_refuses(b, more, error, words):
    a = s24.random((64, 64), rng=0)
    with pytest.raises(error, match=words):
        s24.explain(a, b, **more)
    with pytest.raises(s24.UnsupportedError, match="stored 2:4 along"):
        s24.explain(a.T, np.ones(64), algorithm="cpu_sparse")
    for call in (s24.explain, s24.matmul):
        with pytest.raises(s24.ArgumentError, match=r"algorithm must be one of .* got 'fast'"):
            call(a.T, np.ones(64), algorithm="fast")
    with pytest.raises(
        s24.ArgumentError, match=r"must be a Sparse24Array.* compress a plain array first"
    ):
        s24.explain(np.ones((4, 4)), np.ones((4, 4)))


def test_explain_takes_types_batches_and_epilogues_as_matmul_does(rng):
    few_rows = s24.random((8, 64), dtype="int8", rng=0)
    for x in (np.ones((64, 512), np.int8), np.ones((64, 512))):
        told = s24.explain(few_rows, x)
        wide = s24.explain(few_rows.astype(x.dtype), x)
        assert told.chosen == wide.chosen
    kept = s24.compress(few_rows.toarray().astype(np.float32), keep_dense=True)
    assert s24.explain(kept, np.ones((64, 4), np.float32)).chosen == "cpu_dense"
    assert s24.explain(kept, np.ones((64, 4))).chosen == "cpu_sparse"  # kept in float32 only
    bias = s24.Epilogue(bias=np.ones(8))
    assert s24.explain(np.ones((3, 64), np.float32), kept.T, epilogue=bias).chosen == "cpu_dense"
    with pytest.raises(s24.ShapeError, match=r"bias must have shape \(8,\)"):
        s24.explain(np.ones((3, 64), np.float32), kept.T, epilogue=s24.Epilogue(bias=np.ones(5)))
    stack = s24.random((3, 8, 16), rng=0)
    for b in (np.ones((2, 16, 4), np.float32), np.ones((2, 2, 16, 4), np.float32)):
        with pytest.raises(s24.ShapeError, match=r"batch axes .* do not broadcast"):
            s24.explain(stack, b)
    with pytest.raises(s24.DTypeError, match=r"b.dtype must be one of"):
        s24.explain(s24.compress(np.eye(8), pattern=(3, 8)), np.ones((2, 8, 4), complex))


def test_windows_are_explained_by_their_2_4_form(rng):
    dense = rng.standard_normal((8, 16)).astype(np.float32)
    windows = s24.compress(dense, pattern=(6, 8), on_excess="prune").windows()
    b = np.ones((16, 4), np.float32)
    with pytest.raises(s24.ArgumentError, match=r"explain\(W\.array, b\[W\.index\]\)"):
        s24.explain(windows, b)
    assert s24.explain(windows.array, b[windows.index]).chosen == "cpu_sparse"
