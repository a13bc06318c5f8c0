"""The layouts that multiply the matrix as one 2:4 matrix and what it leaves out, or as two."""

from __future__ import annotations

from typing import Any

from sparse24 import _arrays, _product
from sparse24._hybrid.layouts import MOST_BLOCKS
from sparse24._hybrid.staged import by_rows
from sparse24._options import NO_OPTIONS
from sparse24._records import Operand24
from sparse24._spec import GROUP, KEPT


class TwoFour:
    """A 2:4 matrix of the first two elements of each group, and a list of the others.

    Called with ``(b, out)``, it multiplies.
    """

    captured = False  # a graph would not keep a copy of b

    def __init__(self, h):
        from sparse24.kernels import hybrid_overflow

        bits, xp = h.toarray().view(h._dtype.storage), _arrays.cupy_module()
        first, rest = _parted(bits, xp)
        self._main = _Product(bits, first, h)
        self._overflow = hybrid_overflow.prepare(bits * rest, h._dtype, xp)
        self._grids = in_grids(self._overflow)

    def __call__(self, b, out) -> None:
        from sparse24.kernels import hybrid_overflow

        self._main.multiply(b, out)
        if not self._grids:
            return
        rows = _by_rows(b)
        for overflow in self._grids:
            hybrid_overflow.add(overflow, rows, out)

    @property
    def nbytes(self) -> int:
        return self._main.nbytes + self._overflow.nbytes


class Twice:
    """Two 2:4 matrices whose sum is the matrix: the first two elements of groups, and the others.

    Called with ``(b, out)``, it multiplies by both and adds, which would round sums of 16 bits
    once more.
    """

    captured = False  # a graph would not keep the second product

    def __init__(self, h):
        bits, xp = h.toarray().view(h._dtype.storage), _arrays.cupy_module()
        self._first, self._second = (_Product(bits, kept, h) for kept in _parted(bits, xp))

    def __call__(self, b, out) -> None:
        self._first.multiply(b, out)
        if out.dtype.kind == "f":
            self._second.multiply(b, out, NO_OPTIONS._replace(c=out, beta=1.0))
        else:  # a kernel would add in float32, which rounds large integers
            rest = _arrays.cupy_module().empty_like(out)  # by columns as well
            self._second.multiply(b, rest)
            _add(rest, out)

    @property
    def nbytes(self) -> int:
        return self._first.nbytes + self._second.nbytes


class _Product:
    """The elements of a matrix that a mask keeps, two of each group of four, as a 2:4 matrix."""

    def __init__(self, bits, kept, h):
        from sparse24.kernels import compress

        record, _ = compress.launch(bits.view(h.dtype), h._dtype, rule="mask", mask=kept)
        self._operand = Operand24(record, None, None, h.shape, h._dtype)
        self._plans: dict[tuple, Any] = {}

    def multiply(self, b, out, call=NO_OPTIONS) -> None:
        _product.multiply(self._operand, b, out, call, self._plans)

    @property
    def nbytes(self) -> int:
        from sparse24.kernels import pieces

        record = self._operand.stored
        arrays = (record.values, record.metadata, record.packed, *pieces.kept(record))
        return sum(x.nbytes for x in arrays if x is not None)


def _parted(bits, xp):
    """Masks of an (m, k) matrix: the first two non-zeros of each group of four, and all others."""
    m, k = bits.shape
    held = xp.pad(bits != 0, ((0, 0), (0, -k % GROUP))).reshape(m, -1, GROUP)
    first = held & (xp.cumsum(held, axis=2, dtype=xp.int8) <= KEPT)
    parts = (part.reshape(m, -1)[:, :k] for part in (first, held & ~first))
    return tuple(map(xp.ascontiguousarray, parts))


def _add(rest, out) -> None:
    """out += rest, along the axis that is contiguous in both."""
    here, there = (rest, out) if by_rows(out) else (rest.T, out.T)
    there += here


def _by_rows(b):
    """b, or a copy of it whose rows are contiguous."""
    from sparse24.kernels import transpose

    if by_rows(b):
        return b
    if transpose.takes(b.T):
        return transpose.launch(b.T).T
    return _arrays.namespace(b).ascontiguousarray(b)


def in_grids(overflow) -> list:
    """Parts of an `Overflow` with rows for one grid each; their elements are the same arrays."""
    from sparse24.kernels.hybrid_overflow import THREADS, WARP, Overflow

    most = MOST_BLOCKS * (THREADS // WARP)  # a warp adds a row
    return [
        Overflow(overflow.dtype, overflow.rows[i : i + most], overflow.starts[i : i + most + 1],
                 overflow.columns, overflow.values)
        for i in range(0, overflow.rows.size, most)
    ]  # fmt: skip
