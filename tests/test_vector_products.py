"""`numpy.matvec`, `vecmat`, `inner` and `tensordot` with sparse arrays."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from arithmetic_cases import MAKERS, OF_HYBRID, SHAPE, dense_of

import sparse24 as s24
from sparse24 import _arrays, _dtypes

M, K = SHAPE
needs_matvec = pytest.mark.skipif(not hasattr(np, "matvec"), reason="NumPy 2.2 has it first")


def made(make, name, rng, xp):
    a = MAKERS[make]((rng.standard_normal(SHAPE) * 8).astype(np.float32), name)
    return a if xp is np else a.to_device("cuda")


def vectors(rng, shape, dtype, xp):
    """Small whole numbers, whose products every type holds."""
    return xp.asarray(rng.integers(-2, 3, shape).astype(dtype))


def assert_product(got, want):
    assert got.shape == want.shape
    np.testing.assert_allclose(_arrays.to_numpy(got).astype(np.float64), want, rtol=1e-2, atol=0.5)


@needs_matvec
@pytest.mark.parametrize("name", OF_HYBRID)
@pytest.mark.parametrize("make", MAKERS)
def test_vectors_are_multiplied_by_a_matrix(make, name, rng, xp):
    a = made(make, name, rng, xp)
    dense = dense_of(a).astype(np.float64)
    for lead in ((), (5,), (2, 3), (0,)):
        x, y = (vectors(rng, (*lead, n), a.dtype, xp) for n in (K, M))
        for order in ("C", "F"):
            x, y = xp.asarray(x, order=order), xp.asarray(y, order=order)
            wide_x, wide_y = (_arrays.to_numpy(v).astype(np.float64) for v in (x, y))
            assert_product(np.matvec(a, x), np.matvec(dense, wide_x))
            assert_product(np.vecmat(y, a), np.vecmat(wide_y, dense))
            assert type(np.matvec(a, x)) is type(np.vecmat(y, a)) is type(x)


@needs_matvec
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("pattern", [(2, 4), (3, 6)])
def test_vectors_are_multiplied_by_a_batch(pattern, axis, rng, xp):
    w = rng.standard_normal((2, 12, 24))
    a = s24.compress(xp.asarray(w), pattern=pattern, axis=axis, on_excess="prune")
    dense = dense_of(a)
    for lead in ((), (1,), (2,), (3, 2), (3, 1)):
        x, y = (rng.standard_normal((*lead, n)) for n in (24, 12))
        assert_product(np.matvec(a, xp.asarray(x)), np.matvec(dense, x))
        assert_product(np.vecmat(xp.asarray(y), a), np.vecmat(y, dense))
    with pytest.raises(s24.ShapeError, match="do not broadcast"):
        np.matvec(a, xp.zeros((3, 24)))


@needs_matvec
@pytest.mark.parametrize("name", [n for n in _dtypes.NAMES if n not in OF_HYBRID])
def test_vectors_of_fp8(name, rng):
    a = s24.compress(rng.integers(-2, 3, SHAPE), on_excess="prune", dtype=name)
    x = vectors(rng, (3, K), a.dtype, np)
    want = np.matvec(a.toarray().astype(np.float32), x.astype(np.float32))
    np.testing.assert_array_equal(np.matvec(a, x).astype(np.float32), want)


@needs_matvec
@pytest.mark.parametrize("shape", [(0, 8), (8, 0)])
def test_matrices_without_elements(shape, xp):
    m, k = shape
    for a in (s24.compress(xp.zeros(shape)), s24.hybrid(xp.zeros(shape))):
        assert not np.matvec(a, xp.ones((3, k))).any()
        assert np.matvec(a, xp.ones((3, k))).shape == (3, m)
        assert np.vecmat(xp.ones((3, m)), a).shape == (3, k)


@pytest.mark.parametrize("make", MAKERS)
def test_inner_and_tensordot_are_products(make, rng, xp):
    a = made(make, "float32", rng, xp)
    dense = dense_of(a)
    for lead in ((), (5,), (2, 3)):
        x, y = (rng.standard_normal((*lead, n)).astype(np.float32) for n in (K, M))
        on_device = xp.asarray(x)
        assert_product(np.inner(on_device, a), np.inner(x, dense))
        assert_product(np.tensordot(xp.asarray(y), a, axes=1), np.tensordot(y, dense, axes=1))
        if len(lead) < 2:
            assert_product(np.inner(a, on_device), np.inner(dense, x))
            assert_product(np.tensordot(a, on_device.T, 1), np.tensordot(dense, x.T, 1))
            continue
        for call in (lambda b: np.inner(a, b), lambda b: np.tensordot(a, b, axes=1)):
            with pytest.raises(s24.ShapeError, match=r"must have one or two axes .*; mul.* with @"):
                call(on_device)
    assert_product(np.inner(a, a), np.inner(dense, dense))
    assert_product(np.tensordot(a, a.T, axes=1), np.tensordot(dense, dense.T, axes=1))
    for axes in (2, 0, ([1], [0]), np.array(1)):
        with pytest.raises(s24.ArgumentError, match="takes axes=1 alone with sparse arrays, got"):
            np.tensordot(a, xp.ones((K, 3), np.float32), axes)


@pytest.mark.parametrize("pattern", [(2, 4), (3, 6)])
def test_batches_have_inner_and_tensordot_on_their_right(pattern, rng, xp):
    a = s24.compress(rng.standard_normal((2, 8, 18)), pattern=pattern, on_excess="prune")
    a = a if xp is np else a.to_device("cuda")
    dense, x = dense_of(a), rng.standard_normal((5, 18))
    for part in (x, x[0]):
        assert_product(np.inner(a, xp.asarray(part)), np.inner(dense, part))
        assert_product(np.tensordot(a, xp.asarray(part.T), 1), np.tensordot(dense, part.T, 1))
    for call in (np.inner, lambda x, a: np.tensordot(x, a, axes=1)):
        with pytest.raises(s24.ShapeError, match=r"of numpy\.(inner|tensordot) must have one or"):
            call(xp.ones(8), a)


@needs_matvec
@pytest.mark.parametrize("make", MAKERS)
def test_what_is_no_vector_is_named(make, rng):
    a = made(make, "float32", rng, np)
    x = np.ones((3, K), np.float32)
    for call, error, words in (
        (lambda: np.matvec(a, x[:, 1:]), s24.ShapeError, r"matvec must have shape \(\.\.\., 18\)"),
        (
            lambda: np.vecmat(x, a),
            s24.ShapeError,
            r"vecmat must have shape \(\.\.\., 9\)",
        ),
        (lambda: np.matvec(a, 2), s24.ShapeError, r"of shape \(9, 18\), got \(\)"),
        (lambda: np.matvec(a, x + 1j), s24.DTypeError, "one by one"),
        (lambda: np.matvec(a, a), s24.DTypeError, "takes dense vectors with .*multiply matrices"),
        (lambda: np.matvec(a, scipy.sparse.csr_array(x)), s24.DTypeError, "got csr_array"),
        (lambda: np.matvec(x, a), s24.DTypeError, r"support numpy\.matvec with itself as the vec"),
        (
            lambda: np.vecmat(a, x.T),
            s24.DTypeError,
            r"support numpy\.vecmat with itself as the",
        ),
        (lambda: np.vecdot(a, x[0]), s24.DTypeError, r"support numpy\.vecdot, only what keeps"),
        (lambda: np.matvec(a, x, out=np.ones((3, M))), s24.ArgumentError, "takes no out= with"),
        (lambda: np.matvec(a, x, axes=[(0, 1), 1, 1]), s24.ArgumentError, "takes no axes= with"),
    ):
        with pytest.raises(error, match=words):
            call()


@needs_matvec
@pytest.mark.parametrize("name", ["matvec", "inner", "tensordot"])
def test_what_is_no_array_is_named(name):
    a, options = s24.random((4, 8), rng=0), {"axes": 1} if name == "tensordot" else {}
    for wrong, error in (([1, [2]], s24.ShapeError), (None, s24.DTypeError), ("x", s24.DTypeError)):
        with pytest.raises(error, match=r"(vectors|b) must be an array"):
            getattr(np, name)(a, wrong, **options)
    with pytest.raises(s24.DTypeError, match="must be an array, got type"):
        getattr(np, name)(a, np.float32, **options)


@needs_matvec
def test_vectors_in_lists_and_of_torch(rng):
    torch = pytest.importorskip("torch")
    a = s24.compress(rng.standard_normal((3, 4)), on_excess="prune")
    want = a @ np.ones(4)
    np.testing.assert_allclose(np.matvec(a, [1.0] * 4), want)
    np.testing.assert_allclose(np.matvec(a, [[1.0] * 4]), want[None])
    ones = torch.ones(2, 4, dtype=torch.float64)
    for product in (np.matvec(a, ones), np.inner(ones, a), np.inner(a, ones).T):
        assert isinstance(product, torch.Tensor)
        np.testing.assert_allclose(product.numpy(), [want, want])
    with pytest.raises(s24.ArgumentError, match="must not require a gradient"):
        np.matvec(a, ones.requires_grad_())


@pytest.mark.parametrize("make", MAKERS)
def test_dot_of_more_axes_is_the_product_where_it_is_that_of_numpy(make, rng):
    a = MAKERS[make](rng.standard_normal(SHAPE), "float64")
    tokens = rng.standard_normal((2, 5, K))
    assert_product(np.dot(tokens, a.T), np.dot(tokens, a.toarray().T))
    with pytest.raises(s24.DTypeError, match=r"\.toarray\(\)"):  # NumPy puts the batch between
        np.dot(a, tokens.swapaxes(1, 2))


@pytest.mark.parametrize("pattern", [(2, 4), (3, 6)])
def test_dot_of_a_batch_and_one_operand(pattern, rng):
    a = s24.compress(rng.standard_normal((2, 12, 24)), pattern=pattern, on_excess="prune")
    x, y = rng.standard_normal((24, 3)), rng.standard_normal(12)
    for left, right in ((a, x), (a, x[:, 0]), (y, a)):
        dense = [operand.toarray() if operand is a else operand for operand in (left, right)]
        assert_product(np.dot(left, right), np.dot(*dense))
    for left, right in ((y[None], a), (3, a)):
        with pytest.raises(s24.Sparse24Error, match=r"alpha=|\.toarray\(\)"):
            np.dot(left, right)
