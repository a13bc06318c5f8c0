"""What matmul refuses, and in which words."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from fake_device import Device, array

import sparse24 as s24


def test_c_and_aux_are_checked():
    a, x = s24.random((8, 16), rng=0), np.ones((16, 4), np.float32)
    right = np.zeros((8, 4), np.float32)
    wide = np.zeros((9, 4), np.float32)
    fixed = np.broadcast_to(np.float32(0), (8, 4))
    cases = [
        (s24.ShapeError, r"c must have shape \(8, 4\)", {"c": right[:3]}),
        (s24.ShapeError, r"c must have shape \(8, 4\)", {"c": right[0]}),
        (s24.DTypeError, "c must have dtype float32", {"c": np.zeros((8, 4))}),
        (s24.ArgumentError, "c overlaps out", {"c": wide[1:], "out": wide[:8]}),
        (s24.ShapeError, r"aux must have shape \(8, 4\)", {"aux": right[:3]}),
        (s24.DTypeError, "aux must have dtype float32", {"aux": np.zeros((8, 4))}),
        (s24.ArgumentError, "aux is read-only", {"aux": fixed}),
        (s24.ArgumentError, "aux shares memory with out", {"aux": right, "out": right}),
        (s24.ArgumentError, "aux shares memory with out or c", {"aux": right, "c": right}),
        (s24.ArgumentError, "aux shares memory with an operand", {"aux": x[:8]}),
    ]
    for error, words, arrays in cases:
        epilogue = s24.Epilogue(aux=arrays.pop("aux", None))
        with pytest.raises(error, match=words):
            s24.matmul(a, x, beta=float("c" in arrays), epilogue=epilogue, **arrays)
    assert not right.any()
    assert (x == 1).all()


def test_factors_that_are_none_are_refused():
    a, x = s24.random((8, 8), rng=0), np.ones((8, 4), np.float32)
    for bad in ("2", [1.0], np.ones(3), 1j, None):
        with pytest.raises(s24.ArgumentError, match="alpha must be a number, got"):
            s24.matmul(a, x, alpha=bad)
    with pytest.raises(s24.ArgumentError, match="alpha must fit a float"):
        s24.matmul(a, x, alpha=10**400)
    with pytest.raises(s24.ArgumentError, match="beta must be a number"):
        s24.matmul(a, x, c=np.ones((8, 4), np.float32), beta="1")
    with pytest.raises(s24.ArgumentError, match=r"beta=1 needs c.*pass c=out"):
        s24.matmul(a, x, np.ones((8, 4), np.float32), beta=1)
    c = np.ones((8, 4), np.float32)
    for b in (x, a.toarray()[:, :4], a):
        for call in (s24.matmul, s24.explain):
            with pytest.raises(s24.ArgumentError, match=r"c needs beta, .*; pass beta=1\.0 to add"):
                call(a, b, c=c)
    np.testing.assert_array_equal(s24.matmul(a, x, c=c, beta=0), a @ x)  # as in BLAS: not read
    for good in (2, np.float32(2), np.array(2)):
        np.testing.assert_array_equal(s24.matmul(a, x, alpha=good), 2 * (a @ x))
    with pytest.raises(s24.ArgumentError, match="got a scalar; factors go to alpha="):
        _ = a @ 3


@pytest.mark.parametrize(
    "bad", [b"2", np.bytes_(b"2"), np.void(b"2"), np.complex64(1j), np.complex128(2)]
)
def test_text_and_complex_numbers_are_no_factors(bad):
    """Python's `float` reads the former, and drops a part of the latter."""
    a, x = s24.random((8, 8), rng=0), np.ones((8, 4), np.float32)
    for name, options in (
        ("alpha", {"alpha": bad}), ("alpha", {"alpha": np.array(bad)}),
        (r"scales\[1\]", {"scales": (1, bad)}), ("bias", {"epilogue": s24.Epilogue(bias=bad)}),
        ("out_scale", {"epilogue": s24.Epilogue(out_scale=np.array(bad))}),
    ):  # fmt: skip
        with pytest.raises(s24.ArgumentError, match=f"{name} must be a number, got"):
            s24.matmul(a, x, **options)


def test_a_factor_without_a_mask_is_a_number():
    a, x = s24.random((8, 8), rng=0), np.ones((8, 4), np.float32)
    for bad in (np.ma.masked, np.ma.array(2.0, mask=True)):
        with pytest.raises(s24.DTypeError, match="alpha must not be a Masked"):
            s24.matmul(a, x, alpha=bad)
    for good in (np.float16(2), ml_dtypes.bfloat16(2), Fraction(2), Decimal(2)):
        np.testing.assert_array_equal(s24.matmul(a, x, alpha=good), 2 * (a @ x))


@pytest.mark.parametrize("make", [s24.hybrid, lambda x: s24.NMArray.from_dense(x, pattern=(3, 5))])
def test_formats_of_their_own_refuse_what_does_not_fit(make):
    a, x = make(np.eye(8, dtype=np.float32)), np.ones((8, 1), np.float32)
    fixed = np.zeros((8, 1), np.float32)
    fixed.flags.writeable = False
    wide = np.zeros((8, 2), np.float32)
    for error, words, options in (
        (s24.ShapeError, r"out must have the shape of the product, \(8, 1\)", {"out": wide}),
        (s24.DTypeError, "out must have dtype float32", {"out": np.zeros((8, 1))}),
        (s24.ArgumentError, "out is read-only", {"out": fixed}),
        (s24.DTypeError, "out must be an array, got list", {"out": [1]}),
        (s24.ShapeError, r"c must have shape \(8, 1\), got \(8, 2\)", {"c": wide, "beta": 1}),
        (s24.DTypeError, "c must have dtype float32, got float64",
         {"c": np.ones((8, 1)), "beta": 1}),
        (s24.DTypeError, "dtype must be one of", {"dtype": "int64"}),
        (s24.ArgumentError, "algorithm=, operand types .* are for Sparse24Array",
         {"algorithm": "dense"}),
        (s24.ShapeError, "bias must have shape", {"epilogue": s24.Epilogue(bias=np.ones(3))}),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            s24.matmul(a, x, **options)
    assert not wide.any()
    out = np.empty((8, 1), np.float16)
    c = x.astype(np.float16)
    assert s24.matmul(a, x, out, c=c, alpha=2, beta=3, dtype="float16") is out
    np.testing.assert_array_equal(out, 5)


@pytest.mark.parametrize(
    "options",
    [{"alpha": 0.5}, {"alpha": 1e9}, {"beta": 0.5}, {"dtype": "int8"}, {"dtype": "float32"}],
)
def test_every_format_rounds_and_saturates_alike(options, rng):
    w = s24.random((8, 16), dtype="int8", rng=rng)
    x = rng.integers(-9, 10, (16, 3)).astype(np.int8)
    c = {"c": np.full((8, 3), 7, np.int32)} if "beta" in options else {}
    want = s24.matmul(w, x, **options, **c)
    for make in (s24.hybrid, lambda d: s24.NMArray.from_dense(d, pattern=(6, 8))):
        got = s24.matmul(make(w.toarray()), x, **options, **c)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_a_factor_keeps_the_type_of_16_bits():
    h = s24.hybrid(np.eye(8, dtype=ml_dtypes.bfloat16))
    got = s24.matmul(h, np.ones((8, 2), ml_dtypes.bfloat16), alpha=0.5)
    assert got.dtype == ml_dtypes.bfloat16
    assert (got == 0.5).all()


def test_what_is_no_epilogue_is_refused():
    a, x = s24.random((8, 8), rng=0), np.ones((8, 4), np.float32)
    for error, words, epilogue in (
        (s24.ArgumentError, r"be a sparse24.Epilogue, such as .*, got 'relu'$", "relu"),
        (s24.ArgumentError, "bias must be a number, got 'x'", s24.Epilogue(bias="x")),
        (s24.ArgumentError, "out_scale must be a number", s24.Epilogue(out_scale=np.ones(4))),
        (s24.ArgumentError, "upper must be a number, got 'a'", s24.Epilogue(upper="a")),
        (s24.DTypeError, "bias must hold real", s24.Epilogue(bias=np.ones(4, complex))),
        (s24.DTypeError, "bias must hold real", s24.Epilogue(bias=np.zeros(4, "V4"))),
        (s24.ArgumentError, "bounds of activation='relu', got lower=0 and upper=6 with activation="
         "None", s24.Epilogue(upper=6)),
        (s24.ArgumentError, "name relu", s24.Epilogue(lower=1, activation="gelu")),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            s24.matmul(a, x, epilogue=epilogue)
    for dtype in (3, "text", object()):
        with pytest.raises(s24.DTypeError, match="dtype must be one of"):
            s24.matmul(a, x, dtype=dtype)
    for dtype in ("int32", np.int32, np.dtype(np.int32)):
        assert s24.matmul(a.astype("int8"), x.astype(np.int8), dtype=dtype).dtype == np.int32
    with pytest.raises(s24.DTypeError, match="A must be an array, got NoneType"):
        s24.linear(x.T, None)
    with pytest.raises(s24.DTypeError, match="out must be an array, got list"):
        a.toarray(out=[1])


def test_an_operand_of_a_linear_layer_that_fits_transposed_is_named():
    a, x = s24.random((8, 12), rng=0), np.ones((5, 12), np.float32)
    for weight in (a, a.toarray(), s24.hybrid(a.toarray())):
        with pytest.raises(s24.ShapeError, match=r"\(5, 12\) and \(12, 8\); pass A\.mT if the"):
            s24.linear(x, weight.T)
        with pytest.raises(s24.ShapeError, match=r"\(12, 5\) and \(8, 12\); pass x\.T, as rows"):
            s24.linear(x.T, weight)
        for other in (np.ones(11), np.ones((5, 12, 7))):
            with pytest.raises(s24.ShapeError, match=r"A \(m, k\), got .* and \(8, 12\)$"):
                s24.linear(other, weight)


def test_plain_operands_of_other_types_must_fit_too():
    with pytest.raises(s24.ShapeError, match="inner dimensions 5 and 4 differ"):
        s24.matmul(np.ones((4, 5), int), np.ones((4, 4), int))


@pytest.mark.parametrize("a", [np.eye(8, dtype=np.float32), np.ones((8, 8), np.float32)])
def test_plain_operands_of_mixed_types_multiply_whatever_they_hold(a):
    x = np.arange(16).reshape(8, 2)
    for got, want in ((s24.matmul(a, x), a @ x), (s24.matmul(x.T, a), x.T @ a)):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.float32, int])
def test_two_vectors_fill_an_out_without_axes(dtype):
    x, out = np.arange(4).astype(dtype), np.zeros((), dtype)
    assert s24.matmul(x, x, out) is out
    assert out == 14
    with pytest.raises(s24.ShapeError, match=r"out must have the shape of the product.*\(\)"):
        s24.matmul(x, x, np.zeros(1, dtype))


def test_a_sparse_matrix_among_plain_operands_is_named():
    m, x = scipy.sparse.eye_array(8, format="csr"), np.ones((8, 8))
    with pytest.raises(s24.DTypeError, match=r"a must be a dense array.*sparse24\.hybrid"):
        s24.matmul(m, x)
    with pytest.raises(s24.DTypeError, match="b must be a dense array, got a csr_array"):
        s24.matmul(x, m)


@pytest.mark.parametrize("function", [s24.matmul, s24.explain])
def test_a_type_of_a_sparse_operand_is_its_own(function):
    a, x = s24.random((8, 16), rng=0), np.ones((16, 4), np.float32)
    function(a, x, a_dtype="float32")
    function(x.T, a.T, b_dtype=np.float32)
    with pytest.raises(s24.ArgumentError, match="a_dtype='float16' names the type of a plain oper"):
        function(a, x, a_dtype="float16")
    with pytest.raises(s24.ArgumentError, match="b is a Sparse24Array of float32; drop it, or"):
        function(x.T, a.T, b_dtype="float8_e5m2")
    with pytest.raises(s24.DTypeError, match="b_dtype must be one of"):
        function(x.T, a.T, b_dtype="int4")


def test_a_plan_without_a_type_says_what_it_wants():
    a = s24.random((8, 16), rng=0)
    with pytest.raises(s24.ArgumentError, match=r"such as \(\(16, 3\), 'float32'\)"):
        s24.plan(a, (16, 3))
    with pytest.raises(s24.ArgumentError, match=r"such as \(\(16, 3\), 'float32'\), got"):
        s24.plan(a, tuple(np.array([16, 3])))
    with pytest.raises(s24.ArgumentError, match=r"such as \(\(16, 3\), 'float32'\), got 3$"):
        s24.plan(a, 3)
    for call in (s24.plan, s24.explain):
        with pytest.raises(
            s24.ArgumentError, match=r"such as \(\(16, 3\), 'float32'\), got .*None"
        ):
            call(a, ((16, 3), None))
    with pytest.raises(s24.ArgumentError, match="a size in b_spec must be a whole number from 0"):
        s24.plan(a, ((16, -3), "float32"))
    assert s24.plan(a, ([16, 3], "float32")).execute(np.ones((16, 3), np.float32)).shape == (8, 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda a, x: a @ x[:5], s24.ShapeError, "inner dimensions 16 and 5 differ"),
        (lambda a, x: x.T @ a, s24.ShapeError,
         r"inner dimensions 16 and 8 differ; the second one fits transposed, as in x @ A\.T"),
        (lambda a, x: a.T @ x, s24.ShapeError, r"the first one fits transposed, as in A\.T @ x"),
        (lambda a, x: s24.matmul(a, x, np.empty((3, 3))), s24.ShapeError, "out must have shape"),
        (lambda a, x: s24.matmul(a, x, np.empty((8, 4))), s24.DTypeError, "out must have dtype"),
        (lambda a, x: a @ x.astype(complex), s24.DTypeError, r"take b\.real and b\.imag one by"),
        (lambda a, x: x.T.astype(complex) @ a.T, s24.DTypeError, r"a\.dtype must be one of"),
        (lambda a, x: a @ x.astype(np.uint8), s24.DTypeError, "name the fp8 type of its bits"),
        (lambda a, x: a.astype("int8") @ x.astype(int), s24.DTypeError,
         "b must not hold integers wider"),
        (lambda a, x: s24.matmul(a, x, dtype="int16"), s24.DTypeError,
         "float8_e5m2, int32, got 'int16'"),
        (lambda a, x: s24.plan(a, None), s24.DTypeError, "b_spec must be an array, got NoneType"),
        (lambda a, x: s24.plan(x, x), s24.ArgumentError, "make one with sparse24.compress"),
        (lambda a, x: s24.plan(x.T, a.T), s24.ArgumentError, r"plan\(A, x\.T, out_order='col"),
        (lambda a, x: a @ 3.0, s24.ArgumentError, "got a scalar"),
        (lambda a, x: a @ np.array(3.0), s24.ShapeError, r"b must .* factors go to alpha="),
        (lambda a, x: a @ "w.npy", s24.DTypeError, "b must be an array, got str; read the file"),
        (lambda a, x: s24.matmul(a, x, algorithm="fast"), s24.ArgumentError, "algorithm"),
        (lambda a, x: s24.matmul(a.T, x[:8], algorithm="cpu_sparse"), s24.UnsupportedError,
         "no operand is stored 2:4 along"),
        (lambda a, x: s24.matmul(x.T, x[:5]), s24.ShapeError, "inner dimensions 16 and 5 differ"),
        (lambda a, x: s24.matmul(x.T, x, np.empty((4, 4))), s24.DTypeError, "out must have dtype"),
        (lambda a, x: s24.matmul(x.T[:, :4], x[:4], x[:4]), s24.ArgumentError, "shares memory"),
        (lambda a, x: s24.matmul(2.0, x), s24.ShapeError, "a must .* factors go to alpha="),
        (lambda a, x: s24.matmul(2, x.astype(int)), s24.ShapeError, "a must .* go to alpha="),
        (lambda a, x: s24.matmul(a, x, epilogue=s24.Epilogue(activation="tanh")),
         s24.ArgumentError, "activation must be one of"),
        (lambda a, x: s24.matmul(a, x, epilogue=s24.Epilogue(bias=np.ones(3))),
         s24.ShapeError, "bias must have shape"),
        (lambda a, x: s24.matmul(x, x.T, scales=(1, 2, 3)), s24.ArgumentError, "must be a pair"),
        (lambda a, x: s24.matmul(a, x, scales=np.ones(2)), s24.ArgumentError, "must be a pair"),
    ],
)  # fmt: skip
def test_errors_name_the_rule(call, error, words):
    a, x = s24.random((8, 16), rng=0), np.ones((16, 4), np.float32)
    with pytest.raises(error, match=words):
        call(a, x)


def test_windows_refuse_an_operand_on_another_device(monkeypatch):
    a = s24.compress(np.eye(8, dtype=np.float32), pattern=(6, 8)).windows()
    Device(monkeypatch)
    with pytest.raises(s24.DeviceError, match="windows are on cpu, the other operand on cuda:0; "):
        _ = a @ array(np.ones((8, 2), np.float32))


@pytest.mark.parametrize("make", [
    s24.hybrid, lambda x: s24.compress(x, pattern=(3, 5)),
    lambda x: s24.compress(x, pattern=(6, 8)).windows(),
])  # fmt: skip
def test_a_scalar_is_refused_by_its_shape_and_not_its_device(make, monkeypatch):
    a = make(np.eye(8, dtype=np.float32))
    monkeypatch.setattr(type(a), "device", "cuda:0")
    with pytest.raises(s24.ShapeError, match="one axis, got a scalar; factors go to alpha="):
        _ = a @ 2
    with pytest.raises(s24.ShapeError, match="one axis, got a scalar; factors go to alpha="):
        _ = 2 @ a.mT if not isinstance(a, s24.HybridArray) else s24.linear(2, a)
