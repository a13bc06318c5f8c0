"""Products on the CPU that add up across the groups: ``A.T @ b`` and ``x @ A`` of a 2:4 matrix A.

No sparse kernel adds up that way.  A few rows of A at a time are expanded, into memory that stays
in the L2 cache, and multiplied by BLAS: nothing as large as the dense matrix is written.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _spec
from sparse24._records import PLAIN, Fused
from sparse24.kernels import cpu_groups
from sparse24.kernels._numba import parallel, slices, threads
from sparse24.kernels._simd_expand import AVAILABLE, is_half, lanes_of
from sparse24.kernels.cpu_batch import types_of
from sparse24.kernels.cpu_decode import decode_into, decoded
from sparse24.kernels.cpu_epilogue import finish
from sparse24.kernels.cpu_expanded import masks_of_codes
from sparse24.kernels.cpu_n_m_few import WORD, expand_rows
from sparse24.kernels.cpu_operand import Operand

# Bytes of the block that a thread expands at a time: the smaller one for few columns on one thread.
# More columns have larger sums, and several threads take turns with those of BLAS after each block
# (measured on two threads: 4096 x 4096 by one column takes half to two thirds of the time with the
# larger blocks).
_FEW_COLUMNS = 16
_BLOCK_BYTES, _LARGE_BYTES = 1 << 20, 1 << 22
_LEAST_ROWS = 16
_EXACT_ROWS = 1024  # products of two int8 whose sum float32 holds: 2**24 / 2**14


class Across:
    """``out = epilogue(A.T @ b)`` for one A (k, m) of values and metadata, and many `b` (k, n)."""

    pattern: tuple[int, int] = (_spec.KEPT, _spec.GROUP)

    def __init__(self, values: np.ndarray, metadata: np.ndarray, m: int, b: np.ndarray):
        self._dtype, self._b_dtype = types_of(values, b)
        self._values, self._metadata, self._m = values.view(self._dtype.storage), metadata, m
        self._accumulator = np.dtype(self._dtype.accumulator)
        exact = self._dtype.name == "int8"  # BLAS has no integers
        self._work = np.dtype(np.float32) if exact else self._accumulator
        self._half = (0,) if is_half(*self.pattern, self._work.itemsize) else ()
        self._read = None  # or A as `expand_rows` reads it
        if self._half or self._work.name in AVAILABLE:
            self._read = Operand(values, metadata, m, self._dtype, self._work)
        k, whole = len(values), self._width(m)
        alone = threads() == 1 and b.shape[1] <= _FEW_COLUMNS
        size = threads() * (_BLOCK_BYTES if alone else _LARGE_BYTES)
        high = max(_LEAST_ROWS, size // max(1, whole * self._work.itemsize))
        high = min(high, _EXACT_ROWS) if exact else high
        self._blocks = [slice(i, min(k, i + high)) for i in range(0, k, high)]
        self._shape = min(k, high), whole

    def __call__(self, b: np.ndarray, out: np.ndarray, epilogue: Fused) -> None:
        b = decoded(b, self._b_dtype, self._work)
        by_columns = not out.flags.c_contiguous  # as that of x @ A, and then its sums
        target = out.T if by_columns else out
        direct = epilogue is PLAIN and out.dtype == self._work and target.flags.carray
        sums = target if direct else np.empty(target.shape, self._accumulator)
        room, wide = self._rooms()
        for block in self._blocks:
            self._expand(block, room, wide)
            dense = wide[: block.stop - block.start, : self._m]
            pair = (b[block].T, dense) if by_columns else (dense.T, b[block])
            if block.start:
                sums += np.matmul(*pair).astype(sums.dtype, copy=False)
            elif sums.dtype == self._work:
                np.matmul(*pair, out=sums)
            else:
                sums[...] = np.matmul(*pair)
        if not direct:
            every = slice(0, out.shape[0]), slice(0, out.shape[1])
            finish(sums.T if by_columns else sums, out, epilogue, *every)

    def _rooms(self) -> tuple[np.ndarray, np.ndarray]:
        """Memory to expand a block in, and to convert it in for BLAS; the same if types agree."""
        if self._read is not None:
            wide = np.empty(self._shape, self._work)
            return wide, wide
        room = np.empty(self._shape, self._dtype.storage)
        same = self._dtype.logical == self._work
        return room, room.view(self._dtype.logical) if same else np.empty(self._shape, self._work)

    def _expand(self, block: slice, room: np.ndarray, wide: np.ndarray) -> None:
        """The dense rows of a block, in the type that BLAS multiplies."""
        work = 2 * room.nbytes
        parts = slices(block.stop - block.start, _LEAST_ROWS, work=work)

        def expand(number: int) -> None:
            here = parts[number]
            rows = slice(block.start + here.start, block.start + here.stop)
            self._expand_rows(rows, room[here], wide[here])

        parallel(expand, len(parts), work)

    def _expand_rows(self, rows: slice, room: np.ndarray, wide: np.ndarray) -> None:
        """Some rows of A in their parts of the rooms."""
        if self._read is not None:
            values, lanes = self._read.as_read(self._read.values[rows]), lanes_of(wide.itemsize)
            count = wide.shape[1] // lanes
            expand_rows(values, self._masks(rows), 0, len(wide), count, lanes, wide, self._half)
            return
        self._scatter(rows, room)
        if wide.dtype != self._dtype.logical:
            decode_into(room.view(self._dtype.logical), self._dtype, wide)

    def _masks(self, rows: slice) -> np.ndarray:
        """The columns of what some rows store, as `cpu_n_m_few.masks_of` gives them."""
        return masks_of_codes(self._metadata[rows], self._values.shape[1] // _spec.KEPT)

    def _scatter(self, rows: slice, room: np.ndarray) -> None:
        """Some rows of A dense."""
        codes = np.empty((len(room), self._shape[1] // _spec.GROUP), np.uint8)
        cpu_groups.split_codes(self._metadata[rows], codes)
        cpu_groups.scatter(self._values[rows].reshape(-1), codes.reshape(-1), room.reshape(-1))

    def _width(self, m: int) -> int:
        """Columns of a room for rows of `m`."""
        return -(-m // self._unit()) * self._unit()

    def _unit(self) -> int:
        """Columns that are expanded as a whole."""
        return _spec.GROUP if self._read is None else WORD


def prepared(values: np.ndarray, metadata: np.ndarray, m: int, b: np.ndarray) -> Across | None:
    """What repeats the product; None for arrays that it would have to copy, or nothing to add."""
    in_place = values.flags.carray and metadata.flags.carray
    return Across(values, metadata, m, b) if in_place and values.size and b.size else None


def matmul_across(
    values: np.ndarray,
    metadata: np.ndarray,
    m: int,
    b: np.ndarray,
    out: np.ndarray,
    epilogue: Fused = PLAIN,
) -> None:
    """Write ``epilogue(A.T @ b)`` into `out`.

    Parameters
    ----------
    values : ndarray, shape (k, values_per_row(m))
    metadata : ndarray of uint8, shape (k, metadata_bytes_per_row(m))
    m : int
        Columns of A.
    b : ndarray, shape (k, n), any strides
        Of a type that sums in the same type as `values`, or of floats beside int8.
    out : ndarray, shape (m, n), any strides and result type
    epilogue : Fused
        Its `c` and `aux` have the shape of `out`.
    """
    values, metadata = (np.require(x, requirements="CA") for x in (values, metadata))
    if b.size and values.size:
        Across(values, metadata, m, b)(b, out, epilogue)
        return
    sums = np.zeros(out.shape, types_of(values, b)[0].accumulator)
    finish(sums, out, epilogue, slice(0, len(out)), slice(0, out.shape[1]))
