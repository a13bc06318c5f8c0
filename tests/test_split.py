"""numpy.split and its relatives on sparse arrays: the parts are those of the dense array."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24

MAKERS = {
    "two_four": lambda w: s24.compress(w, on_excess="prune"),
    "n_m": lambda w: s24.compress(w, pattern=(1, 4), on_excess="prune"),
    "across": lambda w: s24.compress(w, axis=0, on_excess="prune"),
    "hybrid": s24.hybrid,
}


@pytest.fixture(params=MAKERS)
def a(request, rng):
    return MAKERS[request.param](rng.standard_normal((24, 32)))


def assert_parts(got, want):
    assert len(got) == len(want)
    for part, dense in zip(got, want, strict=True):
        assert part.shape == dense.shape
        np.testing.assert_array_equal(part.toarray(), dense)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("sections", [1, 2, np.int64(2), [8], (8, 16), np.array([4, 12]), [8, 99]])
def test_parts_are_those_of_the_dense_array(a, sections, axis):
    for split in (np.split, np.array_split):
        parts = split(a, sections, axis=axis)
        assert all(type(part) is type(a) for part in parts)
        assert_parts(parts, split(a.toarray(), sections, axis=axis))


def test_parts_joined_are_the_array(a):
    for axis, split in enumerate((np.vsplit, np.hsplit)):
        parts = split(a, 2)
        assert_parts(parts, split(a.toarray(), 2))
        np.testing.assert_array_equal(np.concatenate(parts, axis=axis).toarray(), a.toarray())


def test_a_stack_is_split_along_every_axis(rng):
    stack = s24.random((4, 8, 16), rng=rng)
    for axis in (0, 1, 2):
        assert_parts(np.split(stack, 2, axis), np.split(stack.toarray(), 2, axis))


def test_rows_may_be_split_unevenly(rng):
    a = s24.random((10, 8), rng=rng)
    assert_parts(np.array_split(a, 4), np.array_split(a.toarray(), 4))
    with pytest.raises(ValueError, match="does not result in an equal division"):
        np.split(a, 4)
    with pytest.raises(ValueError, match="larger than 0"):
        np.array_split(a, 0)


def test_groups_are_not_cut(rng):
    a = s24.random((8, 16), rng=rng)
    with pytest.raises(s24.ArgumentError, match=r"\[0:6\] cuts a group of 4"):
        np.split(a, [6], axis=1)
    with pytest.raises(s24.ArgumentError, match=r"axis must be in \[-2, 2\), got 2"):
        np.split(a, 2, axis=2)
    with pytest.raises(s24.ArgumentError, match="slice"):
        np.split(a, [1.5])
