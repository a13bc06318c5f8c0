"""Compress by the codes of a compressed matrix: new values, and gradients through its mask.

Launcher of ``cuda/like.cu``.  Nothing here waits for the device.
"""

from __future__ import annotations

from sparse24 import _arrays, _spec
from sparse24._dtypes import DType
from sparse24._records import Compressed24
from sparse24.kernels import loader
from sparse24.kernels.call import KernelCall
from sparse24.kernels.compress import NULL, blocks, row_alignment, runs_by_columns
from sparse24.kernels.decompress import codes_of, values_by_row

NAME = "like"
LOADS_OF_BLOCK = 4 * 256  # of under_mask: those of a thread, and threads


def launch(
    record: Compressed24, x, *, nonzero: bool = False, derivative: bool = False
) -> Compressed24:
    """Compress `x`, (..., m, k) of any strides, at the places of `record`, whose codes it shares.

    Every stored place is filled, also where `record` holds a zero, unless `nonzero` is true.  With
    `derivative` elements are multiplied by that of squared relu, whose values `record` holds: twice
    their root.
    """
    xp = _arrays.cupy_module()
    *batch, m, k = record.shape
    values = _arrays.empty_rows(xp, (*batch, m, _spec.values_per_row(k)), x.dtype)
    if x.size:
        codes, packed = codes_of(record)
        old = values_by_row(record) if nonzero or derivative else None
        dense = x.reshape(-1, m, k)
        gathering_call(
            dense, codes, values, record.dtype, packed=packed,
            old=old, nonzero=nonzero, derivative=derivative,
        ).enqueue()  # fmt: skip
    return Compressed24(values, record.metadata, record.packed, record.shape, record.dtype)


def gathering_call(
    x, codes, values, row: DType, *, packed: bool = True, old=None,
    nonzero: bool = False, derivative: bool = False, seen=None,
) -> KernelCall:  # fmt: skip
    """What writes the elements of `x`, (batch, m, k), that have codes to `values`, (..., m, n).

    Rows of `values` begin on 16-byte boundaries.  `seen` is two zeros of the type of `x`, which
    has 16 bits or more; the first becomes 1 if `x` has non-zeros elsewhere, and the second if it
    has infinities or NaNs.  Addresses and layouts of the arrays suffice.
    """
    batch, m, k = x.shape
    by_columns = runs_by_columns(x, x.itemsize)
    if by_columns:
        parts = (x.data.ptr, x.strides[0], x.strides[2])
        alignment = 4 if all(part % 4 == 0 for part in parts) else 0
    else:
        alignment = 16 if row_alignment(x, x.itemsize) == 16 else 0
    macros = defines(
        row.name, packed=packed, alignment=alignment, nonzero=nonzero, derivative=derivative,
        looks=seen is not None,
    )  # fmt: skip
    kernel = loader.function(NAME, "like_columns" if by_columns else "like_rows", macros)
    of_old = (NULL, 0, 0) if old is None else (old, *old.strides[:2])
    arguments = (
        x, *x.strides, codes, *of_old, values, values.strides[-2], NULL if seen is None else seen,
        m, k,
    )  # fmt: skip
    count = batch * blocks(m, k, x.itemsize, by_columns)
    return KernelCall(kernel, count, 256 if by_columns else 128, arguments)


def masked_gradient(record: Compressed24, gradient, *, weight=None, decay: float = 0.0, out=None):
    """The gradient as a 2:4 weight should see it, (..., m, k) in the dtype of the weight.

    Parameters
    ----------
    record : Compressed24
        The weight as it was multiplied.
    gradient : cupy.ndarray, shape (..., m, k), storage dtype of `record`
    weight : cupy.ndarray, like `gradient`, optional
        The dense weight.  With it the pruned places get ``gradient + decay * weight``
        (SR-STE); without, 0.
    decay : float
    out : cupy.ndarray, like `gradient`, optional
        May be `gradient` itself.
    """
    xp = _arrays.cupy_module()
    if out is None:
        out = xp.empty(gradient.shape, gradient.dtype)
    if not gradient.size:
        return out
    m, k = gradient.shape[-2:]
    source, target = gradient.reshape(-1, m, k), out.reshape(-1, m, k)
    decaying = None if weight is None else weight.reshape(-1, m, k)
    codes, packed = codes_of(record)
    masked_call(source, decaying, codes, target, record.dtype, decay, packed=packed).enqueue()
    if target.data.ptr != out.data.ptr:
        out[...] = target.reshape(out.shape)
    return out


def under_mask_call(x, mask, out, row: DType) -> KernelCall:
    """What writes `x` where `mask`, of bytes, is not zero, and zeros elsewhere.

    All three lie in memory in the same order, without gaps, from 16-byte boundaries on, and end
    with 16 bytes of `x`.  Addresses and layouts of the arrays suffice.
    """
    loads = x.size * row.itemsize // _arrays.VECTOR
    kernel = loader.function(NAME, "under_mask", defines(row.name))
    return KernelCall(kernel, -(-loads // LOADS_OF_BLOCK), 256, (x, mask, out, loads))


def masked_call(
    source, weight, codes, target, row: DType, decay: float, *, packed: bool = True
) -> KernelCall:
    """What `masked_gradient` enqueues, for (batch, m, k) matrices; `weight` may be None.

    Addresses and layouts of the arrays suffice.
    """
    batch, m, k = source.shape
    given = [x for x in (source, weight, target) if x is not None]
    aligned = all(row_alignment(x, row.itemsize) == 16 for x in given)
    macros = defines(
        row.name, packed=packed, alignment=16 if aligned else 0, decayed=weight is not None
    )
    kernel = loader.function(NAME, "masked_gradient", macros)
    of_weight = (NULL, 0, 0, 0) if weight is None else (weight, *weight.strides)
    arguments = (
        source, *source.strides, *of_weight, codes, target, *target.strides, float(decay), m, k,
    )  # fmt: skip
    return KernelCall(kernel, batch * blocks(m, k, row.itemsize, False), 128, arguments)


def defines(
    name: str,
    *,
    packed: bool = True,
    alignment: int = 16,
    nonzero: bool = False,
    derivative: bool = False,
    looks: bool = False,
    decayed: bool = False,
) -> loader.Defines:
    """The macros of ``like.cu``."""
    return (
        ("ELEMENT", name),
        ("CODES", int(packed)),
        ("ALIGNMENT", alignment),
        ("NONZERO", int(nonzero)),
        ("DERIVATIVE", int(derivative)),
        ("LOOKS", int(looks)),
        ("DECAYED", int(decayed)),
    )


COMPILE_CHECKS = tuple(
    (defines(name, decayed=True, **options), arch, None)
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
    for name, options in (
        ("bfloat16", {"derivative": True}),
        ("bfloat16", {"looks": True}),
        ("int8", {"nonzero": True}),
        ("float32", {"nonzero": True, "derivative": True}),
        ("float32", {"looks": True}),
        ("float64", {"looks": True}),
    )
)
