"""Transposable masks on the CPU: equal to the reference, and to a search of all masks."""

from __future__ import annotations

import hashlib
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse24 import _dtypes, _spec
from sparse24._errors import DTypeError, ShapeError
from sparse24.kernels import cpu, reference

SHAPES = [
    (0, 4),
    (4, 0),
    (1, 1),
    (3, 5),
    (4, 4),
    (17, 30),
    (2, 3, 9, 11),
    (0, 4, 4),
    (260, 300),
    (3, 2, 8, 5),
    (1100, 3),
    (20, 268),
    (50, 8, 36),
    (2, 363, 362),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_matches_reference(rng, name, shape):
    x = (3 * rng.standard_normal(shape)).astype(_dtypes.TABLE[name].logical)
    np.testing.assert_array_equal(cpu.transposable_mask(x), reference.transposable_mask(x))


@pytest.mark.parametrize("shape", [(64, 64), (12, 268), (3, 8, 17)])
@pytest.mark.parametrize("values", [(0, 1), (0, -0.0, 1, -1, 2), (np.nan, np.inf, -np.inf, 1, 0)])
def test_ties_and_special_values(rng, values, shape):
    x = rng.choice(np.array(values, np.float32), shape)
    np.testing.assert_array_equal(cpu.transposable_mask(x), reference.transposable_mask(x))


def test_views(rng):
    x = rng.standard_normal((40, 60))
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    raw[...] = x
    for view in (x.T, x[::-1, ::2], raw, np.broadcast_to(x[:1], (8, 60))):
        got, want = cpu.transposable_mask(view), reference.transposable_mask(view)
        np.testing.assert_array_equal(got, want)


def test_the_ninety_masks():
    rows = [sum(1 << i for i in pair) for pair in combinations(range(4), 2)]
    legal = [
        sum(bits << 4 * r for r, bits in enumerate(four))
        for four in product(rows, repeat=4)
        if all(sum(bits >> c & 1 for bits in four) == 2 for c in range(4))
    ]
    assert sorted(legal) == _spec.TILE_MASKS.tolist()
    digest = hashlib.sha256(_spec.TILE_MASKS.astype("<u2").tobytes()).hexdigest()
    assert digest.startswith("80f5886a78b286a6")


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_no_legal_mask_sums_to_more(seed):
    x = np.random.default_rng(seed).integers(-20, 21, (4, 4)).astype(np.int8)
    size = np.abs(x.astype(int)).ravel()
    kept = cpu.transposable_mask(x)
    assert (kept.sum(0) == 2).all()
    assert (kept.sum(1) == 2).all()
    best = max(size[(int(mask) >> np.arange(16) & 1) == 1].sum() for mask in _spec.TILE_MASKS)
    assert size[kept.ravel()].sum() == best


def test_the_mask_of_the_transpose_is_as_good(rng):
    x = rng.standard_normal((64, 32)).astype(np.float32)
    one, other = cpu.transposable_mask(x), cpu.transposable_mask(x.T).T
    np.testing.assert_allclose(np.abs(x)[one].sum(), np.abs(x)[other].sum(), rtol=1e-6)


def test_messages():
    with pytest.raises(ShapeError, match="x must have at least two axes"):
        cpu.transposable_mask(np.zeros(4, np.float32))
    with pytest.raises(DTypeError, match=r"x\.dtype must be one of"):
        cpu.transposable_mask(np.zeros((4, 4), np.int32))
