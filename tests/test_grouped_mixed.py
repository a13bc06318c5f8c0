"""Products of experts of 8 and 4 bits, widened in registers, beside products in float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from grouped_direct_cases import (
    COUNTS,
    OUTSIDE,
    REFUSED,
    Layer,
    check_gate,
    check_nan_stays,
    check_offsets_outside,
    check_same_bits,
    check_scales_and_biases,
)
from mixed_cases import PAIRS
from mixed_cases import problem as problem_of_bytes
from quantised_cases import problem as problem_of_bricks

from sparse24._dtypes import OF_16_BITS, numpy_dtype
from sparse24.kernels import bricks
from sparse24.kernels import grouped_mixed as kernel
from sparse24.kernels import grouped_mixed_configs as configs
from sparse24.kernels.sparse_wgmma_configs import LEAST_STAGES, SHARED_MEMORY

STORED = (0, *bricks.BITS)  # bits of bricks, or 0 for int8
SIZES = [(136, 272), (301, 1000), (16, 4), (1, 130), (512, 2048)]


def gpu(test):
    return pytest.mark.gpu(pytest.mark.stem("grouped_mixed")(test))


def layer_of(rng, counts, m: int, k: int, bits=0, stored="int8", dtype="bfloat16") -> Layer:
    of = {"bits": bits, "stored": stored, "dtype": dtype}
    return Layer(kernel, rng, counts, m, k, rounded=bool(bits), **of)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dtype": "bfloat16"}, "multiplies int8, float8_e4m3fn, float8_e5m2 with types of 16"),
        ({"b_dtype": "float32"}, "not int8"),
        *REFUSED,
    ],
)
def test_refuses(fields, words):
    base = problem_of_bytes(batch=8, aligned=True)
    assert kernel.refuses(base) is None
    assert words in kernel.refuses(dataclasses.replace(base, **fields))


def test_a_gate_needs_whole_atoms_or_blocks_of_rows():
    assert kernel.refuses(problem_of_bricks(m=48, batch=8), gated=True) is None
    assert "multiple of 16 rows" in kernel.refuses(problem_of_bricks(m=40, batch=8), gated=True)
    assert kernel.refuses(problem_of_bytes(m=64, batch=8), gated=True) is None
    assert "multiple of 64 rows" in kernel.refuses(problem_of_bytes(m=48, batch=8), gated=True)


@pytest.mark.parametrize("bits", STORED)
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("tile", configs.TILES, ids=lambda tile: tile.name)
def test_blocks_fit_a_multiprocessor(tile, itemsize, bits):
    of = configs.layout(tile, itemsize, bits)
    assert of.stages >= LEAST_STAGES
    assert of.shared_memory <= SHARED_MEMORY[tile.blocks]


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("bits", STORED)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_tile_and_size(rng, cupy, tile, bits, size):
    layer = layer_of(rng, COUNTS, *size, bits)
    for result in ("bfloat16", "float32"):
        layer.check(tile, result=result)


@gpu
@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_type_of_8_bits(rng, cupy, stored, dtype, size):
    layer_of(rng, COUNTS, *size, stored=stored, dtype=dtype).check()


@gpu
@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("dtype", OF_16_BITS)
def test_bricks_of_both_types(rng, cupy, bits, dtype):
    layer_of(rng, COUNTS, 301, 1000, bits, dtype=dtype).check()


@gpu
@pytest.mark.parametrize("stored", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_every_byte_is_exact(rng, cupy, stored):
    values = np.arange(256, dtype=np.uint8).view(numpy_dtype(stored))
    dense = np.zeros((1, 256, 136), values.dtype)
    dense[0, :, 72] = values
    layer = Layer(kernel, rng, (5,), 256, 136, dense=dense)
    np.testing.assert_array_equal(layer.multiply(result="float32"), layer.exact)


@gpu
@pytest.mark.parametrize("experts", [1, 2, 9, 128, 300])
@pytest.mark.parametrize("tokens", [1, 8, 100, 1000])
@pytest.mark.parametrize("bits", [0, 4])
def test_any_number_of_experts_and_tokens(rng, cupy, experts, tokens, bits):
    shares = 1 / (1 + rng.permutation(experts))
    layer_of(rng, rng.multinomial(tokens, shares / shares.sum()), 136, 144, bits).check()


@gpu
@pytest.mark.parametrize("counts", [(1, 0, 2), (20, 640, 17)])
@pytest.mark.parametrize("size", [(4096, 4096), (14336, 1024), (1024, 14336)], ids=str)
@pytest.mark.parametrize("bits", [0, 4])
def test_real_sizes(rng, cupy, size, counts, bits):
    layer_of(rng, counts, *size, bits).check()


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("size", [(128, 136), (384, 1000), (1024, 512)], ids=str)
@pytest.mark.parametrize("bits", STORED)
def test_gates(rng, cupy, tile, size, bits):
    layer = layer_of(rng, COUNTS, *size, bits)
    for activation in ("silu", "identity"):
        check_gate(layer, tile, activation)


@gpu
@pytest.mark.parametrize("size", [(32, 136), (288, 1000)], ids=str)
@pytest.mark.parametrize("bits", bricks.BITS)
def test_gates_of_few_bricks(rng, cupy, size, bits):
    for tile in configs.TILES:
        check_gate(layer_of(rng, COUNTS, *size, bits), tile, "gelu")


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=lambda tile: tile.name)
def test_scales_and_biases(rng, cupy, tile):
    check_scales_and_biases(layer_of(rng, COUNTS, 136, 272), tile, rng, cupy)


@gpu
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("offsets", OUTSIDE, ids=str)
@pytest.mark.parametrize("bits", [0, 4])
def test_offsets_outside_of_the_tokens_touch_nothing_else(rng, cupy, kind, offsets, bits):
    check_offsets_outside(lambda counts: layer_of(rng, counts, 136, 272, bits), kind, offsets, cupy)


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=lambda tile: tile.name)
def test_nan_stays_with_the_tokens_of_its_expert(rng, cupy, tile):
    check_nan_stays(layer_of(rng, COUNTS, 136, 272), tile)


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=lambda tile: tile.name)
@pytest.mark.parametrize("bits", STORED)
def test_the_same_bits_each_time(rng, cupy, tile, bits):
    check_same_bits(layer_of(rng, COUNTS, 264, 1000, bits), tile)
