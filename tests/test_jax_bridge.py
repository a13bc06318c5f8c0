"""The JAX bridge and the plain layer against dense layers with masked weights."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes
from sparse24 import functional as F
from sparse24._errors import ArgumentError, DTypeError, ShapeError, UnsupportedError


@pytest.fixture
def jax():
    """JAX with its arrays where those of NumPy are, also beside a GPU."""
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        yield jax


def data(rng, dtype=np.float64, tokens=(3, 4)):
    arrays = (rng.normal(size=s) for s in ((*tokens, 16), (8, 16), (8,), (*tokens, 8)))
    return tuple(a.astype(dtype) for a in arrays)


def expected(x, weight, bias, dy, mask, gradient, decay):
    kept = weight * mask
    dweight = dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])
    dweight = dweight if gradient == "ste" else dweight * mask
    dweight = dweight + decay * weight * ~mask
    return x @ kept.T + bias, dy @ kept, dweight, dy.reshape(-1, dy.shape[-1]).sum(0)


@pytest.mark.parametrize("transposable", [False, True])
@pytest.mark.parametrize("gradient", ["ste", "24dense"])
@pytest.mark.parametrize("given", [False, True])
def test_plain_layer(xp, rng, transposable, gradient, given):
    x, weight, bias, dy = (xp.asarray(a) for a in data(rng))
    mask = s24.mask(xp.asarray(rng.normal(size=weight.shape)), transposable=transposable)
    mask = mask if given else None
    y, saved = F.linear(x, weight, bias, mask=mask, transposable=transposable)
    got = (y, *F.linear_backward(dy, saved, gradient=gradient, decay=0.1))
    mask = mask if given else s24.mask(weight, transposable=transposable)
    host = [a if xp is np else a.get() for a in (x, weight, bias, dy, mask)]
    for a, b in zip(got, expected(*host, gradient, 0.1), strict=True):
        np.testing.assert_allclose(a if xp is np else a.get(), b, rtol=1e-9, atol=1e-9)


def test_plain_layer_with_sampled_gradients(rng):
    x, weight, bias, dy = data(rng, tokens=(16,))
    _, saved = F.linear(x, weight, bias)
    want = F.linear_backward(dy, saved, gradient="24dense")[1]
    draws = [F.linear_backward(dy, saved, gradient="24sparse", step=t)[1] for t in range(400)]
    error = np.std(draws, axis=0) / 20
    assert (np.abs(np.mean(draws, axis=0) - want) <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("transposable", [False, True])
def test_plain_layer_passes_finite_differences(rng, transposable):
    *arrays, dy = data(rng, tokens=(5,))
    _, saved = F.linear(*arrays, transposable=transposable)
    slopes = F.linear_backward(dy, saved, gradient="24dense")
    for place, slope in enumerate(slopes):
        for index in [(0,) * slope.ndim, tuple(rng.integers(slope.shape)), (-1,) * slope.ndim]:
            ends = []
            for shift in (1e-6, -1e-6):
                moved = [a.copy() for a in arrays]
                moved[place][index] += shift
                ends.append((F.linear(*moved, transposable=transposable)[0] * dy).sum())
            assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(slope[index], abs=1e-6)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_the_gradient_of_a_bias_is_summed_in_float32(name):
    dtype = _dtypes.numpy_dtype(name)
    x, weight, bias = (np.ones(shape, dtype) for shape in ((4096, 4), (8, 4), (8,)))
    y, saved = F.linear(x, weight, bias)
    *_, dbias = F.linear_backward(np.ones_like(y), saved)
    assert dbias.dtype == dtype
    assert (dbias == 4096).all()  # one by one, float16 stops at 2048 and bfloat16 at 256


def test_a_flag_of_numpy_is_one_of_jax(jax):
    x = jax.numpy.array([[1.0, 2, 3, 4]] * 4)
    for on in (np.True_, np.array(True), 1):
        want = s24.jax.mask(x, transposable=True)
        np.testing.assert_array_equal(s24.jax.mask(x, transposable=on), want)
    for wrong in (np.array([True]), [True], None):
        with pytest.raises(ArgumentError, match=r"^transposable must be one of True, False, got"):
            s24.jax.mask(x, transposable=wrong)


def test_plain_layer_refuses(rng):
    x, weight, _, dy = data(rng)
    with pytest.raises(ShapeError, match=r"x must have shape \(..., k\) and weight \(m, k\)"):
        F.linear(x[..., :8], weight)
    _, saved = F.linear(x, weight)
    assert F.linear_backward(dy, saved)[2] is None
    with pytest.raises(ShapeError, match=r"dy must have shape \(3, 4, 8\)"):
        F.linear_backward(dy[0], saved)
    with pytest.raises(ArgumentError, match="gradient must be one of"):
        F.linear_backward(dy, saved, gradient="dense")


@pytest.mark.parametrize("transposable", [False, True])
@pytest.mark.parametrize("gradient", ["ste", "24dense"])
@pytest.mark.parametrize("given", [False, True])
def test_jax(jax, rng, transposable, gradient, given):
    from sparse24 import jax as sj

    host = data(rng, np.float32)
    x, weight, bias, dy = (jax.numpy.asarray(a) for a in host)
    chosen = sj.mask(jax.numpy.asarray(rng.normal(size=weight.shape)), transposable=transposable)
    mask = chosen if given else None

    def layer(x, weight, bias):
        return sj.linear(
            x, weight, bias, mask=mask, gradient=gradient, transposable=transposable, decay=0.1
        )

    y, pullback = jax.vjp(layer, x, weight, bias)
    got = (y, *pullback(dy))
    mask_host = np.asarray(chosen if given else sj.mask(weight, transposable=transposable))
    for a, b in zip(got, expected(*host, mask_host, gradient, 0.1), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-4, atol=1e-4)
    if not given:  # a mask of the weight itself is a constant

        def masked(w):
            return sj.linear(x, w, bias, mask=sj.mask(w), gradient="24dense")

        kept = jax.grad(lambda w: (masked(w) * dy).sum())(weight)
        assert not np.asarray(kept)[~np.asarray(sj.mask(weight))].any()
    loss = jax.grad(lambda w: (layer(x, w, bias) * dy).sum())
    np.testing.assert_allclose(loss(weight), got[2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gradient", ["24sparse", "ste_sampled"])
def test_jax_samples_what_the_plain_layer_samples(jax, rng, gradient):
    from sparse24 import jax as sj

    x, weight, _, dy = data(rng, np.float32, tokens=(16,))
    how = {"gradient": gradient, "seed": 2, "step": 5}
    _, pullback = jax.vjp(lambda w: sj.linear(jax.numpy.asarray(x), w, **how), weight)
    want = F.linear_backward(dy, F.linear(x, weight)[1], **how)[1]
    np.testing.assert_array_equal(pullback(dy)[0], want)


def test_jax_bfloat16_and_jit(jax, rng):
    from sparse24 import jax as sj

    x, weight, _, dy = (jax.numpy.asarray(a, "bfloat16") for a in data(rng))
    y, pullback = jax.vjp(lambda w: sj.linear(x, w), weight)
    assert y.dtype == pullback(dy)[0].dtype == "bfloat16"
    with pytest.raises(UnsupportedError, match=r"gradients of gradients|needs JAX 0"):
        jax.grad(lambda w: jax.grad(lambda x: sj.linear(x, w).sum())(x).sum())(weight)
    for sparse in (s24.random((16, 8), rng=0), s24.hybrid(np.eye(16, 8, dtype=np.float32))):
        with pytest.raises(UnsupportedError, match=r"tracer of JAX; use sparse24.jax.matmul"):
            jax.jit(lambda x: x @ sparse)(x)  # noqa: B023


@pytest.mark.parametrize(
    "types", [("float32", "bfloat16", "float32"), ("bfloat16", "bfloat16", "float32")]
)
def test_jax_gradients_have_the_types_of_the_arrays(jax, rng, types):
    from sparse24 import jax as sj

    x, weight, bias = (jax.numpy.asarray(a, t) for a, t in zip(data(rng), types, strict=False))
    found = jax.grad(lambda *given: sj.linear(*given).sum(), argnums=(0, 1, 2))(x, weight, bias)
    assert tuple(gradient.dtype.name for gradient in found) == types


@pytest.mark.parametrize("shape", [(5,), (3, 1), (1, 7), ()])
def test_a_bias_is_one_number_a_row(rng, shape):
    x, weight, *_ = data(rng, tokens=(3,))
    with pytest.raises(ShapeError, match=r"bias must have shape \(8,\) or \(1, 8\)"):
        F.linear(x, weight, np.ones(shape))


def test_the_gradient_of_a_bias_has_its_shape(jax, rng):
    x, weight, bias, dy = data(rng, tokens=(3,))
    (y, saved), (same, of_row) = F.linear(x, weight, bias), F.linear(x, weight, bias[None])
    np.testing.assert_array_equal(same, y)
    want, got = (F.linear_backward(dy, record)[2] for record in (saved, of_row))
    np.testing.assert_array_equal(got, want[None])
    from sparse24 import jax as sj

    arrays = (jax.numpy.asarray(a) for a in (x, weight, bias[None]))
    found = jax.grad(lambda *given: sj.linear(*given).sum(), argnums=2)(*arrays)
    np.testing.assert_allclose(found, np.full((1, 8), 3.0))


def test_jax_names_what_is_no_array(jax):
    from sparse24 import jax as sj

    x, weight = jax.numpy.ones((3, 4)), jax.numpy.ones((2, 4))
    for call, name in (
        (lambda: sj.linear([[1.0, 2.0]], weight), "x"),
        (lambda: sj.linear(x, weight, [0.0, 0.0]), "bias"),
        (lambda: sj.linear(x, weight, mask=[[True] * 4] * 2), "mask"),
        (lambda: sj.mask([[1.0, 2.0]]), "x"),
    ):
        with pytest.raises(DTypeError, match=f"^{name} must be an array of JAX or NumPy, got list"):
            call()
    with pytest.raises(ArgumentError, match="step must be a whole number from 0 on, got None"):
        sj.linear(x, weight, step=None)


def test_jax_says_what_to_do_with_arrays_that_it_does_not_take(jax):
    from sparse24 import jax as sj

    x, weight, A = jax.numpy.ones((3, 4)), jax.numpy.ones((2, 4)), s24.random((2, 4), rng=0)
    for call in (lambda: sj.linear(x, A), lambda: jax.jit(lambda x: sj.linear(x, A))(x)):
        with pytest.raises(DTypeError, match=r"got Sparse24Array; sparse24\.jax\.matmul mult"):
            call()
    torch = pytest.importorskip("torch")
    for call, name in (
        (lambda: sj.linear(x, torch.ones(2, 4)), "weight"),
        (lambda: sj.linear(x, weight, torch.ones(2)), "bias"),
        (lambda: sj.linear(x, weight, mask=torch.ones(2, 4) > 1), "mask"),
        (lambda: sj.mask(torch.ones(2, 4)), "x"),
        (lambda: sj.matmul(torch.ones(2, 4), A.T), "a"),
        (lambda: sj.matmul(A, torch.ones(4, 2)), "b"),
    ):
        with pytest.raises(DTypeError, match=f"^{name} must be .* got Tensor; .*from_dlpack"):
            call()


def test_jax_itself_decides_on_float64(jax):
    a, x = s24.random((8, 16), dtype="float64", rng=0), np.ones((16, 2))
    before = jax.config.jax_enable_x64
    try:
        for x64 in (False, True):
            jax.config.update("jax_enable_x64", x64)
            y = a @ jax.numpy.asarray(x)
            assert y.dtype == ("float64" if x64 else "float32")
            np.testing.assert_allclose(y, a @ x, rtol=1e-6)
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("form", ["BCOO", "BCSR"])
@pytest.mark.parametrize(
    "take", [s24.compress, s24.hybrid, s24.prune, s24.random((2, 2), rng=0).dot]
)
def test_sparse_arrays_of_jax_are_refused(form, take):
    sparse = pytest.importorskip("jax.experimental.sparse")
    x = getattr(sparse, form).fromdense(np.eye(2, dtype=np.float32))
    with pytest.raises(
        s24.DTypeError, match=rf"must be a dense array, got {form}; .*\.todense\(\)"
    ):
        take(x)
