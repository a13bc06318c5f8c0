"""Every format in every type, for arithmetic and reductions."""

from __future__ import annotations

import numpy as np

import sparse24 as s24
from sparse24 import _arrays

SHAPE = (9, 18)
MAKERS = {
    "two_four": lambda w, d: s24.compress(w, on_excess="prune", dtype=d),
    "turned": lambda w, d: s24.compress(w.T, on_excess="prune", dtype=d).T,
    "transposable": lambda w, d: s24.compress(w, on_excess="prune", transposable=True, dtype=d),
    "n_m": lambda w, d: s24.compress(w, pattern=(3, 6), on_excess="prune", dtype=d),
    "n_m_turned": lambda w, d: s24.compress(w.T, pattern=(3, 4), on_excess="prune", dtype=d).T,
    "hybrid": lambda w, d: s24.hybrid(w * (np.abs(w) > 5), dtype=d),
}
OF_HYBRID = ("float16", "bfloat16", "float32", "float64", "int8")


def dense_of(array) -> np.ndarray:
    """The dense array on the CPU under its own type."""
    return _arrays.to_numpy(array.toarray()).view(array.dtype)
