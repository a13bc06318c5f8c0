"""What the planner chooses without predicting the time of every configuration."""

from __future__ import annotations

import dataclasses
import random

import pytest
from planner_cases import H100, H200, RTX_4090, problem

from sparse24 import _chip_facts, _kernel_times, _planner, _staging, _tuning_cache
from sparse24._dtypes import OF_16_BITS
from sparse24.kernels.sparse_decode_plan import WIDENED

OUTPUTS = {"int8": ("int32", "float16"), "float8_e4m3fn": ("bfloat16", "float32")}
DTYPES = (*OUTPUTS, "float16", "bfloat16", "bfloat16", "float32", "float64")
CHIPS = [
    {
        "sms": told["MultiProcessorCount"], "clock_hz": 1e3 * told["ClockRate"],
        "bandwidth": _chip_facts.copy_bandwidth(told),
    }
    for told in (H200, H100, RTX_4090)
]  # fmt: skip


def drawn(seed: int):
    """A problem of any type, layout and chip, with few columns or many."""
    draw = random.Random(seed)
    dtype, batch = draw.choice(DTYPES), draw.choice((1, 1, draw.randint(2, 40)))
    size = lambda most: draw.choice((draw.randint(1, most), 1 << draw.randint(0, 13)))  # noqa: E731
    orders = ("row", "column", "strided")
    case = problem(
        size(30000), draw.choice((size(256), size(9000))), size(20000), dtype,
        b_order=draw.choice(orders), out_order=draw.choice(orders),
        aligned=draw.random() < 0.7, b_in_lines=draw.random() < 0.5,
        out_spills=draw.random() < 0.1, b_batched=batch > 1, a_batched=draw.random() < 0.5,
        fast_accumulation=draw.random() < 0.7,
        tensor_float=dtype == "float32" and draw.random() < 0.2,
        compute_capability=draw.choice((75, 80, 86, 89, 90, 90, 90, 90, 100, 120)),
    )  # fmt: skip
    out = draw.choice(OUTPUTS.get(dtype, (dtype,)))
    return dataclasses.replace(case, batch=batch, out_dtype=out)


def scale(kernel: str) -> float:
    return _tuning_cache.SCALES.get(kernel, 1.0)


@pytest.mark.parametrize("dense", [False, True])
def test_the_fastest_is_the_first_of_all(dense):
    for seed in range(120):
        case, facts = drawn(seed), CHIPS[seed % len(CHIPS)]
        found = _planner.fastest(case, facts, dense=dense, scale=scale)
        assert found == _planner.rank(case, facts, dense=dense, scale=scale)[0], case


def test_of_equal_times_the_first_counts():
    """Long products take what the power limit leaves them, whatever the tile."""
    ties = 0
    for n in range(2048, 8192, 777):
        case = problem(n=n)
        ranked = _planner.rank(case, CHIPS[0], dense=True, scale=scale)
        ties += ranked[0].seconds == ranked[1].seconds
        assert _planner.fastest(case, CHIPS[0], dense=True, scale=scale) == ranked[0]
    assert ties


@pytest.mark.parametrize("kernel", [*_planner.SPARSE_KERNELS, _planner.DENSE_KERNEL])
def test_no_configuration_gets_faster_by_columns_more(kernel):
    """Those are also the same between powers of two, or no more, which `fastest` relies on."""
    module, looked_at = _planner.kernel_module(kernel), 0
    for seed in range(250):
        facts = CHIPS[seed % len(CHIPS)]
        case = drawn(seed)
        if kernel == "sparse_mixed" and case.dtype in OF_16_BITS:
            case = dataclasses.replace(case, dtype=WIDENED[seed % len(WIDENED)])
        for variant in _staging.variants(case):
            case = variant.problem
            if module.refuses(case):
                continue
            fewer = _kernel_times.with_fewer_columns(case)
            assert case.n / 2 < fewer.n <= case.n
            before, after = set(module.configs(fewer)), set(module.configs(case))
            assert after <= before if kernel in _kernel_times.ASKS_FOR_TILES else after == before
            for config in after:
                times = [_kernel_times.modelled(kernel, x, config, facts) for x in (fewer, case)]
                assert times[1] >= _kernel_times.ROUNDED * times[0]
                looked_at += 1
    assert looked_at


def test_few_times_are_predicted_for_sizes_like_others(monkeypatch):
    """Fifty configurations of the Hopper kernel alone, but a few after one like it."""
    counted = []

    class Counting(_kernel_times.KernelTimes):
        def times(self, config):
            counted.append(config)
            return super().times(config)

    monkeypatch.setattr(_planner, "KernelTimes", Counting)
    _planner.fastest(problem(14336, 122, 4096), CHIPS[0], dense=False, scale=scale)
    assert len(counted) < 25
    counted.clear()
    _planner.rank(problem(14336, 122, 4096), CHIPS[0], dense=False, scale=scale)
    assert len(counted) > 70
