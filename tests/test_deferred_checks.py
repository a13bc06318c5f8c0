"""Checks of the pattern that are put off: what they name, and who makes up for them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import sparse24 as s24


def test_a_deferred_check_raises_when_asked():
    a = s24.compress(np.ones((2, 4), np.float32), check="deferred")
    with pytest.raises(s24.PatternError, match="first of 2"):
        a.check()
    s24.compress(np.ones((2, 4), np.float32), check=False).check()


def test_a_deferred_check_names_what_it_looked_at():
    x, mask = np.ones((2, 8), np.float32), np.ones((2, 8), bool)
    a = s24.compress(x, mask=mask, check="deferred")
    for kept in (a, a[1:], a.astype("float16"), pickle.loads(pickle.dumps(a))):
        with pytest.raises(s24.PatternError, match=r"^mask\[0, 0:4\] keeps more than 2"):
            kept.check()
    like = s24.compress(np.eye(8, dtype=np.float32) + np.eye(8, k=1, dtype=np.float32))
    ones = np.ones((8, 8), np.float32)
    b = s24.compress(ones, like=like, axis=0, check="deferred")
    b.check()
    full = s24.compress(ones, on_excess="prune")
    with pytest.raises(s24.PatternError, match=r"^like\[0:4, 0\] keeps more .* pass axis=-1"):
        s24.compress(ones, like=full, axis=0, check="deferred").check()


def test_an_array_whose_check_is_due_is_not_compressed_anew():
    a = s24.compress(np.ones((2, 8), np.float32), check="deferred")
    for options in ({}, {"dtype": "float16"}, {"pattern": (3, 4)}, {"on_excess": "prune"}):
        with pytest.raises(s24.PatternError, match=r"x\[0, 0:4\] has more than 2 non-zeros"):
            s24.compress(a, **options)
    assert s24.compress(a, check=False).nnz == 8


def test_parts_of_an_array_keep_its_deferred_check(xp, tmp_path):
    x = np.eye(8, 16, dtype=np.float32)
    x[2, 4:8] = 1
    a = s24.compress(xp.asarray(x), check="deferred")
    batch = s24.compress(xp.asarray(np.stack([0 * x, x])), check="deferred")
    for whole, parts in ((a, (a[1:4], a[1:4].T, a[1:][1:])), (batch, (batch[1], batch[1:][0][2:]))):
        where = r"x\[2, 4:8\]" if whole.ndim == 2 else r"x\[1, 2, 4:8\]"
        for part in (*parts, pickle.loads(pickle.dumps(parts[0]))):
            place = r"x\[4:8, 2\]" if part.axis == -2 else where
            with pytest.raises(s24.PatternError, match=f"{place} has more than 2 non-zeros"):
                part.check()
        with pytest.raises(s24.PatternError, match="has more than 2 non-zeros"):
            s24.save_npz(tmp_path / "a.npz", parts[0])
    s24.compress(xp.asarray(0 * x), check="deferred")[1:].check()
