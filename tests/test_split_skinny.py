"""float32 with few columns on tensor cores; products beside other kernels': `test_sparse_split`."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from product_cases import check, random_24, random_dense

from sparse24._records import Fused, Problem
from sparse24.kernels import sparse_tile, split_skinny

gpu = pytest.mark.gpu
stem = pytest.mark.stem("split_skinny")
CHIP = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}


def problem(**fields) -> Problem:
    base = Problem(4096, 16, 4096, 1, "float32", "float32", "float32", "column", "column")
    return dataclasses.replace(base, **fields)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compute_capability": 75}, "needs compute capability 8.0"),
        ({"dtype": "bfloat16", "b_dtype": "bfloat16"}, "splits float32"),
        ({"out_dtype": "bfloat16"}, "float32 to bfloat16"),
        ({"tensor_float": True}, "splits float32"),
        ({"n": 257}, "n <= 256, got 257"),
        ({"n": 0}, "an empty product needs no kernel"),
        ({"b_order": "strided"}, "on 16-byte boundaries; copy it"),
        ({"aligned": False}, "on 16-byte boundaries; copy it"),
    ],
)
def test_refuses_with_a_sentence(changes, words):
    assert words in split_skinny.refuses(problem(**changes))


def test_takes_results_of_any_layout():
    assert split_skinny.refuses(problem(aligned=False, b_aligned=True, out_order="strided")) is None


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize("order", ["row", "column"])
@pytest.mark.parametrize("n", [1, 8, 9, 40])
def test_tiles_fit_the_chip(capability, order, n):
    case = problem(n=n, b_order=order, compute_capability=capability)
    room = (sparse_tile.SHARED_MEMORY.get(capability, 99) + 1) << 10
    configs = split_skinny.configs(case)
    assert len({config.name for config in configs}) == len(configs) > 0
    for config in configs:
        used = config.shared_memory(b_column=order == "column") + 1024
        assert config.blocks * used <= room
        assert config.stages >= 2
        assert min(n, 32) <= config.n < 2 * max(8, n)


def test_few_rows_take_low_tiles_and_many_rows_several_blocks():
    assert split_skinny.configs(problem(m=2048))[0].m == 16
    assert split_skinny.configs(problem(m=4096))[0].m == 32
    assert split_skinny.configs(problem(m=11008))[0].blocks > 1


@pytest.mark.parametrize(
    ("m", "k", "n", "microseconds"),  # by columns of b, measured on an H100
    [
        (4096, 4096, 8, 15.9),
        (11008, 4096, 16, 45.9),
        (4096, 14336, 32, 97.5),
        (2048, 2048, 16, 7.3),
    ],
)
def test_predictions_are_near_what_was_measured(m, k, n, microseconds):
    case = problem(m=m, k=k, n=n)
    seconds = split_skinny.predict(
        case, split_skinny.configs(case)[0], CHIP | {"bandwidth": 2.92e12}
    )
    assert 0.75 < 1e6 * seconds / microseconds < 1.33


@gpu
@stem
@pytest.mark.parametrize("shape", [(1, 4), (10, 7), (37, 130), (200, 1030), (64, 2052)], ids=str)
@pytest.mark.parametrize("n", [1, 4, 8, 20, 36])
def test_every_tile(rng, shape, n):
    m, k = shape
    a, b = random_24(rng, (m, k), "float32"), random_dense(rng, (k, n), "float32")
    for order in ("row", "column"):
        case = problem(m=m, n=n, k=k, b_order=order, out_order=order)
        for config in split_skinny.configs(case):
            check(split_skinny, a, b, config=config, b_order=order, out_order=order)


@gpu
@stem
@pytest.mark.parametrize("b_order", ["row", "column"])
@pytest.mark.parametrize("out_order", ["row", "column", "strided"])
def test_orders_batches_and_epilogues(rng, b_order, out_order):
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    orders = {"b_order": b_order, "out_order": out_order}
    for a_batch in ((), (3,)):
        a, b = random_24(rng, (*a_batch, 70, 516), "float32"), f32(3, 516, 8)
        check(split_skinny, a, b, **orders)
        for e in (
            Fused(alpha=0.5, row_bias=f32(70), activation="gelu"),
            Fused(beta=2.0, c=f32(3, 70, 8), column_scale=f32(8), out_scale=0.25),
        ):
            check(split_skinny, a, b, epilogue=e, **orders)


@gpu
@stem
def test_the_same_bits_again(rng):
    a, b = random_24(rng, (300, 4096), "float32"), random_dense(rng, (4096, 24), "float32")
    first, again = (check(split_skinny, a, b, b_order="column").get() for _ in range(2))
    np.testing.assert_array_equal(first, again)
