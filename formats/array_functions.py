"""NumPy's functions of sparse arrays that are no ufuncs, no reductions, and join no arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import _check
from sparse24._errors import ArgumentError
from sparse24.formats import norms, vector_products


def count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> int:
    """What `numpy.count_nonzero` gives for all elements of a sparse array; waits for the device."""
    if axis is not None or _check.flag(keepdims, argument="keepdims"):
        given = "keepdims=" if axis is None else "axis="
        raise ArgumentError(
            f"numpy.count_nonzero takes no {given} with {type(a).__name__}; call "
            "A.mask().sum(axis=..., keepdims=...)"
        )
    return a.nnz


def copy(a: Any, order: Any = "K", subok: bool = False) -> Any:
    """What `numpy.copy` gives: an array of the same class that shares nothing, as ``A.copy()``."""
    if _check.is_an_array(order) or order != "K":
        raise ArgumentError(
            f"numpy.copy takes no order={_check.shown(order)} with {type(a).__name__}, whose "
            "layout is that of its format; leave it out, or copy its .toarray()"
        )
    return a.copy()


def matrix_transpose(x: Any, /) -> Any:
    """What `numpy.matrix_transpose` gives, and its twin in `numpy.linalg`: ``A.mT``."""
    return x.mT


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """What `numpy.array_split` gives: parts by slices, as ``A[i:j]``; nothing becomes dense."""
    return _parts(np.array_split, ary, indices_or_sections, axis)


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """What `numpy.split` gives, as `array_split`; `numpy.vsplit` and `numpy.hsplit` call it."""
    return _parts(np.split, ary, indices_or_sections, axis)


def _parts(function: Callable[..., Any], a: Any, sections: Any, axis: int) -> list[Any]:
    """The parts of an array that `function` of NumPy's makes; its errors are NumPy's."""
    before = (slice(None),) * _check.axis(axis, a.ndim)
    size = a.shape[len(before)]
    if np.ndim(sections):
        ends = [0, *sections, size]
    else:
        ends = [0, *np.cumsum([len(x) for x in function(np.arange(size), sections)]).tolist()]
    return [a[(*before, slice(start, end))] for start, end in itertools.pairwise(ends)]


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.array_split: array_split,
    np.copy: copy,
    np.count_nonzero: count_nonzero,
    np.inner: vector_products.inner,
    np.linalg.matrix_transpose: matrix_transpose,
    np.linalg.norm: norms.norm,
    np.matrix_transpose: matrix_transpose,
    np.split: split,
    np.tensordot: vector_products.tensordot,
}
