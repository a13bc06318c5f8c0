"""What is added to the kernels' models: choices that a survey of an H100 found to be faster."""

from __future__ import annotations

import dataclasses

import pytest

from sparse24 import _kernel_corrections, _planner, _tuning_cache
from sparse24._records import Problem
from sparse24.kernels import sparse_skinny

H100 = {"sms": 132.0, "clock_hz": 1.98e9, "bandwidth": 2.92e12}


def problem(m, n, k, dtype="float16", order="column", **fields) -> Problem:
    out = {"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(dtype, dtype)
    return Problem(m, n, k, 1, dtype, dtype, out, order, order, **fields)


def scale(kernel: str) -> float:
    return _tuning_cache.SCALES.get(kernel, 1.0)


def chosen(case: Problem) -> _planner.Candidate:
    return _planner.fastest(case, H100, dense=False, scale=scale)


def ranked(case: Problem) -> list[_planner.Candidate]:
    return _planner.rank(case, H100, dense=False, scale=scale)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("n", [1, 8])
def test_few_rows_are_read_by_as_many_multiprocessors_as_possible(dtype, n):
    """64 blocks of 64 rows took 1.2 to 1.3 times as long as 128 blocks."""
    choice = chosen(problem(4096, n, 4096, dtype))
    assert choice.kernel in ("sparse_skinny", "sparse_decode")
    assert choice.settings.m <= 32
    tall = problem(11008, n, 4096, dtype)
    skinny = [c for c in ranked(tall) if c.kernel == "sparse_skinny"]
    assert skinny[0].settings.m == 64


@pytest.mark.parametrize("order", ["row", "column"])
def test_a_settled_matrix_is_read_by_the_kernel_for_decoding(order):
    """14336 x 4096 by 8 columns took 17.7 µs, and 18.6 by `sparse_skinny`."""
    assert chosen(problem(14336, 8, 4096, order=order)).kernel == "sparse_decode"


def test_rows_of_32_bytes_are_multiplied_slower_than_columns():
    rows, columns = (problem(14336, 16, 4096, order=order) for order in ("row", "column"))
    of_rows, of_columns = (
        min(c.seconds for c in ranked(case) if c.kernel == "sparse_decode")
        for case in (rows, columns)
    )
    assert of_columns < of_rows


def test_float8_in_rows_is_not_multiplied_from_too_few_registers():
    """It took seven times as long where blocks of `sparse_skinny` had 32 columns."""
    for m, k in ((768, 768), (4096, 1024), (2048, 2048)):
        choice = chosen(problem(m, 32, k, "float8_e4m3fn", "row"))
        assert choice.kernel != "sparse_skinny" or choice.settings.wgmma


@pytest.mark.parametrize("n", [3, 7])
def test_odd_columns_of_a_small_matrix_are_read_by_element(n):
    case = problem(1024, n, 4096, order="row", aligned=False, b_in_lines=False)
    assert not chosen(case).copies
    assert chosen(dataclasses.replace(case, m=11008, k=8192)).copies


def test_a_copy_for_bytes_in_rows_pays_for_large_matrices_only():
    assert chosen(problem(768, 64, 768, "int8", "row")).kernel == "sparse_mma"
    assert chosen(problem(11008, 64, 4096, "int8", "row")).copies


def test_float32_by_many_columns_is_multiplied_in_whole_tiles():
    """Tiles of 128 x 192 took 506 µs, and 563 of 128 x 128 (an H200)."""
    choice = chosen(problem(11008, 1024, 4096, "float32"))
    assert choice.kernel == "sparse_split"
    assert choice.settings.name == "128x192x64"


def test_reading_is_bounded_by_multiprocessors_only_from_memory():
    least = lambda case: {  # noqa: E731
        c.name: _kernel_corrections.least("sparse_skinny", case, c, H100)
        for c in sparse_skinny.configs(case)
    }
    large, small = least(problem(4096, 1, 4096)), least(problem(768, 1, 768))
    assert large["64x8x256_g4x1x1_s4_p1"] > 1.3 * large["32x8x512_w1x1x4_s4_p1"]
    assert len(set(small.values())) == 1


def test_the_last_blocks_of_float32_take_a_wave_of_their_own():
    """448 blocks, three at a time on 132 multiprocessors, took longer than two at a time."""
    few = chosen(problem(14336, 8, 4096, "float32"))
    assert (few.kernel, few.settings.blocks) == ("split_skinny", 2)
