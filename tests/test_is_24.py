"""is_24 and check_24: every dtype and axis, and the group that an error names."""

from __future__ import annotations

import numpy as np
import pytest
from pruning_cases import on

import sparse24 as s24
from sparse24 import _dtypes

pytestmark = pytest.mark.stem("n_m", "transposable")
FLOATS = [name for name in _dtypes.NAMES if name != "int8"]


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
