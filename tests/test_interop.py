"""SciPy, scikit-learn, torch and DLPack arrays beside a Sparse24Array."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import linalg

import sparse24 as s24


@pytest.fixture
def a():
    return s24.random((40, 24), dtype="float64", rng=0)


def test_numpy_operators_from_both_sides(a, rng):
    x = rng.standard_normal((24, 3))
    np.testing.assert_allclose(a @ x, a.toarray() @ x)
    np.testing.assert_allclose(x.T @ a.T, x.T @ a.toarray().T)
    np.testing.assert_allclose(np.ones(40) @ a, a.toarray().sum(0))
    np.testing.assert_allclose(a.dot(x), a @ x)


def test_scipy_operands(a):
    m = scipy.sparse.csr_array(scipy.sparse.random_array((24, 5), density=0.3, rng=0))
    np.testing.assert_allclose(a @ m, a.toarray() @ m.toarray())


def test_two_sparse_operands(a):
    np.testing.assert_allclose(a.T @ a, a.toarray().T @ a.toarray())


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


def test_torch_tensors_in_and_out(rng):
    torch = pytest.importorskip("torch")
    a = s24.random((8, 12), rng=0)
    x = torch.from_numpy(rng.standard_normal((5, 12)).astype(np.float32))
    want = x.numpy() @ a.toarray().T
    for got in (x @ a.T, torch.matmul(x, a.T), torch.nn.functional.linear(x, a), s24.linear(x, a)):
        assert isinstance(got, torch.Tensor)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)
    packed = s24.compress(torch.from_numpy(a.toarray()))
    np.testing.assert_array_equal(packed.toarray(), a.toarray())
    out = torch.zeros(5, 8)
    assert s24.matmul(x, a.T, out) is out
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_torch_half_precision(name):
    torch = pytest.importorskip("torch")
    a = s24.random((8, 12), dtype=name, rng=0)
    x = torch.ones(12, 2, dtype=getattr(torch, name))
    got = a @ x
    assert got.dtype == x.dtype
    want = a.toarray().astype(np.float32).sum(1)
    np.testing.assert_allclose(got.float().numpy()[:, 0], want, rtol=2e-2, atol=2e-2)


def test_jax_arrays_in_and_out():
    jnp = pytest.importorskip("jax.numpy")
    a = s24.random((8, 12), rng=0)
    got = jnp.ones((3, 12), jnp.float32) @ a.T
    assert type(got).__module__.startswith("jax")
    np.testing.assert_allclose(np.asarray(got)[0], a.toarray().sum(1), rtol=1e-5, atol=1e-5)


def test_other_dlpack_arrays(a):
    strict = pytest.importorskip("array_api_strict")
    x = strict.ones((24, 2), dtype=strict.float64)
    np.testing.assert_allclose(s24.matmul(a, x)[:, 0], a.toarray().sum(1))


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "sparse_mma", "compress", "decompress")
def test_cuda_tensors_in_and_out():
    torch = pytest.importorskip("torch")
    w = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
    a = s24.compress(w, on_excess="prune")
    x = torch.randn(5, 128, device="cuda", dtype=torch.bfloat16)
    got = s24.linear(x, a)
    assert got.is_cuda
    assert got.dtype == torch.bfloat16
    dense = torch.from_dlpack(a.toarray().view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(got, x @ dense.T, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma")
def test_devices_do_not_mix():
    a = s24.random((8, 16), rng=0).to_device("cuda")
    with pytest.raises(s24.DeviceError, match="move one"):
        a @ np.ones((16, 2), np.float32)
