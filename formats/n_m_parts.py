"""The steps of `NMArray` on whole arrays: compress, decompress and cast, on either device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes, _excess, _storage
from sparse24._errors import PatternError
from sparse24._records import Compressed24, Operand24
from sparse24.formats.two_four import Sparse24Array


@functools.cache
def embeds_in_24(n: int, m: int) -> bool:
    """True if every n:m matrix is a 2:4 matrix of the same width.

    Examples
    --------
    >>> from sparse24.formats.n_m_parts import embeds_in_24
    >>> [(n, m) for n, m in [(1, 2), (1, 4), (2, 8), (4, 8), (6, 8)] if embeds_in_24(n, m)]
    [(1, 2), (1, 4), (2, 8)]
    """
    for start in range(0, 4 * m, 4):
        groups = [place // m for place in range(start, start + 4)]
        if sum(min(n, groups.count(group)) for group in set(groups)) > 2:
            return False
    return True


def in_dtype(x, dtype) -> tuple[Any, _dtypes.DType]:
    """The array in the wanted type, as it is carried on its device, and that."""
    bits = dtype is not None and x.dtype == np.uint8 and _dtypes.lookup(dtype).is_float8
    own = _arrays.logical_dtype(x, dtype if bits else None)
    x = _arrays.as_storage(x, own)
    wanted = own if dtype is None else _dtypes.lookup(dtype)
    if wanted is own:
        return x, own
    return _storage.converted(x, own, wanted), wanted


def compress(x, dtype: _dtypes.DType, n: int, m: int, on_excess: str):
    """Values, places, and (first group with too many non-zeros, their number)."""
    if not _arrays.is_cupy(x):
        from sparse24.kernels import cpu

        return cpu.compress_n_m(x, n, m, "magnitude" if on_excess == "prune" else "check")
    from sparse24.kernels import n_m

    batch, x = x.shape[:-2], _arrays.one_batch(x)  # kernels fold no others
    if on_excess == "prune":
        x = n_m.prune_n_m(x, dtype, n, m)
    values, places, status = n_m.compress_n_m(x, dtype, n, m)
    shape = (*batch, *values.shape[-2:])
    return values.reshape(shape), places.reshape(shape), status


def as_24(dense, dtype: _dtypes.DType) -> Sparse24Array:
    """A dense array (..., m, k) that is known to obey 2:4."""
    if _arrays.is_cupy(dense):
        from sparse24.kernels import compress

        record, _ = compress.launch(dense, dtype, rule="check")
    else:
        from sparse24.kernels import cpu

        values, metadata, _ = cpu.compress(dense, "check")
        record = Compressed24(values, metadata, None, dense.shape, dtype)
    return Sparse24Array(Operand24(record, None, None, record.shape, dtype))


def decompress(values, indices, dtype: _dtypes.DType, pattern, k: int):
    """The dense array (..., rows, k) of stored elements and their places."""
    n, m = pattern
    if not _arrays.is_cupy(values):
        from sparse24.kernels import cpu

        return cpu.decompress_n_m(values, indices, n, m, k)
    from sparse24.kernels import n_m

    batch = values.shape[:-2]
    values, indices = map(_arrays.one_batch, (values, indices))
    return n_m.decompress_n_m(values, indices, dtype, n, m, k).reshape(*batch, values.shape[-2], k)


def raise_excess(status, pattern, shape, axis: int) -> None:
    first, count = _excess.found(status)
    if not count:
        return
    n, m = pattern
    place = _excess.place_of_group(first, shape, m, axis)
    raise PatternError(
        f"x[{place}] has more than {n} non-zeros, the first of {count} such "
        f"groups; prune it first (sparse24.prune with pattern=({n}, {m})), or compress with "
        "on_excess='prune'"
    )


def widened(x, dtype: _dtypes.DType):
    """The array in the type that its products are summed in; int8 in float64, exactly."""
    wide = np.dtype(np.float64 if dtype.name in ("int8", "float64") else np.float32)
    if x.dtype == wide:
        return x
    if dtype.name == "int8":
        return x.astype(wide)
    return _storage.converted(x, dtype, _dtypes.lookup(wide))


def narrowed(x, name: str):
    """A result in the type `name`, as its device carries it."""
    if name == "int32" or x.dtype == _dtypes.numpy_dtype(name):
        return x.astype(_dtypes.numpy_dtype(name), copy=False)
    return _storage.converted(x, _dtypes.lookup(x.dtype), _dtypes.lookup(name))
