"""Compress a matrix that is larger than the GPU's memory, or the host's, in blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _devices, _dtypes, _excess, _foreign, _spec, _storage
from sparse24._compress import compress
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._records import Compressed24, Operand24
from sparse24.formats.base import SparseArray
from sparse24.formats.two_four import Sparse24Array

HOST_BLOCK = 64 << 20  # bytes of a block on the CPU: a few times the last-level cache
GPU_SHARE = 8  # a block takes at most this part of the free memory; its results as much again


def compress_blocks(
    x, *, rows=None, device="auto", on_excess="raise", dtype=None
) -> Iterator[Sparse24Array]:
    """Compress a large host matrix in blocks of rows, one at a time.

    Parameters
    ----------
    x : array, shape (m, k)
        Anything with ``shape``, ``dtype`` and row slices that become NumPy arrays: an
        ndarray, `numpy.memmap`, an HDF5 dataset, a tensor on the CPU.  Only one block is
        read at a time.
    rows : int, optional
        Rows of a block; by default chosen by the free memory.
    device : str, default "auto"
        Where blocks are compressed: ``"cpu"``, ``"cuda"``, ``"cuda:<index>"``, or a GPU if
        there is one.
    on_excess, dtype
        See `compress`.

    Yields
    ------
    Sparse24Array
        Rows ``0:rows``, ``rows:2 * rows``, and so on, on the host.  Waits for the GPU
        at each.

    Raises
    ------
    PatternError
        If a group has more than two non-zeros; names the place in `x`, and their number in its
        block, as no block is read after it.
    ShapeError, DTypeError, ArgumentError, DeviceError
        If `x` is not a matrix on the host, or reading it gives other rows than its shape and dtype
        say; if an argument does not fit, or the device is not there.

    See Also
    --------
    compress_stream : The same, as one array.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> x = np.eye(10, 8, dtype=np.float32)
    >>> [block.shape for block in s24.compress_blocks(x, rows=4)]
    [(4, 8), (4, 8), (2, 8)]
    """
    x = _sliceable(x)
    _check.one_of(on_excess, ("raise", "prune"), argument="on_excess")
    device = _storage.device_name(device)
    device = ("cuda" if _arrays.cuda_available() else "cpu") if device == "auto" else device
    move = _storage.mover(device)
    rows = _block_rows(x, device) if rows is None else rows
    step = _check.whole(rows, argument="rows", least=1)
    return _blocks(x, step, move, on_excess, dtype)


def _is_path(x) -> bool:
    return isinstance(x, str | os.PathLike)


def _sliceable(x):
    """`x` on the host, where slices of rows become NumPy arrays; it need not be one itself."""
    is_sparse = isinstance(x, SparseArray) or _arrays.is_sparse_matrix(x)
    if is_sparse or _arrays.is_torch(x) or _arrays.is_jax(x):
        x, _ = _foreign.take(x)  # which refuses what is sparse
    if _arrays.is_cupy(x):
        raise ArgumentError("x is on the GPU as a whole already; use sparse24.compress")
    if not hasattr(x, "shape") or not hasattr(x, "dtype") or isinstance(x, type):
        way_out = "numpy.load(path, mmap_mode='r') opens" if _is_path(x) else "numpy.asarray makes"
        raise ArgumentError(
            "x must have shape, dtype and row slices, as ndarray and memmap do, got "
            f"{type(x).__name__}; {way_out} one"
        )
    _check.unmasked(x, argument="x")
    if len(x.shape) != 2:
        raise ShapeError(f"x must be a matrix (m, k), got shape {tuple(x.shape)}")
    return x


def _blocks(x, step: int, move, on_excess: str, dtype) -> Iterator[Sparse24Array]:
    groups = _spec.groups(x.shape[1])
    for start in range(0, x.shape[0], step):
        stop = min(start + step, x.shape[0])
        block, named = _movable(_read(x, start, stop, dtype), dtype)
        check = "deferred" if on_excess == "raise" else True
        piece = compress(move(block), on_excess=on_excess, check=check, dtype=named)
        if piece._status is not None:
            first, count = _excess.found(piece._status)
            first, within = first + start * groups, f" in rows {start}:{stop}"
            _excess.refuse((first, count), x.shape, within=within)
        values = _arrays.to_numpy(piece.values).view(piece.dtype)
        metadata = _arrays.to_numpy(piece.metadata)
        yield _on_host(values, metadata, piece.shape, piece._dtype)


def _read(x, start: int, stop: int, dtype) -> np.ndarray:
    """Rows [start, stop), which must be what `x` says that it holds."""
    rows, what = x[start:stop], f"x[{start}:{stop}]"
    _check.unmasked(rows, argument=what)
    block = np.ascontiguousarray(rows)
    if block.shape != (stop - start, x.shape[1]):
        raise ShapeError(
            f"{what} must have shape {(stop - start, x.shape[1])}, as x.shape says, got "
            f"{block.shape}"
        )
    if dtype is None and block.dtype != np.dtype(x.dtype):
        raise DTypeError(
            f"{what} must have the dtype of x, {x.dtype}, got {block.dtype}; name one with dtype="
        )
    return block


def _on_host(values, metadata, shape, dtype: _dtypes.DType) -> Sparse24Array:
    record = Compressed24(values, metadata, None, shape, dtype)
    return Sparse24Array(Operand24(record, None, None, shape, dtype))


def _movable(block: np.ndarray, dtype) -> tuple[np.ndarray, Any]:
    """The block as a GPU takes it, fp8 as bits, and the type to be named for it."""
    if block.dtype == np.uint8 and dtype is not None:  # bits already
        return block, dtype
    own = _dtypes.lookup(block.dtype) if block.dtype in _dtypes.LOGICAL else None
    if own is not None and own.is_float8 and (dtype is None or _dtypes.lookup(dtype) is own):
        return block.view(np.uint8), own.name
    return block, dtype


def _block_rows(x, device: str) -> int:
    limit = HOST_BLOCK
    if device != "cpu":
        with _devices.on_device(device):
            limit = _free_memory() // GPU_SHARE
    rows = limit // max(1, x.shape[1] * np.dtype(x.dtype).itemsize)
    return max(_spec.ATOM_M, rows - rows % _spec.ATOM_M)


def _free_memory() -> int:
    """Bytes that CuPy may still take on the current GPU, by the device and by its own limit."""
    xp = _arrays.cupy_module()
    pool = xp.get_default_memory_pool()
    free = xp.cuda.runtime.memGetInfo()[0] + pool.free_bytes()
    return min(free, pool.get_limit() - pool.used_bytes()) if pool.get_limit() else free


def compress_stream(x, *, rows=None, device="auto", on_excess="raise", dtype=None) -> Sparse24Array:
    """Compress a large host matrix in blocks of rows into one array on the host.

    Parameters
    ----------
    x, rows, device, on_excess, dtype
        See `compress_blocks`.

    Returns
    -------
    Sparse24Array, shape (m, k)
        On the host, about 9/16 of the size of `x` in 16-bit types; the GPU never holds
        more than a block.  Waits for the GPU at each.

    Raises
    ------
    PatternError, ShapeError, DTypeError, ArgumentError, DeviceError
        As `compress_blocks`.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> x = np.random.default_rng(0).standard_normal((100, 32)).astype(np.float32)
    >>> A = s24.compress_stream(x, rows=30, on_excess="prune")
    >>> bool((A.toarray() == s24.prune(x)).all())
    True
    """
    x = _sliceable(x)
    blocks = compress_blocks(x, rows=rows, device=device, on_excess=on_excess, dtype=dtype)
    own = dtype is None
    stored = _dtypes.lookup(x.dtype if own else dtype, argument="x.dtype" if own else "dtype")
    m, k = x.shape
    values = np.empty((m, _spec.values_per_row(k)), stored.logical)
    metadata = np.empty((m, _spec.metadata_bytes_per_row(k)), np.uint8)
    start = 0
    for block in blocks:
        stop = start + block.shape[0]
        values[start:stop], metadata[start:stop] = block.values, block.metadata
        start = stop
    return _on_host(values, metadata, (m, k), stored)
