"""float32 in bfloat16 pieces by ``mma.sp``: tiles, choices and code for chips without wgmma.

On a GPU this runs wherever ``mma.sp`` does, so also on Hopper; tests of whole products are in
`test_sparse_split`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from split_cases import prepared

from sparse24 import _memory_order, _planner, _tuning_cache
from sparse24._arrays import to_numpy
from sparse24._records import PLAIN, Fused, Problem
from sparse24.kernels import chip_rates, dense, reference, sparse_fma, sparse_tile, split_mma

# Multiprocessors, boost clock and about what a copy reaches, by NVIDIA's data sheets.
A100 = {"sms": 108, "clock_hz": 1.41e9, "bandwidth": 1.35e12}
RTX_4090 = {"sms": 128, "clock_hz": 2.52e9, "bandwidth": 0.88e12}
RTX_5090 = {"sms": 170, "clock_hz": 2.41e9, "bandwidth": 1.55e12}
H100 = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 3.02e12}
CHIPS = {80: A100, 89: RTX_4090, 90: H100, 120: RTX_5090}


def make_problem(m=4096, n=4096, k=4096, capability=80, **changes):
    default = Problem(m, n, k, 1, "float32", "float32", "float32", "column", "row")
    return dataclasses.replace(default, compute_capability=capability, **changes)


def best_of(problem: Problem) -> list[str]:
    """The kernels that can run, fastest first, on a GPU that was not calibrated."""
    facts = CHIPS[problem.compute_capability]
    scale = lambda kernel: _tuning_cache.SCALES.get(kernel, 1.0)  # noqa: E731
    ranked = _planner.rank(problem, facts, dense=True, scale=scale)
    return list(dict.fromkeys(found.kernel for found in ranked if found.refusal is None))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"capability": 75}, "needs compute capability 8.0"),
        ({"dtype": "bfloat16", "b_dtype": "bfloat16"}, "splits float32"),
        ({"out_dtype": "bfloat16"}, "float32 to bfloat16"),
        ({"tensor_float": True}, "splits float32"),
        ({"n": 0}, "an empty product needs no kernel"),
    ],
)
def test_refuses_with_a_sentence(changes, words):
    assert words in split_mma.refuses(make_problem(**changes))


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize("n", [1, 16, 512, 4096])
def test_tiles_fit_the_chip_and_are_named_apart(capability, n):
    problem = make_problem(n=n, capability=capability)
    assert split_mma.refuses(problem) is None
    room = (sparse_tile.SHARED_MEMORY.get(capability, 99) + 1) << 10
    configs = split_mma.configs(problem)
    for config in configs:
        assert config.blocks * (config.shared_memory(split_mma.ITEMSIZE) + 1024) <= room
        assert config.k // config.warps[2] <= 256  # summed at a time, as on Hopper
    assert len({config.name for config in configs}) == len(configs)
    if n == 4096:
        assert configs[0].m * configs[0].n >= 128 * 64


@pytest.mark.parametrize(
    ("known", "out_aligned"),
    [
        ({}, 1),
        ({"aligned": False}, 0),
        ({"aligned": False, "b_aligned": True}, 0),
        ({"aligned": False, "out_aligned": True}, 1),
        ({"out_order": "strided"}, 0),
        ({"b_order": "strided", "aligned": False, "out_aligned": True}, 1),
    ],
)
def test_pieces_are_copied_by_16_bytes_and_results_stored_as_they_lie(known, out_aligned):
    wide = split_mma.widened(make_problem(**known))
    macros = dict(split_mma.defines(wide, next(iter(split_mma.SHARES)), PLAIN))
    assert (macros["B_ASYNC"], macros["OUT_ALIGNED"]) == (1, out_aligned)
    assert (macros["ELEMENT"], macros["OUTPUT"]) == ("bfloat16", "float32")


def test_an_a100_splits_what_has_many_columns():
    for n in (512, 4096):
        ranked = best_of(make_problem(n=n))
        assert ranked[0] == "split_mma"
        assert ranked.index("dense") < ranked.index("sparse_fma")
    assert best_of(make_problem(n=1))[0] == "sparse_matvec"
    assert best_of(make_problem(n=32))[0] == "split_skinny"


@pytest.mark.parametrize("capability", [89, 120])
def test_a_geforce_splits_only_where_the_dense_matrix_was_not_kept(capability):
    for n in (512, 4096):
        ranked = best_of(make_problem(n=n, capability=capability))
        assert ranked == ["dense", "split_mma", "sparse_fma"]


@pytest.mark.parametrize("n", [16, 64, 512, 4096])
@pytest.mark.parametrize("m", [512, 4096, 14336])
def test_hopper_has_a_faster_way(m, n):
    ranked = best_of(make_problem(m, n, capability=90))
    assert ranked.index("sparse_split") < ranked.index("split_mma")


@pytest.mark.parametrize("capability", sorted(CHIPS))
def test_no_prediction_passes_what_the_units_can_do(capability):
    problem, facts = make_problem(8192, 8192, 8192, capability), CHIPS[capability]
    products = 8192**3 / (facts["sms"] * facts["clock_hz"])
    best = split_mma.configs(problem)[0]
    tensor = 6 * products / (2 * chip_rates.bfloat16(capability))
    assert tensor < split_mma.predict(problem, best, facts) < 4 * tensor
    fp32 = products / chip_rates.fp32(capability)
    assert fp32 < dense.predict(problem, dense.Config(), facts) < 2 * fp32
    assert sparse_fma.predict(problem, sparse_fma.WIDE, facts) > fp32 / 2  # half of them


@pytest.mark.gpu
@pytest.mark.stem("split_mma")
@pytest.mark.parametrize(("b_order", "out_order"), [("row", "column"), ("column", "row")])
@pytest.mark.parametrize("capability", [80, 89, 90])
@pytest.mark.parametrize("size", [(200, 600, 152), (33, 130, 7), (1, 4, 1)], ids=str)
def test_every_tile_is_exact_on_small_integers(rng, capability, b_order, out_order, size):
    """With the rings of chips that have less shared memory, too."""
    import cupy

    m, k, n = size
    a = prepared(rng, m, k, integers=True)
    x, c = (rng.integers(-4, 5, s).astype(np.float32) for s in ((k, n), (m, n)))
    bias = rng.integers(-4, 5, n).astype(np.float32)
    want = reference.matmul(to_numpy(a.toarray()), x) + 2 * c + bias
    memory = {"row": "C", "column": "F"}
    b, given = (cupy.asarray(y, order=memory[o]) for y, o in ((x, b_order), (c, out_order)))
    problem = make_problem(m, n, k, capability, plain=False, **_memory_order.facts(b, given))
    for config in split_mma.configs(problem):
        out = given.copy(order="K")
        epilogue = Fused(beta=2.0, c=out, column_bias=cupy.asarray(bias))
        split_mma.prepare(problem, config, epilogue)(a._operand.rows, b, out, epilogue)
        np.testing.assert_array_equal(out.get(), want)
