"""Methods that choose masks: wanda, sparsegpt, random, callables; Calibration, refit, report."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays, _dtypes, _prune_methods, _sparsegpt
from sparse24._sparsegpt import sparsegpt
from sparse24.kernels import cpu_decode


def layer(rng, rows=24, k=32, count=400):
    """Weights, and inputs whose features are correlated and of unequal size."""
    mix = rng.standard_normal((k, k)) * rng.uniform(0.1, 2, k)
    inputs = rng.standard_normal((count, k)) @ mix
    return rng.standard_normal((rows, k)), inputs


def loss(weights, dense, inputs):
    return float(((inputs @ (weights - dense).T) ** 2).sum())


def test_wanda_is_magnitude_times_norm(xp, rng):
    w, x = layer(rng)
    norms = np.linalg.norm(x, axis=0)
    want = s24.prune(w, scores=np.abs(w.astype(np.float32)) * norms.astype(np.float32))
    ways = {"calibration": x}, {"hessian": x.T @ x}, {"activations": norms}
    for known in ways:
        known = {name: xp.asarray(value) for name, value in known.items()}
        got = s24.prune(xp.asarray(w), method="wanda", **known)
        np.testing.assert_array_equal(_arrays.to_numpy(got), want)


@pytest.mark.parametrize("scale", [1e150, 1e-150])
def test_wanda_of_float64_takes_norms_as_they_are(rng, scale):
    w, x = (a.astype(np.float64) for a in layer(rng))
    got = s24.mask(w, method="wanda", calibration=scale * x)
    np.testing.assert_array_equal(got, s24.mask(w, method="wanda", calibration=x))


def test_wanda_along_another_axis(rng):
    w, x = layer(rng)
    got = s24.prune(np.ascontiguousarray(w.T), axis=0, method="wanda", calibration=x)
    np.testing.assert_array_equal(got.T, s24.prune(w, method="wanda", calibration=x))


@pytest.mark.parametrize("pattern", [(2, 4), (1, 4), (4, 8), (3, 5), (8, 16)])
def test_sparsegpt_obeys_and_beats_magnitude(xp, rng, pattern):
    w, x = layer(rng, k=48)
    got = s24.prune(xp.asarray(w), method="sparsegpt", calibration=xp.asarray(x), pattern=pattern)
    got = _arrays.to_numpy(got)
    assert s24.report(got, pattern=pattern).obeys
    by_size = s24.prune(w, pattern=pattern)
    by_wanda = s24.prune(w, method="wanda", calibration=x, pattern=pattern)
    assert loss(got, w, x) < loss(by_wanda, w, x)
    assert loss(got, w, x) < 0.5 * loss(by_size, w, x)


@pytest.mark.parametrize("shape", [(24, 32), (6, 10)])
def test_sparsegpt_transposable(xp, rng, shape):
    w, x = layer(rng, *shape)
    got = s24.prune(xp.asarray(w), method="sparsegpt", calibration=xp.asarray(x), transposable=True)
    got = _arrays.to_numpy(got)
    assert s24.is_24(got)
    assert s24.is_24(got, axis=0)
    assert loss(got, w, x) < loss(s24.prune(w, transposable=True), w, x)


def test_sparsegpt_settles_one_group_optimally(rng):
    """With a single group there is nothing to the right: the best mask, and its best values."""
    w, x = layer(rng, rows=8, k=4)
    hessian = x.T @ x
    pruned, kept = sparsegpt(w, hessian, 2, 4, damping=1e-12)
    for row, mask, dense in zip(pruned, kept, w, strict=True):
        best = min(
            loss(np.atleast_2d(least_squares(dense, hessian, pair)), dense, x)
            for pair in itertools.combinations(range(4), 2)
        )
        assert mask.sum() == 2
        assert loss(np.atleast_2d(row), dense, x) == pytest.approx(best, rel=1e-6)


def least_squares(dense, hessian, places):
    places = list(places)
    row = np.zeros_like(dense)
    row[places] = np.linalg.solve(hessian[np.ix_(places, places)], (hessian @ dense)[places])
    return row


def test_sparsegpt_of_a_large_group_is_close_to_the_exhaustive_choice(rng):
    w, x = layer(rng, rows=16, k=8)
    exact, _ = sparsegpt(w, x.T @ x, 4, 8)
    kept, pull = _sparsegpt._settle_one_by_one(
        np, w, np.linalg.inv(_sparsegpt.damped(x.T @ x, 0.01)[0]), 4
    )
    greedy = np.where(kept, w - pull @ np.linalg.inv(_sparsegpt.damped(x.T @ x, 0.01)[0]), 0)
    assert (kept.sum(1) == 4).all()
    assert loss(exact, w, x) <= loss(greedy, w, x) < 2 * loss(exact, w, x)


def test_sparsegpt_makes_up_for_errors_of_earlier_blocks(rng, monkeypatch):
    w, x = layer(rng, rows=6, k=40)
    want, mask = sparsegpt(w, x.T @ x, 2, 4)
    monkeypatch.setattr(_sparsegpt, "BLOCK", 8)
    got, kept = sparsegpt(w, x.T @ x, 2, 4)
    np.testing.assert_array_equal(kept, mask)
    np.testing.assert_allclose(got, want, atol=1e-10)


def test_sparsegpt_zeroes_the_channels_that_keep_least(rng):
    w, x = layer(rng, rows=8, k=16)
    full = s24.prune(w, method="sparsegpt", calibration=x)
    got = s24.prune(w, method="sparsegpt", calibration=x, channels=0.25)
    full[np.argsort(np.abs(full).sum(1))[:2]] = 0
    np.testing.assert_array_equal(got, full)


def test_sparsegpt_without_inputs_is_magnitude(rng):
    w, _ = layer(rng)
    got = s24.prune(w, method="sparsegpt", hessian=np.zeros((32, 32)))
    np.testing.assert_allclose(got, s24.prune(w))


@pytest.mark.parametrize("name", ["float16", "float32", "int8"])
def test_sparsegpt_keeps_the_dtype(rng, name):
    w, x = layer(rng)
    w = (20 * w).astype(name)
    got = s24.prune(w, method="sparsegpt", calibration=x)
    assert got.dtype == w.dtype
    assert loss(got.astype(float), w, x) < loss(s24.prune(w).astype(float), w, x)


def test_mask_agrees_with_prune(rng):
    w, x = layer(rng)
    for method in ("wanda", "sparsegpt"):
        kept = s24.mask(w, method=method, calibration=x)
        np.testing.assert_array_equal(kept, s24.prune(w, method=method, calibration=x) != 0)


def test_random_depends_on_the_seed_alone(xp, rng):
    w = rng.standard_normal((8, 32))
    first, again, other = (
        _arrays.to_numpy(s24.mask(xp.asarray(w), method="random", rng=seed)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, s24.mask(w, method="random", rng=1))
    assert (first != other).any()
    assert 0.3 < first[:, ::4].mean() < 0.7


@pytest.mark.parametrize(
    "given", [{}, {"scores": np.ones((4, 8))}, {"method": np.abs}], ids=["magnitude", "scores", "f"]
)
def test_a_seed_that_nothing_would_use_is_refused(given):
    for function in (s24.prune, s24.mask):
        with pytest.raises(s24.ArgumentError, match=r"rng= is for method='random'.* drop it, or"):
            function(np.ones((4, 8)), rng=0, **given)


def test_callable(rng):
    w = rng.standard_normal((4, 8))
    got = s24.prune(w, method=lambda x: -np.abs(x))
    np.testing.assert_array_equal(got == 0, s24.prune(w) != 0)
    with pytest.raises(s24.ShapeError, match=r"method\(x\) must have the shape of x"):
        s24.prune(w, method=lambda x: x[0])


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
    for damping in (-1.0, 0, np.nan):
        with pytest.raises(s24.ArgumentError, match=f"damping must be above 0, got {damping}"):
            s24.refit(w, w, x, damping=damping)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"calibration": np.ones((3, 9))}, s24.ShapeError, "of 8 features.* got inputs of 9"),
        ({"hessian": np.eye(9)}, s24.ShapeError, "hessian must have shape"),
        ({"hessian": np.eye(8), "calibration": np.ones((3, 8))}, s24.ArgumentError, "one of them"),
        ({"calibration": s24.Calibration()}, s24.ArgumentError, "has seen no inputs"),
        ({"calibration": np.ones((0, 8))}, s24.ArgumentError, "has seen no inputs"),
        ({"hessian": np.eye(8), "damping": 0}, s24.ArgumentError, "damping must be above 0"),
        ({"calibration": np.full((3, 8), np.nan)}, s24.ArgumentError, "hold NaN or inf"),
        ({"calibration": np.full((3, 8), np.inf)}, s24.ArgumentError, "hold NaN or inf"),
        ({"hessian": -np.eye(8)}, s24.ArgumentError, "are no second moment"),
        ({"hessian": np.eye(8) - 2 * np.eye(8)[::-1]}, s24.ArgumentError, "positive semidefinite"),
    ],
)
def test_bad_calibration(arguments, error, words):
    with pytest.raises(error, match=words):
        s24.prune(np.ones((4, 8)), method="sparsegpt", **arguments)


@pytest.mark.parametrize("known", ["calibration", "hessian", "activations"])
@pytest.mark.parametrize(
    "rule", [{}, {"method": "random"}, {"method": np.abs}, {"scores": np.ones((4, 8))}]
)
def test_inputs_that_nothing_looks_at_are_refused(known, rule):
    for function in (s24.prune, s24.mask):
        with pytest.raises(s24.ArgumentError, match=f"{known}= is for method='wanda'.* drop it"):
            function(np.ones((4, 8)), **{known: np.eye(8)}, **rule)


def test_numbers_that_would_spread_are_refused(rng):
    w = rng.standard_normal((4, 8))
    x = rng.standard_normal((9, 8))
    broken = x.copy()
    broken[2, 3] = np.nan
    for known in (
        {"calibration": broken}, {"activations": np.full(8, np.inf)}, {"activations": -np.ones(8)},
        {"hessian": -np.eye(8)},
    ):  # fmt: skip
        with pytest.raises(s24.ArgumentError, match="hold NaN, inf or negative numbers"):
            s24.prune(w, method="wanda", **known)
    w[1, 1] = np.nan
    with pytest.raises(s24.ArgumentError, match="x holds NaN or inf, which method='sparsegpt'"):
        s24.mask(w, method="sparsegpt", calibration=x)
    assert np.isnan(s24.prune(w, method="wanda", calibration=x)[1, 1])


def test_scores_are_real_numbers():
    ones = np.ones((4, 8))
    for scores, words in ((ones + 0j, r"scores\.real"), (ones.astype(str), "<U")):
        with pytest.raises(s24.DTypeError, match=f"scores must hold real numbers, got .*{words}"):
            s24.compress(ones, scores=scores, on_excess="prune")


def test_inputs_are_told_once():
    w, x = np.ones((4, 8)), np.ones((3, 8))
    with pytest.raises(s24.ArgumentError, match="calibration and activations say the same"):
        s24.prune(w, method="wanda", calibration=x, activations=np.ones(8))
    with pytest.raises(s24.ArgumentError, match=r"is for method='wanda', and 'sparsegpt'"):
        s24.prune(w, method="sparsegpt", calibration=x, activations=np.ones(8))


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


def test_report_takes_the_pattern_of_compressed_arrays():
    w = np.random.default_rng(0).standard_normal((16, 16))
    arrays = {
        "rows": s24.compress(w, pattern=(4, 8), on_excess="prune"),
        "columns": s24.compress(w, pattern=(1, 4), axis=-2, on_excess="prune"),
        "plain": s24.prune(w),
    }
    found = s24.report(arrays)
    assert [layer.pattern for layer in found.layers] == [(4, 8), (1, 4), (2, 4)]
    assert found.obeys
    assert not s24.report(arrays["rows"], pattern=(2, 4)).obeys
    assert "kept of all" not in str(s24.report({}))


def test_report_refuses_the_bits_of_fp8():
    with pytest.raises(s24.DTypeError, match="up holds uint8, perhaps the bits of fp8"):
        s24.report({"up": np.zeros((2, 8), np.uint8)})


@pytest.mark.parametrize("x", [np.eye(4) * 1j, np.full((4, 4), "a"), np.full((4, 4), None)])
def test_report_is_of_real_numbers(x):
    for arrays in ((x,), (np.eye(4), x)):
        with pytest.raises(s24.DTypeError, match="x must hold real numbers"):
            s24.report(*arrays)


def test_weights_without_inputs_or_outputs():
    for shape in ((4, 0), (0, 8)):
        w, x = np.ones(shape), np.ones((3, shape[1]))
        for method in ("wanda", "sparsegpt"):
            assert s24.prune(w, method=method, calibration=x).shape == shape
            kept = s24.mask(w, method=method, calibration=x, transposable=True)
            assert kept.shape == shape
        assert s24.refit(w, w, calibration=x).shape == shape
        assert s24.prune(w, channels=0.5).shape == shape


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [np.inf, np.nan])
def test_report_of_what_is_not_finite_does_not_warn(size):
    assert np.isnan(s24.report(np.full((4, 4), size), np.full((4, 4), size)).kept_energy)


def test_report_counts_and_totals(rng):
    dense = {"a": rng.standard_normal((4, 10)), "b": rng.standard_normal((2, 8))}
    pruned = {"a": s24.compress(dense["a"], on_excess="prune"), "b": dense["b"]}
    got = s24.report(pruned, dense)
    assert got["a"].histogram == (0, 0, 12, 0, 0)
    assert got["b"].histogram == (0, 0, 0, 0, 4)
    assert got["a"].obeys
    assert not got["b"].obeys
    assert not got.obeys
    kept = (s24.prune(dense["a"]) ** 2).sum() + (dense["b"] ** 2).sum()
    assert got.kept_energy == pytest.approx(kept / sum((x**2).sum() for x in dense.values()))
    assert "4x10" in str(got)
    alone = s24.report(dense["b"])
    assert np.isnan(alone.kept_energy)
    assert "nan" not in str(alone)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"])
def test_magnitudes_of_every_pattern_of_bits(name, monkeypatch):
    """Not by NumPy, which converts these one by one."""
    row = _dtypes.TABLE[name]
    bits = np.arange(1 << 8 * row.itemsize, dtype=row.storage)
    want = np.abs(bits.view(row.logical).astype(np.float32))
    monkeypatch.setattr(cpu_decode.np, "copyto", None)
    np.testing.assert_array_equal(_prune_methods.magnitude(bits.view(row.logical), row), want)
    if row.is_float8:
        np.testing.assert_array_equal(_prune_methods.magnitude(bits, row), want)
