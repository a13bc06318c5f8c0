"""Problems for the planner."""

from __future__ import annotations

from sparse24._records import Problem

KEY = {"format": 1, "gpu": "test"}  # of a tuning file


def problem(m=4096, n=4096, k=4096, dtype="bfloat16", **more):
    out = {"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(dtype, dtype)
    return Problem(m, n, k, 1, dtype, dtype, out, **{"b_order": "column", **more})
