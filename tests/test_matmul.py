"""matmul on every backend: shapes, types, orders, epilogues, plain arrays, other libraries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy
from sparse24._records import Fused
from sparse24.kernels import reference

STEMS = (
    "sparse_wgmma", "sparse_mma", "sparse_skinny", "sparse_matvec", "split_skinny", "sparse_split",
    "sparse_fma",
)  # fmt: skip
# Unit roundoff of the result's type, and of the accumulation, per dtype of the operands.
ROUNDOFF = {
    "float16": 2**-11,
    "bfloat16": 2**-8,
    "float32": 2**-24,
    "float64": 2**-53,
    "float8_e4m3fn": 2**-8,
    "float8_e5m2": 2**-8,
}


def sample(shape, name: str, rng) -> np.ndarray:
    row = _dtypes.TABLE[name]
    if name == "int8":
        return rng.integers(-20, 21, shape).astype(np.int8)
    return rng.standard_normal(shape).astype(np.float32).astype(row.logical)


def put(x: np.ndarray, xp):
    """The array in the library xp; fp8 as bits on the GPU."""
    if xp is np:
        return x
    return xp.asarray(x.view(np.uint8) if x.dtype.name.startswith("float8") else x)


def logical(x, name: str) -> np.ndarray:
    x = to_numpy(x)
    return x.view(_dtypes.numpy_dtype(name)) if x.dtype == np.uint8 else x


def assert_close(got, want, name: str, k: int) -> None:
    """Rounding of the result plus that of a sum of k products in float32."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    if name == "int8":
        np.testing.assert_array_equal(got, want)
        return
    accumulate = 2**-53 if name == "float64" else 2**-24
    accumulate = 2**-13 if name.startswith("float8") else accumulate
    # Root mean square of the sums, or what it is on average: a few may all be small.
    scale = max(np.sqrt((want**2).mean()) if want.size else 0.0, np.sqrt(k / 2))
    bound = 2 * ROUNDOFF[name] * np.abs(want) + (k + 8) * accumulate * scale + 1e-30
    assert (np.abs(got - want) <= bound).all(), np.max(np.abs(got - want) / bound)


def operands(name: str, m: int, k: int, n: int, xp, rng):
    a = s24.random((m, k), dtype=name, rng=rng)
    x = sample((k, n), name, rng)
    exact = reference.matmul(a.toarray(), x)
    a = a if xp is np else a.to_device("cuda")
    return a, put(x, xp), exact


SIZES = [(1, 1, 1), (5, 7, 3), (64, 128, 8), (65, 130, 17), (128, 256, 64), (200, 100, 129)]


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_left_and_right(xp, name, size, rng):
    m, k, n = size
    a, x, exact = operands(name, m, k, n, xp, rng)
    assert_close(logical(s24.matmul(a, x, b_dtype=name), name), exact, name, k)
    turned = xp.ascontiguousarray(x.T)
    assert_close(logical(s24.matmul(turned, a.T, a_dtype=name), name), exact.T, name, k)


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "int8"])
@pytest.mark.parametrize("b_order", ["row", "column", "strided", "misaligned"])
@pytest.mark.parametrize("out_order", ["row", "column", "strided"])
def test_every_order(xp, name, b_order, out_order, rng):
    m, k, n = 96, 160, 40
    a, x, exact = operands(name, m, k, n, xp, rng)
    if b_order == "column":
        x = xp.asfortranarray(x)
    elif b_order == "strided":
        wide = xp.zeros((2 * k, 3 * n), x.dtype)
        wide[::2, ::3] = x
        x = wide[::2, ::3]
    elif b_order == "misaligned":
        wide = xp.zeros((k, n + 1), x.dtype)
        wide[:, 1:] = x
        x = wide[:, 1:]
    result = np.int32 if name == "int8" else x.dtype
    out = xp.full((m, n), 77, result, order="F" if out_order == "column" else "C")
    if out_order == "strided":
        out = xp.full((2 * m, 2 * n), 77, result)[::2, 1::2]
    assert s24.matmul(a, x, out) is out
    assert_close(to_numpy(out), exact, name, k)


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("a_batch", [(), (3,), (2, 1), (1,), (1, 1)])
@pytest.mark.parametrize("b_batch", [(), (3,), (2, 3), (1,)])
def test_batches_broadcast(xp, a_batch, b_batch, rng):
    a = s24.random((*a_batch, 33, 64), dtype="float16", rng=rng)
    x = sample((*b_batch, 64, 20), "float16", rng)
    exact = reference.matmul(a.toarray(), x)
    a = a if xp is np else a.to_device("cuda")
    assert_close(to_numpy(a @ put(x, xp)), exact, "float16", 64)
    tokens = np.ascontiguousarray(x.swapaxes(-1, -2))
    turned = to_numpy(put(tokens, xp) @ a.mT)
    assert_close(turned, exact.swapaxes(-1, -2), "float16", 64)


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("a_batch", [(), (3,), (2, 1)])
@pytest.mark.parametrize("algorithm", ["auto", "dense"])
def test_batches_go_to_an_out_of_any_strides(xp, a_batch, algorithm, rng):
    a = s24.random((*a_batch, 33, 64), dtype="float16", rng=rng)
    x = sample((2, 3, 64, 20), "float16", rng)
    exact = reference.matmul(a.toarray(), x)
    a = a if xp is np else a.to_device("cuda")
    for order in itertools.permutations(range(4)):
        out = xp.full([exact.shape[i] for i in order], 77, np.float16)
        out = out.transpose(np.argsort(order).tolist())
        assert s24.matmul(a, put(x, xp), out, algorithm=algorithm) is out
        assert_close(to_numpy(out), exact, "float16", 64)
        turned = xp.full([exact.shape[i] for i in order], 77, np.float16)
        turned = turned.transpose(np.argsort(order).tolist()).swapaxes(-1, -2)
        s24.matmul(put(x, xp).swapaxes(-1, -2), a.mT, turned, algorithm=algorithm)
        assert_close(to_numpy(turned), exact.swapaxes(-1, -2), "float16", 64)


@pytest.mark.stem(*STEMS)
def test_vectors(xp, rng):
    a, x, exact = operands("float32", 30, 52, 1, xp, rng)
    assert_close(to_numpy(a @ x[:, 0]), exact[:, 0], "float32", 52)
    assert_close(to_numpy(x[:, 0] @ a.T), exact[:, 0], "float32", 52)
    assert (a @ x[:, 0]).shape == (30,)


@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("shape", [(0, 8, 3), (5, 8, 0), (5, 0, 3)], ids=str)
def test_empty_sizes(xp, shape):
    m, k, n = shape
    a = s24.compress(xp.zeros((m, k), np.float32))
    for batch in ((), (2,), (1, 3)):
        got = to_numpy(a @ xp.ones((*batch, k, n), np.float32))
        np.testing.assert_array_equal(got, np.zeros((*batch, m, n)))


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


@given(m=st.integers(1, 80), k=st.integers(1, 150), n=st.integers(1, 40), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_any_size_on_the_cpu(m, k, n, seed):
    a, x, exact = operands("float32", m, k, n, np, np.random.default_rng(seed))
    assert_close(a @ x, exact, "float32", k)


@pytest.mark.gpu
@pytest.mark.stem(*STEMS)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8"])
def test_any_size_on_the_gpu(name):
    import cupy

    rng = np.random.default_rng(5)
    for _ in range(40):
        m, k, n = (int(v) for v in rng.integers(1, 300, 3))
        a, x, exact = operands(name, m, k, n, cupy, rng)
        assert_close(to_numpy(a @ x), exact, name, k)


def test_plain_arrays_are_exact(xp, rng):
    sparse = s24.random((8, 16), rng=0).toarray()
    x = rng.standard_normal((16, 5)).astype(np.float32)
    got = s24.matmul(put(sparse, xp), put(x, xp))
    np.testing.assert_allclose(to_numpy(got), sparse @ x, rtol=1e-5, atol=1e-5)
    full = rng.standard_normal((8, 16)).astype(np.float32)
    got = s24.matmul(put(full, xp), put(x, xp))
    np.testing.assert_allclose(to_numpy(got), full @ x, rtol=1e-5, atol=1e-5)
    got = s24.matmul(put(x.T.copy(), xp), put(sparse.T.copy(), xp))
    np.testing.assert_allclose(to_numpy(got), (sparse @ x).T, rtol=1e-5, atol=1e-5)


@pytest.mark.stem("apply_epilogue")
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_plain_arrays_give_the_same_type_with_and_without_zeros(xp, name, rng):
    """A result must not change its type, or overflow, because a group has a third non-zero."""
    row = _dtypes.TABLE[name]
    full = sample((3, 9, 8), name, rng)
    full[full == 0] = 1
    x = sample((8, 4), name, rng)
    for a in (full, full[0], full[0][::-1], np.asfortranarray(full[0])):
        got = s24.matmul(put(a, xp), put(x, xp), a_dtype=name, b_dtype=name)
        assert to_numpy(got).dtype == _dtypes.numpy_dtype(row.result)
        assert_close(to_numpy(got), reference.matmul(a, x), name, 8)


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


def test_plain_arrays_take_every_argument(rng):
    full, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (8, 5)))
    sparse = s24.prune(full)
    c, bias = rng.standard_normal((6, 5)).astype(np.float32), np.arange(5.0)
    for w in (full, sparse):
        aux, out = np.zeros((6, 5), np.float32), np.zeros((6, 5), np.float32)
        e = s24.Epilogue(bias=bias, activation="relu", aux=aux)
        got = s24.matmul(w, x, out, c=c, alpha=2.0, beta=3.0, scales=(0.5, 1.0), epilogue=e)
        assert got is out
        np.testing.assert_allclose(aux, w @ x + 3 * c + bias, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(out, np.maximum(aux, 0))
    assert s24.matmul(full, x, dtype="float16").dtype == np.float16
    assert s24.matmul(full, x, algorithm="dense").shape == (6, 5)


def test_plain_vectors_follow_numpy(rng):
    w, v = rng.standard_normal((4, 8)).astype(np.float32), np.ones(8, np.float32)
    np.testing.assert_allclose(s24.matmul(w, v), w @ v, rtol=1e-5)
    np.testing.assert_allclose(s24.matmul(v, w.T), w @ v, rtol=1e-5)
    assert s24.matmul(np.full(300, 100, np.int8), np.full(300, 100, np.int8)) == 3_000_000
    assert s24.matmul([[1.0, 2.0]], [[1.0], [2.0]]) == 5


def test_plain_arrays_of_other_types_multiply_as_their_library_does():
    whole = np.arange(8).reshape(2, 4)
    np.testing.assert_array_equal(s24.matmul(whole, whole.T), whole @ whole.T)
    out = np.zeros((2, 2), complex)
    assert s24.matmul(whole * 1j, whole.T, out) is out
    np.testing.assert_array_equal(out, whole @ whole.T * 1j)
    assert s24.matmul(whole[0], whole[1]) == whole[0] @ whole[1]
    with pytest.raises(s24.DTypeError, match="only the plain product"):
        s24.matmul(whole, whole.T, alpha=2.0)
    with pytest.raises(s24.ShapeError, match=r"out must have the shape of the product, \(2, 2\)"):
        s24.matmul(whole, whole.T, np.zeros((3, 3), int))
    with pytest.raises(s24.DTypeError, match="out must have dtype int64, got float64"):
        s24.matmul(whole, whole.T, np.zeros((2, 2)))
    with pytest.raises(s24.ShapeError, match="a must have at least one axis, got a scalar"):
        s24.matmul(3, 4)


def test_torch_tensors_of_other_types_may_be_written_to():
    torch = pytest.importorskip("torch")
    whole, out = torch.arange(8).reshape(2, 4), torch.zeros(2, 2, dtype=torch.int64)
    assert s24.matmul(whole, whole.T, out) is out
    assert (out == whole @ whole.T).all()


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


@pytest.mark.parametrize("fp8", ["float8_e4m3fn", "float8_e5m2"])
def test_int8_meets_fp8_in_a_type_that_holds_both(fp8):
    dense = np.array([[127, 0, 0, -99]], np.int8)
    x = np.array([[1], [0], [0], [2]]).astype(fp8)
    for array in (s24.compress(dense), s24.compress(dense, pattern=(3, 8)), s24.hybrid(dense)):
        got = array @ x
        assert got.dtype == np.float32
        assert got == 127 - 198
    assert s24.compress(x.T) @ dense.T == 127 - 198


def test_types_meet_without_narrowing(rng):
    a = s24.random((6, 8), dtype="float16", rng=0)
    assert (a @ np.ones((8, 2), np.float32)).dtype == np.float32
    assert (a @ np.ones((8, 2))).dtype == np.float64
    assert s24.matmul(a, np.ones((8, 2), np.float16), dtype="float32").dtype == np.float32
    assert (s24.random((4, 8), dtype="int8", rng=0) @ np.ones((8, 2), np.int8)).dtype == np.int32


def test_infinities_reach_the_result_where_a_value_stands(xp):
    a = s24.compress(xp.asarray(np.array([[1, 2, 0, 0]], np.float32)))
    got = to_numpy(a @ xp.asarray(np.array([[np.inf], [1], [0], [0]], np.float32)))
    assert np.isinf(got).all()
