"""The epilogue of a product that a format has made by its own rules, as a pass of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparse24 import _arrays, _dtypes
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
    dropped = -1 if len(right) == 1 else -2 if len(left) == 1 else None
    full = product if dropped is None else _arrays.namespace(product).expand_dims(product, dropped)
    name = full.dtype.name if call.dtype is None else result_name(call.dtype)
    goes = Target(full.shape, name, given(out), _arrays.is_cupy(full))
    target = goes.allocate(dropped)
    real = np.float64 if full.dtype == np.float64 else np.float32
    epilogue = goes.fitted(fuse(call, left, right, _arrays.namespace(full), real), dropped)
    for index in np.ndindex(full.shape[:-2]):
        of_one = replace(epilogue, c=_at(epilogue.c, index), aux=_at(epilogue.aux, index))
        _finish(full[index], target[index], name, of_one)
    return target if dropped is None else target.squeeze(dropped)


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
