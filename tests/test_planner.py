"""The planner, and what it takes from the tuning cache."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from planner_cases import H100, H200, RTX_4090, problem

import sparse24 as s24
from sparse24 import (
    _activate,
    _arrays,
    _autotune,
    _chip_facts,
    _compress_records,
    _dtypes,
    _kernel_corrections,
    _kernel_times,
    _planner,
    _tuning_cache,
)


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
    assert min(candidate.seconds for candidate in ranked) == _kernel_times.LEAST_SECONDS
    advice = s24.advise((64, 64), tokens=1)
    assert 0.5 < advice.speedup[0] <= 1.1


@pytest.mark.parametrize(("m", "k"), [(768, 3072), (1024, 4096), (384, 1536)])
def test_a_small_dense_product_with_long_rows_takes_longer_than_its_bytes(h200, m, k):
    of_small = problem(m=m, n=128, k=k, out_order="column")
    assert _planner.choose(of_small, 0, dense=True).kernel == "sparse_wgmma"
    dense = _planner.choose(of_small, 0, dense=True, algorithm="dense").seconds
    assert dense > _kernel_corrections.WALK_LAUNCH + 1.1e-9 * k
    assert s24.advise((m, k), tokens=128).speedup[0] > 1.2
    facts = _chip_facts.facts(0)
    assert _kernel_corrections.walking(problem(m=8192, n=128, k=k), facts) == 0
    assert _kernel_corrections.walking(problem(m=m, n=128, k=k, dtype="float32"), facts) == 0


def test_of_products_as_short_as_a_launch_few_columns_go_to_the_kernel_for_them(h200):
    for m, k in ((384, 384), (768, 768), (1536, 384)):
        few, more = (
            _planner.choose(problem(m=m, n=n, k=k, out_order="column"), 0, dense=True)
            for n in (8, 64)
        )
        assert few.kernel in ("sparse_skinny", "sparse_decode")
        assert more.kernel == "sparse_wgmma"


def test_float32_with_few_columns_has_a_kernel_of_its_own(h200):
    for n, kernel in ((1, "sparse_matvec"), (8, "split_skinny"), (32, "sparse_split")):
        few = _planner.choose(problem(n=n, dtype="float32"), 0, dense=False)
        assert few.kernel == kernel
    many = problem(dtype="float32")
    assert _planner.choose(many, 0, dense=False).kernel == "sparse_split"
    assert _planner.choose(many, 0, dense=True).kernel == "sparse_split"
    older = problem(dtype="float32", compute_capability=80)
    assert _planner.choose(older, 0, dense=False).kernel == "split_mma"


def test_large_products_run_on_the_tensor_cores(h200):
    assert _planner.choose(problem(), 0, dense=False).kernel == "sparse_wgmma"
    older = problem(compute_capability=80)
    assert _planner.choose(older, 0, dense=False).kernel in ("sparse_mma", "sparse_skinny")
    assert _planner.choose(problem(dtype="float64"), 0, dense=False).kernel == "sparse_fma"


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        ("sparse_decode", {"m": 1 << 27, "n": 1, "k": 128, "dtype": "float16"}),
        ("sparse_split", {"m": 1 << 27, "n": 64, "k": 128, "dtype": "float32"}),
        ("split_skinny", {"m": 16, "n": 8, "k": (1 << 30) + 4, "dtype": "float32"}),
        ("sparse_matvec", {"m": 16, "n": 1, "k": (1 << 31) - 256, "dtype": "float32"}),
    ],
)
def test_kernels_whose_offsets_have_32_bits_leave_what_is_longer_to_others(kernel, sizes):
    assert _planner.too_long(kernel, problem(**sizes)) is not None
    assert _planner.too_long(kernel, problem(**{**sizes, "m": 4096, "k": 4096})) is None


def test_columns_of_b_are_counted_in_32_bits_up_to_a_tile():
    few = problem(m=8, k=16, n=(1 << 31) - 256)
    assert _planner.too_long("sparse_wgmma", few) is None
    assert _planner.too_long("sparse_wgmma", problem(m=8, k=16, n=few.n + 1)) is not None


def test_named_kernels_run_or_say_why_not(h200):
    named = _planner.choose(problem(), 0, dense=False, algorithm="sparse_fma")
    assert named.kernel == "sparse_fma"
    with pytest.raises(s24.UnsupportedError, match=r"sparse_wgmma cannot .*; algorithm='auto'"):
        _planner.choose(problem(dtype="float64"), 0, dense=False, algorithm="sparse_wgmma")
    with pytest.raises(s24.ArgumentError, match="algorithm must be 'auto' or one of"):
        _planner.choose(problem(), 0, dense=False, algorithm="cutlass")


def test_operands_whose_bytes_32_bits_cannot_count_go_to_other_kernels(h200):
    tall = problem(m=1 << 27, n=64, k=64)
    assert _planner.choose(tall, 0, dense=False).kernel in ("sparse_mma", "sparse_skinny")
    with pytest.raises(s24.UnsupportedError, match=r"it takes up to \d+ rows of A"):
        _planner.choose(tall, 0, dense=False, algorithm="sparse_wgmma")
    wide = problem(m=16, n=1 << 30, k=8)
    with pytest.raises(s24.UnsupportedError, match="it takes rows of b of less than 2 GiB"):
        _planner.choose(wide, 0, dense=False, algorithm="sparse_mma")
    long = problem(m=16, n=1, k=1 << 30)
    assert _planner.choose(long, 0, dense=False).kernel not in ("sparse_mma", "sparse_skinny")
    pieces = problem(m=16, n=64, k=1 << 28, dtype="float32")
    for case, kernel in (
        (long, "sparse_mma"), (long, "sparse_skinny"), (pieces, "sparse_split"),
        (pieces, "split_mma"),
    ):  # fmt: skip
        with pytest.raises(s24.UnsupportedError, match=r"it takes up to \d+ columns of A"):
            _planner.choose(case, 0, dense=False, algorithm=kernel)


@pytest.mark.parametrize("shape", [(1, 1 << 31), (1 << 31, 1)])
def test_matrices_that_32_bits_cannot_count_are_refused_on_a_gpu(monkeypatch, shape):
    x = np.broadcast_to(np.int8(1), shape)  # without memory of that size
    monkeypatch.setattr(_arrays, "is_cupy", lambda x: True)
    row = _dtypes.TABLE["int8"]
    for compress in (
        lambda: _compress_records.compress_rows(x, row, "magnitude"),
        lambda: _compress_records.transposable_records(x, row),
        lambda: _activate._compressed(x, row, "relu", None, False),
    ):
        with pytest.raises(s24.UnsupportedError, match=r"up to 2147483392 rows .*; split it"):
            compress()


def test_a_measured_winner_beats_the_prediction(h200):
    case = problem()
    times = {"sparse_fma/64x64x32": 1e-6, "sparse_wgmma/other": 1e-3}
    _tuning_cache.record_winner(0, case, dense=False, seconds=times)
    assert _planner.choose(case, 0, dense=False).name == "sparse_fma/64x64x32"
    assert _tuning_cache.measured(0, case, dense=False) == times
    assert _planner.choose(problem(n=8), 0, dense=False).kernel != "sparse_fma"


def test_a_measured_bandwidth_counts_at_once(h200):
    file = h200 / "tuning.json"
    expected = _chip_facts.copy_bandwidth(H200)
    assert _chip_facts.facts(0)["bandwidth"] == expected
    _tuning_cache.record_model(0, bandwidth=1e12, scales={})
    assert _chip_facts.facts(0)["bandwidth"] == 1e12
    assert _tuning_cache.write(file, 0, replace=False)
    _tuning_cache.forget(0)
    assert _chip_facts.facts(0)["bandwidth"] == expected
    assert _tuning_cache.merge(file, 0)
    assert _chip_facts.facts(0)["bandwidth"] == 1e12


@pytest.mark.parametrize(
    ("attributes", "measured"),
    [(H200, 4.2e12), (H100, 3.02e12), (RTX_4090, 0.9e12)],  # the last one: 0.9 of the data sheet
)
def test_bandwidth_follows_from_what_the_driver_says(attributes, measured):
    assert _chip_facts.copy_bandwidth(attributes) == pytest.approx(measured, rel=0.04)


@pytest.mark.parametrize("name", ["MemoryClockRate", "GlobalMemoryBusWidth"])
def test_a_driver_that_does_not_tell_leaves_a_guess_by_multiprocessors(name):
    want = pytest.approx(4.2e12 * 128 / 132)
    assert _chip_facts.copy_bandwidth(RTX_4090 | {name: 0}) == want
    rest = {key: value for key, value in RTX_4090.items() if key != name}
    assert _chip_facts.copy_bandwidth(rest) == want


@pytest.mark.parametrize("told", [{"ClockRate": 0}, {}])
def test_a_driver_that_does_not_tell_the_clock_leaves_that_of_an_h200(h200, monkeypatch, told):
    rest = {key: value for key, value in RTX_4090.items() if key != "ClockRate"}
    monkeypatch.setattr(_chip_facts, "attributes", lambda device: rest | told)
    assert _chip_facts.facts(0)["clock_hz"] == _chip_facts.H200["clock_hz"]
    assert _planner.choose(problem(), 0, dense=True).seconds > 0


def fastest(attributes, case) -> str:
    """The kernel that an uncalibrated planner takes on a GPU of these attributes."""
    facts = {
        "sms": attributes["MultiProcessorCount"], "clock_hz": 1e3 * attributes["ClockRate"],
        "bandwidth": _chip_facts.copy_bandwidth(attributes),
    }  # fmt: skip
    scale = lambda kernel: _tuning_cache.SCALES.get(kernel, 1.0)  # noqa: E731
    ranked = _planner.rank(case, facts, dense=False, scale=scale)
    return next(c.kernel for c in ranked if c.kernel != "sparse_decode")


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_slower_memory_asks_for_the_kernel_that_reads_fastest(dtype):
    """28672 x 8192 by 16 tokens: the kernels that `autotune` chose (few_tokens.json of both).

    When there was no `sparse_decode`, which has not run on an H100.
    """
    case = problem(28672, 16, 8192, dtype, out_order="column")
    assert fastest(H100, case) == "sparse_skinny"
    assert fastest(H200, case) == "sparse_wgmma"
    many = problem(28672, 256, 8192, dtype, out_order="column")
    assert fastest(H100, many) == fastest(H200, many) == "sparse_wgmma"


def test_wrong_results_do_not_agree():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert _autotune.agrees(x, x, "float32")
    wrong = x.copy()
    wrong[1, 1] += 1
    assert not _autotune.agrees(wrong, x, "float32")
    assert not _autotune.agrees(np.full_like(x, np.nan), x, "float32")
    assert not _autotune.agrees(x.astype(np.int32) + 1, x.astype(np.int32), "int32")


@pytest.mark.gpu
def test_calibration_scales_every_kernel_that_it_measured(untuned):
    for _ in range(2):
        fitted = s24.tuning.calibrate()
        assert fitted["bandwidth"] > 1e11
        assert {"dense", "sparse_fma", "sparse_matvec"} < fitted.keys()
        assert all(0.1 < fitted[name] < 10 for name in fitted if name != "bandwidth")


@pytest.mark.parametrize("algorithm", ["dense", "dense/cublas"])
def test_the_dense_product_can_be_asked_for_as_explain_names_it(h200, algorithm):
    found = _planner.choose(problem(m=64), 0, dense=False, algorithm=algorithm)
    assert found.name == "dense/cublas"
