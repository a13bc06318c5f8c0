"""The sum over ranks of compressed matrices whose places differ, a block of rows for each rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _devices, _dtypes, _storage
from sparse24._distributed.communicator import Communicator, checked, ranks_apart
from sparse24._errors import ArgumentError, ShapeError
from sparse24._records import Compressed24
from sparse24.formats.two_four import Sparse24Array


def row_block(m: int, rank: int, size: int) -> slice:
    """The rows that `reduce_scatter` gives to a rank.

    Parameters
    ----------
    m : int
        Rows of the matrix.
    rank, size : int
        As of a `Communicator`.

    Returns
    -------
    slice
        As even as can be: the first ranks have one more row where `size` does not divide m.

    Raises
    ------
    ArgumentError
        If a number does not fit.

    Examples
    --------
    >>> from sparse24.distributed import row_block
    >>> [row_block(10, rank, 4) for rank in range(4)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None), slice(8, 10, None)]
    """
    m = _check.whole(m, argument="m", least=0)
    size = _check.whole(size, argument="size", least=1)
    rank = _check.whole(rank, argument="rank", least=0)
    if rank >= size:
        raise ArgumentError(f"rank must be below size, {size}, got {rank}; ranks count from 0 on")
    rows, more = divmod(m, size)
    start = rank * rows + min(rank, more)
    return slice(start, start + rows + (rank < more))


def reduce_scatter(A: Sparse24Array, comm: Communicator, *, check: bool = True):
    """The dense sum over all ranks of a block of rows, of arrays with any places.

    Parameters
    ----------
    A : Sparse24Array, shape (m, k)
        With groups along the rows (``axis=-1``), or transposable; of any type, which is the same
        on all ranks, as is the shape.
    comm : Communicator
    check : bool
        Whether shapes and types are compared first.

    Returns
    -------
    array, shape (rows, k)
        The rows ``row_block(m, comm.rank, comm.size)`` of the sum, on the device of `A`.  In the
        type in which products are summed, so that nothing is rounded to a narrow one: float32
        for types of 8 and 16 bits, float64 for float64, int32 for int8.

    Raises
    ------
    ArgumentError
        If `A` or `comm` is something else, `A` has its groups along the columns, or `check` finds
        other shapes or types on some rank, or one that passed no such array; then on all ranks.
    ShapeError
        If `A` is a batch.

    See Also
    --------
    all_reduce : For places that are the same on all ranks; the result is compressed.

    Notes
    -----
    Sums of matrices with different places are not 2:4, so they are dense, and each rank gets a part
    of the sum only.  Rows travel compressed, to the rank that adds them up: 1.125 bytes an element
    for types of 16 bits, 1.78 times fewer than dense rows.  Each rank makes what it receives dense,
    matrix by matrix, and adds in the order of the ranks: the same bits in each run.

    The check waits for the device and the other ranks.  Without it this waits for nothing that
    `comm` does not wait for, and arrays that differ in shape or type give wrong sums or wait
    forever.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> from sparse24.distributed import in_threads, reduce_scatter
    >>> (comm,) = in_threads(1)
    >>> A = s24.compress(np.array([[0, 1, 0, 2, 3, 0, 0, 0]], np.float16))
    >>> reduce_scatter(A, comm)
    array([[0., 1., 0., 2., 3., 0., 0., 0.]], dtype=float32)
    """
    check = _check.flag(check, argument="check")
    record = checked(A, comm, check)._operand.rows
    with _devices.on_device_of(A._operand.stored.values):
        if check:  # first, so that what one rank alone is refused keeps no other one waiting
            _compare(A, comm)
        if A.ndim != 2:
            raise ShapeError(
                f"A must be a matrix (m, k), got shape {A.shape}; take the matrices A[i] one by one"
            )
        if record is None:
            raise ArgumentError(
                "A has its groups along axis -2; pass A.T, which has them along rows"
            )
        return _sum(_exchanged(record, comm))


def _compare(A: Sparse24Array, comm: Communicator) -> None:
    facts = A.shape, A.dtype.name, A._operand.rows is None
    apart = ranks_apart(comm, facts, A._operand.stored.values)
    if apart:
        raise ArgumentError(
            f"A must have the same shape, type and axis on all ranks, and those of ranks {apart} "
            f"are not those of rank 0, {A.shape} of {A.dtype.name} along axis {A.axis} on this "
            "one; convert or cut them first"
        )


def _exchanged(record: Compressed24, comm: Communicator) -> list[Compressed24]:
    """The rows of this rank's block, of each rank's matrix."""
    blocks = [row_block(record.m, rank, comm.size) for rank in range(comm.size)]
    rows = [block.stop - block.start for block in blocks]
    own = rows[comm.rank]
    values = _swapped(record.values, rows, own, comm)
    codes = _swapped(_storage.canonical(record), rows, own, comm)
    shape = own, record.k
    return [Compressed24(v, c, None, shape, record.dtype) for v, c in zip(values, codes)]


def _swapped(x: Any, rows: list[int], own: int, comm: Communicator) -> Any:
    """(ranks, own rows, columns): this rank's rows of `x`, a matrix with blocks of `rows`."""
    xp = _arrays.namespace(x)
    pitch = x.shape[1] * x.itemsize
    received = xp.empty((comm.size, own, x.shape[1]), x.dtype)
    sent = xp.ascontiguousarray(x)
    comm.all_to_all(
        _as_bytes(sent), [pitch * n for n in rows], _as_bytes(received), [pitch * own] * comm.size
    )
    return received


def _as_bytes(x: Any) -> Any:
    return x.reshape(-1).view(np.uint8)


def _sum(records: list[Compressed24]) -> Any:
    """The sum of matrices, dense, in the type that sums of products have."""
    first, *others = records
    total = _wide(first)
    for other in others:
        total += _wide(other)
    return total


def _wide(record: Compressed24) -> Any:
    wide = record.dtype.accumulator
    if record.dtype.name == "int8":
        return _storage.decompress(record).astype(wide)
    if wide != record.dtype.logical:
        record = _storage.cast(record, _dtypes.lookup(wide))
    return _storage.decompress(record)
