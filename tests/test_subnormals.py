"""Subnormal numbers are no zeros, also on a GPU, where CuPy may take them for some."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic_cases import MAKERS, dense_of

import sparse24 as s24
from sparse24 import _arrays


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("make", [make for make in MAKERS if make != "hybrid"] + ["small"])
def test_subnormal_elements_are_no_zeros(make, name, xp):
    w = np.diag(np.where(np.arange(18) % 2, 1e-40, -1e-40)).astype(np.float32)[:9]
    a = s24.hybrid(w, dtype=name) if make == "small" else MAKERS[make](w, name)
    dense = dense_of(a)
    a = a if xp is np else a.to_device("cuda")
    assert a.nnz == 9
    np.testing.assert_array_equal(_arrays.to_numpy(a.mask()), dense != 0)
    for got, want in ((-a, np.where(dense == 0, 0, -dense)), (abs(a), abs(dense))):
        np.testing.assert_array_equal(dense_of(got), want)


def test_subnormal_elements_of_kept_channels_rank_above_zeros(xp):
    x = np.zeros((4, 8), np.float32)
    x[:, 3], x[0, 7] = 1e-40, 1
    kept = _arrays.to_numpy(s24.mask(xp.asarray(x), pattern=(1, 4), channels=0.25))
    np.testing.assert_array_equal(np.flatnonzero(kept[0]), [3, 7])
