"""Methods that choose masks: wanda, sparsegpt, random, callables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pruning_cases import layer, least_squares, loss

import sparse24 as s24
from sparse24 import _arrays, _dtypes, _prune_methods, _sparsegpt
from sparse24._sparsegpt import sparsegpt
from sparse24.kernels import cpu_decode


def test_wanda_is_magnitude_times_norm(xp, rng):
    w, x = layer(rng)
    x[:, 5] = 0  # a dead input, whose weights are worth nothing
    norms = np.linalg.norm(x, axis=0)
    want = s24.prune(w, scores=np.abs(w.astype(np.float32)) * norms.astype(np.float32))
    ways = {"calibration": x}, {"hessian": x.T @ x}, {"activations": norms}
    for known in ways:
        known = {name: xp.asarray(value) for name, value in known.items()}
        got = s24.prune(xp.asarray(w), method="wanda", **known)
        np.testing.assert_array_equal(_arrays.to_numpy(got), want)
    summed = s24.Calibration(xp.asarray(x))
    got = s24.prune(xp.asarray(w), method="wanda", calibration=summed)
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


def test_sparsegpt_of_a_stack_prunes_each_row_as_in_one_matrix(rng):
    w, x = layer(rng)
    how = {"method": "sparsegpt", "calibration": x}
    got = s24.prune(w.reshape(2, 3, 4, 32), **how)
    np.testing.assert_array_equal(got.reshape(w.shape), s24.prune(w, **how))


def test_sparsegpt_transposable_prunes_each_matrix_of_a_stack_for_itself(rng):
    w, x = layer(rng)
    how = {"method": "sparsegpt", "calibration": x, "transposable": True}
    parts = w.reshape(4, 6, 32)  # whose tiles would begin elsewhere in one matrix
    got = s24.prune(parts, **how)
    np.testing.assert_array_equal(got, np.stack([s24.prune(part, **how) for part in parts]))


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


def test_a_hessian_may_be_as_asymmetric_as_rounding_makes_it(rng):
    w, x = layer(rng)
    exact = x.T @ x
    rounded = exact * (1 + 1e-6 * rng.standard_normal(exact.shape))
    got = s24.prune(w, method="sparsegpt", hessian=rounded)
    np.testing.assert_allclose(got, s24.prune(w, method="sparsegpt", hessian=exact), atol=1e-3)


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


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"calibration": np.ones((3, 9))}, s24.ShapeError, "of 8 features.* got inputs of 9"),
        ({"hessian": np.eye(9)}, s24.ShapeError, "hessian must have shape"),
        ({"hessian": np.eye(8), "calibration": np.ones((3, 8))}, s24.ArgumentError, "one of them"),
        ({"calibration": s24.Calibration()}, s24.ArgumentError, "has seen no inputs.*by magnitude"),
        ({"calibration": np.ones((0, 8))}, s24.ArgumentError, "has seen no inputs"),
        ({"hessian": np.eye(8), "damping": 0}, s24.ArgumentError, "damping must be above 0"),
        ({"calibration": np.full((3, 8), np.nan)}, s24.ArgumentError, "hold NaN or inf"),
        ({"calibration": np.full((3, 8), np.inf)}, s24.ArgumentError, "hold NaN or inf"),
        ({"hessian": -np.eye(8)}, s24.ArgumentError, "are not a second moment"),
        ({"hessian": np.eye(8) - 2 * np.eye(8)[::-1]}, s24.ArgumentError, "positive semidefinite"),
        ({"hessian": np.eye(8) + np.tri(8, k=-1)}, s24.ArgumentError, "X.T @ X, symmetric and"),
        ({"hessian": 1j * np.eye(8)}, s24.DTypeError, "hessian must hold real.* hessian.real"),
    ],
)
def test_bad_calibration(arguments, error, words):
    with pytest.raises(error, match=words):
        s24.prune(np.ones((4, 8)), method="sparsegpt", **arguments)


def test_complex_norms_are_refused():
    with pytest.raises(s24.DTypeError, match="activations must hold real numbers, got complex128"):
        s24.prune(np.ones((4, 8)), method="wanda", activations=1j * np.ones(8))


@pytest.mark.parametrize("known", ["calibration", "hessian", "activations"])
@pytest.mark.parametrize(
    "rule", [{}, {"method": "random"}, {"method": np.abs}, {"scores": np.ones((4, 8))}]
)
def test_inputs_that_nothing_looks_at_are_refused(known, rule):
    by_name = "scores" not in rule and not callable(rule.get("method"))
    chosen = rule.get("method", "magnitude") if by_name else "scores"
    words = f"{known}= is for method='wanda'.*, and '{chosen}' does not use it; drop it"
    for function in (s24.prune, s24.mask):
        with pytest.raises(s24.ArgumentError, match=words):
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


def test_wanda_needs_inputs_and_as_many_features(rng):
    w = rng.standard_normal((4, 8))
    with pytest.raises(s24.ArgumentError, match=r"calibration holds no inputs, shape \(0, 8\)"):
        s24.prune(w, method="wanda", calibration=np.ones((0, 8)))
    with pytest.raises(s24.ShapeError, match=r"inputs of 8 features, as the weights .* of 5"):
        s24.prune(w, method="wanda", calibration=np.ones((3, 5)))


def test_inputs_are_told_once():
    w, x = np.ones((4, 8)), np.ones((3, 8))
    with pytest.raises(s24.ArgumentError, match="calibration and activations say the same"):
        s24.prune(w, method="wanda", calibration=x, activations=np.ones(8))
    with pytest.raises(s24.ArgumentError, match=r"is for method='wanda', and 'sparsegpt'"):
        s24.prune(w, method="sparsegpt", calibration=x, activations=np.ones(8))


def test_weights_without_inputs_or_outputs():
    for shape in ((4, 0), (0, 8)):
        w, x = np.ones(shape), np.ones((3, shape[1]))
        for method in ("wanda", "sparsegpt"):
            assert s24.prune(w, method=method, calibration=x).shape == shape
            kept = s24.mask(w, method=method, calibration=x, transposable=True)
            assert kept.shape == shape
        assert s24.refit(w, w, calibration=x).shape == shape
        assert s24.prune(w, channels=0.5).shape == shape


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
