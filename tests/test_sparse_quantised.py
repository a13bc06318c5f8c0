"""Products of quantised matrices by the kernel for few columns, and its choices without a GPU."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from product_cases import result_to_numpy
from quantised_cases import check_product, problem

from sparse24 import _planner, _widening
from sparse24._dtypes import OF_16_BITS, numpy_dtype
from sparse24._explain_gpu import of_quantised
from sparse24._records import Compressed24, Fused, Operand24
from sparse24._views import View
from sparse24.kernels import bricks, sparse_quantised, sparse_tile
from sparse24.kernels import sparse_quantised_plan as plan
from sparse24.kernels.decode_tiles import BESIDE, LEAST_STAGES, tiles

gpu = pytest.mark.gpu
check = functools.partial(check_product, sparse_quantised)
pytestmark = pytest.mark.stem("sparse_quantised")
TILES = [  # for 8 bits there is not always room
    (tile, bits)
    for tile in plan.TILES
    for bits in bricks.BITS
    if plan.placed(tile, problem(bits=bits)).stages >= LEAST_STAGES
]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bits": 0}, "not quantised"),
        ({"compute_capability": 89}, "9.0"),
        ({"dtype": "float32"}, "not by float32"),
        ({"b_order": "strided"}, "copy it"),
        ({"aligned": False}, "copy it"),
        ({"b_order": "row", "n": 9}, "copy it"),
        ({"b_order": "row", "b_packed": False}, "copy it"),
        ({"k": 0}, "empty"),
    ],
    ids=str,
)
def test_refuses(fields, words):
    assert sparse_quantised.refuses(problem()) is None
    assert words in sparse_quantised.refuses(problem(**fields))


@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("n", [1, 8, 9, 17, 33, 65, 129, 1000])
@pytest.mark.parametrize("capability", [90, 100, 120])
def test_blocks_fit_a_multiprocessor(bits, n, capability):
    wanted = problem(n=n, bits=bits, compute_capability=capability)
    assert sparse_quantised.refuses(wanted) is None
    for config in sparse_quantised.configs(wanted):
        assert config.stages >= LEAST_STAGES
        assert capability == 90 or not config.wgmma
        size = config.shared_memory(wanted) + BESIDE
        assert config.blocks * size <= (sparse_tile.SHARED_MEMORY.get(capability, 99) + 1) << 10
        assert tiles(wanted, config) == 4096 // config.m * -(-n // config.n)


@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("weight", [(14336, 4096), (4096, 14336), (28672, 8192), (512, 512)])
def test_no_prediction_is_below_the_bytes(bits, weight):
    chip = {"sms": 132, "bandwidth": 4.2e12}
    for n in (1, 16, 64, 256):
        wanted = problem(*weight[:1], n, weight[1], bits=bits)
        stored = weight[0] * weight[1] * (bits / 2 + 1 + 0.25) / 8
        for config in sparse_quantised.configs(wanted):
            assert sparse_quantised.predict(wanted, config, chip) > stored / chip["bandwidth"]


@pytest.mark.parametrize("batch", [(), (3,)])
def test_launches_by_address_know_how_far_apart_matrices_are(batch):
    """With three row blocks a single matrix must not be taken for a stack."""
    bricks_of = View.of(
        1 << 40, (*batch, 3, 2, 832), (3 * 2 * 832, 2 * 832, 832, 1)[-len(batch) - 3 :], np.uint8
    )
    record = Compressed24(bricks_of, None, bricks_of, (*batch, 48, 256), None, quantised=4)
    b = View.of(2 << 40, (3, 256, 8), (4096, 2, 512), np.float16)
    out = View.of(3 << 40, (3, 48, 8), (768, 2, 96), np.float16)
    shape = sparse_tile.shape_block(sparse_quantised.by_blocks(record), b, out)
    assert shape.view(sparse_tile.SHAPE)["a_batch"] == (3 * 2 * 832 if batch else 0)


def operand(bits: int, shape=(14336, 4096)) -> Operand24:
    """One of which only the facts count."""
    record = Compressed24(None, None, None, shape, numpy_dtype("bfloat16"), quantised=bits)
    return Operand24(record, None, None, shape, record.dtype)


@pytest.mark.parametrize("bits", bricks.BITS)
def test_matrices_are_multiplied_as_stored_and_for_many_columns_dequantised(h200, bits):
    for n, capability, kernel in (
        (1, 90, "sparse_quantised"),
        (64, 100, "sparse_quantised"),
        (512, 90, "sparse_mixed"),
        (4096, 100, None),
    ):
        wide = problem(14336, n, bits=0, compute_capability=capability)
        taken = _widening.of_quantised(wide, operand(bits), 0, "auto")
        assert taken.quantised == (bits if kernel else 0)
        told = str(of_quantised(wide, operand(bits), 0, "auto"))
        if kernel:
            chosen = _planner.choose(taken, 0, dense=False)
            assert chosen.kernel == kernel
            assert told.startswith(f"{chosen.name}: it widens the integers of {bits} bits as it")
        else:
            assert "the integers are dequantised to bfloat16 at each call" in told
    named = _widening.of_quantised(problem(14336, 4096, bits=0), operand(bits), 0,
                                   "sparse_quantised")  # fmt: skip
    assert named.quantised == bits
    other = _widening.of_quantised(problem(14336, 1, bits=0), operand(bits), 0, "sparse_wgmma")
    assert other.quantised == 0


def test_rows_of_b_are_turned_where_no_tile_has_their_width(h200):
    for n, copied in ((8, False), (16, False), (5, True), (32, True)):
        chosen = _planner.choose(problem(14336, n, b_order="row"), 0, dense=False)
        assert (chosen.kernel, chosen.variant.stage_b) == ("sparse_quantised", copied)


@gpu
@pytest.mark.parametrize("dtype", OF_16_BITS)
@pytest.mark.parametrize(("tile", "bits"), TILES, ids=str)
def test_every_tile(rng, cupy, tile, bits, dtype):
    placed = plan.placed(tile, problem(bits=bits, dtype=dtype))
    for shape in ((200, 1000), (512, 2048), (1, 4), (16, 132)):
        for n in (1, tile.n - 3, tile.n, tile.n + 5):
            check(rng, shape, n, bits=bits, dtype=dtype, config=placed)


@gpu
@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("n", [8, 16])
def test_contiguous_rows_of_b(rng, cupy, bits, n):
    for shape in ((200, 1000), (70, 130), (64, 4096)):
        check(rng, shape, n, bits=bits, dtype="float16", b_order="row")


@gpu
@pytest.mark.parametrize("n", [7, 30, 60, 200])
@pytest.mark.parametrize("settled", [False, True])
def test_real_sizes(rng, cupy, n, settled):
    for shape in ((4096, 4096), (14336, 4096), (4096, 14336)):
        check(rng, shape, n, bits=4, dtype="bfloat16", settled=settled)


@gpu
@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("out_dtype", ["float32", "float16"])
@pytest.mark.parametrize("out_order", ["row", "column", "strided"])
def test_results(rng, cupy, n, out_dtype, out_order):
    fields = {"out_dtype": out_dtype, "out_order": out_order}
    check(rng, (130, 520), n, bits=4, dtype="float16", aligned=False, b_aligned=True, **fields)


@gpu
def test_batches_of_b(rng, cupy):
    for n in (5, 33):
        check(rng, (96, 384), n, bits=4, dtype="bfloat16", batch=3, b_batched=True)


@gpu
@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("n", [1, 16, 50, 130])
@pytest.mark.parametrize("b_batched", [False, True])
def test_stacks(rng, cupy, bits, n, b_batched):
    stack = {"batch": 5, "a_batched": True, "b_batched": b_batched}
    for shape in ((96, 384), (7, 132), (200, 1000)):
        check(rng, shape, n, bits=bits, dtype="float16", settled=n == 16, **stack)
    if b_batched:
        check(rng, (512, 520), 16, bits=bits, dtype="bfloat16", b_order="row", **stack)


@gpu
@pytest.mark.parametrize("n", [4, 48])
def test_epilogues(rng, cupy, n):
    vector = lambda size: rng.standard_normal(size).astype(np.float32)  # noqa: E731
    for epilogue in (
        Fused(alpha=0.5, row_bias=vector(130), activation="gelu"),
        Fused(row_scale=vector(130), column_scale=vector(n), column_bias=vector(n)),
        Fused(alpha=2.0, beta=0.5, c=vector((1, 130, n)).astype(np.float16), activation="relu"),
    ):
        check(rng, (130, 520), n, bits=4, dtype="float16", epilogue=epilogue)


@gpu
@pytest.mark.parametrize("n", [6, 64])
def test_what_is_not_finite_and_zeros(rng, cupy, n):
    b = rng.standard_normal((1000, n)).astype(np.float16)
    b[:, 1] = np.nan
    b[:, 2] = -0.0
    b[:, 3] = 1
    out = check(rng, (64, 1000), n, bits=4, dtype="float16", b=b)
    got = result_to_numpy(out, "float16")[0]
    assert not got[:, 2].any()
    assert np.isnan(got[:, 1]).all()


@gpu
@pytest.mark.parametrize("n", [8, 24, 64, 128])
def test_the_same_bits_each_time(cupy, n):
    first = None
    for _ in range(10):
        out = check(np.random.default_rng(3), (4096, 2048), n, bits=4, dtype="bfloat16")
        bits = out.view(np.uint16).get()
        assert first is None or (bits == first).all()
        first = bits
