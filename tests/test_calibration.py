"""`Calibration`, its new biases, and `refit`."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from pruning_cases import layer, least_squares, loss

import sparse24 as s24
from sparse24 import _arrays


def test_calibration_sums_batches(xp, rng):
    w, x = layer(rng)
    y = x @ w.T + 3
    seen = s24.Calibration(bias=True)
    for part in np.split(np.arange(400), 4):
        seen.update(xp.asarray(x[part].reshape(10, 10, 32)), xp.asarray(y[part]))
    assert seen.count == 400
    centred = x - x.mean(0)
    np.testing.assert_allclose(_arrays.to_numpy(seen.hessian), centred.T @ centred)
    np.testing.assert_allclose(_arrays.to_numpy(seen.cross), centred.T @ (y - y.mean(0)), atol=1e-8)
    bias = _arrays.to_numpy(seen.new_bias(xp.asarray(0.5 * w)))
    np.testing.assert_allclose(bias, y.mean(0) - 0.5 * w @ x.mean(0))


@pytest.mark.parametrize(("name", "copies"), [("float64", 0), ("float32", 1)])
def test_a_batch_is_not_copied_twice(name, copies, rng):
    x = rng.normal(size=(20000, 16)).astype(name)
    seen = s24.Calibration(x[:10])
    tracemalloc.start()
    seen.update(x[10:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (copies + 0.5) * x.size * 8
    exact = x.astype(np.float64)
    np.testing.assert_allclose(seen.hessian, exact.T @ exact, atol=1e-8)


@pytest.mark.parametrize("bias", [False, True])
def test_of_a_large_batch_only_parts_are_copied(bias, rng):
    x = rng.normal(size=(1 << 18, 64)).astype(np.float16)
    y = x[:, :8] + np.float16(3)
    seen = s24.Calibration(x[:10], y[:10], bias=bias)
    tracemalloc.start()
    seen.update(x[10:], y[10:])
    s24.prune(np.ones((4, 64)), method="wanda", calibration=x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.size * 8
    x, y = x.astype(np.float64), y.astype(np.float64)
    if bias:
        x, y = x - x.mean(0), y - y.mean(0)
    np.testing.assert_allclose(seen.hessian, x.T @ x, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(seen.cross, x.T @ y, rtol=1e-9, atol=1e-6)


def test_a_batch_may_be_written_to_afterwards(rng):
    x = rng.normal(size=(20, 8))
    seen, kept = s24.Calibration(x, x[:, :4], bias=True), x.copy()
    x[:] = 0
    seen.update(kept, kept[:, :4])
    centred = kept - kept.mean(0)
    np.testing.assert_allclose(seen.hessian, 2 * centred.T @ centred, atol=1e-12)
    np.testing.assert_allclose(seen.cross, 2 * (centred.T @ centred)[:, :4], atol=1e-12)


def test_a_constant_feature_has_no_moment_beside_a_bias(xp, rng):
    """Whatever numbers are constant, none of them is left with a rounding error, or one below 0."""
    w = rng.normal(size=(4, 8))
    for _ in range(20):
        x = rng.normal(size=(21, 8))
        x[:, 3] = rng.normal()
        y = x @ w.T
        seen = s24.Calibration(xp.asarray(x[:0]), xp.asarray(y[:0]), bias=True)
        for part in (slice(0, 1), slice(1, 8), slice(8, 21)):
            seen.update(xp.asarray(x[part]), xp.asarray(y[part]))
        assert seen.norms[3] == 0
        assert not seen.hessian[3].any()
        assert not seen.cross[3].any()
        s24.prune(xp.asarray(w), method="wanda", calibration=seen)
        np.testing.assert_allclose(_arrays.to_numpy(seen.new_bias(xp.asarray(w))), 0, atol=1e-12)
    flat = s24.Calibration(xp.asarray(x[:1].repeat(7, axis=0)), bias=True)
    got = s24.prune(xp.asarray(w), method="sparsegpt", calibration=flat)
    np.testing.assert_allclose(_arrays.to_numpy(got), s24.prune(w))  # nothing is known but weights


@pytest.mark.parametrize(("dtype", "want"), [("int8", 127), ("float8_e4m3fn", 448)])
def test_a_new_bias_saturates(dtype, want):
    seen = s24.Calibration(np.full((3, 8), 50.0))
    weights = np.full((2, 8), 100, np.float32).astype(np.dtype(dtype))
    zeros = np.zeros_like(weights)
    got = seen.new_bias(zeros, weights)
    assert got.dtype == dtype
    assert got.tolist() == [want] * 2
    half = s24.Calibration(np.full((2, 8), 0.19)).new_bias(zeros, np.sign(weights))
    assert half.astype(float).tolist() == [2.0 if dtype == "int8" else 1.5] * 2


def test_what_a_calibration_hands_out_cannot_be_written_to(rng):
    inputs = rng.normal(size=(20, 8))
    seen = s24.Calibration(inputs, inputs)
    for moment in (seen.hessian, seen.cross):
        with pytest.raises(ValueError, match="read-only"):
            moment[:] = 0
    np.testing.assert_array_equal(seen.hessian, s24.Calibration(inputs).hessian)


def test_new_bias_keeps_the_mean_output(rng):
    w, x = layer(rng)
    x, bias = x + 1, rng.standard_normal(24)
    seen = s24.Calibration(x, bias=True)
    pruned = s24.prune(w, method="sparsegpt", calibration=seen)
    new = seen.new_bias(pruned, w, bias)
    np.testing.assert_allclose((x @ pruned.T + new).mean(0), (x @ w.T + bias).mean(0))
    with pytest.raises(s24.ArgumentError, match="needs the dense weights"):
        seen.new_bias(pruned)
    with pytest.raises(s24.ShapeError, match=r"pruned must have shape \(rows, 32\)"):
        seen.new_bias(pruned[:, :8], w, bias)
    with pytest.raises(s24.ShapeError, match="dense must have the shape of pruned"):
        seen.new_bias(pruned, w[:8], bias)
    with pytest.raises(s24.ShapeError, match="bias must have the shape of the rows"):
        seen.new_bias(pruned, w, bias[:8])
    with pytest.raises(s24.ArgumentError, match="seen no inputs; call update"):
        s24.Calibration(bias=True).new_bias(pruned, w, bias)
    for wrong in (bias != 0, bias + 1j, [1] * len(bias)):
        with pytest.raises(s24.DTypeError, match=r"bias\.dtype must be one of"):
            seen.new_bias(pruned, w, wrong)
    with pytest.raises(s24.DTypeError, match="dense must hold real numbers, got complex128; pass"):
        seen.new_bias(pruned, w + 1j, bias)
    with pytest.raises(s24.ArgumentError, match="targets are the outputs for inputs; pass both"):
        s24.Calibration(targets=w)
    torch = pytest.importorskip("torch")
    tensors = [torch.nn.Parameter(torch.tensor(x)) for x in (pruned, w, bias)]
    np.testing.assert_array_equal(seen.new_bias(*tensors).numpy(), new)


@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn"])
def test_values_that_grow_beyond_a_type_saturate(rng, name):
    dtype = np.dtype(name) if name == "int8" else np.dtype(getattr(ml_dtypes, name))
    limit = 127.0 if name == "int8" else 448.0
    w = (rng.uniform(-limit, limit, (16, 32))).astype(dtype)
    x = np.repeat(rng.standard_normal((40, 8)), 4, axis=1)  # the kept take over for the pruned
    wide = s24.refit(s24.prune(w).astype(float), w.astype(float), x, damping=1e-3)
    assert np.abs(wide).max() > 1.1 * limit
    got = s24.refit(s24.prune(w), w, x, damping=1e-3).astype(float)
    whole = np.rint(wide) if name == "int8" else wide
    np.testing.assert_allclose(got, whole.clip(-limit - (name == "int8"), limit), rtol=0.07)
    pruned = s24.prune(w, method="sparsegpt", calibration=x)
    assert np.isfinite(pruned.astype(float)).all()


def test_targets_make_up_for_damaged_inputs(rng):
    w, x = layer(rng)
    damaged = x + 0.3 * rng.standard_normal(x.shape) * x.std(0)
    arguments = {"method": "sparsegpt", "damping": 1e-3}
    plain = s24.prune(w, calibration=damaged, **arguments)
    aimed = s24.prune(w, calibration=s24.Calibration(damaged, x @ w.T), **arguments)
    error = lambda v: ((damaged @ v.T - x @ w.T) ** 2).sum()  # noqa: E731
    assert error(aimed) < error(plain)


def test_refit_is_the_least_squares_solution(xp, rng):
    w, x = layer(rng)
    pruned = s24.prune(w)
    got = s24.refit(xp.asarray(pruned), xp.asarray(w), xp.asarray(x), damping=1e-6)
    got = _arrays.to_numpy(got)
    hessian = x.T @ x
    hessian += 1e-6 * hessian.diagonal().mean() * np.eye(32)
    for row, dense, kept in zip(got, w, pruned != 0, strict=True):
        want = least_squares(dense, hessian, np.flatnonzero(kept))
        np.testing.assert_allclose(row, want, rtol=1e-3, atol=1e-4)
    assert loss(got, w, x) < loss(pruned, w, x)


def test_refit_with_targets_is_held_at_the_dense_weights(rng):
    """Ridge regression of the targets, whose penalty counts from `dense`."""
    w, x = layer(rng)
    y = rng.standard_normal((len(x), len(w)))
    got = s24.refit(w, w, s24.Calibration(x, y), mask=np.ones(w.shape, bool), damping=0.5)
    hessian = x.T @ x
    penalty = 0.5 * hessian.diagonal().mean()
    want = np.linalg.solve(hessian + penalty * np.eye(32), x.T @ y + penalty * w.T).T
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_refit_rounds_and_saturates(rng):
    w, x = layer(rng)
    pruned = s24.prune((40 * w).astype(np.int8))
    exact = s24.refit(pruned.astype(np.float64), 100 * w, x)
    assert np.abs(exact).max() > 128
    got = s24.refit(pruned, 100 * w, x)
    np.testing.assert_array_equal(got, np.clip(np.rint(exact), -128, 127))
    with pytest.raises(s24.DTypeError, match="mask must be boolean, got int64; use mask != 0"):
        s24.refit(w, w, x, mask=(w != 0).astype(np.int64))
    for weights in ((w * 1j, w), (w, w * 1j)):
        with pytest.raises(s24.DTypeError, match="must hold real numbers, got complex128"):
            s24.refit(*weights, x)


def test_refit_takes_a_mask_and_checks_shapes(rng):
    w, x = layer(rng)
    kept = s24.mask(w, method="wanda", calibration=x)
    got = s24.refit(np.zeros_like(w), w, x, mask=kept)
    assert not got[~kept].any()
    assert got[kept].all()
    np.testing.assert_allclose(s24.refit(w, w, x, mask=kept), got, atol=1e-4)
    with pytest.raises(s24.DTypeError, match="got bool; pass a mask as mask=, and dense"):
        s24.refit(kept, w, x)
    for unsuited in (np.uint16, np.int64):
        with pytest.raises(s24.DTypeError, match=r"pruned\.dtype must be one of"):
            s24.refit(kept.astype(unsuited), w, x)
    with pytest.raises(s24.DTypeError, match="got bool; multiply the weights by a mask first"):
        s24.Calibration(x, bias=True).new_bias(kept, w)
    with pytest.raises(s24.ShapeError, match=r"pruned must have shape \(rows, 32\)"):
        s24.refit(w[:, :8], w[:, :8], x)
    with pytest.raises(s24.ShapeError, match="dense must have the shape of pruned"):
        s24.refit(w, w[:4], x)
    with pytest.raises(s24.ShapeError, match=r"pruned must have shape \(rows, 32\).*got \(32,\)"):
        s24.refit(w[0], w[0], x)
    with pytest.raises(s24.ShapeError, match="mask must have the shape of pruned"):
        s24.refit(w, w, x, mask=kept[0])
    for damping in (-1.0, 0, np.nan):
        with pytest.raises(s24.ArgumentError, match=f"damping must be above 0, got {damping}"):
            s24.refit(w, w, x, damping=damping)
    with pytest.raises(s24.ArgumentError, match="damping must be finite, got inf"):
        s24.refit(w, w, x, damping=np.inf)


def test_calibration_refuses_uneven_batches():
    seen = s24.Calibration(np.ones((3, 8)))
    with pytest.raises(s24.ShapeError, match="inputs must have 8 features"):
        seen.update(np.ones((3, 9)))
    with pytest.raises(s24.ArgumentError, match="targets must come with every batch"):
        seen.update(np.ones((3, 8)), np.ones((3, 2)))
    none_yet = s24.Calibration(np.ones((0, 8)), np.ones((0, 2)))
    with pytest.raises(s24.ArgumentError, match="targets must come with every batch"):
        none_yet.update(np.ones((3, 8)))
    with pytest.raises(s24.ShapeError, match="as many as inputs"):
        s24.Calibration(np.ones((3, 8)), np.ones((2, 2)))
    with pytest.raises(s24.DTypeError, match="must be an array of numbers"):
        s24.Calibration(np.zeros((3, 8), "V4"))
    with pytest.raises(s24.ShapeError, match="activations must be the norms of the 8 inputs"):
        s24.prune(np.ones((4, 8)), method="wanda", activations=np.ones(9))


def test_a_batch_that_fails_changes_nothing(rng):
    """One sum alone may fail, as that of targets on another device, or too large ones here."""
    x, y = rng.normal(size=(6, 8)), rng.normal(size=(6, 4))
    for bias in (False, True):
        seen = s24.Calibration(bias=bias)
        for part in (slice(0, 3), slice(3, 6)):
            with np.errstate(over="raise"), pytest.raises(FloatingPointError):
                seen.update(np.full((2, 8), [[1e10], [-1e10]]), np.full((2, 4), [[1e300], [0]]))
            assert seen.count == part.start
            seen.update(x[part], y[part])
        want = s24.Calibration(x, y, bias=bias)
        np.testing.assert_allclose(seen.hessian, want.hessian)
        np.testing.assert_allclose(seen.cross, want.cross)
        np.testing.assert_allclose(seen.new_bias(y.T @ x), want.new_bias(y.T @ x))


def test_targets_must_have_a_feature_for_each_row(rng):
    seen = s24.Calibration(rng.normal(size=(9, 8)), rng.normal(size=(9, 3)))
    w = rng.normal(size=(4, 8))
    message = "targets must have 4 features, one a row of the weights, got 3"
    with pytest.raises(s24.ShapeError, match=message):
        s24.refit(w, w, seen)
    with pytest.raises(s24.ShapeError, match=message):
        s24.prune(w, method="sparsegpt", calibration=seen)
    with pytest.raises(s24.ShapeError, match=r"pruned must have shape \(3, 8\), by what the"):
        seen.new_bias(w)
    assert seen.new_bias(w[:3]).shape == (3,)
