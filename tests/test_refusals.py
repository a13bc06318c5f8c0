"""What users of NumPy and SciPy may try on a sparse array, and what it says to that."""

from __future__ import annotations

import operator
from unittest import mock

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import sparse24 as s24

MAKERS = {
    "two_four": lambda w: s24.compress(w, on_excess="prune"),
    "n_m": lambda w: s24.compress(w, pattern=(3, 8), on_excess="prune"),
    "hybrid": s24.hybrid,
}


@pytest.fixture(params=MAKERS)
def a(request, rng):
    return MAKERS[request.param](rng.standard_normal((8, 16)))


def test_complex_operands_are_multiplied_by_their_parts(a, rng):
    u, v = rng.standard_normal((2, 16, 3))
    b = u + 1j * v
    for call, name in (
        (lambda: a @ b, "b"),
        (lambda: s24.matmul(a, b), "b"),
        (lambda: b.T @ a.T, "."),
    ):
        with pytest.raises(
            s24.DTypeError, match=rf"take {name}\.real and {name}\.imag one by one: "
        ):
            call()
    np.testing.assert_allclose(a @ b.real + 1j * (a @ b.imag), a.toarray() @ b)


@pytest.mark.parametrize("name", ["add", "sub", "floordiv", "mod", "pow", "lt"])
def test_arithmetic_names_the_way_out(a, name):
    combine = getattr(operator, name)
    dense = np.ones((8, 16))
    for left, right in ((a, 2), (2, a), (np.float32(2), a), (a, dense), (dense, a), (a, a)):
        with pytest.raises(s24.DTypeError, match=r"only what keeps zeros: @, .*\.toarray\(\)"):
            combine(left, right)
    for dividend in (2, np.float32(2), dense):
        with pytest.raises(s24.DTypeError, match=r"not support (/|numpy\.divide), only"):
            dividend / a


def test_comparisons_by_order_are_named(a):
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(s24.DTypeError, match=r"does not support order comparisons \(<, "):
            compare(a, a)


def test_windows_multiply_alone():
    w = s24.compress(np.eye(8), pattern=(6, 8)).windows()
    for call in (lambda: w * 2, lambda: np.multiply(2, w), lambda: -w, lambda: np.ones(8) / w,
                 lambda: np.sqrt(w)):  # fmt: skip
        with pytest.raises(s24.DTypeError, match=r"Windows24 does not support .*, only @ \(a f"):
            call()


def test_ufuncs_of_numpy_name_the_way_out(a):
    x = np.ones((8, 16))
    for call, name in (
        (lambda: np.add(a, x), "add"),
        (lambda: np.exp(a), "exp"),
        (lambda: np.isnan(a), "isnan"),
        (lambda: np.sqrt.at(a, 0), r"sqrt\.at"),
        (lambda: np.add.reduce(a), r"add\.reduce"),
        (lambda: np.any(a), "any"),
        (lambda: np.all(a, axis=0), "all"),
        (lambda: np.prod(a), "prod"),
        (lambda: np.multiply.outer(a, x), r"multiply\.outer"),
        (lambda: operator.iadd(x, a), "add"),
        (lambda: operator.itruediv(x, a), "divide"),
    ):
        with pytest.raises(s24.DTypeError, match=rf"support numpy\.{name}, only what keeps.*\.to"):
            call()
    for options in ({"out": x}, {"dtype": np.float32}, {"where": x > 0}):
        with pytest.raises(s24.ArgumentError, match=r"takes no .*; leave it out, and convert"):
            np.multiply(a, 2, **options)
        with pytest.raises(s24.ArgumentError, match=r"takes no .*; leave it out, and convert"):
            np.sqrt(a, **options)
    with pytest.raises(s24.ArgumentError, match=r"sqrt takes no out= .*; leave it out"):
        np.sqrt(x, out=a)


def test_reductions_of_numpy_name_the_way_out(a):
    kept = np.ones((8, 16), bool)
    for reduction, options, name in (
        (np.sum, {"where": kept}, r"sum takes no where="),
        (np.sum, {"initial": 1, "where": kept}, r"sum takes no initial=, where="),
        (np.mean, {"where": kept, "axis": 1}, r"mean takes no where="),
        (np.max, {"initial": 0}, r"a?max takes no initial="),
        (np.amin, {"initial": 0}, r"a?min takes no initial="),
    ):
        with pytest.raises(s24.ArgumentError, match=rf"numpy\.{name} with .*; .*\.toarray\(\)"):
            reduction(a, **options)


def test_matmul_of_numpy_multiplies(a, rng):
    dense, x, y = a.toarray(), rng.standard_normal((16, 3)), rng.standard_normal((2, 8))
    for got, want in (
        (np.matmul(a, x), dense @ x),
        (np.matmul(a, x[:, 0]), dense @ x[:, 0]),
        (np.matmul(y, a), y @ dense),
        (np.matmul(a, a.T), dense @ dense.T),
        (y @ a, y @ dense),
    ):
        assert type(got) is np.ndarray
        np.testing.assert_allclose(got, want)
    for options in ({"out": np.empty((8, 3))}, {"dtype": np.float32}):
        with pytest.raises(s24.ArgumentError, match=r"no (out|dtype)= .* call sparse24\.matmul"):
            np.matmul(a, x, **options)


def test_operators_in_place_on_dense_arrays_name_the_one_that_is_not(a):
    """NumPy hands them over as calls with out= and axes=, which nobody has written."""
    y = np.ones((8, 8))
    with pytest.raises(s24.ArgumentError, match=r"write y = y @ A$"):
        y @= a
    y = np.ones(a.shape)
    with pytest.raises(s24.ArgumentError, match=r"write y = y \* A$"):
        y *= a
    for written in (a, np.ones(a.shape)):
        with pytest.raises(s24.ArgumentError, match=r"takes no out= .* leave it out"):
            np.multiply(a, 2, out=written)
        with pytest.raises(s24.ArgumentError, match=r"takes no out= .* leave it out"):
            np.negative(a, out=written)
    with pytest.raises(s24.ArgumentError, match=r"takes no out= .* leave it out"):
        np.divide(y, 2, out=a)


def test_cupy_leaves_products_to_the_sparse_array(a):
    """It asks the array, not the type, and defers where it finds None."""
    assert a.__array_ufunc__ is None
    assert callable(type(a).__array_ufunc__)


def test_transpose_is_t(a):
    for turned in (a.transpose(), a.transpose((1, 0)), a.transpose(1, 0), a.transpose(axes=[1, 0]),
                   np.transpose(a), np.transpose(a, (-1, -2))):  # fmt: skip
        np.testing.assert_array_equal(turned.toarray(), a.toarray().T)
    for axes in (((0, 1),), (0, 1)):
        with pytest.raises(s24.ArgumentError, match=r"must be \(1, 0\), got \(0, 1\); use \.T"):
            a.transpose(*axes)
    with pytest.raises(s24.ArgumentError, match=r"axes must be \(1, 0\), got 1"):
        np.transpose(a, 1)


def test_a_batch_is_transposed_by_mt(rng):
    batch = s24.random((3, 4, 8), rng=rng)
    for turned in (batch.transpose((0, 2, 1)), batch.transpose(0, -1, -2), np.moveaxis(batch, 1, 2),
                   np.transpose(batch, (0, 2, 1))):  # fmt: skip
        np.testing.assert_array_equal(turned.toarray(), batch.mT.toarray())
    with pytest.raises(s24.ArgumentError, match=r"use \.mT"):
        batch.transpose()
    for axes in ((1, 0, 2), (2, 1, 0), (1, 0)):
        with pytest.raises(s24.ArgumentError, match=r"must be \(0, 2, 1\), got .*; use \.mT"):
            batch.transpose(axes)


def test_the_last_axes_are_exchanged_by_numpy_as_well(a, rng):
    batch = s24.random((3, 4, 8), rng=rng)
    for turn in (np.matrix_transpose, np.linalg.matrix_transpose):
        for array in (a, batch):
            turned = turn(array)
            assert type(turned) is type(array)
            np.testing.assert_array_equal(turned.toarray(), turn(array.toarray()))


def test_equality_is_identity_and_never_silent_beside_arrays(a):
    assert a == a
    assert a != a.copy()
    assert a != "text"
    assert a == mock.ANY
    assert len({a, a, a.copy()}) == 2
    for other in (0, 1.5, np.float32(0), np.ones((8, 16)), scipy.sparse.eye_array(8)):
        for compare in (lambda x: a == x, lambda x: x == a, lambda x: a != x):
            with pytest.raises(s24.DTypeError, match=r"\.toarray\(\)"):
                compare(other)


def test_truth_rows_and_numpy_functions_name_the_way_out(a):
    with pytest.raises(s24.ArgumentError, match="ambiguous"):
        bool(a)
    with pytest.raises(s24.DTypeError, match=r"cannot be iterated over; use \.toarray\(\)"):
        list(a)
    with pytest.raises(s24.DTypeError, match="implicitly; multiply with @"):
        np.linalg.svd(a)
    assert (np.shape(a), np.ndim(a), np.size(a)) == ((8, 16), 2, 128)


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_functions_of_numpy_that_save_name_those_that_save_sparse_arrays(a, save, tmp_path):
    with pytest.raises(s24.DTypeError, match=rf"{save.__name__} saves dense .*sparse24\.save_"):
        save(tmp_path / "a", a)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("compare", [np.array_equal, np.array_equiv])
def test_numpy_does_not_call_what_it_cannot_read_unequal(a, compare):
    for left, right in ((a, a), (a, a.toarray()), (a.toarray(), a)):
        with pytest.raises(s24.DTypeError, match=r"compare its \.toarray\(\)"):
            compare(left, right)


@pytest.mark.parametrize("make", [MAKERS["two_four"], MAKERS["n_m"]])
def test_a_batch_hands_out_its_matrices(make, rng):
    batch = make(rng.standard_normal((3, 4, 8)))
    for a in (batch, batch.mT):
        dense = a.toarray()
        for matrix, wanted in zip(a, dense, strict=True):
            assert matrix.shape == wanted.shape
            np.testing.assert_array_equal(matrix.toarray(), wanted)
        for key in (0, -1, np.int64(1), slice(1, None), slice(2, 1)):
            np.testing.assert_array_equal(a[key].toarray(), dense[key])
        x = np.ones((dense.shape[-1], 2))
        np.testing.assert_allclose(a[1] @ x, dense[1] @ x)
        for key in (3, (0, 0, 0, 0), None):
            with pytest.raises(s24.ArgumentError, match=r"out of range|toarray|too many"):
                a[key]


@pytest.mark.parametrize("pattern", [(2, 4), (3, 8)])
def test_a_batch_is_indexed_by_whole_numbers(pattern):
    batch = s24.compress(np.ones((3, 4, 8), np.float32), pattern=pattern, on_excess="prune")
    assert batch[(np.int64(1),)].shape == (4, 8)
    for key in (True, np.True_, 1.0, slice(0.5, None), slice(None, 2.0)):
        with pytest.raises(s24.ArgumentError, match="whole numbers"):
            batch[key]


def test_elements_cannot_be_written(a):
    before = a.toarray()
    for key in (0, (1, 2), slice(None), before > 0):
        with pytest.raises(s24.DTypeError, match=r"is immutable; change its \.toarray\(\)"):
            a[key] = 0
    np.testing.assert_array_equal(a.toarray(), before)


def test_attributes_cannot_be_deleted():
    w = np.ones((4, 8), np.float32)
    of_6_8 = s24.compress(w, pattern=(6, 8), on_excess="prune")
    for array in (s24.random((4, 8), rng=0), s24.hybrid(w), of_6_8, of_6_8.windows()):
        with pytest.raises(AttributeError, match="is immutable; cannot delete shape"):
            del array.shape


@pytest.mark.parametrize("kind", [s24.Sparse24Array, s24.NMArray, s24.HybridArray])
def test_constructors_name_the_functions_that_make_arrays(kind):
    for dense in (np.eye(4), scipy.sparse.eye_array(4), [[1.0, 0.0]], kind):
        with pytest.raises(s24.DTypeError, match=r"is not made by its .* use sparse24\."):
            kind(dense)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("call", [s24.prune, s24.mask, s24.is_24, *MAKERS.values()])
def test_subclasses_of_arrays_are_arrays(call, rng):
    w = rng.standard_normal((8, 16)).astype(np.float32)
    got, want = call(np.matrix(w)), call(w)
    for x in (got, want):
        assert not isinstance(x, np.matrix)
    dense = lambda x: x.toarray() if hasattr(x, "toarray") else x  # noqa: E731
    np.testing.assert_array_equal(dense(got), dense(want))


def test_scipy_is_told_by_what_it_calls_sparse(a):
    class Mine(scipy.sparse.csr_array):
        pass

    product = a @ Mine(np.eye(a.shape[1], dtype=np.float32))
    np.testing.assert_array_equal(product, a.toarray())
    operator = scipy.sparse.linalg.aslinearoperator(np.eye(a.shape[1]))
    for call in (a.dot, s24.hybrid, s24.compress):
        with pytest.raises(s24.DTypeError, match="must be an array, got MatrixLinearOperator"):
            call(operator)


@pytest.mark.parametrize("call", [s24.prune, s24.mask, s24.is_24, s24.check_24])
def test_functions_of_dense_arrays_name_what_is_compressed(call, a):
    with pytest.raises(s24.DTypeError, match=rf"must be a dense array, got {type(a).__name__}"):
        call(a)


def test_a_layer_names_the_shapes_as_they_were_given(a):
    for x in (np.ones((3, 8)), np.ones(8)):
        with pytest.raises(s24.ShapeError, match=r"A \(m, k\), got \(.*8,?\) and \(8, 16\)"):
            s24.linear(x, a)
