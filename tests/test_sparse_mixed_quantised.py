"""Quantised matrices in `sparse_mixed`, whose elements it rounds to 16 bits."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from product_cases import empty_result, to_device
from quantised_cases import check_product, problem, random_matrix

from sparse24._dtypes import numpy_dtype
from sparse24._records import PLAIN, Compressed24, Fused
from sparse24._views import View
from sparse24.kernels import bricks, sparse_mixed, sparse_wgmma
from sparse24.kernels import sparse_mixed_plan as plan

gpu = pytest.mark.gpu
check = functools.partial(check_product, sparse_mixed, rounded=True)
pytestmark = pytest.mark.stem("sparse_mixed")


@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("order", ["row", "column"])
def test_takes_both_orders(bits, order):
    for n in (1, 48, 500):
        wanted = problem(n=n, bits=bits, b_order=order)
        assert sparse_mixed.refuses(wanted) is None
        for config in sparse_mixed.configs(wanted):
            assert plan.layout_of(wanted, config).stages >= plan.LEAST_STAGES


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dtype": "float32"}, "not by float32"),
        ({"compute_capability": 100}, "9.0"),
        ({"aligned": False}, "copy it"),
    ],
    ids=str,
)
def test_refuses(fields, words):
    assert words in sparse_mixed.refuses(problem(**fields))


@pytest.mark.parametrize("bits", bricks.BITS)
def test_slots_hold_whole_periods_of_the_swizzle(bits):
    for config in plan.TABLE:
        held = plan.slot_bytes(config.block_m, bits)
        assert held % plan.PERIOD == 0
        assert 0 <= held - config.block_m // bricks.ROWS * bricks.size(bits) < plan.PERIOD


@pytest.mark.parametrize("batch", [(), (3,)])
def test_launches_by_address_know_how_far_apart_matrices_are(batch):
    """Views tell nothing but layouts: that the matrix is quantised is known before."""
    launcher = object.__new__(sparse_mixed._Launcher)
    launcher.problem, launcher.config = problem(48, 8, 256), plan.TABLE[0]
    strides = (3 * 2 * 832, 2 * 832, 832, 1)[-len(batch) - 3 :]
    bricks_of = View.of(1 << 40, (*batch, 3, 2, 832), strides, np.uint8)
    record = Compressed24(bricks_of, None, bricks_of, (*batch, 48, 256), None)
    b = View.of(2 << 40, (3, 256, 8), (4096, 2, 512), np.float16)
    shape = launcher._shape(record, b).view(sparse_wgmma._SHAPE)
    assert (shape["atoms_m"], shape["atoms_k"]) == (3, 2)
    assert (shape["a_batched"], shape["b_batched"]) == (len(batch), 1)
    assert shape["packed_batch"] == (3 * 2 * 832 if batch else 0)


@gpu
@pytest.mark.parametrize(
    ("bits", "dtype", "order"), [(4, "bfloat16", "column"), (8, "float16", "row")]
)
@pytest.mark.parametrize("config", plan.TABLE, ids=lambda c: c.name)
def test_every_tile(rng, cupy, config, bits, dtype, order):
    for (m, k), n in (((300, 2100), 456), ((600, 4136), 120), ((300, 4096), 20)):
        if config in sparse_mixed.configs(problem(m, n, k, bits=bits, b_order=order)):
            check(rng, (m, k), n, bits=bits, dtype=dtype, config=config, b_order=order)


@gpu
@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("n", [1, 33, 700])
def test_shapes_and_results(rng, cupy, bits, n):
    for shape in ((1, 4), (16, 8), (77, 1000), (513, 2500)):
        for out_order, out in (("column", "float16"), ("row", "float32"), ("strided", "float16")):
            fields = {"out_dtype": out, "out_order": out_order}
            check(rng, shape, n, bits=bits, dtype="float16", settled=n == 33, **fields)


@gpu
@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("n", [8, 130])
@pytest.mark.parametrize("b_batched", [False, True])
def test_stacks(rng, cupy, bits, n, b_batched):
    stack = {"batch": 5, "a_batched": True, "b_batched": b_batched}
    for shape in ((96, 384), (7, 132), (200, 1000)):
        for order in ("column", "row"):
            check(rng, shape, n, bits=bits, dtype="bfloat16", b_order=order, **stack)


@gpu
def test_epilogues_and_batches_of_b(rng, cupy):
    vector = lambda size: rng.standard_normal(size).astype(np.float32)  # noqa: E731
    for epilogue in (
        Fused(alpha=0.5, row_bias=vector(130), activation="gelu"),
        Fused(row_scale=vector(130), column_scale=vector(72), column_bias=vector(72)),
    ):
        check(rng, (130, 520), 72, bits=4, dtype="float16", epilogue=epilogue)
    check(rng, (96, 384), 133, bits=4, dtype="bfloat16", batch=3, b_batched=True)


@gpu
@pytest.mark.parametrize("bits", bricks.BITS)
def test_the_same_bits_as_a_dequantised_matrix(rng, cupy, bits):
    """By the tile of `sparse_wgmma` that adds in the same order."""
    from sparse24 import _quantised

    record, _ = random_matrix(rng, (512, 1024), bits, "bfloat16")
    b = to_device(rng.standard_normal((1024, 300)).astype(numpy_dtype("bfloat16")), order="column")
    outs = []
    for kernel, bits_of, a in (
        (sparse_mixed, bits, record),
        (sparse_wgmma, 0, _quantised.dequantised(record, record.dtype)),
    ):
        wanted = problem(512, 300, 1024, bits=bits_of, out_dtype="float32")
        config = next(c for c in kernel.configs(wanted) if c.name == "128x256x64")
        outs.append(empty_result(wanted))
        kernel.prepare(wanted, config, PLAIN)(a, b, outs[-1], PLAIN)
    np.testing.assert_array_equal(outs[0].get(), outs[1].get())
