"""The planner, explain, plan, autotune and the tuning cache."""

from __future__ import annotations

import functools
import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import (
    _arrays,
    _autotune,
    _dispatch,
    _explain,
    _planner,
    _storage,
    _tuning_cache,
)
from sparse24._arrays import to_numpy
from sparse24._records import PLAIN, Problem

KEY = {"format": 1, "gpu": "test"}


@pytest.fixture
def untuned(monkeypatch, tmp_path):
    """Nothing is known of the device, and what is learnt is forgotten, choices included."""
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_tuning_cache, "_state", {})
    _tuning_cache.forget(0)
    yield tmp_path
    _tuning_cache.forget(0)


@pytest.fixture
def h200(monkeypatch, untuned):
    """The planner as on an H200, without one."""
    monkeypatch.setattr(_planner, "_sms_and_clock", lambda device: (132, 1.7e9))
    monkeypatch.setattr(_planner, "DEFAULT_BANDWIDTH_PER_SM", 4.2e12 / 132)
    monkeypatch.setattr(_tuning_cache, "key", lambda device: KEY)
    monkeypatch.setattr(_tuning_cache, "_gpu_name", lambda device: "test gpu")
    return untuned


def problem(m=4096, n=4096, k=4096, dtype="bfloat16", **more):
    out = {"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(dtype, dtype)
    return Problem(m, n, k, 1, dtype, dtype, out, **{"b_order": "column", **more})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float8_e4m3fn", "float32"])
@pytest.mark.parametrize("n", [1, 8, 64, 512, 4096])
def test_some_kernel_takes_every_problem(h200, dtype, n):
    for order in ("row", "column", "strided"):
        for aligned in (True, False):
            case = problem(n=n, dtype=dtype, b_order=order, aligned=aligned)
            ranked = _planner.candidates(case, 0, dense=True)
            assert ranked[0].refusal is None
            assert ranked[0].seconds < np.inf
            assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(ranked))


def test_nothing_takes_less_than_a_launch(h200):
    ranked = _planner.candidates(problem(m=64, n=1, k=64), 0, dense=True)
    assert min(candidate.seconds for candidate in ranked) == _planner.LEAST_SECONDS
    advice = s24.advise((64, 64), tokens=1)
    assert 0.5 < advice.speedup[0] <= 1.1


def test_float32_with_few_columns_has_a_kernel_of_its_own(h200):
    few = _planner.choose(problem(n=4, dtype="float32"), 0, dense=False)
    assert few.kernel == "sparse_matvec"
    many = problem(dtype="float32")
    assert _planner.choose(many, 0, dense=False).kernel == "sparse_split"
    assert _planner.choose(many, 0, dense=True).kernel == "sparse_split"
    older = problem(dtype="float32", compute_capability=80)
    assert _planner.choose(older, 0, dense=False).kernel == "sparse_fma"


def test_large_products_run_on_the_tensor_cores(h200):
    assert _planner.choose(problem(), 0, dense=False).kernel == "sparse_wgmma"
    older = problem(compute_capability=80)
    assert _planner.choose(older, 0, dense=False).kernel in ("sparse_mma", "sparse_skinny")
    assert _planner.choose(problem(dtype="float64"), 0, dense=False).kernel == "sparse_fma"


def test_named_kernels_run_or_say_why_not(h200):
    named = _planner.choose(problem(), 0, dense=False, algorithm="sparse_fma")
    assert named.kernel == "sparse_fma"
    with pytest.raises(s24.UnsupportedError, match="sparse_wgmma cannot multiply this"):
        _planner.choose(problem(dtype="float64"), 0, dense=False, algorithm="sparse_wgmma")
    with pytest.raises(s24.ArgumentError, match="algorithm must be 'auto' or one of"):
        _planner.choose(problem(), 0, dense=False, algorithm="cutlass")


def test_a_measured_winner_beats_the_prediction(h200):
    case = problem()
    times = {"sparse_fma/64x64x32": 1e-6, "sparse_wgmma/other": 1e-3}
    _tuning_cache.record_winner(0, case, dense=False, seconds=times)
    assert _planner.choose(case, 0, dense=False).name == "sparse_fma/64x64x32"
    assert _tuning_cache.measured(0, case, dense=False) == times
    assert _planner.choose(problem(n=8), 0, dense=False).kernel != "sparse_fma"


def test_tuning_files_round_trip_and_merge(h200):
    file = h200 / "tuning.json"
    _tuning_cache.record_winner(0, problem(), dense=False, seconds={"sparse_fma/64x64x32": 1.0})
    assert _tuning_cache.write(file, 0, replace=False)
    _tuning_cache.forget(0)
    _tuning_cache.record_winner(0, problem(n=1), dense=False, seconds={"sparse_fma/64x64x32": 2.0})
    assert _tuning_cache.write(file, 0, replace=False)
    _tuning_cache.forget(0)
    assert _tuning_cache.merge(file, 0)
    assert len(_tuning_cache.state(0)["winners"]) == 2
    assert not list(h200.glob("*.tmp"))


def test_a_measured_bandwidth_counts_at_once(h200):
    file = h200 / "tuning.json"
    assert _planner.chip(0)["bandwidth"] == pytest.approx(4.2e12)
    _tuning_cache.record_model(0, bandwidth=1e12, scales={})
    assert _planner.chip(0)["bandwidth"] == 1e12
    assert _tuning_cache.write(file, 0, replace=False)
    _tuning_cache.forget(0)
    assert _planner.chip(0)["bandwidth"] == pytest.approx(4.2e12)
    assert _tuning_cache.merge(file, 0)
    assert _planner.chip(0)["bandwidth"] == 1e12


def test_processes_that_tune_at_once_leave_a_whole_file(h200):
    _tuning_cache.record_winner(0, problem(), dense=False, seconds={"sparse_fma/64x64x32": 1.0})
    files = [h200 / f"tuning-{i}.json" for i in range(20)]
    with ThreadPoolExecutor(8) as pool:
        for file in files:  # each is new, so that who looks for it meets who makes it
            write = functools.partial(_tuning_cache.write, file, 0, replace=False)
            assert all(pool.map(lambda _, write=write: write(), range(16)))
            assert _tuning_cache.read(file, 0) is not None
    assert sorted(h200.iterdir()) == sorted(files)


def tuned(**content):
    whole = {"winners": {}, "scales": {}, "bandwidth": None, **content}
    return json.dumps({"key": KEY, "content": whole})


DAMAGED = {
    "empty": "",
    "cut": "{",
    "a list": "[]",
    "another GPU": json.dumps({"key": {"gpu": "other"}}),
    "no content": json.dumps({"key": KEY}),
    "a winner that is none": tuned(winners={"p": 1}),
    "a winner that was not timed": tuned(winners={"p": {"name": "a", "seconds": {"b": 1.0}}}),
    "a name that is none": tuned(winners={"p": {"name": ["a"], "seconds": {"a": 1.0}}}),
    "a time that is none": tuned(winners={"p": {"name": "a", "seconds": {"a": "1"}}}),
    "a scale of 0": tuned(scales={"dense": 0}),
    "a bandwidth of NaN": tuned(bandwidth=float("nan")),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_foreign_or_damaged_files_are_ignored_and_left_alone(h200, content):
    file = h200 / "tuning.json"
    file.write_text(content)
    assert _tuning_cache.read(file, 0) is None
    assert not _tuning_cache.merge(file, 0)
    assert not _tuning_cache.write(file, 0, replace=False)
    assert file.read_text() == content
    assert _tuning_cache.write(file, 0, replace=True)
    assert _tuning_cache.read(file, 0) is not None


def test_wrong_results_do_not_agree():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert _autotune.agrees(x, x, "float32")
    wrong = x.copy()
    wrong[1, 1] += 1
    assert not _autotune.agrees(wrong, x, "float32")
    assert not _autotune.agrees(np.full_like(x, np.nan), x, "float32")
    assert not _autotune.agrees(x.astype(np.int32) + 1, x.astype(np.int32), "int32")


def printed(case, *, dense, measured=()):
    """What is told of a problem, and the cells of its table."""
    ranked = tuple(_planner.candidates(case, 0, dense=True))
    chosen = _planner.choose(case, 0, dense=dense)
    told = _explain.Explanation(chosen.name, ranked, dict(measured), "why", dense)
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
    turned = s24.explain(a.T, np.ones((64, 8), np.float32))
    assert turned.chosen == "dense"
    assert "transposable=True" in turned.reason
    assert s24.explain(a, np.ones((64, 8), np.float32), algorithm="dense").chosen == "cpu_dense"


@pytest.mark.parametrize(
    ("pattern", "n", "chosen", "words"),
    [
        ((1, 4), 8, "cpu_sparse", "skips the zeros"),  # as the 2:4 matrix that it is
        ((6, 8), 8, "cpu_n_m", "6:8 skips the zeros"),
        ((6, 8), 64, "dense", r"6:8 does not embed into 2:4.*\.windows\(\)"),
        ((7, 8), 64, "dense", "so the product is dense$"),
        ((4, 8), 64, "cpu_n_m", "4:8 skips the zeros"),
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
    assert "operands of float16 and float32 meet in the dense matrix" in half.reason


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
    words = "the Python of a call takes longer"
    for keep_dense in (False, True):
        a = s24.compress(np.eye(64, dtype=np.float32), keep_dense=keep_dense)
        assert words in s24.explain(a, np.ones((64, 8), np.float32)).reason
        assert words not in s24.explain(a, np.ones((64, 512), np.float32)).reason
    stack = s24.random((9, 64, 64), rng=0)
    assert words not in s24.explain(stack, np.ones((64, 8), np.float32)).reason


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
    with pytest.raises(s24.ArgumentError, match="must be a Sparse24Array"):
        s24.explain(np.ones((4, 4)), np.ones((4, 4)))
    with pytest.raises(s24.ArgumentError, match=r"a HybridArray has \.explain\(n\)"):
        s24.explain(s24.hybrid(np.eye(64, dtype=np.float32)), np.ones(64, np.float32))


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


def test_plans_of_column_order_multiply_what_matmul_multiplies(rng):
    torch = pytest.importorskip("torch")
    a = s24.random((16, 32), rng=0)
    p = s24.plan(a, ((32, 4), np.float32), out_order="column")
    x = rng.standard_normal((32, 4)).astype(np.float32)
    assert p.execute(x).flags.f_contiguous
    for other in (x, x.tolist(), x[:, 0], x[None]):
        np.testing.assert_array_equal(p.execute(other), a @ np.asarray(other))
    tensor = p.execute(torch.from_numpy(x))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.stride() == (1, 16)
    stack = s24.random((3, 16, 32), rng=0)
    many = s24.plan(stack, ((32, 4), np.float32), out_order="column").execute(x)
    np.testing.assert_array_equal(many, stack @ x)
    with pytest.raises(s24.ShapeError, match="inner dimensions 32 and 16"):
        p.execute(x[:16])


def test_plans_execute_on_the_cpu(rng):
    a = s24.random((16, 32), rng=0)
    p = s24.plan(a, ((32, 4), np.float32))
    x = rng.standard_normal((32, 4)).astype(np.float32)
    np.testing.assert_array_equal(p.execute(x), a @ x)
    with pytest.raises(s24.ArgumentError, match="must be a Sparse24Array"):
        s24.plan(np.ones((4, 4)), ((4, 4), np.float32))
    with pytest.raises(s24.ArgumentError, match="b_spec must be an array, or its shape and dtype"):
        s24.plan(a, (32, 4, np.float32))


def _fp8(rng):
    """A 2:4 matrix of fp8, a dense operand, and its bits."""
    a = s24.random((64, 32), dtype="float8_e4m3fn", rng=0)
    b = rng.standard_normal((32, 8)).astype(a.dtype)
    return a, b, b.view(np.uint8)


@pytest.mark.parametrize("out_order", ["row", "column"])
def test_plans_take_fp8_as_such_or_as_bits(rng, out_order):
    a, b, bits = _fp8(rng)
    named = s24.plan(a, ((32, 8), b.dtype.name), out_order=out_order)
    np.testing.assert_array_equal(named.execute(b), a @ b)
    by_bits = s24.plan(a, bits, b_dtype="float8_e4m3fn", out_order=out_order)
    np.testing.assert_array_equal(by_bits.execute(bits), a @ b)
    with pytest.raises(s24.DTypeError, match="b_dtype"):
        s24.plan(a, bits)


def test_plans_tell_what_is_chosen_once_their_product_was_tuned(monkeypatch):
    a, chosen = s24.random((16, 32), rng=0), "dense"
    monkeypatch.setattr("sparse24.kernels.cpu.choose", lambda *of, **how: chosen)
    multiply = s24.Sparse24Array._multiply

    def tuned(*of):  # as within `autotune`
        nonlocal chosen
        chosen = "sparse"
        return multiply(*of)

    monkeypatch.setattr(s24.Sparse24Array, "_multiply", tuned)
    p = s24.plan(a, ((32, 4), np.float32))
    assert p.chosen == p.explanation.chosen == "cpu_sparse"


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "sparse_mma", "sparse_wgmma")
def test_plans_of_fp8_know_what_bits_mean_on_the_gpu(rng):
    import cupy

    a, b, bits = _fp8(rng)
    p = s24.plan(a.to_device("cuda"), ((32, 8), "float8_e4m3fn"))
    got = to_numpy(p.execute(cupy.asarray(bits)))
    np.testing.assert_allclose(got.astype(float), (a @ b).astype(float), rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "sparse_mma", "sparse_wgmma")
@pytest.mark.parametrize("side", ["left", "right", "right, a stack"])
def test_autotune_measures_and_remembers(untuned, rng, side):
    import cupy

    a = s24.random((256, 512), dtype="float16", rng=0).to_device("cuda")
    x = cupy.asarray(rng.standard_normal((512, 128)).astype(np.float16))
    tokens = cupy.ascontiguousarray(x.T)
    fresh = a.copy()
    operands = {
        "left": (fresh, x), "right": (tokens, fresh.T),
        "right, a stack": (tokens.reshape(2, 64, 512), fresh.T),
    }[side]  # fmt: skip
    before = to_numpy(s24.matmul(*operands))
    with s24.autotune(cache=untuned / "t.json"):
        tuned = to_numpy(s24.matmul(*operands))
    np.testing.assert_allclose(tuned, before, rtol=1e-2, atol=1e-2)
    told = s24.explain(*operands)
    assert told.measured  # of the product that ran, so seen from the same side
    assert "measured fastest" in told.reason
    assert (untuned / "t.json").exists()


@pytest.mark.gpu
def test_calibration_scales_every_kernel_that_it_measured(untuned):
    for _ in range(2):
        fitted = s24.tuning.calibrate()
        assert fitted["bandwidth"] > 1e11
        assert {"dense", "sparse_fma", "sparse_matvec"} < fitted.keys()
        assert all(0.1 < fitted[name] < 10 for name in fitted if name != "bandwidth")


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "sparse_mma", "sparse_wgmma")
def test_explain_and_plan_on_the_gpu(rng):
    import cupy

    a = s24.random((512, 512), dtype="bfloat16", rng=0).to_device("cuda")
    x = cupy.asarray(rng.standard_normal((512, 64)).astype(np.float32)).astype(a.dtype)
    told = s24.explain(a, x)
    assert {c.kernel for c in told.candidates} >= {"sparse_mma", "sparse_fma", "dense"}
    assert "predicted" in str(told)
    p = s24.plan(a, x)
    cupy.testing.assert_array_equal(
        p.execute(x).astype(np.float32), (a @ x).astype(np.float32)
    )


def replayed(cupy, a, x):
    """The product as a graph writes it, captured after a first call."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        out = cupy.zeros((a.shape[0], x.shape[1]), x.dtype)
        s24.matmul(a, x, out)
        stream.begin_capture()
        s24.matmul(a, x, out)
        graph = stream.end_capture()
        out.fill(0)
        graph.launch(stream)
    stream.synchronize()
    return to_numpy(out)


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "sparse_mma", "sparse_wgmma")
def test_graph_capture_and_streams(rng):
    import cupy

    a = s24.random((256, 256), dtype="float16", rng=0).to_device("cuda")
    x = cupy.asarray(rng.standard_normal((256, 256)).astype(np.float16))
    want = to_numpy(a @ x)
    np.testing.assert_array_equal(replayed(cupy, a, x), want)


@pytest.mark.parametrize("algorithm", ["dense", "dense/cublas"])
def test_the_dense_product_can_be_asked_for_as_explain_names_it(h200, algorithm):
    found = _planner.choose(problem(m=64), 0, dense=False, algorithm=algorithm)
    assert found.name == "dense/cublas"


@pytest.mark.parametrize("algorithm", ["auto", "dense"])
@pytest.mark.parametrize("capturing", [False, True])
def test_a_capture_takes_the_dense_product_only_if_told(monkeypatch, h200, algorithm, capturing):
    case = problem(m=64, n=4096, k=64)
    ranked = {dense: _planner.candidates(case, 0, dense=dense) for dense in (True, False)}
    choose = lambda of, device, *, dense, algorithm="auto": next(  # noqa: E731
        c for c in ranked[dense] if not dense or c.kernel == "dense"
    )
    monkeypatch.setattr(_planner, "choose", choose)
    monkeypatch.setattr(_planner, "prepare", lambda choice, epilogue: choice.kernel)
    monkeypatch.setattr(_arrays, "is_capturing", lambda: capturing)
    monkeypatch.setattr(_storage, "with_packed", lambda rows: rows)
    a = s24.compress(np.eye(64, dtype=np.float32), keep_dense=True)._operand
    b = SimpleNamespace(device=SimpleNamespace(id=0))
    launched = _dispatch.prepare(a, b, None, PLAIN, algorithm, case)
    sparse = capturing and algorithm == "auto"
    assert (launched.launcher != "dense") == sparse
    assert launched.a is (a.rows if sparse else a.dense)


@pytest.mark.gpu
def test_a_graph_holds_a_sparse_product_where_the_dense_one_is_faster(monkeypatch, untuned, rng):
    import cupy

    winner = lambda *of, dense: "dense/cublas" if dense else None  # noqa: E731
    monkeypatch.setattr(_tuning_cache, "winner", winner)
    a = s24.random((256, 256), dtype="float16", rng=0).to_device("cuda")
    a = s24.compress(a.toarray(), keep_dense=True)
    x = cupy.asarray(rng.standard_normal((256, 256)).astype(np.float16))
    assert s24.explain(a, x).chosen == "dense/cublas"
    want = to_numpy(a @ x)
    np.testing.assert_allclose(replayed(cupy, a, x), want, rtol=2e-3, atol=2e-3)
