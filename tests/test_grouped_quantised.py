"""Products of experts with quantised matrices: the kernel beside products in float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from grouped_cases import offsets_of, poisoned
from guards import Guarded
from matmul_cases import logical, put, sample
from quantised_cases import problem, random_stack

from sparse24._dtypes import OF_16_BITS, numpy_dtype
from sparse24._records import PLAIN, Fused
from sparse24.kernels import bricks, grouped, reference_grouped, sparse_tile
from sparse24.kernels import grouped_quantised as kernel
from sparse24.kernels import grouped_quantised_configs as configs
from sparse24.kernels.decode_tiles import BESIDE
from sparse24.kernels.launch import current_stream
from sparse24.kernels.reference_product import activate

COUNTS = (0, 1, 7, 33, 0, 64, 129, 0)
TILES = [(tile, bits) for bits in bricks.BITS for tile in configs.fitting(bits, 8, 90)]


def gpu(test):
    return pytest.mark.gpu(pytest.mark.stem("grouped_quantised")(test))


class Layer:
    """Experts, their tokens, and exact products.

    Attributes
    ----------
    record : Compressed24, shape (e, m, k)
    exact : ndarray of float64, shape (m, t)
    """

    def __init__(self, rng, counts, m: int, k: int, bits=4, dtype="bfloat16"):
        import cupy as cp

        self.dtype, self.offsets = dtype, offsets_of(counts)
        self.record, self.dense = random_stack(rng, (len(counts), m, k), bits, dtype)
        x = sample((int(self.offsets[-1]), k), dtype, rng)
        room = cp.zeros((len(x), -(-k // 8) * 8), put(x[:0], cp).dtype)  # rows on 16 bytes
        room[:, :k] = put(x, cp)
        self.x = room[:, :k]
        self.exact = reference_grouped.grouped_matmul(self.dense, x.T, self.offsets)

    def multiply(self, *, tile=None, epilogue=PLAIN, gated=False, result=None, offsets=None):
        """By the kernel, over poison."""
        import cupy as cp

        result = result or self.dtype
        rows = self.record.shape[1] // (2 if gated else 1)
        vector = 16 // numpy_dtype(result).itemsize  # of what is stored behind the last row
        room = poisoned(cp, (-(-rows // vector) * vector, len(self.x)), result)
        out = room[:rows]
        where = cp.asarray(self.offsets if offsets is None else offsets)
        types = grouped.types_of(self.dtype, self.dtype, result, where.dtype.name, epilogue,
                                 gated=gated, fast_accumulation=True)  # fmt: skip
        stream, params = current_stream(), grouped.params_of(epilogue)
        of = self.record, self.x.T, out, types, where.data.ptr, params
        config = tile and configs.place(tile, self.record.quantised, self.record.shape[0])
        kernel.bind(*of, config)(stream)
        if offsets is None:
            assert bool((room[rows:] == 0).all())
        return logical(out, result).astype(np.float64)

    def check(self, **options):
        """As `multiply`; what is stored is rounded once from sums in float32."""
        got = self.multiply(**options)
        eps = 2.0 ** -(8 if (options.get("result") or self.dtype) == "bfloat16" else 11)
        size = np.abs(self.dense).max((1, 2)).max() * np.sqrt(self.record.shape[2])
        np.testing.assert_allclose(got, self.exact, rtol=eps, atol=2e-5 * size)
        return got


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bits": 0}, "A is not quantised"),
        ({"compute_capability": 80}, "compute capability 9.0, the device has 80"),
        ({"b_dtype": "float32"}, "multiplies by float16, bfloat16, not by float32 as bfloat16"),
        ({"out_dtype": "float64"}, "results are stored as bfloat16, float32, not float64"),
        ({"b_order": "row"}, "must be contiguous"),
        ({"batch": 2000}, "has room for 1024"),
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
    layer = Layer(rng, COUNTS, *size, bits, dtype)
    for result in (dtype, "float32"):
        layer.check(tile=tile, result=result)


@gpu
@pytest.mark.parametrize("experts", [1, 2, 9, 128, 300])
@pytest.mark.parametrize("tokens", [1, 8, 100, 1000])
def test_any_number_of_experts_and_tokens(rng, cupy, experts, tokens):
    shares = 1 / (1 + rng.permutation(experts))
    Layer(rng, rng.multinomial(tokens, shares / shares.sum()), 136, 144).check()


@gpu
@pytest.mark.parametrize("counts", [(1, 0, 2), (20, 64, 17)])
@pytest.mark.parametrize("weight", [(4096, 4096), (14336, 1024), (1024, 14336)], ids=str)
def test_real_sizes(rng, cupy, weight, counts):
    Layer(rng, counts, *weight).check()


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=str)
@pytest.mark.parametrize("size", [(32, 130), (288, 1000), (1024, 512)], ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu", "identity"])
def test_gates(rng, cupy, tile, size, activation):
    layer = Layer(rng, COUNTS, *size)
    half = size[0] // 2
    exact = layer.exact / 32  # so that activations are not all 0 or 1
    layer.exact = activate(exact[:half], activation, 0.0, np.inf) * exact[half:]
    got = layer.multiply(
        tile=tile, gated=True, epilogue=Fused(1 / 32, activation=activation), result="float32"
    )
    bound = 1e-4 * np.abs(exact).max() * (1 + np.abs(exact[half:]) + np.abs(exact[:half]))
    assert (np.abs(got - layer.exact) <= bound).all()


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=str)
def test_scales_and_biases(rng, cupy, tile):
    layer = Layer(rng, COUNTS, 136, 272)
    (e, m, _), t = layer.record.shape, len(layer.x)
    rows, bias, tokens = (rng.standard_normal(x).astype("f4") for x in ((e, m), (e, m), t))
    of_tokens = np.repeat(np.arange(e), np.diff(layer.offsets))
    exact = 0.5 * layer.exact * rows[of_tokens].T * tokens + bias[of_tokens].T
    held = (cupy.asarray(x) for x in (rows, tokens, bias))
    names = ("row_scale", "column_scale", "row_bias")
    epilogue = Fused(0.5, activation="relu", **dict(zip(names, held)))
    got = layer.multiply(tile=tile, epilogue=epilogue, result="float32")
    np.testing.assert_allclose(got, np.maximum(exact, 0), atol=1e-4 * np.abs(exact).max())


@gpu
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("offsets", [
    [-5, 10, 20, 200], [90, 95, 99, 99], [99, 50, 20, 0], [74, 74, 74, 74], [-9, -8, -7, -6],
    [-(2**31), 2**31 - 1, -(2**31), 2**31 - 1],
], ids=str)  # fmt: skip
def test_offsets_outside_of_the_tokens_touch_nothing_else(rng, cupy, kind, offsets):
    guards = Guarded(cupy)
    with cupy.cuda.using_allocator(guards):
        layer = Layer(rng, (3, 70, 1), 136, 272)
        layer.multiply(offsets=np.array(offsets, kind))
        assert not guards.damage()
    right = layer.multiply(offsets=np.array([-4, 3, 73, 2000], kind))
    np.testing.assert_array_equal(right, layer.check())


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=str)
def test_nan_stays_with_the_tokens_of_its_expert(rng, cupy, tile):
    layer, nan = Layer(rng, COUNTS, 136, 272), slice(41, 105)
    want = layer.multiply(tile=tile)
    layer.x[nan] = np.nan
    got = layer.multiply(tile=tile)
    assert np.isnan(got[:, nan]).all()
    np.testing.assert_array_equal(np.delete(got, nan, axis=1), np.delete(want, nan, axis=1))


@gpu
@pytest.mark.parametrize("tile", configs.TILES, ids=str)
def test_the_same_bits_each_time(rng, cupy, tile):
    layer = Layer(rng, COUNTS, 264, 1000)
    first = layer.multiply(tile=tile)
    for _ in range(20):
        np.testing.assert_array_equal(layer.multiply(tile=tile), first)
