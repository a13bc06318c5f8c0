"""prune, mask, is_24, check_24: the rule itself, every dtype, axis and pattern."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pruning_cases import on

import sparse24 as s24
from sparse24 import _arrays, _dtypes, _select
from sparse24.kernels import reference

pytestmark = pytest.mark.stem("n_m", "transposable")
FLOATS = [name for name in _dtypes.NAMES if name != "int8"]


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


def test_tile_masks_are_the_90():
    masks = _select.tile_masks()
    bits = (masks.reshape(-1, 16) << np.arange(16)).sum(1)
    assert len(bits) == 90
    assert bits[0] == 0x33CC
    assert bits[-1] == 0xCC33
    import zlib

    assert zlib.crc32(bits.astype("<u2").tobytes()) == 0xCAD794FC


@pytest.mark.parametrize("shape", [(8, 12), (4, 4), (6, 9), (2, 5, 7), (0, 4)])
def test_transposable_is_the_optimum(xp, rng, shape):
    x = rng.standard_normal(shape).astype(np.float32)
    kept = _arrays.to_numpy(s24.mask(xp.asarray(x), transposable=True))
    assert s24.is_24(np.where(kept, 1.0, 0.0), axis=-1)
    assert s24.is_24(np.where(kept, 1.0, 0.0), axis=-2)
    for tile, mask in tiles_of(np.abs(x), kept):
        assert (tile * mask).sum() == pytest.approx(brute_force(tile), rel=1e-6)


def tiles_of(x, kept):
    for place in np.ndindex(x.shape[:-2]):
        for i in range(0, x.shape[-2], 4):
            for j in range(0, x.shape[-1], 4):
                at = (*place, slice(i, i + 4), slice(j, j + 4))
                yield x[at].astype(np.float64), kept[at]


def brute_force(tile):
    """Best sum over all choices of two columns in each row, at most two a column."""
    tile = np.pad(tile, [(0, 4 - s) for s in tile.shape])
    pairs = list(itertools.combinations(range(4), 2))
    sums = []
    for choice in itertools.product(pairs, repeat=4):
        if all(sum(j in pair for pair in choice) == 2 for j in range(4)):
            sums.append(sum(tile[i, list(pair)].sum() for i, pair in enumerate(choice)))
    return max(sums)


def test_transposable_equals_the_reference(xp, rng):
    x = rng.standard_normal((40, 52)).astype(np.float16)
    x[rng.random(x.shape) < 0.3] = 1  # ties
    x[3, 5], x[17, 20], x[30, 30:34] = np.nan, np.inf, -0.0
    got = s24.mask(xp.asarray(x), transposable=True)
    np.testing.assert_array_equal(_arrays.to_numpy(got), reference.transposable_mask(x))


def test_a_transposable_mask_does_not_depend_on_the_axis(xp, rng):
    x = rng.integers(-2, 3, (2, 21, 38)).astype(np.float32)  # full of ties
    given = xp.asarray(x)
    want = reference.transposable_mask(x)
    for axis in (-1, -2):
        kept = s24.mask(given, transposable=True, axis=axis)
        np.testing.assert_array_equal(_arrays.to_numpy(kept), want)
        pruned = s24.prune(given, transposable=True, axis=axis)
        np.testing.assert_array_equal(_arrays.to_numpy(pruned), np.where(want, x, 0))
        ranked = s24.mask(given, scores=abs(given), transposable=True, axis=axis)
        np.testing.assert_array_equal(_arrays.to_numpy(ranked), want)
    packed = s24.compress(given, on_excess="prune", transposable=True)
    np.testing.assert_array_equal(_arrays.to_numpy(packed.toarray()), np.where(want, x, 0))


def test_scores_rank(xp, rng):
    scores = rng.standard_normal((5, 24)).astype(np.float32)
    scores[0, 3], scores[1, :4], scores[2, 8] = np.nan, -np.inf, np.inf
    x = np.ones_like(scores)
    for n, m in ((2, 4), (3, 8)):
        got = s24.mask(xp.asarray(x), scores=xp.asarray(scores), pattern=(n, m))
        np.testing.assert_array_equal(_arrays.to_numpy(got), reference.top_mask(scores, n, m))


def test_transposable_takes_negative_scores(xp, rng):
    scores = -np.abs(rng.standard_normal((8, 8))).astype(np.float32)
    x = xp.asarray(np.ones_like(scores))
    got = s24.mask(x, scores=xp.asarray(scores), transposable=True)
    for tile, mask in tiles_of(scores, _arrays.to_numpy(got)):
        assert (tile * mask).sum() == pytest.approx(brute_force(tile + 9) - 72)


@pytest.mark.filterwarnings("error")
def test_transposable_takes_scores_beyond_float32():
    scores = np.full((4, 4), -1e300)
    scores[[0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 1, 3, 0, 2, 1, 3]] = 1
    kept = s24.mask(np.ones((4, 4)), scores=scores, transposable=True)
    np.testing.assert_array_equal(kept, scores == 1)


def test_transposable_matches_a_flow_solver(rng):
    """The optimum as a linear programme, whose corners are integral."""
    from scipy.optimize import linprog

    for _ in range(20):
        tile = rng.integers(-50, 51, (4, 4)).astype(np.float32)
        rows = np.kron(np.eye(4), np.ones(4))
        columns = np.kron(np.ones(4), np.eye(4))
        sums = np.r_[rows, columns]
        solved = linprog(-np.abs(tile).ravel(), A_eq=sums, b_eq=[2] * 8, bounds=(0, 1))
        kept = s24.mask(tile, transposable=True)
        assert np.abs(tile)[kept].sum() == pytest.approx(-solved.fun)


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


def test_check_names_the_first_bad_group_and_the_number(xp):
    x = np.zeros((4, 22), np.float32)
    x[2, 19:22] = np.nan
    s24.check_24(xp.asarray(x))
    x[2, 18] = x[3, 0:3] = x[3, 4:8] = 1
    x[2, 20:22] = 1
    x[2, 16:18] = 1
    message = r"x\[2, 16:20\] has more than 2 non-zeros, as 3 of 24 groups have"
    with pytest.raises(s24.PatternError, match=message):
        s24.check_24(xp.asarray(x))
    assert not s24.is_24(xp.asarray(x))


def test_check_along_another_axis(xp):
    x = np.zeros((10, 3), np.float32)
    x[7:10, 1] = 1
    s24.check_24(xp.asarray(x), axis=0)
    x[4:8, 1] = -0.0
    s24.check_24(xp.asarray(x), axis=0)
    x[5:8, 2] = 1
    with pytest.raises(s24.PatternError, match=r"x\[4:8, 2\].*1 of 9 groups"):
        s24.check_24(xp.asarray(x), axis=0)


@pytest.mark.parametrize("name", ["bool", "int16", "uint32", "int64"])
def test_masks_and_whole_numbers_are_checked_like_other_arrays(xp, name):
    mask = np.zeros((4, 12), name)
    mask[1, 4:7] = 256  # of which one byte is zero
    assert s24.is_24(xp.asarray(mask), axis=0)
    with pytest.raises(s24.PatternError, match=r"x\[1, 4:8\].*1 of 12 groups"):
        s24.check_24(xp.asarray(mask))
    assert s24.is_24(xp.asarray(mask)[::-1, 5:])


@pytest.mark.parametrize("name", FLOATS)
def test_minus_zero_is_a_zero(xp, name):
    x = np.array([[-0.0, 1, 0, 2]]).astype(_dtypes.TABLE[name].logical)
    assert s24.is_24(on(xp, x)[0])


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
