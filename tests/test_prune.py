"""prune and mask: the rule itself, every dtype, axis and pattern."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pruning_cases import on

import sparse24 as s24
from sparse24 import _arrays, _dtypes
from sparse24.kernels import reference

pytestmark = pytest.mark.stem("n_m", "transposable")


def sample(rng, shape, name):
    x = rng.standard_normal(shape)
    if name == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return x.astype(_dtypes.TABLE[name].logical)


def as_float(x):
    return _arrays.to_numpy(x).astype(np.float64)


def naive_mask(x, n, m):
    """The rule, one group at a time, along the last axis."""
    keep = np.zeros(x.shape, bool)
    for place in np.ndindex(x.shape[:-1]):
        for start in range(0, x.shape[-1], m):
            group = [abs(float(v)) for v in x[place][start : start + m]]
            group = [np.inf if np.isnan(v) else v for v in group]
            best = sorted(range(len(group)), key=lambda i: (-group[i], i))[:n]
            keep[place][[start + i for i in best]] = True
    return keep


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("shape", [(8, 16), (3, 7), (2, 3, 10), (5,), (0, 8), (4, 0)])
def test_prune_follows_the_rule(xp, rng, name, shape):
    x = sample(rng, shape, name)
    given_x, dtype = on(xp, x)
    want = naive_mask(x, 2, 4)
    np.testing.assert_array_equal(_arrays.to_numpy(s24.mask(given_x, dtype=dtype)), want)
    pruned = s24.prune(given_x, dtype=dtype)
    assert type(pruned) is type(given_x)
    assert pruned.dtype == given_x.dtype
    zero = np.zeros((), x.dtype)
    np.testing.assert_array_equal(_arrays.to_numpy(pruned).view(x.dtype), np.where(want, x, zero))
    assert s24.is_24(pruned)


@pytest.mark.parametrize(
    "pattern", [(1, 2), (1, 4), (2, 8), (4, 8), (6, 8), (8, 16), (31, 32), (3, 5)]
)
def test_general_patterns(xp, rng, pattern):
    x = sample(rng, (6, 70), "float32")
    got = _arrays.to_numpy(s24.mask(xp.asarray(x), pattern=pattern))
    np.testing.assert_array_equal(got, naive_mask(x, *pattern))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_any_axis(xp, rng, axis):
    x = sample(rng, (6, 9, 10), "float32")
    got = _arrays.to_numpy(s24.mask(xp.asarray(x), axis=axis))
    want = np.moveaxis(naive_mask(np.moveaxis(x, axis, -1), 2, 4), -1, axis)
    np.testing.assert_array_equal(got, want)
    assert s24.is_24(s24.prune(xp.asarray(x), axis=axis), axis=axis)


def test_strided_input(xp, rng):
    x = xp.asarray(sample(rng, (12, 40), "float16"))
    for view in (x.T, x[::2, ::3], x[:, ::-1]):
        want = naive_mask(_arrays.to_numpy(view), 2, 4)
        np.testing.assert_array_equal(_arrays.to_numpy(s24.mask(view)), want)


def test_nan_ranks_highest_and_ties_keep_the_lower_index(xp):
    x = np.array([[1, np.inf, np.nan, 2], [3, 3, 3, 3], [-0.0, 0.0, 0.0, -0.0]], np.float32)
    want = [[0, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert _arrays.to_numpy(s24.mask(xp.asarray(x))).astype(int).tolist() == want


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("shape", [(40, 64), (9, 37)], ids=["vectors", "ragged"])
def test_masks_of_any_bits_are_the_same_on_every_backend(xp, rng, name, shape):
    """Random bits: subnormals, zeros of both signs, infinities, NaNs of any payload, many ties."""
    row = _dtypes.TABLE[name]
    x = rng.integers(0, 256, (shape[0], shape[1] * row.itemsize)).astype(np.uint8).view(row.logical)
    x[:, ::3] = x[0, 0]
    x[1, :8], x[2, :8] = 0, -np.zeros(8)
    given_x, dtype = on(xp, x)
    for pattern in ((2, 4), (1, 4), (8, 16)):
        want = reference.top_mask(reference.magnitude_rank(x), *pattern)
        got = s24.mask(given_x, pattern=pattern, dtype=dtype)
        np.testing.assert_array_equal(_arrays.to_numpy(got), want)
    got = s24.mask(given_x, transposable=True, dtype=dtype)
    np.testing.assert_array_equal(_arrays.to_numpy(got), reference.transposable_mask(x))


def test_int8_minimum_is_the_largest_magnitude(xp):
    x = xp.asarray(np.array([[127, -128, 127, 127]], np.int8))
    assert _arrays.to_numpy(s24.prune(x)).tolist() == [[127, -128, 0, 0]]


def matrices(elements):
    return hnp.arrays(
        np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=13), elements=elements
    )


@settings(max_examples=60, deadline=None)
@given(matrices(st.floats(width=32, allow_nan=True)), st.integers(1, 7), st.integers(2, 8))
def test_laws(x, n, m):
    if n >= m:
        n = m - 1
    pruned = s24.prune(x, pattern=(n, m))
    again = s24.prune(pruned, pattern=(n, m))
    np.testing.assert_array_equal(pruned, again)  # pruning twice changes nothing more
    kept = s24.mask(x, pattern=(n, m))
    np.testing.assert_array_equal(pruned, np.where(kept, x, 0))
    for start in range(0, x.shape[1], m):
        width = min(m, x.shape[1] - start)
        assert (kept[:, start : start + m].sum(1) == min(n, width)).all()


def test_scores_rank(xp, rng):
    scores = rng.standard_normal((5, 24)).astype(np.float32)
    scores[0, 3], scores[1, :4], scores[2, 8] = np.nan, -np.inf, np.inf
    x = np.ones_like(scores)
    for n, m in ((2, 4), (3, 8)):
        got = s24.mask(xp.asarray(x), scores=xp.asarray(scores), pattern=(n, m))
        np.testing.assert_array_equal(_arrays.to_numpy(got), reference.top_mask(scores, n, m))


def test_out_may_be_the_input(xp, rng):
    x = sample(rng, (8, 16), "float32")
    want = s24.prune(x)
    given_x = xp.asarray(x.copy())
    assert s24.prune(given_x, out=given_x) is given_x
    np.testing.assert_array_equal(_arrays.to_numpy(given_x), want)


def test_out_may_overlap_the_input(xp, rng):
    base = sample(rng, (9, 16), "float32")
    want = s24.prune(base[:-1])
    on_device = xp.asarray(base.copy())
    s24.prune(on_device[:-1], out=on_device[1:])
    np.testing.assert_array_equal(_arrays.to_numpy(on_device[1:]), want)


def test_out_is_checked(rng):
    x = sample(rng, (4, 8), "float32")
    fixed = np.empty_like(x)
    fixed.flags.writeable = False
    with pytest.raises(s24.ArgumentError, match="out is read-only"):
        s24.prune(x, out=fixed)
    with pytest.raises(s24.ShapeError, match="out must have the shape of x"):
        s24.prune(x, out=np.empty((4, 7), np.float32))
    with pytest.raises(s24.DTypeError, match="out must have the dtype of x"):
        s24.prune(x, out=np.empty((4, 8)))


def test_channels_go_as_a_whole(xp, rng):
    x = rng.standard_normal((10, 8)).astype(np.float32)
    x[[1, 4, 7]] *= 0.01
    kept = _arrays.to_numpy(s24.mask(xp.asarray(x), channels=0.3))
    assert np.flatnonzero(~kept.any(1)).tolist() == [1, 4, 7]
    rest = np.delete(np.arange(10), [1, 4, 7])
    np.testing.assert_array_equal(kept[rest], s24.mask(x)[rest])
    turned = s24.mask(xp.asarray(np.ascontiguousarray(x.T)), axis=0, channels=0.3)
    np.testing.assert_array_equal(_arrays.to_numpy(turned).T, kept)


@pytest.mark.parametrize("bad", [np.nan, [np.inf, -np.inf]])
def test_channels_that_hold_nan_stay(bad):
    x = np.ones((4, 8), np.float32)
    scores = np.ones_like(x)
    scores[1, :2] = bad
    assert s24.mask(x, scores=scores, channels=0.75).any(1).tolist() == [False, True, False, False]


@pytest.mark.parametrize(("share", "gone"), [(0.29, 29), (0.58, 58), (0.3, 30), (0.295, 29)])
def test_counts_of_channels_are_not_a_rounding_short(share, gone):
    kept = s24.mask(np.ones((100, 4), np.float32), channels=share)
    assert int((~kept.any(1)).sum()) == gone


def test_torch_and_jax_arrays_come_back_as_such(rng):
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    x = sample(rng, (4, 8), "float32")
    for name in ("float32", "bfloat16", "float8_e4m3fn"):
        tensor = torch.from_numpy(x).to(getattr(torch, name))
        pruned = s24.prune(tensor)
        assert isinstance(pruned, torch.Tensor)
        assert pruned.dtype == tensor.dtype
        want = s24.prune(_arrays.to_numpy(tensor))
        np.testing.assert_array_equal(as_float(pruned), as_float(want))
    assert s24.mask(torch.from_numpy(x)).dtype == torch.bool
    pruned = s24.prune(jax.numpy.asarray(x))
    assert isinstance(pruned, jax.Array)
    np.testing.assert_array_equal(np.asarray(pruned), s24.prune(x))


def test_torch_out_is_written(rng):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(sample(rng, (4, 8), "float32"))
    want = s24.prune(tensor)
    assert s24.prune(tensor, out=tensor) is tensor
    assert torch.equal(tensor, want)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"pattern": (4, 4)}, s24.PatternError, "0 < n < m <= 32"),
        ({"pattern": 3}, s24.PatternError, "must be a pair"),
        ({"axis": 2}, s24.ArgumentError, r"axis must be in \[-2, 2\)"),
        ({"axis": 0.5}, s24.ArgumentError, r"axis must be an integer, got 0\.5"),
        ({"method": "best"}, s24.ArgumentError, "method must be one of 'magnitude', 'wanda'"),
        ({"method": "wanda"}, s24.ArgumentError, "needs to know the inputs"),
        ({"method": "random", "scores": np.ones((4, 8))}, s24.ArgumentError, "replace a method"),
        ({"scores": np.ones((4, 7))}, s24.ShapeError, "scores must have the shape of x"),
        ({"transposable": True, "pattern": (1, 4)}, s24.PatternError, r"needs pattern \(2, 4\)"),
        ({"channels": 1.0}, s24.ArgumentError, r"fraction in \[0, 1\)"),
        ({"channels": "half"}, s24.ArgumentError, "channels must be a number, got 'half'"),
        ({"damping": "much"}, s24.ArgumentError, "damping must be a number, got 'much'"),
        ({"scores": np.ones((4, 8), complex)}, s24.DTypeError, r"got complex128; .*scores\.real"),
        ({"scores": np.ones((4, 8), str)}, s24.DTypeError, "scores must hold real numbers, got <U"),
        ({"method": lambda x: x + 1j}, s24.DTypeError, r"method\(x\) must hold real numbers"),
        ({"dtype": "float16"}, s24.DTypeError, "cannot carry float16"),
    ],
)
def test_bad_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        s24.prune(np.ones((4, 8), np.float32), **arguments)


def test_bad_arrays():
    with pytest.raises(s24.DTypeError, match="must be one of float16"):
        s24.prune(np.ones((4, 8), np.int64))
    with pytest.raises(s24.ShapeError, match="at least one axis"):
        s24.prune(np.float32(1))
    with pytest.raises(s24.ShapeError, match="at least two axes"):
        s24.prune(np.ones(8, np.float32), transposable=True)
    with pytest.raises(s24.ShapeError, match="at least two axes"):
        s24.prune(np.ones(8, np.float32), channels=0.5)
    with pytest.raises(s24.ArgumentError, match="on the last two axes; axis=0 is neither"):
        s24.prune(np.ones((2, 4, 8), np.float32), transposable=True, axis=0)


@pytest.mark.parametrize(
    "how",
    [
        {}, {"transposable": True}, {"pattern": (4, 8)}, {"axis": 0}, {"channels": 0.5},
        {"method": "sparsegpt", "calibration": np.eye(8) + 0.1},
        {"method": lambda x: x.astype(np.float64)},
    ],
    ids=["24", "transposable", "4:8", "axis", "channels", "sparsegpt", "callable"],
)  # fmt: skip
def test_bits_of_fp8_on_the_cpu_are_pruned_as_the_numbers_that_they_are(rng, how):
    x = rng.standard_normal((4, 8)).astype(_dtypes.TABLE["float8_e4m3fn"].logical)
    bits, named = x.view(np.uint8), {"dtype": "float8_e4m3fn", **how}
    want = s24.prune(x, **how).view(np.uint8)
    got, out = s24.prune(bits, **named), np.zeros_like(bits)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, want)
    assert s24.prune(bits, out=out, **named) is out
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(s24.mask(bits, **named), s24.mask(x, **how))
