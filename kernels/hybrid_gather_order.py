"""Launch ``cuda/hybrid_gather_order.cu``: the words of the gather kernel, in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._arrays import cupy_module
from sparse24.kernels import loader
from sparse24.kernels.hybrid_gather_plan import PANEL

NAME = "hybrid_gather_order"
WARPS = 4  # of a block
LANES, BANKS = 32, 32
STEP = 4  # words of a lane that are read together
WARP_BYTES = LANES * PANEL // 8 + LANES * BANKS + 2 * LANES  # masks, counts and columns
MATRIX = np.dtype([("bits", "u8"), ("m", "i8"), ("k", "i8"), ("pitch", "i8")])
WORDS = np.dtype(
    [
        ("words", "u8"), ("begins", "u8"), ("heights", "u8"), ("rows", "u8"), ("units", "i4"),
        ("panels", "i4"), ("height", "i4"), ("unused", "i4"),
    ]
)  # fmt: skip


def order(bits: Any, rows: Any, heights: Any, begins: Any) -> Any:
    """The words of a dense (m, k) CuPy matrix of bits, for units as in the kernel's header.

    Enqueued on the current stream; `begins`, `heights` and `rows` are int32.
    """
    words = cupy_module().empty(int(begins[-1]) * LANES * STEP, np.uint32)
    if words.size:
        bits = cupy_module().ascontiguousarray(bits)
        units, parts = heights.size, begins.size - 1
        shared = WARPS * WARP_BYTES
        kernel = loader.function(NAME, "order", (("WARPS", WARPS),), shared_memory=shared)
        matrix = np.array([(bits.data.ptr, *bits.shape, bits.shape[1])], MATRIX)
        addresses = (x.data.ptr for x in (words, begins, heights, rows))
        sizes = (units, parts // units, rows.size // units, 0)
        result = np.array([(*addresses, *sizes)], WORDS)
        arguments = (loader.by_value(matrix), loader.by_value(result))
        kernel((-(-parts // WARPS),), (32 * WARPS,), arguments, shared_mem=shared)
    return words


COMPILE_CHECKS = [((("WARPS", WARPS),), arch, "REDUX") for arch in ("sm_90a", "sm_120")]
