"""8-bit weights and 16-bit tokens in `sparse_mixed`: products, all byte values, its tiles."""

import dataclasses

import numpy as np
import pytest
from mixed_cases import (
    PAIRS,
    assert_every_byte_is_exact,
    assert_same_bits,
    check_epilogues_and_batches,
    problem,
    weight,
)
from product_cases import check, compressed, empty_result, problem_of, random_dense, to_device

from sparse24._records import PLAIN
from sparse24.kernels import bricks, reference, sparse_mixed, sparse_wgmma
from sparse24.kernels import sparse_mixed_plan as plan
from sparse24.kernels.sparse_wgmma_configs import SHARED_MEMORY

gpu = pytest.mark.gpu
pytestmark = pytest.mark.stem("sparse_mixed")
CHIP = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}
SHAPES = [(200, 1030), (1, 4096), (16, 8), (77, 4100), (513, 2500)]


@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize("order", ["row", "column"])
def test_takes_both_orders_of_each_pair(stored, dtype, order):
    for n in (1, 48, 500):
        wanted = problem(dtype=stored, b_dtype=dtype, out_dtype=dtype, n=n, b_order=order)
        assert sparse_mixed.refuses(wanted) is None
        found = sparse_mixed.configs(wanted)
        assert any(config.block_n == 32 for config in found) == (order == "column")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"b_dtype": "float32"}, "with types of 16 bits"),
        ({"dtype": "float16"}, "with types of 16 bits"),
        ({"compute_capability": 89}, "9.0"),
        ({"compute_capability": 100}, "9.0"),
        ({"b_order": "strided"}, "copy it"),
        ({"aligned": False}, "copy it"),
        ({"k": 0}, "empty"),
        ({"out_dtype": "int8"}, "not int8"),
    ],
    ids=str,
)
def test_refuses(fields, words):
    assert words in sparse_mixed.refuses(problem(**fields))


@pytest.mark.parametrize("out_itemsize", [2, 4])
@pytest.mark.parametrize("bits", [0, *bricks.BITS])
@pytest.mark.parametrize("config", plan.TABLE, ids=lambda c: c.name)
def test_a_slot_is_read_before_it_is_filled_again(config, bits, out_itemsize):
    """The stage that asks for a slot again waits for one behind the last that reads it."""
    found = plan.layout(config, out_itemsize, bits)
    assert found.stages >= plan.LEAST_STAGES
    assert found.shared_memory <= SHARED_MEMORY[1]
    slots = found.stages // plan.PARTS + 1
    last_read, asked_again = plan.PARTS - 1, slots * plan.PARTS
    assert asked_again - found.stages >= last_read


def test_tiles_have_names_of_their_own():
    assert len({config.name for config in plan.TABLE}) == len(plan.TABLE)


@pytest.mark.parametrize("n", [256, 512, 2048])
def test_as_fast_as_elements_of_16_bits_where_these_are_not_read(n):
    narrow, wide = problem(m=14336, n=n), problem(m=14336, n=n, dtype="bfloat16")
    first = min(sparse_mixed.predict(narrow, c, CHIP) for c in sparse_mixed.configs(narrow))
    second = min(sparse_wgmma.predict(wide, c, CHIP) for c in sparse_wgmma.configs(wide))
    assert 0.8 < first / second < 1.1


@gpu
@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize("order", ["column", "row"])
@pytest.mark.parametrize("n", [1, 33, 130, 777])
def test_shapes_types_and_orders(rng, stored, dtype, order, n):
    for shape in SHAPES:
        a, b = weight(rng, shape, stored), random_dense(rng, (shape[1], n), dtype)
        for out_order, out in (("column", dtype), ("row", "float32"), ("strided", dtype)):
            check(sparse_mixed, a, b, out, b_order=order, out_order=out_order)


@gpu
@pytest.mark.parametrize("config", plan.TABLE, ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("stored", "dtype", "order"),
    [("int8", "bfloat16", "column"), ("float8_e4m3fn", "float16", "row")],
)
def test_every_tile(rng, config, stored, dtype, order):
    """Rings that end in the middle, tails along all axes, and more tiles than blocks."""
    for m, n, k in ((300, 456, 2100), (600, 120, 4136), (300, 20, 2048), (9000, 600, 264)):
        a, b = weight(rng, (m, k), stored), random_dense(rng, (k, n), dtype)
        wanted = problem_of(a, b, "float32", b_order=order)
        if config in sparse_mixed.configs(wanted):
            check(sparse_mixed, a, b, "float32", config=config, b_order=order)


@gpu
@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize(("order", "n"), [("column", 40), ("row", 40), ("column", 300)])
def test_every_byte_is_widened_exactly(stored, dtype, order, n):
    assert_every_byte_is_exact(sparse_mixed, stored, dtype, order, n)


@gpu
@pytest.mark.parametrize("n", [8, 70, 300])
def test_epilogues_and_batches(rng, n):
    check_epilogues_and_batches(sparse_mixed, rng, n)


@gpu
@pytest.mark.parametrize("n", [8, 64, 600])
def test_same_bits_each_time(rng, n):
    assert_same_bits(sparse_mixed, rng, n)


@gpu
@pytest.mark.parametrize("config", plan.TABLE, ids=lambda c: c.name)
@pytest.mark.parametrize("ahead", [1, 3, 99])
def test_b_is_read_only_once_it_is_written(rng, monkeypatch, config, ahead):
    """Each b comes from a kernel just before, and then is overwritten; A is fetched earlier."""
    monkeypatch.setattr(sparse_wgmma, "stages_ahead", lambda n: ahead)
    a, x = weight(rng, (300, 2056), "int8"), random_dense(rng, (2056, 456), "float16")
    wanted = problem_of(a, x, "float32", b_order="column")
    record = dataclasses.replace(compressed(a), settled=True)
    given = to_device(x, order="column", rows_aligned=True)
    launch, b, outs = sparse_mixed.prepare(wanted, config, PLAIN), given.copy(order="A"), []
    for _ in range(5):
        outs.append(empty_result(wanted))
        b[...] = given
        launch(record, b, outs[-1], PLAIN)
        b[...] = 0
    exact = reference.matmul(a, x)
    for out in outs:
        np.testing.assert_allclose(out.get()[0], exact, rtol=1e-3, atol=1e-3 * np.abs(exact).max())
