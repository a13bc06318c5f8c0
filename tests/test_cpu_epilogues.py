"""Epilogues and narrow results of the CPU products: activations, rounding and saturation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cpu_matmul_cases import PRODUCTS, operands, result_like

from sparse24 import _dtypes
from sparse24._records import PLAIN, Fused
from sparse24.kernels import cpu_compress, cpu_decode, cpu_matmul, reference


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("activation", ["identity", "relu", "relu2", "gelu", "gelu_tanh", "silu"])
def test_epilogue(rng, name, activation):
    m, k, n = 13, 24, 21
    _, values, metadata, b = operands(rng, m, k, n, name)
    result = "float32" if name == "int8" else name
    kind = np.float64 if name == "float64" else np.float32
    c = rng.standard_normal((m, n)).astype(result)
    aux = result_like((m, n), result)
    scale = 1e-4 if name == "int8" else 0.5
    e = Fused(
        scale, 0.25, c, *(rng.standard_normal(size).astype(kind) for size in (m, n, m, n)),
        activation, 0.1, 2.0, 3.0, aux,
    )  # fmt: skip
    out = result_like((m, n), result)
    cpu_matmul.matmul(values, metadata, k, b, out, e)
    sums = np.empty((m, n), _dtypes.TABLE[name].accumulator)
    cpu_matmul.matmul(values, metadata, k, b, sums)
    want, want_aux = reference.apply_epilogue(sums, e, _dtypes.TABLE[result])
    tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}[result]
    for got, right in ((out, want), (aux, want_aux)):
        np.testing.assert_allclose(got, right, rtol=tolerance, atol=3 * tolerance)


class WithoutPower(np.ndarray):
    def __pow__(self, exponent, modulo=None):
        pytest.fail(f"by NumPy's power, which takes long of float32: {exponent}")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation", ["relu", "relu2", "gelu_tanh", "silu"])
def test_activations_take_no_powers(rng, dtype, activation):
    x = np.concatenate([rng.standard_normal(4096) * 4, [0, 1e30, -1e30, np.inf]]).astype(dtype)
    with np.errstate(over="ignore"):
        got = np.asarray(reference.activate(x.view(WithoutPower), activation))
        want = reference.activate(x.astype(np.longdouble), activation)
    assert got.dtype == dtype
    step = np.finfo(dtype).eps
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, want.astype(dtype), rtol=8 * step, atol=16 * step)


@pytest.mark.parametrize("result", ["int8", "float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_narrow_results_saturate_and_round_to_even(rng, result):
    _, values, metadata, b = operands(rng, 8, 64, 40, "float32")
    dtype = _dtypes.TABLE[result].logical
    out = np.zeros((8, 40), dtype)
    e = Fused(alpha=100.0)
    cpu_matmul.matmul(values, metadata, 64, b, out, e)
    sums = np.empty((8, 40), np.float32)
    cpu_matmul.matmul(values, metadata, 64, b, sums)
    want = reference.to_dtype(sums * np.float32(100), dtype)
    np.testing.assert_array_equal(out.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")  # of inf and NaN by BLAS
def test_integer_results_saturate_and_nan_is_zero(name, product):
    a = np.zeros((6, 4), _dtypes.TABLE[name].logical)
    a[:, 0] = [2**15, -(2**15), np.inf, -np.inf, np.nan, 2.5]
    values, metadata, _ = cpu_compress.compress(a, "check")
    for scale, last in ((2**17, 2.5 * 2**17), (1, 2)):
        b = np.full((4, 3), 1, a.dtype)
        for dtype in (np.int32, np.int8):
            out = np.empty((6, 3), dtype)
            product(values, metadata, 4, b, out, Fused(alpha=float(scale)))
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            size = min(2**15 * scale, high)
            want = [size, max(-(2**15) * scale, low), high, low, 0, min(last, high)]
            np.testing.assert_array_equal(out, np.tile(want, (3, 1)).T)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_halves_round_as_numpy_does(rng, name):
    words = rng.integers(0, 2**32, 1 << 16, dtype=np.uint32)
    exact = np.arange(1 << 16, dtype=np.uint16).view(name if name == "float16" else "u2")
    exact = exact.view(_dtypes.TABLE[name].logical).astype(np.float32).view(np.uint32)
    steps = np.array([0, 1, 0xFFFFFFFF, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001], np.uint32)
    words = np.concatenate([words, (exact[:, None] + steps).ravel()])
    x, bits = words.view(np.float32), np.empty(words.size, np.uint16)
    if name == "float16":
        cpu_decode.encode_half(x, words, bits)
    else:
        cpu_decode.encode_bfloat(words, bits)
    got = bits.view(_dtypes.TABLE[name].logical)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(got.dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    real = ~np.isnan(want)
    np.testing.assert_array_equal(bits[real], want.view(np.uint16)[real])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_every_number_of_a_narrow_type_is_decoded(name):
    dtype = _dtypes.TABLE[name]
    x = np.arange(1 << 8 * dtype.itemsize, dtype=dtype.storage).view(dtype.logical)
    got, want = cpu_decode.decoded(x, dtype), x.astype(dtype.accumulator)
    np.testing.assert_array_equal(got, want)
    if dtype.is_float8:
        half = cpu_decode.halves(x, dtype).view(np.float16).astype(np.float32)
        np.testing.assert_array_equal(half, want)
        np.testing.assert_array_equal(np.signbit(half), np.signbit(want))


def test_bfloat16_keeps_nan_and_infinity():
    a = np.array([[np.nan, 0, 0, 1], [np.inf, 0, 0, 0], [1, 0, 0, 0]], np.float32)
    values, metadata, _ = cpu_compress.compress(a, "check")
    out = result_like((3, 9), "bfloat16")
    cpu_matmul.matmul(values, metadata, 4, np.ones((4, 9), np.float32), out)
    assert np.isnan(out[0].astype(np.float32)).all()
    assert np.isposinf(out[1].astype(np.float32)).all()
    assert (out[2] == 1).all()


@pytest.mark.parametrize("n", [3, 30])
def test_batched_c_and_aux(rng, n):
    a, values, metadata, b = operands(rng, 6, 12, n, "float32", (), (2,))
    c, out, aux = (rng.standard_normal((2, 6, n)).astype(np.float32) for _ in range(3))
    cpu_matmul.matmul(values, metadata, 12, b, out, Fused(beta=2.0, c=c, aux=aux))
    np.testing.assert_allclose(out, a @ b + 2 * c, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(aux, out)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", ["float16", "float32", "int8"])
@pytest.mark.parametrize("lead_a", [(), (3,)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_stacks_give_what_their_products_give_in_turn(rng, product, name, lead_a, order):
    m, k, n = 6, 14, 5
    _, values, metadata, b = operands(rng, m, k, n, name, lead_a, (3,))
    number = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    c = (10 * number(3, m, n)).astype(_dtypes.numpy_dtype(_dtypes.TABLE[name].result))
    for epilogue in (
        PLAIN,
        Fused(column_scale=number(n), column_bias=number(n), activation="relu"),
        Fused(row_scale=number(m), row_bias=number(m), alpha=2.0),
        Fused(beta=2.0, c=c, aux=np.empty_like(c)),
    ):
        out = np.asarray(result_like((3, m, n), name), order=order)
        product(values, metadata, k, b, out, epilogue)
        for i in range(3):
            at = (i,) if lead_a else ()
            alone, part = result_like((m, n), name), epilogue
            if epilogue.c is not None:
                part = replace(epilogue, c=c[i], aux=np.empty_like(c[i]))
            product(values[at], metadata[at], k, b[i], alone, part)
            np.testing.assert_allclose(out[i], alone, rtol=2e-3, atol=2e-3)
            if part.aux is not None:
                np.testing.assert_allclose(epilogue.aux[i], part.aux, rtol=2e-3, atol=2e-3)
