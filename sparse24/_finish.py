"""The epilogue of a product that a format has made by its own rules, as a pass of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes, _ready, _replay
from sparse24._fuse import Call, fuse
from sparse24._product import Target, given, result_name
from sparse24._records import Epilogue


def finished(product, out, call: Call, left: tuple, right: tuple):
    """``epilogue(product)`` in `out`, or in a new array, in the type asked for.

    Parameters
    ----------
    product : NumPy or CuPy array
        Of operands with the shapes `left` and `right`, one of which may be a vector.
    """
    dropped = _dropped(left, right)
    full = _whole(product, dropped)
    name = full.dtype.name if call.dtype is None else result_name(call.dtype)
    goes = Target(full.shape, name, given(out), _arrays.is_cupy(full))
    target = goes.allocate(dropped)
    epilogue = goes.fitted(_fused(full, call, left, right), dropped)
    _finish_all(full, target, name, epilogue)
    return target if dropped is None else target.squeeze(dropped)


def again(product, call: Call, left: tuple, right: tuple) -> Callable[[Any, Any], None] | None:
    """The same for products like this one on the GPU: a function of one and of where it goes.

    Does the epilogue of a call without `c`, `aux` and `dtype`.  None where its vectors were
    converted, which each call has to do anew; it keeps no array alive.
    """
    dropped = _dropped(left, right)
    epilogue = _fused(_whole(product, dropped), call, left, right)
    if not _replay.is_the_callers(epilogue, call):
        return None
    names = ("row_scale", "column_scale", "row_bias", "column_bias")
    vectors = {name: getattr(epilogue, name) for name in names}
    views: dict[str, Any] = {name: _ready.View(x) for name, x in vectors.items() if x is not None}
    epilogue, name = replace(epilogue, **views), product.dtype.name
    return lambda product, out: _finish_all(
        _whole(product, dropped), _whole(out, dropped), name, epilogue
    )


def _dropped(left: tuple, right: tuple) -> int | None:
    """The axis that a product with a vector has not."""
    return -1 if len(right) == 1 else -2 if len(left) == 1 else None


def _whole(x, dropped: int | None):
    return x if dropped is None else _arrays.namespace(x).expand_dims(x, dropped)


def _fused(full, call: Call, left: tuple, right: tuple) -> Epilogue:
    real = np.float64 if full.dtype == np.float64 else np.float32
    return fuse(call, left, right, _arrays.namespace(full), real)


def _finish_all(full, target, name: str, epilogue: Epilogue) -> None:
    """Every matrix of a stack; as one, where rows of all are treated alike."""
    e = epilogue
    by_row = any(part is not None for part in (e.c, e.aux, e.row_scale, e.row_bias))
    if full.ndim > 2 and not by_row and target.flags.c_contiguous:
        full, target = (x.reshape(-1, x.shape[-1]) if x.size else x for x in (full, target))
    for index in np.ndindex(full.shape[:-2]):
        of_one = replace(epilogue, c=_at(epilogue.c, index), aux=_at(epilogue.aux, index))
        _finish(full[index], target[index], name, of_one)


def _at(stack, index: tuple[int, ...]):
    return None if stack is None else stack[index]


def _finish(product, out, name: str, epilogue: Epilogue) -> None:
    """One matrix."""
    if not _arrays.is_cupy(product):
        from sparse24.kernels import cpu_epilogue

        narrow = product.dtype.itemsize < 4
        sums = product.astype(np.float32) if narrow else product
        cpu_epilogue.finish(sums, out, epilogue, slice(None), slice(None))
        return
    from sparse24.kernels import cast, dense

    contiguous, sums = _arrays.namespace(product).ascontiguousarray, product
    if sums.dtype.itemsize < 4:
        row = _dtypes.TABLE[sums.dtype.name]
        halves = contiguous(sums.view(row.storage)).view(row.logical)
        sums = cast.launch(halves, row, _dtypes.TABLE["float32"])
    dense.apply_epilogue(contiguous(sums), out, name, epilogue)
