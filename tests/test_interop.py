"""SciPy, scikit-learn, JAX and DLPack arrays beside sparse arrays; torch: test_interop_torch."""

from __future__ import annotations

import sys
import types
import warnings

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import linalg

import sparse24 as s24
from sparse24._arrays import to_numpy


@pytest.fixture
def a():
    return s24.random((40, 24), dtype="float64", rng=0)


def test_numpy_operators_from_both_sides(a, rng):
    x = rng.standard_normal((24, 3))
    np.testing.assert_allclose(a @ x, a.toarray() @ x)
    np.testing.assert_allclose(x.T @ a.T, x.T @ a.toarray().T)
    np.testing.assert_allclose(np.ones(40) @ a, a.toarray().sum(0))
    np.testing.assert_allclose(a.dot(x), a @ x)


FORMATS = (s24.asarray, s24.hybrid, lambda w: s24.compress(w, pattern=(7, 8)))
LIBRARIES = ("cupy", "cupy.cuda", "cupyx.scipy.sparse", "jax", "scipy.sparse", "torch")


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_products_while_another_thread_imports_a_library(library, make, rng, monkeypatch):
    w, x = s24.prune(rng.standard_normal((8, 16))), rng.standard_normal((16, 3))
    a, want = make(w), w @ x
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, library, types.ModuleType(library))  # nothing is in it yet
        found = a @ x, s24.matmul(a, x), s24.linear(x.T, a).T, (a * 2.0).to_device("cpu") @ x / 2
    for product in found:
        np.testing.assert_allclose(product, want)


MASKED = np.ma.masked_less(np.arange(64.0).reshape(8, 8), 9)


@pytest.mark.parametrize(
    "call",
    [
        s24.prune,
        s24.mask,
        s24.asarray,
        s24.hybrid,
        lambda x: s24.compress(x, pattern=(3, 8)),
        lambda x: s24.prune(x.data, scores=x),
        lambda x: s24.random((8, 8), dtype="float64", rng=0) @ x,
        lambda x: x @ s24.hybrid(np.eye(8)),
        lambda x: s24.matmul(x, x),
        lambda x: s24.matmul(x.data, x.data, x),
        lambda x: s24.schedule.init(s24.schedule.sr_ste(), {"w": x}),
        lambda x: s24.schedule.apply_masks(x, x.data),
    ],
)
def test_masked_arrays_are_refused(call):
    with pytest.raises(s24.DTypeError, match=r"not be a MaskedArray, .*fill .* \.filled\(0\)"):
        call(MASKED)


def test_scipy_operands(a):
    m = scipy.sparse.csr_array(scipy.sparse.random_array((24, 5), density=0.3, rng=0))
    np.testing.assert_allclose(a @ m, a.toarray() @ m.toarray())


def test_two_sparse_operands(a):
    np.testing.assert_allclose(a.T @ a, a.toarray().T @ a.toarray())


@pytest.mark.stem("sparse_fma", "sparse_mma", "sparse_wgmma", "sparse_skinny", "decompress")
@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn"])
def test_two_sparse_operands_of_any_type(xp, name):
    a, b = (s24.random((16, 16), dtype=name, rng=seed) for seed in (0, 1))
    want = a.toarray().astype(np.float64) @ b.toarray().astype(np.float64)
    if xp is not np:
        a, b = a.to_device("cuda"), b.to_device("cuda")
    for got in (a @ b, s24.matmul(a, b)):
        np.testing.assert_allclose(to_numpy(got).astype(np.float64), want, rtol=2e-2, atol=5e-2)
    assert s24.explain(a, b).chosen
    np.testing.assert_array_equal(to_numpy(s24.compress(a).values), to_numpy(a.values))


def test_linear_operator(a, rng):
    op = linalg.aslinearoperator(a)
    x, y = rng.standard_normal(24), rng.standard_normal(40)
    np.testing.assert_allclose(op @ x, a.toarray() @ x)
    np.testing.assert_allclose(op.T @ y, a.toarray().T @ y)


def test_svds_and_lsqr(a):
    dense = a.toarray()
    singular = linalg.svds(a, k=3, return_singular_vectors=False)
    np.testing.assert_allclose(sorted(singular), np.linalg.svd(dense)[1][2::-1], rtol=1e-8)
    y = dense @ np.arange(24.0)
    found = linalg.lsqr(a, y, atol=1e-12, btol=1e-12)[0]
    np.testing.assert_allclose(found, np.arange(24.0), atol=1e-6)


@pytest.mark.parametrize("solve", [linalg.lsqr, linalg.cg, linalg.gmres])
def test_solvers_take_hybrid_matrices_narrower_than_their_vectors(rng, solve):
    w = np.diag(np.arange(2.0, 42.0)) + np.eye(40, k=1) + np.eye(40, k=-1)
    found = solve(s24.hybrid(w.astype(np.float32)), w @ np.ones(40))[0]
    np.testing.assert_allclose(found, np.ones(40), atol=1e-3)


def test_sklearn_multilayer_perceptron_predicts_with_sparse_weights():
    datasets = pytest.importorskip("sklearn.datasets")
    from sklearn.neural_network import MLPClassifier

    x, y = datasets.load_digits(return_X_y=True)
    model = MLPClassifier((32,), max_iter=40, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forty steps do not converge, and need not
        model.fit(x / 16, y)
    pruned = [s24.prune(w, axis=0) for w in model.coefs_]
    model.coefs_ = pruned
    want = model.predict_proba(x / 16)
    model.coefs_ = [s24.compress(w, axis=0) for w in pruned]
    np.testing.assert_allclose(model.predict_proba(x / 16), want, atol=1e-12)


def test_jax_arrays_in_and_out():
    jax = pytest.importorskip("jax")
    a = s24.random((8, 12), rng=0)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):  # where `a` is
        got = jax.numpy.ones((3, 12), jax.numpy.float32) @ a.T
    assert type(got).__module__.startswith("jax")
    np.testing.assert_allclose(np.asarray(got)[0], a.toarray().sum(1), rtol=1e-5, atol=1e-5)


def test_other_dlpack_arrays(a):
    strict = pytest.importorskip("array_api_strict")
    x = strict.ones((24, 2), dtype=strict.float64)
    for got in (s24.matmul(a, x), a @ x, s24.linear(strict.matrix_transpose(x), a).T):
        assert type(got) is np.ndarray
        assert strict.from_dlpack(got).shape == got.shape
        np.testing.assert_allclose(got[:, 0], a.toarray().sum(1))
    with pytest.raises(TypeError, match="Expected Array"):  # it does not ask the other operand
        strict.matrix_transpose(x) @ a.T


def test_types_that_dlpack_does_not_bring_to_numpy_are_refused(a):
    torch = pytest.importorskip("torch")
    x = torch.ones(24, 2, dtype=torch.bfloat16)

    class Exporter:  # methods of the type: NumPy 2.0 asks no instance
        def __dlpack__(self, **options):
            return x.__dlpack__(**options)

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    with pytest.raises(s24.DTypeError, match="a Exporter cannot be read by DLPack"):
        s24.mask(Exporter())


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"])
def test_every_scipy_format_multiplies_from_both_sides(form, kind, a):
    make = getattr(scipy.sparse, f"{form}_{kind}")
    left, right = (
        make(scipy.sparse.random_array(shape, density=0.3, rng=0)) for shape in ((7, 40), (24, 5))
    )
    for got, want in (
        (left @ a, left.toarray() @ a.toarray()),
        (a @ right, a.toarray() @ right.toarray()),
        (s24.matmul(left, a), left.toarray() @ a.toarray()),
    ):
        assert isinstance(got, np.ndarray)
        np.testing.assert_allclose(got, want)


@pytest.mark.stem("decompress")
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dia", "bsr", "dok", "lil"])
def test_every_sparse_format_goes_out_and_comes_in(form, xp, a):
    if xp is not np:
        if form not in ("csr", "csc", "coo"):
            with pytest.raises(s24.ArgumentError, match="format must be one of 'csr'"):
                a.to_device("cuda").asformat(form)
            return
        a = a.to_device("cuda")
    m = a.asformat(form)
    assert m.format == form
    back = s24.from_scipy(m)
    assert back.device == a.device
    np.testing.assert_array_equal(to_numpy(back.values), to_numpy(a.values))
    np.testing.assert_array_equal(to_numpy(back.metadata), to_numpy(a.metadata))
    assert a.asformat(form, "float32").dtype == np.float32


@pytest.mark.parametrize("make", [s24.compress, s24.hybrid, s24.NMArray.from_dense])
def test_scipy_on_the_left_of_every_format(make):
    dense = np.diag(np.arange(1.0, 9.0))
    array, left = make(dense), scipy.sparse.eye_array(8, format="csr")
    np.testing.assert_array_equal(left @ array, dense)
    for refused in (lambda: left * array, lambda: left + array, lambda: np.asarray(array)):
        with pytest.raises((TypeError, ValueError)):
            refused()
    with pytest.raises(s24.ShapeError, match=r"8.*\(3|3 and 8"):
        _ = scipy.sparse.eye_array(3, format="csr") @ array


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma")
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_cupyx_matrices_multiply_from_both_sides(form, a):
    from cupyx.scipy import sparse as cupyx_sparse

    make = getattr(cupyx_sparse, f"{form}_matrix")
    left, right = (
        scipy.sparse.csr_matrix(scipy.sparse.random_array(shape, density=0.3, rng=0))
        for shape in ((7, 40), (24, 5))
    )
    there = a.to_device("cuda")
    products = [
        (make(left.asformat(form)) @ there, left @ a.toarray()),
        (there @ make(right.asformat(form)), a.toarray() @ right.toarray()),
    ]
    for got, want in products:
        np.testing.assert_allclose(to_numpy(got), want)


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma")
def test_devices_do_not_mix():
    a = s24.random((8, 16), rng=0).to_device("cuda")
    with pytest.raises(s24.DeviceError, match="move one"):
        a @ np.ones((16, 2), np.float32)
