"""Factors, scales, biases, activations and arrays to add, of matmul and linear on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from matmul_cases import STEMS, operands, put

import sparse24 as s24
from sparse24._arrays import to_numpy
from sparse24._records import Fused
from sparse24.kernels import reference


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("size", [(16, 16), (16, 1), (1, 16), (1, 1), (16, 24)], ids=str)
def test_scales_belong_to_rows_of_a_and_columns_of_b(xp, size, rng):
    m, n = size
    a, x, exact = operands("float32", m, 64, n, xp, rng)
    rows, columns = (rng.random(s).astype(np.float32) for s in size)
    want = exact * rows[:, None] * columns
    for scales in ((rows, columns), (rows[:, None], columns[None])):
        got = s24.matmul(a, x, scales=tuple(put(s, xp) for s in scales))
        np.testing.assert_allclose(to_numpy(got), want, rtol=1e-4, atol=1e-4)
        got = s24.matmul(x.T, a.T, scales=tuple(put(s.T, xp) for s in scales[::-1]))
        np.testing.assert_allclose(to_numpy(got), want.T, rtol=1e-4, atol=1e-4)
    for number, wrong in ((0, (n + 1,)), (0, (1, m + 1)), (1, (n + 1, 1)), (1, (2, n))):
        scales = [1.0, 1.0]
        scales[number] = put(np.ones(wrong, np.float32), xp)
        with pytest.raises(s24.ShapeError, match=rf"scales\[{number}\] must have shape"):
            s24.matmul(a, x, scales=scales)


@pytest.mark.stem(*STEMS, "apply_epilogue")
@pytest.mark.parametrize("name", ["float16", "float32", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("algorithm", ["auto", "dense"])
@pytest.mark.parametrize("activation", [None, "relu", "relu2", "gelu", "gelu_tanh", "silu"])
def test_epilogues(xp, name, algorithm, activation, rng):
    if algorithm == "dense" and xp is np:
        algorithm = "cpu_dense"
    m, k, n = 48, 64, 24
    a, x, exact = operands(name, m, k, n, xp, rng)
    out_name = "float32"
    bias = rng.standard_normal((m, 1)).astype(np.float32)
    columns = rng.random((1, n)).astype(np.float32)
    c = rng.standard_normal((m, n)).astype(np.float32)
    aux = xp.full((m, n), 77, np.float32)
    upper = 3.0 if activation == "relu" else np.inf  # no other activation has bounds
    e = s24.Epilogue(put(bias, xp), activation, out_scale=0.5, upper=upper, aux=aux)
    got = s24.matmul(
        a, x, c=put(c, xp), alpha=0.1, beta=2.0, dtype=out_name, epilogue=e,
        scales=(0.5, put(columns, xp)), algorithm=algorithm, b_dtype=name,
    )  # fmt: skip
    fused = Fused(0.05, 2.0, c, None, columns[0], bias[:, 0], None, activation or "identity",
                  0.0, upper, 0.5)  # fmt: skip
    want, before = reference.apply_epilogue(exact, fused, out_name)
    tolerance = 2e-3 if name.startswith("float8") else 2e-4
    np.testing.assert_allclose(to_numpy(got), want, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(to_numpy(aux), before, rtol=tolerance, atol=tolerance)


@pytest.mark.stem(*STEMS)
def test_linear_of_a_layer(xp, rng):
    a, x, exact = operands("float32", 20, 36, 6, xp, rng)
    bias = rng.standard_normal(20).astype(np.float32)
    tokens = xp.ascontiguousarray(x.T).reshape(2, 3, 36)
    got = s24.linear(tokens, a, put(bias, xp), activation="relu")
    want = np.maximum(exact.T + bias, 0).reshape(2, 3, 20)
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["2:4", "hybrid", "from the left"])
@pytest.mark.parametrize(("dtype", "result"), [("float32", "float64"), ("float64", "float32")])
def test_vectors_of_an_epilogue_are_of_the_results_type(rng, xp, dtype, result, kind):
    w = s24.prune(rng.integers(-3, 4, (24, 32)).astype(dtype))
    b = rng.integers(-3, 4, (32, 20)).astype(dtype)
    bias = np.arange(24 if kind == "from the left" else 20) + 0.5
    how = {"dtype": result, "epilogue": s24.Epilogue(bias=put(bias, xp))}
    if kind == "from the left":
        got, want = s24.matmul(put(b.T, xp), s24.compress(put(w, xp)).T, **how), b.T @ w.T
    else:
        a = (s24.hybrid if kind == "hybrid" else s24.compress)(put(w, xp))
        got, want = s24.matmul(a, put(b, xp), **how), w @ b
    assert got.dtype == result
    np.testing.assert_array_equal(to_numpy(got), want + bias)


@pytest.mark.parametrize("number", [0.5, 2, np.float32(3), np.array(-1.5)])
def test_a_number_serves_all_elements(rng, number):
    a, x = s24.random((6, 8), rng=rng), rng.standard_normal((8, 5)).astype(np.float32)
    want, value = a @ x, float(number)
    for options, exact in (
        ({"epilogue": s24.Epilogue(bias=number)}, want + value),
        ({"epilogue": s24.Epilogue(alpha_vector=number)}, want * value),
        ({"scales": (number, 2.0)}, 2 * value * want),
        ({"scales": (None, number), "alpha": 3}, 3 * value * want),
    ):
        np.testing.assert_allclose(s24.matmul(a, x, **options), exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(s24.linear(x.T, a, number), want.T + value, rtol=1e-5, atol=1e-6)


@pytest.mark.stem(*STEMS)
def test_c_may_be_out_itself_and_vectors_have_vector_c(xp, rng):
    a, x, exact = operands("float32", 12, 16, 5, xp, rng)
    start = rng.standard_normal((12, 5)).astype(np.float32)
    out = put(start.copy(), xp)
    s24.matmul(a, x, out, c=out, beta=2.0)
    np.testing.assert_allclose(to_numpy(out), exact + 2 * start, rtol=1e-5, atol=1e-5)
    c, aux = put(start[:, 0].copy(), xp), xp.zeros(12, np.float32)
    got = s24.matmul(a, x[:, 0], c=c, beta=1.0, epilogue=s24.Epilogue(aux=aux))
    np.testing.assert_allclose(to_numpy(got), exact[:, 0] + start[:, 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(to_numpy(aux), to_numpy(got))
    got = s24.matmul(x[:, 0], a.T, c=c, beta=1.0)
    np.testing.assert_allclose(to_numpy(got), exact[:, 0] + start[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vector", ["bias", "alpha_vector"])
@pytest.mark.parametrize("where", ["out", "aux"])
@pytest.mark.parametrize("column", [True, False])
def test_vectors_inside_of_what_is_written_keep_their_values(vector, where, column, rng):
    a = s24.random((300, 300), rng=rng)
    x = rng.standard_normal((300, 64)).astype(np.float32)
    for array in (a, s24.hybrid(a.toarray())):
        out, aux = rng.standard_normal((2, 300, 64)).astype(np.float32)
        written = {"out": out, "aux": aux}
        inside = written[where][3] if column else written[where][:, 5:6]
        given = s24.Epilogue(**{vector: inside.copy()})
        expected = s24.matmul(array, x, epilogue=given)
        e = s24.Epilogue(**{vector: inside}, aux=written["aux"])
        got = s24.matmul(array, x, written["out"], epilogue=e)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(written["aux"], expected)
