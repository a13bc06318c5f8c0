"""Parts, joins and casts of hybrid matrices on the CPU whose tiles stay as they are."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays
from sparse24.formats import hybrid_build, hybrid_checks
from sparse24.formats.hybrid_stored import HybridStored

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8"]


def drawn(rng, shape, dtype="float32"):
    """A matrix whose tiles are of all kinds."""
    grid = -(-shape[0] // 64), -(-shape[1] // 64)
    zeros = rng.choice([0.0, 0.3, 0.5, 0.8, 0.97, 1.0], grid).repeat(64, 0).repeat(64, 1)
    fours = (np.indices(shape)[1] % 4 < 2) | (rng.random(grid) < 0.5).repeat(64, 0).repeat(64, 1)[
        : shape[0], : shape[1]
    ]
    kept = (rng.random(shape) >= zeros[: shape[0], : shape[1]]) & fours
    wanted = s24.hybrid(np.zeros((1, 1), np.float32)).astype(dtype).dtype
    return (rng.integers(1, 100, shape) * kept).astype(wanted)


@pytest.fixture
def nothing_is_built(monkeypatch):
    """A context in which no tiles are built, and no elements listed."""

    def refuse(*of, **how):
        raise AssertionError("tiles are built anew")

    @contextlib.contextmanager
    def prohibited():
        with monkeypatch.context() as patch:
            patch.setattr(hybrid_build, "_built", refuse)
            patch.setattr(HybridStored, "held", refuse)
            yield

    return prohibited


def assert_same(got, dense):
    """As built from the dense matrix, kind by kind."""
    want = s24.hybrid(dense, n_hint=got.n_hint)
    hybrid_checks.check(got.tiles)
    assert (got.shape, got.dtype, got.nnz) == (want.shape, want.dtype, want.nnz)
    for name in ("kinds", "starts", "slots", "codes", "overflow_starts", "overflow_places"):
        np.testing.assert_array_equal(getattr(got.tiles, name), getattr(want.tiles, name), name)
    np.testing.assert_array_equal(got.toarray(), dense)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1])
def test_joins_at_the_ends_of_tiles_build_none(rng, nothing_is_built, dtype, axis):
    sizes = (128, 64, 192, 70)
    dense = [drawn(rng, (m, 150) if axis == 0 else (150, m), dtype) for m in sizes]
    parts = [s24.hybrid(w) for w in dense]
    with nothing_is_built():
        got = np.concatenate(parts, axis)
    assert_same(got, np.concatenate(dense, axis))


KEYS = [
    np.s_[64:256], np.s_[:128], np.s_[192:], np.s_[:], np.s_[:, 128:], np.s_[64:128, 64:192],
    np.s_[-300:], np.s_[128:10**9], np.s_[()], np.s_[np.int64(64) : np.int64(192)],
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("key", KEYS)
def test_parts_of_whole_tiles_build_none(rng, nothing_is_built, dtype, key):
    w = drawn(rng, (300, 330), dtype)
    h = s24.hybrid(w, n_hint=8)
    with nothing_is_built():
        got = h[key]
    assert_same(got, w[key])
    assert not np.shares_memory(got.tiles.values, h.tiles.values)


def test_other_parts_and_joins_are_built_as_before(rng):
    w = drawn(rng, (300, 330))
    h = s24.hybrid(w)
    for key in (np.s_[64:200], np.s_[::2], np.s_[64:64], np.s_[256:128:-1], np.s_[:, 64:65]):
        assert_same(h[key], w[key])
    hinted = s24.hybrid(w[:64], n_hint=1000)
    assert_same(np.concatenate([hinted, h]), np.concatenate([w[:64], w]))
    none = s24.hybrid(w[:0])
    assert_same(np.concatenate([none, none], axis=1), np.concatenate([w[:0], w[:0]], axis=1))


@pytest.mark.parametrize("key", [np.s_[:64, :64, :64], (np.s_[:],) * 3])
def test_more_slices_than_axes_are_out_of_range(rng, key):
    with pytest.raises(IndexError, match="too many indices"):
        s24.hybrid(drawn(rng, (130, 130)))[key]


@pytest.mark.parametrize("step", [True, 1.0, np.array([1, 1])])
def test_a_step_is_a_whole_number_also_where_tiles_are_copied(rng, step):
    with pytest.raises(s24.ArgumentError, match="a slice has whole numbers"):
        s24.hybrid(drawn(rng, (130, 130)))[0:64:step]


def test_where_rows_would_be_stored_they_are(rng):
    from scipy import sparse

    top = rng.integers(1, 9, (64, 2048)).astype(np.float32)
    h = s24.hybrid(sparse.vstack([sparse.csr_array(top), sparse.csr_array((2048, 2048))]))
    assert (h.stored.is_listed, h[:128].stored.is_listed, h[64:].stored.is_listed) == (
        False, False, True,
    )  # fmt: skip
    nearly_empty = s24.hybrid(np.eye(2048, dtype=np.float32))
    assert not nearly_empty.stored.is_listed
    assert np.concatenate([nearly_empty, nearly_empty]).stored.is_listed


@pytest.mark.parametrize("own", DTYPES)
@pytest.mark.parametrize("other", DTYPES)
def test_casts_build_no_tiles_unless_elements_become_zero(rng, nothing_is_built, own, other):
    w = drawn(rng, (200, 300), own)
    h = s24.hybrid(w)
    with nothing_is_built():
        got = h.astype(other)
    hybrid_checks.check(got.tiles)
    assert (got.dtype, got.nnz) == (s24.hybrid(w[:1]).astype(other).dtype, h.nnz)
    np.testing.assert_array_equal(got.toarray(), w.astype(got.dtype))


@pytest.mark.parametrize("zeros", [0.0, 0.9])
def test_elements_are_converted_once_also_where_some_become_zero(rng, zeros):
    w = (rng.random((130, 128)) >= zeros) * np.float32(2)
    w[0, 3], w[0, 5] = 1e-30, 1e30
    h = s24.hybrid(w)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        got = h.astype("float16")
    assert [str(x.message) for x in seen] == ["overflow encountered in cast"]
    with np.errstate(over="ignore"):
        assert_same(got, w.astype(np.float16))


@pytest.mark.parametrize("other", DTYPES)
def test_casts_round_once_and_count_what_is_left(rng, other):
    w = drawn(rng, (130, 70), "float64")
    at = np.flatnonzero(w)[:6]
    w.flat[at] = 1e-300, -1e-300, 1 / 3, 2049.5, -200.0, 1 + 2.0**-11 + 2.0**-30
    got = s24.hybrid(w).astype(other)
    want = s24.hybrid(w, dtype=other)
    np.testing.assert_array_equal(got.toarray(), want.toarray())
    assert got.nnz == want.nnz == np.count_nonzero(_arrays.to_numpy(got.toarray()))
