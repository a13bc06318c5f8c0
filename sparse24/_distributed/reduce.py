"""The sum over ranks of compressed arrays whose elements have the same places."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _devices, _storage
from sparse24._distributed.communicator import Communicator, checked, ranks_apart
from sparse24._errors import ArgumentError, DTypeError
from sparse24._place_hash import mixed
from sparse24._records import Compressed24, Operand24
from sparse24.formats.two_four import Sparse24Array

_SUMMED = ("float16", "bfloat16", "float32", "float64")


def all_reduce(A: Sparse24Array, comm: Communicator, *, check: bool = True) -> Sparse24Array:
    """The sum over all ranks of arrays that store elements in the same places.

    Parameters
    ----------
    A : Sparse24Array, shape (..., m, k)
        Of float16, bfloat16, float32 or float64; with the same codes on all ranks, as gradients
        that are compressed like one weight (``compress(gradient, like=weight)``).
    comm : Communicator
    check : bool
        Whether shapes, types and places are compared first, by a hash of the codes.

    Returns
    -------
    Sparse24Array, shape (..., m, k)
        In the type and with the codes of `A`, on its device; the same on all ranks.  Sums that
        are zero stay stored.

    Raises
    ------
    ArgumentError
        If `A` or `comm` is something else, or `check` finds other places, shapes or types on some
        rank, or one that passed no such array; then on all ranks.
    DTypeError
        If the elements are int8 or fp8, whose sums would not fit.

    See Also
    --------
    reduce_scatter : For places that differ between ranks.

    Notes
    -----
    Values alone travel: half the bytes of the dense array.  The sum is made in the type of the
    arrays, in an order that is the communicator's own; divide before, as ``compress(gradient /
    comm.size, like=weight)``, for a mean.  Of a transposable array one orientation travels, and the
    other one is gathered from the sum.

    The check waits for the device and the other ranks.  Without it this waits for nothing that
    `comm` does not wait for, and arrays with other places give wrong sums.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> from sparse24.distributed import all_reduce, in_threads
    >>> (comm,) = in_threads(1)
    >>> A = s24.compress(np.array([[0, 1, 0, 2, 3, 0, 0, 0]], np.float32))
    >>> all_reduce(A, comm).values
    array([[1., 2., 3., 0.]], dtype=float32)
    """
    check = _check.flag(check, argument="check")
    dtype = checked(A, comm, check)._dtype
    with _devices.on_device_of(A._operand.stored.values):
        if check:  # first, so that what one rank alone is refused keeps no other one waiting
            _compare(A, comm)
        if dtype.name not in _SUMMED:
            raise DTypeError(
                f"A must be of one of the types {', '.join(_SUMMED)}, got {dtype.name}, whose sums "
                "would not fit; use A.astype('float32')"
            )
        return Sparse24Array(_summed(A._operand, comm), status=A._status)


def _compare(A: Sparse24Array, comm: Communicator) -> None:
    stored = [record for record in (A._operand.rows, A._operand.columns) if record is not None]
    places = [_hash(_storage.canonical(record)) for record in stored]
    facts = A.shape, A.dtype.name, A.axis, A.transposable, places
    apart = ranks_apart(comm, facts, stored[0].values)
    if apart:
        raise ArgumentError(
            "A must have the same shape, type and places on all ranks, and those of ranks "
            f"{apart} are not those of rank 0; compress all of them like one array, or use "
            "reduce_scatter"
        )


def _hash(codes: Any) -> int:
    """Waits for the device."""
    xp = _arrays.namespace(codes)
    flat = xp.zeros(-(-codes.size // 8) * 8, np.uint8)
    flat[: codes.size] = codes.reshape(-1)
    words = flat.view(np.int64)
    return int(mixed(words, xp.arange(1, words.size + 1, dtype=np.int64)).sum())


def _summed(old: Operand24, comm: Communicator) -> Operand24:
    """The operand with sums in place of its values."""
    stored = old.stored
    xp = _arrays.namespace(stored.values)
    values = xp.array(stored.values, order="C")  # a copy without gaps between the rows
    comm.all_reduce(values)
    values = _storage.move_values(values, old.dtype, lambda x: x)
    summed = Compressed24(values, stored.metadata, stored.packed, stored.shape, old.dtype)
    if old.rows is None:
        return Operand24(None, summed, _dense(old, summed, swap=True), old.shape, old.dtype)
    columns = None if old.columns is None else _transposed(summed, old.columns)
    return Operand24(summed, columns, _dense(old, summed, swap=False), old.shape, old.dtype)


def _dense(old: Operand24, summed: Compressed24, *, swap: bool):
    """The dense matrix again, where the old array keeps one."""
    if old.dense is None:
        return None
    dense = _storage.decompress(summed)
    return dense.swapaxes(-1, -2) if swap else dense


def _transposed(summed: Compressed24, columns: Compressed24) -> Compressed24:
    """The sums in the order of the other orientation."""
    dense = _storage.decompress(summed).swapaxes(-1, -2)
    if _arrays.is_cupy(dense):
        from sparse24.kernels import like as kernel

        return kernel.launch(columns, dense)
    from sparse24.kernels import reference

    codes = _storage.canonical(columns)
    values = reference.like(codes, dense)
    return Compressed24(values, codes, None, columns.shape, columns.dtype)
