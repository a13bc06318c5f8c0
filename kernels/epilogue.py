"""Host side of ``cuda/include/epilogue.cuh``: the macros and the parameter block.

The same order of operations in NumPy is `reference.apply_epilogue`.
"""

from __future__ import annotations

import numpy as np

from sparse24._records import Epilogue
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


def bits(epilogue: Epilogue) -> int:
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


def defines(epilogue: Epilogue) -> tuple[tuple[str, int], ...]:
    """The macros that specialise a kernel for this epilogue."""
    return (
        ("EPILOGUE", bits(epilogue)),
        ("ACTIVATION", ACTIVATIONS.index(epilogue.activation)),
    )


def params(epilogue: Epilogue) -> np.ndarray:
    """The parameter block, an array of size 1 that CuPy passes by value.

    Arrays are CuPy arrays; `c` and `aux` are (batch, m, n) or (m, n).
    """
    if epilogue.is_plain:
        return NO_PARAMS
    block = np.zeros(1, PARAMS)
    for name in ("alpha", "beta", "lower", "upper", "out_scale"):
        block[name] = getattr(epilogue, name)
    for name in ("row_scale", "column_scale", "row_bias", "column_bias"):
        vector = getattr(epilogue, name)
        if vector is not None:
            block[name] = vector.data.ptr
    for name in ("c", "aux"):
        matrix = getattr(epilogue, name)
        if matrix is not None:
            block[name] = matrix.data.ptr
            *batch, row, column = (stride // matrix.dtype.itemsize for stride in matrix.strides)
            block[f"{name}_row"], block[f"{name}_column"] = row, column
            block[f"{name}_batch"] = batch[0] if batch and matrix.shape[0] > 1 else 0
    return loader.by_value(block)
