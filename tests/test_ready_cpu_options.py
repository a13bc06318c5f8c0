"""Repeated calls with options on the CPU: an epilogue, `c`, scales, the type of the result.

An array forgets what it knows when it is copied, so the product of a copy is always a first call.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from ready_cases import (
    COLUMNS,
    LAYOUTS,
    WRITABLE,
    K,
    M,
    assert_alike_in_threads,
    assert_same,
    numbers,
    operands,
)

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._options import ACTIVATIONS

SMALL = ("float32", "float64", "bfloat16", "int8")
WIDE = [n for n in COLUMNS if n is not None]


def assert_like_the_first(a, b, out=None, **options):
    """The product of what `a` remembers, and that of a copy, which remembers nothing."""
    want = s24.matmul(a.copy(), b, **options)
    for _ in range(3):
        if out is not None:
            out.view(np.uint8)[...] = 77
        assert_same(s24.matmul(a, b, out, **options), want)
    assert a._plans


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_every_activation_from_either_side(rng, name, activation):
    for n in COLUMNS:
        for k in (K, 128):
            a, b = operands(rng, n, name, k)
            bias = rng.standard_normal(1 if n is None else (M, 1)).astype(np.float32)
            e = s24.Epilogue(bias=bias, activation=activation)
            assert_like_the_first(a, b, epilogue=e)
            assert_like_the_first(a, b, np.empty_like(a @ b), epilogue=e)
            x, bias = np.ascontiguousarray(b.T), rng.standard_normal(M).astype(np.float32)
            want = s24.linear(x, a.copy(), bias, activation=activation)
            for _ in range(3):
                assert_same(s24.linear(x, a, bias, activation=activation), want)


@pytest.mark.parametrize("name", SMALL)
def test_a_layer_decides_once(rng, name):
    a, b = operands(rng, 3, name)
    x = np.ascontiguousarray(b.T)
    for activation in (None, "relu", "gelu"):
        for _ in range(3):
            bias = rng.standard_normal(M).astype(np.float32)
            want = s24.linear(x, a.copy(), bias, activation=activation)
            assert_same(s24.linear(x, a, bias, activation=activation), want)
            bias[...] = bias[::-1].copy()
            want = s24.linear(x, a.copy(), bias, activation=activation)
            assert_same(s24.linear(x, a, bias, activation=activation), want)
    assert len(a.mT._plans) == 1


@pytest.mark.parametrize("n", COLUMNS)
def test_biases_of_every_kind(rng, n):
    a, b = operands(rng, n, "float32")
    x = np.ascontiguousarray(b.T)
    vector = rng.standard_normal(M).astype(np.float32)
    kinds = (
        vector, vector.astype(float), np.repeat(vector, 2)[::2], vector[None], vector.tolist(),
        0.3, np.array(0.3), 2, vector.view(np.recarray),
    )  # fmt: skip
    for bias in kinds:
        for _ in range(2):
            assert_same(s24.linear(x, a, bias), s24.linear(x, a.copy(), bias))
    assert len(a.mT._plans) == 1


NUMBERS = (0.0, -0.0, 1.0, 0.5, 3, np.float32(0.25), True)


@pytest.mark.parametrize("n", COLUMNS)
def test_numbers_are_read_anew(rng, n):
    """Also where they are equal in a dictionary, as 0.0 and -0.0 are."""
    a, b = operands(rng, n, "float32")
    b[...] = abs(b)
    c = numbers(rng, (a @ b).shape, "float32")
    for number in NUMBERS:
        assert_like_the_first(a, b, alpha=number)
        assert_like_the_first(a, b, alpha=number, beta=number, c=c)
        assert_like_the_first(a, b, scales=(number, 0.5))
        for given in ({"out_scale": number}, {"lower": number, "activation": "relu"}):
            assert_like_the_first(a, b, epilogue=s24.Epilogue(**given))
        e = s24.Epilogue(activation="relu", upper=number, alpha_vector=number)
        assert_like_the_first(a, b, epilogue=e)
    assert len(a._plans) == 2  # of the plain product, and of those with options


@pytest.mark.parametrize("dtype", _dtypes.OUTPUT_NAMES)
@pytest.mark.parametrize("name", SMALL)
def test_types_of_the_result(rng, name, dtype):
    for n in COLUMNS:
        a, b = operands(rng, n, name)
        e = s24.Epilogue(bias=0.3, activation="relu")
        assert_like_the_first(a, b, dtype=dtype)
        assert_like_the_first(a, b, dtype=dtype, epilogue=e)
        assert_like_the_first(a, b, dtype=dtype, alpha=0.3)


@pytest.mark.parametrize("n", WIDE)
def test_vectors_and_scales(rng, n):
    a, b = operands(rng, n, "float32")
    rows, columns = rng.standard_normal((M, 1)), rng.standard_normal(n)
    for _ in range(2):
        rows, columns = rows * 2, columns * 3
        assert_like_the_first(a, b, scales=(rows, columns))
        e = s24.Epilogue(bias=rows, alpha_vector=columns if n > 1 else 2.0)
        assert_like_the_first(a, b, epilogue=e)
        e = s24.Epilogue(alpha_vector=rows, bias=columns)
        assert_like_the_first(a, b, epilogue=e, scales=(None, 0.5))


@pytest.mark.parametrize("algorithm", ["auto", "dense"])
@pytest.mark.parametrize("what", ["bias", "alpha_vector", "scales"])
@pytest.mark.parametrize("left", [False, True])
def test_each_matrix_of_a_stack_has_the_same_vector_of_rows(rng, left, what, algorithm):
    a, _ = operands(rng, 1, "float32")
    stack = numbers(rng, (2, 5, K) if left else (2, K, 5), "float32")
    product = lambda x, **o: s24.matmul(x, a.T, **o) if left else s24.matmul(a, x, **o)  # noqa: E731
    rows = numbers(rng, (5 if left else M, 1), "float32")
    e = s24.Epilogue(activation="relu", **({} if what == "scales" else {what: rows}))
    options = {"epilogue": e, "algorithm": algorithm}
    options |= {"scales": (rows[:, 0], 0.5)} if what == "scales" else {}
    want = [product(x, **options) for x in stack]
    for _ in range(2):
        np.testing.assert_allclose(product(stack, **options), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("n", COLUMNS)
def test_c_and_aux(rng, n, left):
    a, b = operands(rng, n, "float32")
    pair = (np.ascontiguousarray(b.T), a.T) if left else (a, b)
    shape = s24.matmul(*pair).shape
    for _ in range(3):
        c, aux, seen = numbers(rng, shape, "float32"), np.zeros(shape, "f"), np.zeros(shape, "f")
        fresh = [x.copy() if x is pair[left] else x for x in pair]
        e = s24.Epilogue(activation="silu", aux=seen)
        want = s24.matmul(*fresh, c=c, beta=0.5, epilogue=e)
        e = s24.Epilogue(activation="silu", aux=aux)
        assert_same(s24.matmul(*pair, c=c, beta=0.5, epilogue=e), want)
        assert_same(aux, seen)
        out, e = c.copy(), s24.Epilogue(activation="silu")
        assert_same(s24.matmul(*pair, out, c=out, beta=0.5, epilogue=e), want)


@pytest.mark.parametrize("name", ["float32", "float16", "int8"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", COLUMNS)
def test_layouts(rng, n, layout, name):
    a, b = operands(rng, n, name)
    e = s24.Epilogue(bias=0.5, activation="relu")
    want = s24.matmul(a, b, epilogue=e)
    for _ in range(3):
        assert_same(s24.matmul(a, LAYOUTS[layout](b), epilogue=e), want)
    if layout in WRITABLE:
        out = LAYOUTS[layout](np.zeros_like(want))
        for _ in range(3):
            out[...] = 7
            assert s24.matmul(a, b, out, epilogue=e) is out
            assert_same(out, want)


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("n", COLUMNS)
def test_elements_that_changed_are_read_anew(rng, n, name):
    a, b = operands(rng, n, name)
    e = s24.Epilogue(bias=0.5, activation="relu")
    for _ in range(2):
        assert_like_the_first(a, b, epilogue=e)
        values = a._operand.rows.values
        values[...] = values[::-1].copy()
        assert_like_the_first(a, b, epilogue=e)
        b[...] = b[::-1].copy()


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_no_number_infinity_and_the_sign_of_zero(rng, activation):
    for n in COLUMNS:
        a, b = operands(rng, n, "float32")
        b[3], b[9] = np.nan, np.inf
        special = np.resize(np.array([-0.0, 0.0, np.nan, np.inf, -np.inf, 1], "f"), (M, 1))
        bias = -0.0 if n is None else special
        assert_like_the_first(a, b, epilogue=s24.Epilogue(bias=bias, activation=activation))
        b[...] = -0.0
        assert_like_the_first(a, b, epilogue=s24.Epilogue(bias=bias, activation=activation))


def test_a_kept_dense_matrix_and_a_named_kernel(rng):
    dense = s24.prune(numbers(rng, (M, K), "float32"))
    a = s24.compress(dense, keep_dense=True)
    e = s24.Epilogue(bias=0.5, activation="gelu")
    for n in COLUMNS:
        b = numbers(rng, (K,) if n is None else (K, n), "float32")
        for algorithm in ("auto", "cpu_dense", "cpu_sparse"):
            assert_like_the_first(a, b, epilogue=e, algorithm=algorithm)
            assert_like_the_first(a, b, np.empty_like(a @ b), epilogue=e, algorithm=algorithm)


def refusals(a, b):
    """Options that are refused, and an array of the result's kind that the others may write to."""
    shape, free = (M, b.shape[1]), np.empty((M, b.shape[1]), "f")
    room = np.empty(2 * free.size, "f")
    half, beyond = room[: free.size].reshape(shape), room[2 : 2 + free.size].reshape(shape)
    locked = np.empty(shape, "f")
    locked.flags.writeable = False
    inside = a._operand.rows.values.reshape(-1)[: free.size].reshape(shape)
    e = s24.Epilogue
    return [
        {"epilogue": e(bias=np.ones(M + 1))}, {"epilogue": e(bias=np.ones((1, M)))},
        {"epilogue": e(bias=np.ones(b.shape[1], complex))}, {"epilogue": e(activation="reul")},
        {"epilogue": e(lower=1.0)}, {"epilogue": e(out_scale="1")}, {"epilogue": "relu"},
        {"epilogue": e(bias=["x"])}, {"scales": (1.0,)}, {"scales": (np.ones(M + 1), None)},
        {"beta": 1.0}, {"alpha": [1.0]}, {"c": np.ones(shape), "beta": 1.0},
        {"c": np.ones((1, 1), "f"), "beta": 1.0}, {"algorithm": "none", "alpha": 0.5},
        {"out": half, "c": beyond, "beta": 1.0}, {"epilogue": e(aux=[[1.0]])},
        {"out": half, "epilogue": e(aux=beyond)}, {"epilogue": e(aux=locked)},
        {"epilogue": e(aux=np.ones(shape))}, {"epilogue": e(aux=b[:M])},
        {"epilogue": e(aux=inside)}, {"out": inside, "alpha": 0.5}, {"out": b[:M], "alpha": 0.5},
        {"out": locked, "alpha": 0.5}, {"out": np.ones((M, 1), "f"), "alpha": 0.5},
        {"out": locked, "epilogue": e(activation="reul")},
        {"out": b[:M], "epilogue": e(activation="reul")}, {"dtype": [1], "alpha": 0.5},
        {"out": np.ones(shape), "alpha": 0.5}, {"b_dtype": "int8", "alpha": 0.5},
    ]  # fmt: skip


def test_what_is_refused_is_refused_every_time_in_the_same_words(rng):
    a, b = operands(rng, 8, "float32")
    c, e = np.ones((M, 8), "f"), s24.Epilogue(bias=np.ones(8, "f"), aux=np.empty((M, 8), "f"))
    for options in refusals(a, b):
        a._plans.clear()
        with pytest.raises(s24.Sparse24Error) as first:
            s24.matmul(a, b, **options)
        assert not a._plans
        for out in (None, c):
            s24.matmul(a, b, out, c=c, beta=0.5, epilogue=e)
        with pytest.raises(type(first.value)) as again:
            s24.matmul(a, b, **options)
        assert str(again.value) == str(first.value)


def test_a_bias_inside_of_the_result_is_read_first(rng):
    a, b = operands(rng, 3, "float32")
    x = np.ascontiguousarray(b.T)
    for _ in range(3):
        out = numbers(rng, (3, M), "float32")
        want = s24.matmul(x, a.T.copy(), epilogue=s24.Epilogue(bias=out[1].copy()))
        s24.matmul(x, a.T, out, epilogue=s24.Epilogue(bias=out[1]))
        assert_same(out, want)


@pytest.mark.parametrize("n", [None, 1, 16])
def test_threads_at_once(rng, n):
    a, b = operands(rng, n, "float32", 128)
    x = np.ascontiguousarray(b.T)
    biases = rng.standard_normal((len(ACTIVATIONS), M)).astype("f")
    several = [(x * bias[0], bias, act) for bias, act in zip(biases, ACTIVATIONS, strict=True)]
    linear = lambda a, x, bias, act: s24.linear(x, a, bias, activation=act)  # noqa: E731
    want = [linear(a.copy(), *case) for case in several]
    assert_alike_in_threads(lambda *case: linear(a, *case), several, want)


def test_no_array_of_a_call_is_kept(rng):
    a, b = operands(rng, 3, "float32")
    out, c, aux, bias = *(np.ones((M, 3), "f") for _ in range(3)), np.ones(3, "f")
    for _ in range(2):
        e = s24.Epilogue(bias=bias, aux=aux)
        s24.matmul(a, b, out, c=c, beta=1.0, epilogue=e)
    kept = [weakref.ref(x) for x in (b, out, c, aux, bias)]
    del b, out, c, aux, bias, e
    gc.collect()
    assert [x() for x in kept] == [None] * 5
