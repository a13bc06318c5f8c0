"""Products of block-hybrid matrices on the CPU, row by row of their non-zeros.

With several columns `b` is first copied into *panels*, a few machine vectors wide, as for 2:4
matrices (``cpu_operand.py``); the sums of a row of a panel stay in registers (``_simd.tile``).
Where so few non-zeros read `b` that the copy would be most of the work, whole rows of `b` are
added up instead.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _dtypes
from sparse24._dtypes import DType
from sparse24.kernels import _simd
from sparse24.kernels._numba import WAKING, njit, parallel, slices
from sparse24.kernels._simd import tile
from sparse24.kernels.cpu_decode import decoded
from sparse24.kernels.cpu_epilogue import store
from sparse24.kernels.cpu_operand import STEP, give_back, pack_panels, widths
from sparse24.kernels.cpu_turn import in_c_order

_LEAST_ROWS = 16  # of a task
_LEAST_WORK = 4  # multiplications that take as long as to find and read one non-zero
# Non-zeros for each row of b, and of the result, up to which rows of b are added up (measured:
# 0.9 to 6 times as fast as panels; with four times as many, half as fast to 1.7 times), and
# multiplications up to which only the calls show.
_FEW_OF_B, _FEW_OF_OUT = 4, 1.5
_SMALL = 1 << 15
_SLOW = 1 << 12  # float16 that NumPy widens in more time than a call takes
_0, _1, _2, _3, _4, _5, _6, _7, _SUMS = (np.uint64(x) for x in range(9))


class Rows:
    """The non-zeros of a matrix row by row, in the accumulator's type: what products read."""

    def __init__(
        self, starts: np.ndarray, columns: np.ndarray, bits: np.ndarray, dtype: DType,
        *, shared: bool = False,
    ):  # fmt: skip
        """Rows as `cpu_hybrid_held.held` gives them; bytes `shared` with the matrix count there."""
        self.starts, self.columns = starts, columns
        self.values = bits.view(dtype.logical).astype(dtype.accumulator, copy=False)
        own = (self.starts, self.columns, self.values)
        self.nbytes = sum(x.nbytes for x in own if not (shared and self._is_given(x, bits)))

    def _is_given(self, x: np.ndarray, bits: np.ndarray) -> bool:
        return x is not self.values or np.shares_memory(x, bits)


@njit
def _multiply_vector(starts, columns, values, b, first, last, out):
    """``out[first:last] = rows @ b``: eight sums a row, which hide latency and round less.

    Of every signed index Numba asks whether it counts from the end: as long as all else together.
    A short row, of which the other sums would be zeros, has one: graphs have little else.
    """
    zero = out.dtype.type(0)
    end = np.uint64(starts[first])
    for row in range(np.uint64(first), np.uint64(last)):
        begin, end = end, np.uint64(starts[row + _1])
        if end - begin < _SUMS:
            s0 = zero
            for e in range(begin, end):
                s0 += values[e] * b[columns[e]]
            out[row, _0] = s0
            continue
        whole = end - (end - begin) % _SUMS
        s0, s1, s2, s3 = zero, zero, zero, zero
        s4, s5, s6, s7 = zero, zero, zero, zero
        for e in range(begin, whole, _SUMS):
            s0 += values[e] * b[columns[e]]
            s1 += values[e + _1] * b[columns[e + _1]]
            s2 += values[e + _2] * b[columns[e + _2]]
            s3 += values[e + _3] * b[columns[e + _3]]
            s4 += values[e + _4] * b[columns[e + _4]]
            s5 += values[e + _5] * b[columns[e + _5]]
            s6 += values[e + _6] * b[columns[e + _6]]
            s7 += values[e + _7] * b[columns[e + _7]]
        for e in range(whole, end):
            s0 += values[e] * b[columns[e]]
        out[row, _0] = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))


@njit
def _add_rows(starts, columns, values, b, first, last, out):
    """``out[first:last] = rows @ b``, both in C order, four rows of `b` at a time.

    They are flat here: to find a row of a matrix takes as long as to add one of a few columns.
    """
    n = np.uint64(out.shape[1])
    flat, sums = b.reshape(b.size), out.reshape(out.size)
    sums[first * n : last * n] = 0
    for row in range(np.uint64(first), np.uint64(last)):
        begin, end = np.uint64(starts[row]), np.uint64(starts[row + _1])
        whole, to = end - (end - begin) % _4, row * n
        for e in range(begin, whole, _4):
            v0, v1, v2, v3 = values[e], values[e + _1], values[e + _2], values[e + _3]
            r0, r1 = n * columns[e], n * columns[e + _1]
            r2, r3 = n * columns[e + _2], n * columns[e + _3]
            for c in range(n):
                two = v0 * flat[r0 + c] + v1 * flat[r1 + c]
                sums[to + c] += two + (v2 * flat[r2 + c] + v3 * flat[r3 + c])
        for e in range(whole, end):
            value, r = values[e], n * columns[e]
            for c in range(n):
                sums[to + c] += value * flat[r + c]


@njit
def _multiply_panels(starts, columns, values, panels, first, last, out, step, shape):
    """``out[first:last] = rows @ b`` for the columns of the panels; `shape` as for `_simd.tile`."""
    width = len(shape[1])
    flat = panels.reshape(panels.size)
    high = panels.shape[1] * width
    held = np.zeros((1, width), out.dtype)
    for j in range(panels.shape[0]):
        wide = min(width, out.shape[1] - j * width)
        for row in range(first, last):
            begin, end = starts[row], starts[row + 1]
            if begin == end:
                held[:] = 0
            for start in range(begin, end, step):
                count = min(step, end - start)
                tile(
                    values, start, 0, columns, start, 0, count, flat, j * high, held, 0,
                    start > begin, held, 0, 0, 0, shape,
                )  # fmt: skip
            for c in range(wide):
                out[row, j * width + c] = held[0, c]


def matmul(rows: Rows, b: np.ndarray, out: np.ndarray) -> None:
    """out = rows @ b, with `b` (k, n) and `out` (m, n) in the accumulator's dtype.

    Each element is summed in the same order, whatever the threads.
    """
    m, n = out.shape
    if not b.size:
        out[:] = 0
        return
    work, parts = rows.values.size * max(n, _LEAST_WORK), []
    if n == 1:
        arguments = rows.starts, rows.columns, rows.values, np.ascontiguousarray(b[:, 0])
        if work < WAKING:  # 2 us less than one block by way of `parallel`
            _multiply_vector(*arguments, 0, m, out)
            return

        def task(i: int) -> None:
            _multiply_vector(*arguments, blocks[i].start, blocks[i].stop, out)
    elif _few(rows.values.size, b, out):
        arguments = rows.starts, rows.columns, rows.values, np.require(in_c_order(b), None, "A")
        sums = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)

        def task(i: int) -> None:
            _add_rows(*arguments, blocks[i].start, blocks[i].stop, sums)
            if sums is not out:
                out[blocks[i]] = sums[blocks[i]]
    else:
        parts = _parts(b)

        def task(i: int) -> None:
            first, last = blocks[i].start, blocks[i].stop
            for here, panels, shape in parts:
                _multiply_panels(
                    rows.starts, rows.columns, rows.values, panels, first, last,
                    out[:, here], STEP, shape,
                )  # fmt: skip

    blocks = slices(m, _LEAST_ROWS, work=work)
    parallel(task, len(blocks), work)
    for _, panels, _ in reversed(parts):  # the largest is taken first
        give_back(panels)


def _few(count: int, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether the product of so many non-zeros adds up rows of `b`."""
    (m, n), k = out.shape, b.shape[0]
    return count <= _FEW_OF_B * k + _FEW_OF_OUT * m or count * n <= _SMALL


def multiply(held: Rows | np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """Write ``held @ b`` into `out`, both of the matrix's own types and in any memory order.

    `held` may also be the dense matrix in the accumulator's type, which BLAS multiplies.
    """
    work = (held if isinstance(held, np.ndarray) else held.values).dtype
    wide = b
    if b.dtype != work:  # NumPy widens other types as fast
        slow = b.dtype == np.float16 and b.size > _SLOW
        wide = decoded(b, _dtypes.lookup(b.dtype), work) if slow else b.astype(work)
    if out.dtype == work:
        _multiply_wide(held, wide, out)
        return
    sums = np.empty(out.shape, work)
    _multiply_wide(held, wide, sums)
    store(sums, out)


def _multiply_wide(held: Rows | np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    if isinstance(held, np.ndarray):
        with np.errstate(over="ignore", invalid="ignore"):  # as quiet as the loops here
            np.matmul(held, b, out=out)
    else:
        matmul(held, b, out)


def _parts(b: np.ndarray) -> list[tuple[slice, np.ndarray, tuple]]:
    """Columns, panels, and the shape of a tile of one row."""
    parts = []
    for first, columns, vectors in widths(b.shape[1], b.dtype.itemsize):
        width = vectors * _simd.VECTOR_BYTES // b.dtype.itemsize
        here = slice(first, first + columns)
        parts.append((here, pack_panels(b[:, here], b.shape[0], width), ((0,), (0,) * width)))
    return parts
