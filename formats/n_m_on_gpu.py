"""Products of n:m arrays on a GPU: cuBLAS, for each of which the matrix is made dense."""

from __future__ import annotations

from typing import Any

from sparse24 import _product, _ready_cpu, _replay
from sparse24._options import NO_OPTIONS
from sparse24._records import PLAIN, Operand24, Problem
from sparse24.formats import n_m_parts


def multiply(array: Any, x: Any, result: str, *, left: bool) -> Any:
    """``array @ x``, or ``x @ array``, in the type `result`, with NumPy's rules for shapes."""
    dense = Operand24(None, None, array.toarray(), array.shape, array._dtype)
    call = NO_OPTIONS._replace(dtype=result)
    return _product.multiply(dense, x, None, call, from_left=not left)


def prepared(array: Any, x: Any, product: Any, result: str, *, left: bool) -> Any:
    """What repeats the product of a matrix with a CuPy matrix or vector of its type.

    `product` is that of the first call, as the caller got it.
    """
    from sparse24.kernels import dense

    m, k = array.shape if left else array.shape[::-1]
    n = 1 if x.ndim == 1 else x.shape[1 if left else 0]
    name = array._dtype.name
    launch = dense.prepare(Problem(m, n, k, 1, name, name, result), dense.Config(), PLAIN)
    lay = _ready_cpu.as_matrices(vector=x.ndim == 1, transposed=not left)
    # Not the array itself, which keeps this, and would be freed late.
    stored = array._values, array._indices, array._dtype, array.pattern, array._rows_shape[-1]
    transposed = (array.axis == -1) != left  # against the matrix that is multiplied

    def run(x: Any, out: Any) -> None:
        rows = n_m_parts.decompress(*stored)
        launch(rows.T if transposed else rows, *(lay(x, out) if lay else (x, out)), PLAIN)

    return _replay.of_arrays(run, product)
