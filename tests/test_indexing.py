"""Parts of sparse arrays by NumPy's keys."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import scipy.sparse

import sparse24 as s24
from sparse24 import _arrays, _dtypes, _storage
from sparse24.formats import hybrid_build, hybrid_indexing

SHAPE = (9, 18)
MAKERS = {
    "two_four": lambda w, **how: s24.compress(w, on_excess="prune", **how),
    "transposable": lambda w, **how: s24.compress(w, on_excess="prune", transposable=True, **how),
    "n_m": lambda w, **how: s24.compress(w, pattern=(3, 4), on_excess="prune", **how),
    "hybrid": lambda w, **how: s24.hybrid(w * (abs(w) > 1), **how),
}
GROUPED = tuple(name for name in MAKERS if name != "hybrid")
EVEN = np.arange(SHAPE[0]) % 2 == 0
KEYS = [
    0, -1, np.int64(3), slice(2, 6), slice(None, None, 2), slice(None, None, -1), slice(5, 2),
    [1, 3], np.array([5, -2, 5]), EVEN, list(EVEN), [], Ellipsis, (Ellipsis,),
    (slice(None), slice(4, 8)), (slice(None), slice(8, 18)), (slice(None), slice(4, None)),
    (slice(None), slice(8, 8)), (slice(None), slice(-6, None)), (slice(None), slice(16, 99)),
    (slice(1, 4), slice(4, 12)), ([1, 2], slice(8, 16)), (EVEN, slice(None, 8)),
    (Ellipsis, slice(0, 8)), (2, 3), (-1, -18), (2, slice(1, 7)), (slice(None), 3), ([1, 2], 3),
    (2, [1, 5]), (slice(2, 5), -1), (0, Ellipsis), np.array(3), (np.array(2), np.uint8(1)),
    (slice(5, 2), slice(0, 8)), ([], slice(8, 16)), (slice(None), slice(99, None)),
    (slice(None), slice(13, 13)), (slice(None), slice(12, 4)), (slice(2, 5), slice(40, 44)),
]  # fmt: skip


def assert_part(got, want):
    dense = got.toarray() if hasattr(got, "toarray") else got
    np.testing.assert_array_equal(_arrays.to_numpy(dense), want)
    assert np.shape(dense) == np.shape(want)


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("make", MAKERS)
def test_keys_of_numpy(make, key, rng, xp):
    a = MAKERS[make](rng.standard_normal(SHAPE).astype(np.float32))
    dense = a.toarray()
    a = a if xp is np else a.to_device("cuda")
    assert_part(a[key], dense[key])
    if isinstance(key, tuple) and len(key) == 2 and not any(entry is ... for entry in key):
        turned = (key[1], key[0])
        assert_part(a.T[turned], dense.T[turned])


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("key", [np.s_[:, 4:12], [1, 3, 5], np.s_[2:7, 8:]], ids=str)
def test_parts_are_stored_as_if_compressed(name, key, rng, xp):
    w = rng.standard_normal(SHAPE).astype(np.float32)
    a = s24.compress(w, on_excess="prune", dtype=name)
    dense = a.toarray()[key]
    a = a if xp is np else a.to_device("cuda")
    part, want = a[key], s24.compress(dense)
    for piece in ("values", "metadata", "packed"):
        got, expected = (_arrays.to_numpy(getattr(x, piece)) for x in (part, want))
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("make", GROUPED)
def test_products_with_parts(make, rng, xp):
    a = MAKERS[make](rng.standard_normal((130, 264)).astype(np.float32))
    a = a if xp is np else a.to_device("cuda")
    x = xp.asarray(rng.standard_normal((264, 7)).astype(np.float32))
    halves = a[:, :132] @ x[:132] + a[:, 132:] @ x[132:]  # as two devices share a layer
    xp.testing.assert_allclose(halves, a.toarray() @ x, rtol=1e-4, atol=1e-4)
    xp.testing.assert_allclose(a[::3] @ x, a.toarray()[::3] @ x, rtol=1e-4, atol=1e-4)
    got, want = (x.T @ turned[:, 5:77] for turned in (a.T, a.toarray().T))
    xp.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", GROUPED)
def test_parts_of_a_batch(make, rng, xp):
    a = MAKERS[make](rng.standard_normal((3, 9, 16)).astype(np.float32))
    dense = a.toarray()
    a = a if xp is np else a.to_device("cuda")
    for key in (
        0, -1, slice(1, 3), slice(None, None, 2), [0, 2], np.array([True, False, True]),
        (slice(None), slice(2, 5)), (0, slice(2, 5)), (0, slice(None), slice(4, 8)),
        (slice(None), slice(None), slice(4, 8)), (1, 2, 3), (slice(None), 2), (Ellipsis, 3),
        ([2, 0], slice(None, None, -1)),
    ):  # fmt: skip
        assert_part(a[key], dense[key])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("make", GROUPED)
def test_keys_of_stacks_give_numpys_part_or_none(make, turned, rng):
    """NumPy pairs several arrays, and moves the axis of one to the front if numbers surround it."""
    a = MAKERS[make](rng.standard_normal((2, 3, 8, 8)).astype(np.float32))
    a = a.mT if turned else a
    dense, entries = a.toarray(), (1, slice(None), slice(0, 4), [1, 0])
    for key in itertools.product(entries, repeat=4):
        try:
            part = a[key]
        except s24.ArgumentError as error:
            words = "take one after the other" if key.count([1, 0]) > 1 else "front|step 1"
            assert re.search(words, str(error))  # noqa: PT017
        else:
            assert_part(part, dense[key])
    for key in (([0, 1], [1, 0]), ([1, 0], 2, slice(0, 4)), (0, [2, 1, 1], slice(0, 4))):
        assert_part(a[key], dense[key])
    for key in (([0, 1], 0, [1, 2], 3), (0, slice(None), [1, 2], 3)):
        with pytest.raises(
            s24.ArgumentError, match=r"take one after the other, as in A\[matrices\]"
        ):
            a[key]


@pytest.mark.parametrize("make", GROUPED)
def test_dots_of_no_axis_part_the_arrays_of_a_key_too(make, rng):
    a = MAKERS[make](rng.standard_normal((3, 9, 16)).astype(np.float32))
    for key in (
        np.s_[:, [0, 2], ..., -1], np.s_[:, 3, ..., [0, 2]], np.s_[:, [], ..., 1],
        np.s_[:, [0, 2, 2], ..., 5],
    ):  # fmt: skip
        with pytest.raises(s24.ArgumentError, match="whose axis it would move to the front"):
            a[key]
    for key in (np.s_[..., [0, 2], 1], np.s_[:, [0, 2], 1, ...], np.s_[[0, 2], ..., 1, :]):
        assert_part(a[key], a.toarray()[key])


@pytest.mark.parametrize("make", GROUPED)
def test_a_row_or_column_makes_nothing_else_dense(make, rng, monkeypatch):
    a = MAKERS[make](rng.standard_normal((64, 128)).astype(np.float32))
    dense, sizes, toarray = a.toarray(), [], type(a).toarray
    monkeypatch.setattr(type(a), "toarray", lambda x: sizes.append(x.size) or toarray(x))
    for key in (5, np.s_[:, 77], np.s_[3:9, -1], np.s_[2, 3]):
        assert_part(a[key], dense[key])
        turned = key[::-1] if isinstance(key, tuple) else (slice(None), key)
        assert_part(a.T[turned], dense.T[turned])
    assert max(sizes) <= 128 * a.pattern[1]
    assert type(a[2, 3]) is np.float32  # as in NumPy, no array without axes


def test_parts_of_a_hybrid_matrix_decode_their_tiles_alone(rng, monkeypatch):
    w = rng.standard_normal((200, 150)).astype(np.float32) * (rng.random((200, 150)) < 0.1)
    h, shapes, decode = s24.hybrid(w), [], hybrid_build.decode
    walk = hybrid_build.rows_on_cpu  # of tiles, too, where a matrix is built of the part
    monkeypatch.setattr(hybrid_build, "decode", lambda t: shapes.append(t.shape) or decode(t))
    monkeypatch.setattr(hybrid_build, "rows_on_cpu", lambda t: shapes.append(t.shape) or walk(t))
    rows = (0, 63, 64, -1, -200, slice(60, 70), slice(190, None), slice(130, 20, -7), slice(9, 9))
    columns = (149, -150, slice(None), slice(3, 70), [1, 5], slice(None, None, -2), slice(5, 5))
    for key in itertools.product((*rows, ...), columns):
        assert_part(h[key], w[key])
        assert_part(h.T[key[::-1]], w.T[key[::-1]])
    shapes.clear()
    assert (h[5].shape, h[-1, 3].shape, h[70:80, :9].shape) == ((150,), (), (10, 9))
    assert (h[:, 3].shape, h[..., -1].shape, h[2:, 70:66:-1].shape) == ((200,), (200,), (198, 4))
    decoded = [shape for shape in shapes if shape not in ((10, 9), (198, 4))]
    assert decoded == [  # from the first row of a tile on, and the first column
        (6, 150), (8, 64), (16, 64), (200, 64), (200, 22), (200, 64)
    ]  # fmt: skip


@pytest.mark.parametrize("share", [0.02, 0.2, 1])
def test_columns_of_a_hybrid_matrix_of_any_kind_of_tile(share, rng, monkeypatch):
    w = rng.standard_normal((150, 300)) * (rng.random((150, 300)) < share)
    w[:, 64:128] *= np.arange(64) % 4 < 2
    h = s24.hybrid(w.astype(np.float16))
    assert share > 0.1 or h.is_less_as_csr
    for most in (0, 1 << 20):  # by CSR where that is less, and by tiles
        monkeypatch.setattr(hybrid_indexing, "DECODED", most)
        monkeypatch.setattr(hybrid_indexing, "REBUILT", most)
        for columns in (0, 100, -1, slice(60, 140), slice(128, None), slice(None, None, -1)):
            for rows in (slice(None), 70, slice(65, 140, 3), [149, 2]):
                assert_part(h[rows, columns], w.astype(np.float16)[rows, columns])


def test_a_hybrid_matrix_takes_any_key_of_numpys_that_gives_no_third_axis(rng):
    w = rng.standard_normal((9, 18)).astype(np.float32)
    h = s24.hybrid(w)
    for key in (w > 0, np.ix_([1, 3], [2, 0]), ([1, 2], [3, 4])):
        assert_part(h[key], w[key])
    for key in (None, (0, None, None), [[1, 2]]):
        with pytest.raises(s24.ArgumentError, match=r"has two axes, and the key gives 3"):
            h[key]


@pytest.mark.parametrize("make", GROUPED)
def test_matrices_are_views_or_copied_in_rows_that_kernels_read(make, rng, monkeypatch):
    """Which on a GPU begin on 16-byte boundaries: rows of 9 elements would not."""
    a = MAKERS[make](rng.standard_normal((3, 5, 18)))
    copied, in_rows = [], _storage.in_rows
    monkeypatch.setattr(_storage, "in_rows", lambda x: copied.append(x.shape) or in_rows(x))
    assert np.shares_memory(a[1:].values, a.values)
    assert not copied
    assert not np.shares_memory(a[[0, 2]].values, a.values)
    assert a[[0, 2]].values.shape in copied


def test_slices_of_rows_are_views(rng):
    a = s24.compress(rng.standard_normal((8, 16)), on_excess="prune")
    assert np.shares_memory(a[2:5].values, a.values)
    assert not np.shares_memory(a[:, 4:8].values, a.values)


def test_a_part_keeps_the_check_of_the_whole():
    a = s24.compress(np.ones((4, 8)), check="deferred")
    for part in (a[1:2], a[[2, 3]], a[:, 4:]):
        with pytest.raises(s24.PatternError, match="the first of 8"):
            part.check()


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_no_key_is_named(make, rng):
    a = MAKERS[make](rng.standard_normal((8, 16)))
    far = 10**30  # beyond any number of 64 bits
    for key in (8, -9, far, (0, -far), (0, 16), (1, 2, 3), [8], np.ones(3, bool), (..., ...)):
        for error in (s24.ArgumentError, IndexError):
            with pytest.raises(error, match=r"out of range|too many indices"):
                a[key]
    for key in ([[1, 2], [3]], (0, [[1, 2], [3]])):  # lists of two lengths
        with pytest.raises(s24.ArgumentError, match="a part is taken by a slice, whole numbers"):
            a[key]


@pytest.mark.parametrize("make", MAKERS)
def test_a_slice_ends_at_a_number_in_an_array_without_axes(make, rng):
    a = MAKERS[make](rng.standard_normal((8, 16)))
    for key in (slice(np.array(4), None), (slice(np.array(0), np.array(4)), slice(np.array(8)))):
        np.testing.assert_array_equal(a[key].toarray(), a.toarray()[key])
    for end in (np.array(4.0), np.array([4]), np.array([1, 4]), np.array(True)):
        for key in (slice(end), slice(None, None, end)):
            with pytest.raises(s24.ArgumentError, match="a slice has whole numbers"):
                a[key]


@pytest.mark.parametrize("make", ["two_four", "n_m"])
def test_groups_are_not_cut(make, rng):
    a = MAKERS[make](rng.standard_normal((8, 16)))
    for key, words in (
        ((slice(None), slice(0, 6)), r"\[0:6\] cuts a group of 4; slice at multiples of 4"),
        ((slice(None), slice(2, 8)), "cuts a group"),
        ((slice(None), slice(0, 8, 2)), "a part is a slice of step 1"),
        ((slice(None), [0, 1]), "a part is a slice of step 1"),
        (None, "whole numbers or booleans"),
        ("a", "whole numbers or booleans"),
        (1.0, "whole numbers or booleans"),
        ([[0, 1]], "whole numbers or booleans"),
        (slice("a", None), "a slice has whole numbers"),
        (slice(None, None, 0), "no step of 0"),
        ((0, None), "whole numbers or booleans"),
        ((True, 0), "whole numbers or booleans"),
        ((0, 1, None), "whole numbers or booleans, got None"),  # no IndexError: 0, 1 are in range
        ((..., 0, None, 1), "whole numbers or booleans, got None"),
        ((0, np.array(True), 1), "whole numbers or booleans"),
        ((slice("a", None), 0), "a slice has whole numbers"),
    ):
        with pytest.raises(s24.ArgumentError, match=words):
            a[key]
    for key in ((0, 1, 2, None), (..., ..., None)):
        with pytest.raises(IndexError, match="too many indices"):
            a[key]


def test_a_transposable_array_is_cut_along_either_axis(rng):
    a = MAKERS["transposable"](rng.standard_normal((8, 16)))
    assert a[1:6, :8].axis == -1  # whole groups of columns
    assert a[:4, 1:7].axis == a[:4, 4:9].axis == a[:4, [3, 1]].axis == -2  # whole groups of rows
    np.testing.assert_array_equal(a[:4, [3, 1]].toarray(), a.toarray()[:4, [3, 1]])
    with pytest.raises(s24.ArgumentError, match="cuts a group of 4"):
        a[1:3, 1:3]


@pytest.mark.parametrize("entry", [None, True, np.array(True)], ids=str)
@pytest.mark.parametrize("row", [0, 70, 130])
def test_a_new_axis_before_the_rows_of_a_hybrid_matrix(entry, row):
    dense = np.arange(200 * 150, dtype=np.float32).reshape(200, 150)
    np.testing.assert_array_equal(s24.hybrid(dense)[entry, row].toarray(), dense[entry, row])


def test_pairs_of_places_in_a_nearly_empty_hybrid_matrix(rng):
    m = scipy.sparse.random_array((3000, 2000), density=0.001, rng=rng, format="csr")
    h, dense = s24.hybrid(m), m.toarray()
    assert h.is_less_as_csr
    rows, columns = rng.integers(-3000, 3000, 50), rng.integers(-2000, 2000, 50)
    none = np.zeros(3000, bool), np.zeros(2000, bool)
    for key in (
        (rows, columns), m.nonzero(), (rows[:, None], columns[None, :5]), ([7], columns),
        (rows.tolist(), [5]), none, ([], []), (np.array([3, 250], np.uint8),) * 2,
        (np.array([3, -5], np.int8),) * 2, [], (slice(None), []), ([], 5),
    ):  # fmt: skip
        got = h[key]
        np.testing.assert_array_equal(got if got.ndim < 2 else got.toarray(), dense[key])
    for key in (([3000], [1]), (rows, [1, 2])):
        with pytest.raises(IndexError):
            h[key]
    size = 3_000_000
    wide = scipy.sparse.coo_array(([1.0, 2], ([0, size - 1], [size - 1, 0])), shape=(size, size))
    np.testing.assert_array_equal(s24.hybrid(wide)[[0, size - 1, 5], [size - 1, 0, 5]], [1, 2, 0])
