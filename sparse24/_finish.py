"""The epilogue as a second pass, for products of formats whose kernels do not fuse it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sparse24 import _arrays, _dtypes, _foreign, _overlap, _row_blocks
from sparse24._fuse import fuse
from sparse24._options import Call, Epilogue
from sparse24._records import Fused
from sparse24._target import Target, given, refuse_integers, result_name, vector_type
from sparse24._views import View


def finished(product, out, call: Call, left: tuple, right: tuple):
    """``epilogue(product)`` in `out`, or in a new array, in the type asked for.

    Parameters
    ----------
    product : NumPy or CuPy array
        Of operands with the shapes `left` and `right`, one of which may be a vector.
    """
    dropped = dropped_axis(left, right)
    full = whole(product, dropped)
    name = full.dtype.name if call.dtype is None else result_name(call.dtype)
    goes = Target(full.shape, name, given(out), _arrays.is_cupy(full))
    refuse_integers(full.dtype.name, name, on_gpu=goes.on_gpu)
    target = goes.allocate(dropped)
    epilogue = goes.fitted(fused(full, goes, call, left, right), dropped)
    _finish_all(full, target, name, epilogue)
    return target if dropped is None else target.squeeze(dropped)


def dropped_axis(left: tuple, right: tuple) -> int | None:
    """The axis that a product with a vector lacks."""
    return -1 if len(right) == 1 else -2 if len(left) == 1 else None


def whole(x, dropped: int | None):
    return x if dropped is None else _arrays.namespace(x).expand_dims(x, dropped)


def fused(full, goes: Target, call: Call, left: tuple, right: tuple) -> Fused:
    """The epilogue of a call; a `column_bias` of 16 bits is the caller's own, see `readable`."""
    xp = _arrays.namespace(full)
    real = vector_type(goes.name, xp)
    bias = _bias_in_place(full, goes, call)
    if bias is None:
        return fuse(call, left, right, xp, real)
    assert call.epilogue is not None  # whose bias that is
    rest = call._replace(epilogue=replace(call.epilogue, bias=None))
    return replace(fuse(rest, left, right, xp, real), column_bias=bias)


def _bias_in_place(full, goes: Target, call: Call):
    """A bias of columns that the kernel can read as it is, in 16 bits; None for others.

    It takes the place of `c`, whose factor 1 rounds nothing.  A product with a factor of its own
    would be rounded before `c` is added, and not before a bias.
    """
    e, size = call.epilogue, full.shape[-1]
    plain = call.alpha == 1.0 and call.scales is None and (call.c is None or not call.beta)
    if not (goes.on_gpu and plain and isinstance(e, Epilogue) and e.alpha_vector is None):
        return None
    if not (_arrays.is_cupy(e.bias) or (_arrays.is_torch(e.bias) and e.bias.is_cuda)):
        return None
    bias, _ = _foreign.take(e.bias, argument="bias")
    fits = bias.dtype.itemsize == 2 and bias.dtype.name == full.dtype.name == goes.name
    fits = fits and bias.shape in ((size,), (1, size))
    apart = goes.out is None or not _overlap.shares_memory(bias, goes.out)
    here = bias.data.device_id == full.data.device_id
    return bias.reshape(-1) if fits and apart and here else None


def readable(epilogue: Fused, m: int) -> Fused:
    """The epilogue of a product with `m` rows as the kernel reads it.

    That takes biases of 32 bits or more, and `c` in the type of the result: a `column_bias` of 16
    bits becomes a `c` of equal rows.
    """
    bias = epilogue.column_bias
    if bias is None or bias.dtype.itemsize != 2:
        return epilogue
    rows = (bias if isinstance(bias, View) else View(bias)).repeated(m)
    return replace(epilogue, c=rows, beta=1.0, column_bias=None)


def _finish_all(full, target, name: str, epilogue: Fused) -> None:
    """Every matrix of a stack; as one, where rows of all are treated alike."""
    e = epilogue
    if full.ndim > 2 and e.treats_rows_alike and target.flags.c_contiguous:
        full, target = (x.reshape(-1, x.shape[-1]) if x.size else x for x in (full, target))
    if full.ndim == 2:
        finish_matrix(full, target, name, e)
        return
    for index in np.ndindex(full.shape[:-2]):
        of_one = replace(e, c=_at(e.c, index), aux=_at(e.aux, index))
        finish_matrix(full[index], target[index], name, of_one)


def _at(stack, index: tuple[int, ...]):
    return None if stack is None else stack[index]


def _blocks(product: np.ndarray) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of blocks whose copies stay in the cache, along the memory of a matrix."""
    turned = product.flags.f_contiguous and not product.flags.c_contiguous
    lines, length = product.shape[::-1] if turned else product.shape
    step = max(1, _row_blocks.BLOCK // max(1, length))
    for at in range(0, lines, step):
        cut = slice(at, at + step)
        yield (slice(None), cut) if turned else (cut, slice(None))


def finish_matrix(product, out, name: str, epilogue: Fused) -> None:
    """``out = epilogue(product)`` for one matrix; `name` is the type of `out`."""
    if not _arrays.is_cupy(product):
        from sparse24.kernels import cpu_epilogue

        for rows, columns in _blocks(product):
            sums = product[rows, columns]
            sums = sums.astype(np.float32) if sums.dtype.itemsize < 4 else sums
            cpu_epilogue.finish(sums, out, epilogue, rows, columns)
        return
    from sparse24.kernels import cast, dense

    contiguous, dtype = _arrays.namespace(product).ascontiguousarray, None
    if product.dtype.itemsize < 4:
        dtype = _dtypes.TABLE[product.dtype.name]
        if not product.flags.c_contiguous:
            product = contiguous(product.view(dtype.storage)).view(dtype.logical)
        if dtype.name != name:
            product = cast.launch(product, dtype, _dtypes.TABLE["float32"])
    dense.apply_epilogue(contiguous(product), out, name, readable(epilogue, product.shape[0]))
