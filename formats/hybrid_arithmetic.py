"""Arithmetic that keeps zeros, of a hybrid matrix: in its tiles where that is possible."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from sparse24 import _arrays, _elementwise
from sparse24._dtypes import DType
from sparse24._errors import DTypeError
from sparse24.formats import convert
from sparse24.formats import hybrid_tiles as ht


def elementwise(h: Any, ufunc: np.ufunc, factor: Any, result: DType) -> Any:
    """`ufunc` of the elements of a `HybridArray` `h` and a factor; by CSR where that is less."""
    row = h._dtype
    if result.name not in ht.DTYPES:
        raise DTypeError(
            f"elements of {row.name} and the factor give {result.name}, which a hybrid matrix does "
            "not hold; convert one of them with .astype(...)"
        )
    in_tiles = _in_tiles(h, ufunc, factor) if result is row and not np.ndim(factor) else None
    if in_tiles is not None:
        return in_tiles
    if h.is_less_as_csr:
        source = _in_csr(h, ufunc, factor, result)
    else:
        source = _elementwise.of_values(ufunc, h.toarray(), row, factor, result)
    return type(h).build(source, n_hint=h.n_hint, dtype=result)


def _in_tiles(h: Any, ufunc: np.ufunc, factor: Any) -> Any | None:
    """The result in tiles of the same kinds, unless an element becomes zero."""
    tiles, row = h.tiles, h._dtype
    values, overflow = (
        _elementwise.of_values(ufunc, held[None], row, factor, row)[0]
        for held in (tiles.values, tiles.overflow_values)
    )
    left = sum(int(_arrays.not_zero(x, row).sum()) for x in (values, overflow))
    tiles = dataclasses.replace(tiles, values=values, overflow_values=overflow)
    return type(h)(tiles, left, h.n_hint) if left == h.nnz else None


def _in_csr(h: Any, ufunc: np.ufunc, factor: Any, result: DType) -> Any:
    """The result in SciPy's CSR, for which nothing is made dense."""
    starts, columns, bits = h.held()
    if np.ndim(factor):
        factor = factor[np.repeat(np.arange(h.shape[0]), np.diff(starts)), columns]
    values = bits.view(h._dtype.logical)
    made = _elementwise.of_values(ufunc, values, h._dtype, factor, result)
    return convert.csr_of(starts, columns, made, h.shape)
