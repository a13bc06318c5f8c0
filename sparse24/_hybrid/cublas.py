"""How long the dense product by cuBLAS is expected to take."""

from __future__ import annotations

import functools
import math

from sparse24 import _dtypes
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid.few_columns import ITEMSIZE
from sparse24._hybrid.lines import line_of
from sparse24.kernels.chip import Chip

SHORT_FROM = {False: 64, True: 256}  # columns beyond which all operands count, of small matrices
# cuBLAS in float32 by up to 64 columns, whose tiles have at least 32: seconds as of that many more.
NARROW, NARROW_TILE, NARROW_MORE = 64, 32, 24


def dense_time(
    shape: tuple[int, int], dtype: _dtypes.DType, n: int, lines, device: Chip, density: float
) -> float:
    """Seconds of cuBLAS; of int8 those of copies that lie along k, too."""
    size = math.prod(shape)
    line = functools.partial(line_of, lines, n=n)
    if dtype.name == "int8":
        return line("int8").seconds(size * n, size)
    nbytes = size * dtype.itemsize
    if dtype.itemsize > ITEMSIZE:
        return _plain_time(shape, n, dtype.itemsize, lines)
    small = size < hybrid_lines.SMALL
    few = line("small" if small else "cublas").seconds(shape[1], nbytes)
    work = hybrid_cost.dense_work(*shape, n, device.multiprocessors, density)
    if n > SHORT_FROM[small]:
        moved = nbytes + sum(shape) * n * dtype.itemsize
        few = max(few, line("short").seconds(0, moved))
    return max(few, line("dense").seconds(work, 0))


def _plain_time(shape: tuple[int, int], n: int, itemsize: int, lines) -> float:
    """Seconds of cuBLAS in float32 and float64."""
    bits, size, k = 8 * itemsize, math.prod(shape), shape[1]
    nbytes = size * itemsize
    if n == 1:
        return line_of(lines, f"vector{bits}", n).seconds(0, nbytes)
    walk, plain = line_of(lines, f"walk{bits}", n), line_of(lines, f"plain{bits}", n)
    seconds = walk.seconds(k, 0) + max(walk.byte * nbytes, plain.seconds(size * n, 0))
    if bits == 32 and n <= NARROW:
        columns = max(n, NARROW_TILE) + NARROW_MORE
        seconds = max(seconds, plain.seconds(size * columns, 0))
    return seconds
