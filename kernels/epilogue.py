"""Host side of ``cuda/include/epilogue.cuh``: the macros and the parameter block.

The same order of operations in NumPy is `reference.apply_epilogue`.
"""

from __future__ import annotations

import struct

import numpy as np

from sparse24._records import PLAIN, Fused
from sparse24.kernels import loader

ALPHA, C, ROW_SCALE, COLUMN_SCALE, ROW_BIAS, COLUMN_BIAS, ACTIVATION, OUT_SCALE, AUX = (
    1 << bit for bit in range(9)
)
ACTIVATIONS = ("identity", "relu", "relu2", "gelu", "gelu_tanh", "silu")

PARAMS = np.dtype(
    [
        ("alpha", "f8"), ("beta", "f8"), ("lower", "f8"), ("upper", "f8"), ("out_scale", "f8"),
        ("c", "u8"), ("c_row", "i8"), ("c_column", "i8"), ("c_batch", "i8"),
        ("aux", "u8"), ("aux_row", "i8"), ("aux_column", "i8"), ("aux_batch", "i8"),
        ("row_scale", "u8"), ("column_scale", "u8"), ("row_bias", "u8"), ("column_bias", "u8"),
    ]
)  # fmt: skip
NO_PARAMS = loader.by_value(np.zeros(1, PARAMS))
_pack = struct.Struct("=5dQ3qQ3q4Q").pack  # PARAMS, ten times as fast as filling its fields


def bits(epilogue: Fused) -> int:
    """The value of the macro EPILOGUE."""
    return (
        ALPHA * (epilogue.alpha != 1.0)
        | C * (epilogue.c is not None and epilogue.beta != 0.0)
        | ROW_SCALE * (epilogue.row_scale is not None)
        | COLUMN_SCALE * (epilogue.column_scale is not None)
        | ROW_BIAS * (epilogue.row_bias is not None)
        | COLUMN_BIAS * (epilogue.column_bias is not None)
        | ACTIVATION * (epilogue.activation != "identity")
        | OUT_SCALE * (epilogue.out_scale != 1.0)
        | AUX * (epilogue.aux is not None)
    )


def defines(epilogue: Fused) -> tuple[tuple[str, int], ...]:
    """The macros that specialise a kernel for this epilogue."""
    return (
        ("EPILOGUE", bits(epilogue)),
        ("ACTIVATION", ACTIVATIONS.index(epilogue.activation)),
    )


def skeleton(epilogue: Fused) -> Fused:
    """The epilogue with marks for its arrays and factors: all that a kernel is compiled for."""
    if epilogue is PLAIN:
        return PLAIN
    e = epilogue
    factor = lambda x: 1.0 if x == 1.0 else 2.0  # noqa: E731
    arrays = (e.row_scale, e.column_scale, e.row_bias, e.column_bias)
    return Fused(  # type: ignore[call-arg, misc]
        factor(e.alpha), float(e.beta != 0.0), _mark(e.c), *map(_mark, arrays), e.activation,  # type: ignore[arg-type]
        out_scale=factor(e.out_scale), aux=_mark(e.aux),
    )  # fmt: skip


def _mark(array) -> bool | None:
    return None if array is None else True


def params(epilogue: Fused) -> np.ndarray:
    """The parameter block, an array of size 1 that CuPy passes by value.

    Arrays are CuPy arrays; `c` and `aux` are (batch, m, n) or (m, n).
    """
    if epilogue.is_plain:
        return NO_PARAMS
    e = epilogue
    vectors = (e.row_scale, e.column_scale, e.row_bias, e.column_bias)
    block = _pack(
        e.alpha, e.beta, e.lower, e.upper, e.out_scale, *_matrix(e.c), *_matrix(e.aux),
        *(0 if vector is None else vector.data.ptr for vector in vectors),
    )  # fmt: skip
    return np.frombuffer(block, f"V{PARAMS.itemsize}")


def _matrix(x) -> tuple[int, int, int, int]:
    """Address, and strides in elements: row, column, batch."""
    if x is None:
        return 0, 0, 0, 0
    *batch, row, column = (stride // x.dtype.itemsize for stride in x.strides)
    return x.data.ptr, row, column, batch[0] if batch and x.shape[0] > 1 else 0
