"""Hybrid matrices for tests, and what several paths of their products must give."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from sparse24 import _dtypes, families
from sparse24._hybrid import choice as hybrid_choice
from sparse24._hybrid.predict import COLUMNS, ODD_ROWS
from sparse24._to_hybrid import hybrid
from sparse24.formats import hybrid_build, hybrid_source
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid import HybridArray
from sparse24.kernels import _numba, hybrid_kinds

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8")
KINDS = [hybrid_kinds.DENSE, hybrid_kinds.TWO_FOUR, hybrid_kinds.BITMAP, hybrid_kinds.SCATTERED]


def matrix(rng, shape, zeros=0.7, dtype="float32"):
    return families.make("iid", shape, zeros=zeros, dtype=dtype, rng=rng)


@functools.cache
def lengths_of(family, shape, zeros):
    """How many elements the rows of a drawn matrix have, the longest first."""
    kept = families.FAMILIES[family](np.random.default_rng(5), shape, zeros)
    lengths = -np.sort(-np.count_nonzero(kept, axis=1))
    lengths.setflags(write=False)
    return lengths


def with_kinds(w, kinds):
    """A hybrid matrix whose tiles have the kinds that are given, in turn."""
    source = hybrid_source.Source(w)
    turn = np.resize(np.asarray(kinds), int(np.prod(ht.grid_of(w.shape))))
    tiles, nnz = hybrid_build.build(
        source, lambda held, spill: np.where(held == 0, hybrid_kinds.EMPTY, turn)
    )
    return HybridArray(tiles, nnz)


def choose(h, n, path):
    """Let a path be the choice for that many columns, whatever is predicted."""
    for copied in ("", COLUMNS, ODD_ROWS):
        name = hybrid_choice.choice_for(n, copied=copied)
        h._prepared[name] = SimpleNamespace(value=path, nbytes=0)


def assert_same_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    word = _dtypes.lookup(want.dtype).storage
    if want.dtype.kind != "i":
        want = np.where(want == 0, np.zeros((), want.dtype), want)
    np.testing.assert_array_equal(got.view(word), np.ascontiguousarray(want).view(word))


def assert_the_same_bits_on_any_threads(product, rng, n: int, monkeypatch) -> None:
    """``product(w, b)`` on the CPU by one, two and three threads, of which all are woken."""
    w = rng.standard_normal((500, 3000)).astype(np.float32)
    w[rng.random(w.shape) < 0.3] = 0
    b = rng.standard_normal((3000, n)).astype(np.float32)
    monkeypatch.setattr(_numba, "WAKING", 1)
    found = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        found.append(product(w, b))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def assert_exact_on_whole_numbers(product, rng, k: int, dtype: str, zeros: float, n: int) -> None:
    """``product(h, b, balance=...)`` of 333 rows on the GPU, whose sums are small enough."""
    cupy = pytest.importorskip("cupy")
    kind = _dtypes.lookup(dtype).logical
    w = rng.integers(-3, 4, (333, k)) * (rng.random((333, k)) >= zeros)
    b = rng.integers(-1, 2, (k, n)) * (rng.random((k, n)) < 0.1)
    h = hybrid(cupy.asarray(w.astype(kind)))
    want = (w @ b).astype(kind)
    for balance in (True, False):
        np.testing.assert_array_equal(product(h, b.astype(kind), balance=balance), want)
