"""Products of experts with quantised matrices: the kernel beside products in float64."""

from __future__ import annotations

import dataclasses

import pytest
from grouped_cases import poisoned
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
from quantised_cases import problem

from sparse24._dtypes import OF_16_BITS
from sparse24._records import PLAIN
from sparse24.kernels import bricks, grouped, sparse_tile
from sparse24.kernels import grouped_quantised as kernel
from sparse24.kernels import grouped_quantised_configs as configs
from sparse24.kernels.decode_tiles import BESIDE
from sparse24.kernels.launch import current_stream

TILES = [(tile, bits) for bits in bricks.BITS for tile in configs.fitting(bits, 8, 90)]


def gpu(test):
    return pytest.mark.gpu(pytest.mark.stem("grouped_quantised")(test))


def layer_of(rng, counts, m: int, k: int, bits=4, dtype="bfloat16") -> Layer:
    return Layer(kernel, rng, counts, m, k, bits=bits, dtype=dtype)


def placed(tile, layer: Layer):
    return configs.place(tile, layer.record.quantised, layer.record.shape[0])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bits": 0}, "A is not quantised"),
        ({"b_dtype": "float32"}, "multiplies by float16, bfloat16, not by float32 as bfloat16"),
        *REFUSED,
    ],
)
def test_refuses(fields, words):
    base = problem(batch=8, aligned=True)
    if "bits" in fields:
        fields = {"quantised": fields["bits"]}
    assert kernel.refuses(base) is None
    assert words in kernel.refuses(dataclasses.replace(base, **fields))


def test_a_gate_needs_whole_blocks_of_rows():
    assert kernel.refuses(problem(m=48, batch=8), gated=True) is None
    assert "multiple of 16 rows" in kernel.refuses(problem(m=40, batch=8), gated=True)


@pytest.mark.parametrize("bits", bricks.BITS)
@pytest.mark.parametrize("groups", [1, 8, 128, 1000])
@pytest.mark.parametrize("capability", [90, 100, 120])
def test_blocks_fit_a_multiprocessor(bits, groups, capability):
    fitting = configs.fitting(bits, groups, capability)
    if not fitting:  # and then the kernel says so
        refusal = kernel.refuses(problem(bits=bits, batch=groups, compute_capability=capability))
        assert refusal == f"shared memory has no room for 2 stages beside {groups} groups"
    room = sparse_tile.SHARED_MEMORY.get(capability, 99) << 10
    for tile in fitting:
        config = configs.place(tile, bits, groups, capability)
        size = config.shared_memory(configs.sized(bits)) + grouped.table_bytes(groups)
        assert (size + BESIDE) * config.blocks <= room + BESIDE
        assert config.threads * config.blocks <= 2048


def chosen(columns, *, groups=128, rows=4096, k=4096, bits=4):
    return configs.choose(groups, rows, k, columns, bits, 132, 90)


def test_wider_tiles_for_more_columns_and_long_ones_for_few_tiles():
    widths = [chosen(128 * n).n for n in (1, 4, 8, 16, 32, 64, 128)]
    assert widths == [8, 8, 8, 32, 32, 64, 128]
    assert chosen(1, groups=8, k=14336).k == 1024
    assert chosen(8, rows=2048, k=768).k == 256  # of which no stage is partly empty


@gpu
@pytest.mark.parametrize(("tile", "bits"), TILES, ids=str)
@pytest.mark.parametrize("dtype", OF_16_BITS)
@pytest.mark.parametrize("size", [(136, 272), (301, 1000), (16, 4), (1, 130), (512, 2048)], ids=str)
def test_every_tile_and_size(rng, cupy, tile, bits, dtype, size):
    layer = layer_of(rng, COUNTS, *size, bits, dtype)
    for result in (dtype, "float32"):
        layer.check(placed(tile, layer), result=result)


@gpu
@pytest.mark.parametrize("rows", [130, 8, 1])
def test_zeros_behind_the_last_row(rng, cupy, rows):
    layer = layer_of(rng, COUNTS, rows, 272)
    room = poisoned(cupy, (-(-rows // 8) * 8, len(layer.x)), "bfloat16")
    offsets = cupy.asarray(layer.offsets)
    types = grouped.types_of(*["bfloat16"] * 3, "int64", PLAIN, gated=False, fast_accumulation=True)
    of = layer.record, layer.x.T, room[:rows], types, offsets.data.ptr, grouped.params_of(PLAIN)
    kernel.bind(*of)(current_stream())
    assert bool((room[rows:] == 0).all())


@gpu
@pytest.mark.parametrize("experts", [1, 2, 9, 128, 300])
@pytest.mark.parametrize("tokens", [1, 8, 100, 1000])
def test_any_number_of_experts_and_tokens(rng, cupy, experts, tokens):
    shares = 1 / (1 + rng.permutation(experts))
    layer_of(rng, rng.multinomial(tokens, shares / shares.sum()), 136, 144).check()


@gpu
@pytest.mark.parametrize("counts", [(1, 0, 2), (20, 64, 17)])
@pytest.mark.parametrize("weight", [(4096, 4096), (14336, 1024), (1024, 14336)], ids=str)
def test_real_sizes(rng, cupy, weight, counts):
    layer_of(rng, counts, *weight).check()


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=str)
@pytest.mark.parametrize("size", [(32, 130), (288, 1000), (1024, 512)], ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu", "identity"])
def test_gates(rng, cupy, tile, size, activation):
    layer = layer_of(rng, COUNTS, *size)
    check_gate(layer, placed(tile, layer), activation)


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=str)
def test_scales_and_biases(rng, cupy, tile):
    layer = layer_of(rng, COUNTS, 136, 272)
    check_scales_and_biases(layer, placed(tile, layer), rng, cupy)


@gpu
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("offsets", OUTSIDE, ids=str)
def test_offsets_outside_of_the_tokens_touch_nothing_else(rng, cupy, kind, offsets):
    check_offsets_outside(lambda counts: layer_of(rng, counts, 136, 272), kind, offsets, cupy)


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=str)
def test_nan_stays_with_the_tokens_of_its_expert(rng, cupy, tile):
    layer = layer_of(rng, COUNTS, 136, 272)
    check_nan_stays(layer, placed(tile, layer))


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=str)
def test_the_same_bits_each_time(rng, cupy, tile):
    layer = layer_of(rng, COUNTS, 264, 1000)
    check_same_bits(layer, placed(tile, layer))
