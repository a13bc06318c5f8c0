"""n_m.cu against the reference, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from packing_cases import KINDS, LAYOUTS, assert_same_bits, matrix, place, poison

from sparse24 import _check, _dtypes
from sparse24.kernels import n_m, reference

pytestmark = [pytest.mark.gpu, pytest.mark.stem("n_m")]

PATTERNS = ((2, 4), (1, 4), (1, 2), (2, 8), (8, 16), (31, 32))
SHAPES = ((64, 256), (3, 17), (2, 5, 37), (1, 1), (70, 300))


def patterns_for(name):
    return PATTERNS if name in ("bfloat16", "int8") else PATTERNS[::4]


@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_prune_and_mask(rng, name):
    row = _dtypes.TABLE[name]
    for pattern in patterns_for(name):
        for shape in SHAPES:
            for layout in LAYOUTS:
                x = matrix(rng, shape, row, "odd")
                poison()
                assert_same_bits(
                    n_m.prune_n_m(place(x, layout), row, *pattern), reference.prune_n_m(x, *pattern)
                )
                want = reference.top_mask(reference.magnitude_rank(x), *pattern)
                assert_same_bits(n_m.mask_n_m(place(x, layout), row, *pattern), want)


def test_scores_and_in_place(rng):
    row = _dtypes.TABLE["float16"]
    for shape in SHAPES:
        x, scores = matrix(rng, shape, row), rng.integers(-3, 4, shape).astype(np.float32)
        scores[rng.random(shape) < 0.1] = np.nan
        on_gpu = place(x)
        got = n_m.prune_n_m(on_gpu, row, 2, 8, scores=place(scores), out=on_gpu)
        assert got is on_gpu
        assert_same_bits(got, reference.prune_n_m(x, 2, 8, scores))


@pytest.mark.parametrize("pattern", [(1, 2), (2, 4), (2, 8)])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["int8", "float16", "float64"])
def test_masks_by_scores_of_any_width(rng, name, kind, pattern):
    row = _dtypes.TABLE[name]
    for shape in SHAPES:
        scores = rng.integers(-3, 4, shape).astype(kind)
        for x in (matrix(rng, shape, row), scores):  # scores that stand for the elements, too
            got = n_m.mask_n_m(place(x), row, *pattern, scores=place(scores))
            assert_same_bits(got, reference.top_mask(scores, *pattern))


@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_compress_and_back(rng, name):
    row = _dtypes.TABLE[name]
    for pattern in patterns_for(name):
        for shape in SHAPES:
            for kind, layout in zip(KINDS, LAYOUTS, strict=False):
                x = matrix(rng, shape, row, kind)
                values, places = reference.compress_n_m(x, *pattern)
                poison()
                got = n_m.compress_n_m(place(x, layout), row, *pattern)
                assert_same_bits(got[0], values)
                assert_same_bits(got[1], places)
                check_status(got[2], x, pattern)
                back = n_m.decompress_n_m(got[0], got[1], row, *pattern, shape[-1])
                assert_same_bits(
                    back, reference.decompress_n_m(values, places, *pattern, shape[-1])
                )


def check_status(status, x, pattern):
    n, m = pattern
    pad = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % m)]
    bad = (np.pad(x != 0, pad).reshape(-1, m).sum(-1) > n).ravel()
    first = int(np.argmax(bad)) if bad.any() else -1
    assert _check.excess(status) == (first, int(bad.sum()))
