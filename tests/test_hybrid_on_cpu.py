"""Which path multiplies a hybrid matrix on the CPU, by its share of non-zeros and the columns."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

import sparse24 as s24
from sparse24 import families
from sparse24._hybrid import cost as hybrid_cost
from sparse24.kernels._simd import VECTOR_BYTES

M, K = 96, 160
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-13, "int8": 0}
# Share of zeros, columns, and the path by the bytes of a vector: of float16 and bfloat16, float32,
# float64, and int8.
CASES = [
    (0.4, 1, {64: "masks blas blas masks", 32: "masks blas blas masks", 16: "cpu blas blas cpu"}),
    (0.4, 4, {64: "masks masks masks masks", 32: "masks masks masks masks"}),
    (0.4, 32, {64: "cpu cpu cpu masks"}),
    (0.4, 64, dict.fromkeys((64, 32, 16), "blas blas blas cpu")),
    (0.4, 200, dict.fromkeys((64, 32, 16), "blas blas blas cpu")),
    (0.53, 64, dict.fromkeys((32, 16), "blas blas blas cpu")),
    (0.53, 200, dict.fromkeys((64, 32, 16), "blas blas blas cpu")),
    (0.8, 1, {64: "masks masks cpu masks"}),
    (0.8, 8, {64: "masks masks cpu masks"}),
    (0.8, 64, {}),
    (0.98, 1, {}),
]  # fmt: skip
KINDS = {"float16": 0, "bfloat16": 0, "float32": 1, "float64": 2, "int8": 3}


def matrix(rng, zeros, dtype="float32"):
    return families.make("iid", (M, K), zeros=zeros, dtype=dtype, rng=rng)


def assert_close(got, weight, b, dtype):
    want = weight.astype(np.float64) @ b.astype(np.float64)
    within = TOLERANCE[dtype]
    assert got.shape == want.shape
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=within, atol=within * np.abs(want).max()
    )


def ran(h, path):
    return h.is_prepared(path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
@pytest.mark.parametrize(("zeros", "n", "paths"), CASES)
def test_the_path_for_a_share_of_zeros(rng, dtype, zeros, n, paths):
    path = paths.get(VECTOR_BYTES, "cpu cpu cpu cpu").split()[KINDS[dtype]]
    w = matrix(rng, zeros, dtype)
    b = rng.integers(-3, 4, (K, n)).astype(w.dtype)
    for h in (s24.hybrid(w), s24.hybrid(w.T).T):
        for _ in range(3):  # later calls repeat what was remembered
            assert_close(h @ b, w, b, dtype)
        assert [other for other in ("cpu", "masks", "blas") if ran(h, other)] == [path]
        assert h.explain(n)["choice"] == path


def test_a_matrix_beyond_the_caches_is_not_made_dense_for_one_column(rng):
    small, large = (s24.hybrid(np.ones((4, k), np.float32)) for k in (1 << 19, (1 << 19) + 64))
    others = {64: ["cpu", "masks"], 32: ["cpu", "masks"]}.get(VECTOR_BYTES, ["cpu"])
    assert sorted(large.explain(1)["candidates"]) == others
    assert sorted(small.explain(1)["candidates"]) == ["blas", *others]


@pytest.mark.parametrize("n", [1, 64])
def test_blas_multiplies_from_either_side_in_any_order(rng, n):
    w, x = matrix(rng, 0.4), rng.standard_normal((n, K)).astype(np.float32)
    h = s24.hybrid(w)
    for _ in range(2):
        assert_close((x @ h.T).T, w, x.T, "float32")
        assert_close(h @ np.asfortranarray(x.T), w, x.T, "float32")
        out = np.empty((2 * n, M), np.float32)[::2].T
        assert h.matmul(x.T, out=out) is out
        assert_close(out, w, x.T, "float32")
        y = s24.linear(x, h, np.ones(M, np.float32), activation="relu")
        np.testing.assert_allclose(y, np.maximum(x @ w.T + 1, 0), rtol=1e-4, atol=1e-4)
        stack = np.stack([x.T, -x.T])
        np.testing.assert_allclose(h @ stack, w @ stack, rtol=1e-4, atol=1e-4)
    assert_close(h @ x[0], w, x[0], "float32")
    assert ran(h, "blas")


def test_sums_of_16_bits_are_rounded_once(rng):
    w = matrix(rng, 0.4, "bfloat16")
    x = rng.standard_normal((64, K)).astype(bfloat16)
    h = s24.hybrid(w)
    got = s24.matmul(h, x.T, dtype="float32")
    assert_close(got, w, x.T, "float32")
    np.testing.assert_array_equal(h @ x.T, got.astype(bfloat16))
    assert ran(h, "blas")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [(), (8,), (2, 8)])
def test_a_layer_and_a_product_are_remembered_apart(rng, dtype, rows):
    """The sums of a layer with an epilogue are float32, also if its elements have 16 bits."""
    w = families.make("iid", (M, K), zeros=0.4, dtype=dtype, rng=rng)
    x = families.make("iid", (16, K), zeros=0, dtype=dtype, rng=rng)[: np.prod(rows, dtype=int)]
    x, h = x.reshape(*rows, K), s24.hybrid(w)
    bias = np.ones(M, np.int32 if dtype == "int8" else w.dtype)
    product = s24.hybrid(w) @ x.T if x.ndim < 3 else (x @ s24.hybrid(w).T).mT
    for _ in range(3):
        layer, plain = s24.linear(x, h, bias=bias), x @ h.T
        assert plain.dtype == product.dtype
        np.testing.assert_array_equal(plain.mT if rows else plain, product)
        assert layer.dtype == s24.linear(x, h).dtype
        want = x.astype(np.float64) @ w.T.astype(np.float64) + 1
        error = np.abs(layer.astype(np.float64) - want).max()
        assert error <= TOLERANCE[dtype] * np.abs(want).max()


def test_masks_count_the_columns_that_fill_whole_vectors():
    """Of a single column, each row would be read as a whole vector."""
    for k, path in ((1, "cpu"), (64, "masks" if VECTOR_BYTES > 16 else "cpu")):
        assert s24.hybrid(np.ones((300, k), np.float32)).explain(8)["choice"] == path


def test_a_path_that_is_named_is_taken_and_remembered(rng):
    w, b = matrix(rng, 0.4), rng.standard_normal((K, 64)).astype(np.float32)
    h = s24.hybrid(w)
    by_rows = h.matmul(b, algorithm="cpu")
    assert ran(h, "cpu")
    assert not ran(h, "blas")
    chosen = h @ b
    for _ in range(3):
        np.testing.assert_array_equal(h.matmul(b, algorithm="cpu"), by_rows)
        np.testing.assert_array_equal(h.matmul(b, algorithm="blas"), chosen)
        np.testing.assert_array_equal(h @ b, chosen)
    with pytest.raises(s24.ArgumentError, match="one of 'auto', 'cpu' for this matrix and n = 32"):
        h.matmul(b[:, :32], algorithm="blas")
    assert h.explain(32)["reason"] == "the only path for this many columns on this device"


@pytest.mark.filterwarnings("error")
def test_blas_is_as_quiet_about_what_is_not_finite_as_other_paths(rng):
    w = matrix(rng, 0.4)
    b = np.ones((K, 64), np.float32)
    b[3] = 3e38  # times some elements more than float32 holds
    b[5, 7] = np.inf
    got = s24.hybrid(w).matmul(b, algorithm="blas")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, w @ b)


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0)])
def test_matrices_without_elements(shape):
    h = s24.hybrid(np.zeros(shape, np.float32))
    for n in (1, 64):
        assert not (h @ np.ones((shape[1], n), np.float32)).any()
        assert h.explain(n)["choice"] == "cpu"


def test_predicted_times_count_elements_and_columns_not_tiles(rng):
    w = rng.normal(size=(512, 512)).astype(np.float32)
    few, some = (s24.hybrid(w * (rng.random(w.shape) < share)) for share in (0.03, 0.3))
    seconds = [[h.explain(n)["candidates"]["cpu"] for n in (1, 16, 256)] for h in (few, some)]
    assert 6 < seconds[1][2] / seconds[0][2] < 10  # ten times the elements; a call costs the same
    assert seconds[1][0] < seconds[1][1] / 2 < seconds[1][2] / 8
    two, four = (some.explain(n)["candidates"]["cpu"] for n in (2, 4))  # part of a vector
    assert seconds[1][0] < two == four
    wide = s24.hybrid(w.astype(np.float64)).explain(256)["candidates"]["cpu"]
    assert 1.5 < wide / s24.hybrid(w).explain(256)["candidates"]["cpu"] < 2


def test_every_path_is_predicted_to_take_as_long_for_the_call(rng):
    times = s24.hybrid(matrix(rng, 0.1)).explain(1)["candidates"]
    assert len(times) > 1
    assert min(times.values()) > hybrid_cost.CPU_CALL
