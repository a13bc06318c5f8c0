"""`numpy.concatenate` and `numpy.stack` of sparse arrays."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays, _dtypes

MAKERS = {
    "two_four": lambda w, **how: s24.compress(w, on_excess="prune", **how),
    "n_m": lambda w, **how: s24.compress(w, pattern=(3, 8), on_excess="prune", **how),
}


def made(make, shape, rng, xp=np, **how):
    array = MAKERS[make](rng.standard_normal(shape).astype(np.float32), **how)
    return array if xp is np else array.to_device("cuda")


def assert_joined(got, parts, join, axis, rng):
    dense = [_arrays.to_numpy(part.toarray()) for part in parts]
    want = join(dense, axis)
    np.testing.assert_array_equal(_arrays.to_numpy(got.toarray()), want)
    assert type(got) is type(parts[0])
    assert (got.shape, got.axis, got.dtype) == (want.shape, parts[0].axis, parts[0].dtype)
    again = s24.compress(want, pattern=got.pattern, axis=got.axis)
    np.testing.assert_array_equal(_arrays.to_numpy(got.values), again.values)
    codes = "metadata" if isinstance(got, s24.Sparse24Array) else "indices"
    np.testing.assert_array_equal(_arrays.to_numpy(getattr(got, codes)), getattr(again, codes))
    x = rng.standard_normal((want.shape[-1], 3)).astype(np.float32)
    y = got @ (x if got.device == "cpu" else _arrays.namespace(got.values).asarray(x))
    np.testing.assert_allclose(_arrays.to_numpy(y), want @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("make", MAKERS)
def test_rows_and_columns_are_joined(make, axis, lead, rng, xp):
    parts = [made(make, (*lead, m, 24), rng, xp, axis=axis) for m in (16, 64, 8)]
    for turned, along in ((parts, -2), ([part.mT for part in parts], -1)):
        got = np.concatenate(turned, axis=along)
        assert_joined(got, turned, np.concatenate, along, rng)
    others = [made(make, (*lead, 8, k), rng, xp, axis=axis) for k in (8, 24, 40, 16)]
    got = np.concatenate(others, axis=-1)
    assert_joined(got, others, np.concatenate, -1, rng)


def test_numpys_other_names_join_too(rng):
    parts = [made("two_four", (8, 16), rng) for _ in range(3)]
    assert_joined(np.vstack(parts), parts, np.concatenate, 0, rng)
    assert_joined(np.hstack(parts), parts, np.concatenate, 1, rng)


def test_the_last_part_may_end_within_a_group(rng, xp):
    for sizes in ((4, 4, 7), (12, 5), (4, 8, 4, 1)):
        parts = [made("two_four", (6, k), rng, xp) for k in sizes]
        assert_joined(np.concatenate(parts, axis=1), parts, np.concatenate, 1, rng)


@pytest.mark.parametrize("axis", [0, -3])
@pytest.mark.parametrize("groups", [-1, -2])
@pytest.mark.parametrize("make", MAKERS)
def test_matrices_are_stacked(make, groups, axis, rng, xp):
    parts = [made(make, (10, 24), rng, xp, axis=groups) for _ in range(3)]
    assert_joined(np.stack(parts, axis), parts, np.stack, axis, rng)
    batch = [np.stack(parts), np.stack(parts[::-1])]
    for where in (0, 1, -4, -3):
        assert_joined(np.stack(batch, where), batch, np.stack, where, rng)
    assert_joined(np.concatenate(batch), batch, np.concatenate, 0, rng)


@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_every_type_is_joined(name, rng, xp):
    parts = [made("two_four", (m, 20), rng, dtype=name) for m in (3, 70)]
    want = np.concatenate([part.toarray() for part in parts])
    moved = [part if xp is np else part.to_device("cuda") for part in parts]
    got = np.concatenate(moved).to_device("cpu")
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.toarray(), want)


def test_experts_and_projections_become_one_array(rng, xp):
    gate, up = ([made("two_four", (16, 32), rng, xp) for _ in range(3)] for _ in range(2))
    pairs = [np.concatenate(pair) for pair in zip(gate, up, strict=True)]
    x = xp.asarray(rng.standard_normal((5, 32)).astype(np.float32))
    y = s24.grouped_linear(x, np.stack(pairs), offsets=[0, 2, 2, 5])
    got, want = (_arrays.to_numpy(z) for z in (y[2:, 16:], x[2:] @ up[2].toarray().T))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_transposable_array_is_joined_in_one_orientation(rng):
    part = made("two_four", (8, 8), rng, transposable=True)
    got = np.concatenate([part, part])
    assert not got.transposable
    np.testing.assert_array_equal(got.toarray(), np.concatenate([part.toarray()] * 2))


def test_a_deferred_check_is_made_up():
    bad = s24.compress(np.ones((4, 8), np.float32), check="deferred")
    good = s24.compress(np.eye(4, 8, dtype=np.float32))
    with pytest.raises(s24.PatternError, match="has more than 2 non-zeros"):
        np.concatenate([good, bad])


def test_what_does_not_fit_is_refused(rng):
    a = made("two_four", (8, 16), rng)
    for join in (np.concatenate, np.stack):
        with pytest.raises(
            s24.DTypeError, match="one format and pattern, got Sparse24Array 2:4 and nd"
        ):
            join([a.toarray(), a])
        with pytest.raises(s24.DTypeError, match="got Sparse24Array 2:4 and NMArray 3:8;"):
            join([a, made("n_m", (8, 16), rng)])
        with pytest.raises(s24.DTypeError, match=r"float32 and float16; convert with .astype"):
            join([a, a.astype("float16")])
        with pytest.raises(s24.ArgumentError, match="along one axis, got -1 and -2"):
            join([a, made("two_four", (8, 16), rng, axis=-2)])
        with pytest.raises(s24.ShapeError, match=r"as many axes, got \(8, 16\) and \(1, 8, 16\)"):
            join([a, np.stack([a])])
        with pytest.raises(s24.ArgumentError, match=r"takes no out= with sparse arrays"):
            join([a, a], out=np.empty((16, 16)))
        with pytest.raises(s24.ArgumentError, match=r"axis must be in .*, got 5"):
            join([a, a], axis=5)
    with pytest.raises(s24.ShapeError, match=r"differ in axis -2 only, got shapes \(8, 16\) and"):
        np.concatenate([a, a[:, :8]])
    with pytest.raises(s24.ShapeError, match=r"of one shape, got \(8, 16\) and \(4, 16\)"):
        np.stack([a, a[:4]])
    with pytest.raises(s24.ArgumentError, match="before rows and columns, at most 0, got 1"):
        np.stack([a, a], axis=1)
    with pytest.raises(s24.ArgumentError, match="axis must be an integer, got None"):
        np.concatenate([a, a], axis=None)
    odd = made("two_four", (8, 6), rng)
    with pytest.raises(s24.ArgumentError, match=r"where these are whole, got \(8, 6\) before"):
        np.concatenate([odd, a], axis=1)
    with pytest.raises(s24.DTypeError, match="not converted to a dense array implicitly"):
        np.dstack([a, a])
