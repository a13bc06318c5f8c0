"""What whole products of hybrid matrices take on a GPU: three numbers a path and class of columns.

Measured on an H200 and an H100, and chosen by the device's name.  On other GPUs the numbers of the
H200 are scaled by what the driver says of the chip, so that they rank the paths about right.
`sparse24._hybrid.fit.fit` measures those of the GPU in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sparse24 import _chip_facts


@dataclass(frozen=True)
class Line:
    """Seconds of a product: ``fixed + element * (elements) + byte * (bytes)``."""

    fixed: float
    element: float
    byte: float

    def seconds(self, elements: float, nbytes: float) -> float:
        return self.fixed + self.element * elements + self.byte * nbytes


# "path/columns": the line of a path for products with up to that many columns, of 16-bit elements;
# "panel" is for float32, "panel16" for 16 bits, "panel64" for float64, and "base" is scatter with
# 2:4 tiles.  What counts as elements and bytes differs:
#
# path                  elements                                      bytes
# stream                of the matrix, zeros too                      read of the matrix
# cublas, small, walk   of a row                                      read of the matrix
# rows, gather          non-zeros and padding                         read of the matrix
# scatter, base         cycles of shared memory                       read of the matrix
# panels                multiply-adds                                 all that are read
# csr                   bytes of b that non-zeros read                of all operands
# slots, regrouped      multiply-adds                                 gathered of b
# overflow              elements left out, times columns              of the result
#
# The dense product is the longest of several: "cublas", or "small" for a matrix of fewer than
# SMALL elements; with more than 64 columns, of a small matrix 256, "short", by the bytes of all
# operands; and "dense", by multiply-adds as `dense_work` counts them.  Of float32 ("32") and
# float64 ("64") it is "vector" for one column, and else the elements of a row by "walk" and the
# longer of its bytes and the multiply-adds of "plain"; of int8 "int8", by multiply-adds and the
# bytes of the matrix.  "tiles" is by multiply-adds and bytes of the stored tiles; "copy" by the
# bytes that a copy of b reads and writes.
SMALL = 1 << 23
COLUMN_CLASSES = {
    "stream": (8, 16, 32, 64),
    "scatter": (8, 16, 32, 64, 96, 128), "base": (8, 16, 32, 64, 128),
    "gather": (1, 2, 4, 8, 16),
    "panel16": (8, 64, 512), "panel": (1, 8, 64, 512), "panel64": (1, 8, 64, 512),
    "csr": (1, 8, 64, 512), "rows": (1, 2, 4), "rows32": (1, 2, 4), "rows64": (1, 2, 4),
    "slots": (128, 256, 512, 2048), "regrouped": (128, 256, 512, 2048), "overflow": (512,),
    "cublas": (8, 32, 64, 120, 128, 192, 256), "small": (512,), "short": (512,), "dense": (512,),
    "vector32": (1,), "vector64": (1,), "walk32": (512,), "walk64": (512,),
    "plain32": (512,), "plain64": (512,), "int8": (512,), "tiles": (512,), "copy": (512,),
}  # fmt: skip
# By bytes of an element.
PANEL_LINES = {2: "panel16", 4: "panel", 8: "panel64"}
ROWS_LINES = {1: "rows", 2: "rows", 4: "rows32", 8: "rows64"}

# docs/benchmarks/log_hybrid.rst and hybrid.json; "panel16/8" is 1.6 times what `hybrid_panel_plan`
# expects.  For small matrices, scatter and the products of float32 and float64 are fitted to times
# of the H100, and were right when the H200 ran them.
H200_LINES = {
    "stream/8": Line(4.95e-6, 1.38e-13, 1.535e-13),
    "stream/16": Line(6.03e-6, 1.783e-13, 1.273e-13),
    "stream/32": Line(7.77e-6, 1.71e-13, 1.409e-13),
    "stream/64": Line(8.35e-6, 3.107e-13, 1.192e-13),
    "scatter/8": Line(9.85e-7, 5.88e-10, 0.0),
    "scatter/16": Line(9.49e-7, 6.32e-10, 0.0),
    "scatter/32": Line(9.8e-7, 5.38e-10, 4.01e-14),
    "scatter/64": Line(1.0e-6, 4.52e-10, 9.08e-14),
    "scatter/96": Line(1.3e-6, 5.07e-10, 8.6e-14),
    "scatter/128": Line(2.06e-6, 4.76e-10, 7.11e-14),
    "base/8": Line(7.54e-7, 6.19e-10, 7.88e-14),
    "base/16": Line(7e-7, 7.22e-10, 5.76e-14),
    "base/32": Line(5e-7, 6.9e-10, 2.46e-14),
    "base/64": Line(1.1e-6, 5e-10, 2.29e-14),
    "base/128": Line(1.63e-6, 5.73e-10, 0.0),
    "gather/1": Line(1.6e-6, 0.0, 2.28e-13),
    "gather/2": Line(1.67e-6, 0.0, 2.26e-13),
    "gather/4": Line(1.78e-6, 0.0, 2.31e-13),
    "gather/8": Line(2.6e-6, 0.0, 2.32e-13),
    "gather/16": Line(3.45e-6, 0.0, 4.6e-13),
    "panel/1": Line(1.43e-6, 0.0, 6.04e-13),
    "panel/8": Line(1.2e-6, 0.0, 4.71e-13),
    "panel/64": Line(2.58e-6, 0.0, 2.3e-13),
    "panel/512": Line(2.18e-6, 3.05e-14, 2.52e-13),
    "panel64/1": Line(1.13e-6, 1.91e-12, 4.96e-13),
    "panel64/8": Line(1.8e-6, 0.0, 6.24e-13),
    "panel64/64": Line(2.95e-6, 5.32e-14, 2.74e-13),
    "panel64/512": Line(3.81e-6, 0.0, 2.66e-13),
    "panel16/8": Line(8.4e-6, 3.15e-14, 2.7e-13),
    "panel16/64": Line(8.14e-6, 8.29e-14, 6.46e-14),
    "panel16/512": Line(4.83e-6, 8.6e-14, 1.25e-13),
    "csr/1": Line(1.46e-6, 5.0e-15, 7.3e-13),
    "csr/8": Line(1.93e-6, 2.15e-13, 1.07e-13),
    "csr/64": Line(1.78e-6, 8e-14, 4.5e-13),
    "csr/512": Line(1.94e-6, 1.05e-13, 1.7e-13),
    "rows/1": Line(2.09e-6, 0.0, 3.6e-13),
    "rows/2": Line(2.73e-6, 0.0, 6.14e-13),
    "rows/4": Line(2.43e-6, 0.0, 5.63e-13),
    "rows32/1": Line(1.8e-6, 0.0, 2.27e-13),
    "rows32/2": Line(2.15e-6, 0.0, 2.32e-13),
    "rows32/4": Line(2.65e-6, 0.0, 3.31e-13),
    "rows64/1": Line(1.91e-6, 0.0, 2.07e-13),
    "rows64/2": Line(2.14e-6, 0.0, 2.24e-13),
    "rows64/4": Line(2.85e-6, 0.0, 4.9e-13),
    "slots/128": Line(0.0, 1.79e-15, 2.2e-14),
    "slots/256": Line(0.0, 1.79e-15, 2.2e-14),
    "slots/512": Line(0.0, 1.79e-15, 2.2e-14),
    "slots/2048": Line(0.0, 1.79e-15, 2.2e-14),
    "regrouped/128": Line(0.0, 1.99e-15, 0.0),
    "regrouped/256": Line(0.0, 1.99e-15, 0.0),
    "regrouped/512": Line(0.0, 1.99e-15, 0.0),
    "regrouped/2048": Line(0.0, 1.99e-15, 0.0),
    "overflow/512": Line(2.27e-6, 2.38e-13, 2.02e-13),
    "cublas/8": Line(5.4e-6, 0.0, 2.54e-13),
    "cublas/32": Line(5.7e-6, 0.0, 2.48e-13),
    "cublas/64": Line(4.15e-6, 0.0, 2.49e-13),
    "cublas/120": Line(6e-7, 1.6e-9, 2.22e-13),
    "cublas/128": Line(4.15e-6, 0.0, 2.49e-13),
    "cublas/192": Line(4.15e-6, 0.0, 2.49e-13),
    "cublas/256": Line(4.15e-6, 0.0, 2.49e-13),
    "small/512": Line(2.75e-6, 1.45e-9, 1.65e-13),
    "short/512": Line(3.6e-6, 0.0, 2.4e-13),
    "dense/512": Line(0.0, 2.82e-15, 0.0),
    "vector32/1": Line(3.2e-6, 0.0, 3.4e-13),
    "vector64/1": Line(5.5e-6, 0.0, 3.2e-13),
    "walk32/512": Line(7e-6, 3e-9, 2.9e-13),
    "walk64/512": Line(4.5e-6, 1.3e-9, 3e-13),
    "plain32/512": Line(0.0, 4e-14, 0.0),
    "plain64/512": Line(0.0, 3.3e-14, 0.0),
    "int8/512": Line(1e-5, 1.4e-15, 2.5e-13),
    "tiles/512": Line(0.0, 2e-13, 2.5e-13),
    "copy/512": Line(3e-6, 0.0, 2.5e-13),
}
# `fit` on an H100.  The dense product, gather, scatter and strips are fitted anew to 444 times by
# 96 to 4096 columns and to its hybrid.json; "slots/128", "slots/512", "regrouped/256" and rows by 1
# and 2 columns are then set by hand (docs/benchmarks/log_hybrid.rst, "An H100").  What is not here
# is as on an H200; "short", "int8", "tiles" and "copy" are, too, but their bytes, which are scaled
# by the bandwidth of copies.  Scatter, "small", and the panels of float32 and float64 are fitted to
# matrices from 384 x 384 on.
H100_LINES = H200_LINES | {
    "stream/8": Line(4.58e-6, 1.18e-13, 2.68e-13),
    "stream/16": Line(5.66e-6, 1.62e-13, 2.37e-13),
    "stream/32": Line(7.88e-6, 1.43e-13, 2.44e-13),
    "stream/64": Line(8.77e-6, 2.74e-13, 2.14e-13),
    "scatter/8": Line(9.71e-7, 5.57e-10, 2.64e-14),
    "scatter/16": Line(9.62e-7, 6.12e-10, 2.61e-14),
    "scatter/32": Line(1.19e-6, 5.27e-10, 6.24e-14),
    "scatter/64": Line(1.48e-6, 4.56e-10, 1.04e-13),
    "scatter/96": Line(1.3e-6, 5.48e-10, 5.6e-14),
    "scatter/128": Line(2.08e-6, 4.73e-10, 8.01e-14),
    "base/8": Line(2.43e-7, 6.36e-10, 1.61e-13),
    "base/16": Line(3.45e-7, 6.81e-10, 1.45e-13),
    "base/32": Line(4.88e-7, 6.25e-10, 1.3e-13),
    "base/64": Line(1.03e-6, 5.03e-10, 9.61e-14),
    "base/128": Line(1.49e-6, 5.82e-10, 1.58e-14),
    "gather/1": Line(1.41e-6, 0.0, 3.47e-13),
    "gather/2": Line(1.56e-6, 0.0, 3.52e-13),
    "gather/4": Line(1.83e-6, 0.0, 3.53e-13),
    "gather/8": Line(2.96e-6, 0.0, 3.45e-13),
    "gather/16": Line(1.34e-5, 0.0, 4.07e-13),
    "panel/8": Line(1.43e-6, 3.2e-13, 2.67e-13),
    "panel/64": Line(2.7e-6, 0.0, 2.6e-13),
    "panel/512": Line(3.65e-6, 8.36e-14, 1.57e-13),
    "panel64/64": Line(3.02e-6, 0.0, 2.81e-13),
    "panel64/512": Line(4.01e-6, 0.0, 2.62e-13),
    "rows/1": Line(2.7e-6, 0.0, 4.8e-13),
    "rows/2": Line(3.56e-6, 0.0, 4.6e-13),
    "rows/4": Line(4.23e-6, 0.0, 5.55e-13),
    "slots/128": Line(0.0, 2.3e-15, 0.0),
    "slots/256": Line(0.0, 1.89e-15, 0.0),
    "slots/512": Line(4.5e-6, 1.81e-15, 9.6e-15),
    "slots/2048": Line(2.05e-6, 1.74e-15, 6e-14),
    "regrouped/128": Line(0.0, 2.79e-15, 0.0),
    "regrouped/256": Line(0.0, 1.95e-15, 0.0),
    "regrouped/512": Line(0.0, 2.2e-15, 0.0),
    "regrouped/2048": Line(4.1e-6, 1.98e-15, 0.0),
    "overflow/512": Line(1.4e-6, 2.58e-13, 3.19e-13),
    "cublas/8": Line(3e-6, 0.0, 3.82e-13),
    "cublas/32": Line(2.88e-6, 0.0, 3.52e-13),
    "cublas/64": Line(3.6e-6, 0.0, 3.5e-13),
    "cublas/120": Line(4.75e-6, 0.0, 3.55e-13),
    "cublas/128": Line(2.74e-6, 0.0, 3.77e-13),
    "cublas/192": Line(4.71e-6, 0.0, 3.76e-13),
    "cublas/256": Line(5.45e-6, 0.0, 3.95e-13),
    "small/512": Line(2.73e-6, 1.17e-9, 2.31e-13),
    "short/512": Line(3.6e-6, 0.0, 3.34e-13),
    "int8/512": Line(1e-5, 1.4e-15, 3.48e-13),
    "tiles/512": Line(0.0, 2e-13, 3.48e-13),
    "copy/512": Line(3e-6, 0.0, 3.48e-13),
}
SHIPPED = {"NVIDIA H200": H200_LINES, "NVIDIA H100 80GB HBM3": H100_LINES}

# What the elements and the bytes of a path wait for: memory; all multiprocessors at their clock
# ("chip"), which the L2 cache follows; their tensor cores; or one multiprocessor ("clock").
Limit = Literal["memory", "chip", "tensor", "clock"]
LIMITS: dict[str, tuple[Limit, Limit]] = {
    "stream": ("chip", "memory"), "scatter": ("clock", "memory"), "base": ("clock", "memory"),
    "gather": ("chip", "memory"), "rows": ("chip", "memory"), "rows32": ("chip", "memory"),
    "rows64": ("chip", "memory"),
    "csr": ("chip", "memory"),
    "panel16": ("chip", "chip"), "panel": ("chip", "chip"), "panel64": ("chip", "chip"),
    "slots": ("chip", "chip"), "regrouped": ("chip", "chip"), "overflow": ("chip", "memory"),
    "cublas": ("clock", "memory"), "small": ("clock", "memory"), "short": ("chip", "memory"),
    "dense": ("tensor", "memory"), "vector32": ("chip", "memory"), "vector64": ("chip", "memory"),
    "walk32": ("clock", "memory"), "walk64": ("clock", "memory"),
    "plain32": ("chip", "memory"), "plain64": ("chip", "memory"), "int8": ("chip", "memory"),
    "tiles": ("chip", "memory"), "copy": ("chip", "memory"),
}  # fmt: skip
# Clocks of a multiprocessor for a dense product of 16 bits, relative to Hopper, by the data sheets
# of an A100 (312 TFLOP/s), a B200 (2250 TFLOP/s) and, for all others, an RTX 6000 Ada (364).
TENSOR_CLOCKS = {"80": 2.0, "90": 1.0, "100": 0.5, "103": 0.5}
OTHER_TENSOR_CLOCKS = 4.0


def shipped(name: str, facts: Mapping[str, float], compute_capability: str) -> dict[str, Line]:
    """The lines of a GPU that has not been measured.

    Parameters
    ----------
    name : str
        As its driver gives it.
    facts : mapping of str to float
        As of `_chip_facts.facts`.
    compute_capability : str
        Such as ``"90"``.
    """
    return SHIPPED.get(name) or scaled(facts, compute_capability)


def scaled(facts: Mapping[str, float], compute_capability: str) -> dict[str, Line]:
    """The lines of an H200 for a GPU of other facts; what is fixed, mostly launches, stays."""
    h200 = _chip_facts.H200
    clock = h200["clock_hz"] / facts["clock_hz"]
    chip = clock * h200["sms"] / facts["sms"]
    longer = {
        "memory": h200["bandwidth"] / facts["bandwidth"], "clock": clock, "chip": chip,
        "tensor": chip * TENSOR_CLOCKS.get(compute_capability, OTHER_TENSOR_CLOCKS),
    }  # fmt: skip
    found = {}
    for name, line in H200_LINES.items():
        element, byte = LIMITS[name.partition("/")[0]]
        found[name] = Line(line.fixed, longer[element] * line.element, longer[byte] * line.byte)
    return found


def class_of(path: str, n: int) -> str:
    """The name of the smallest class that holds `n` columns, or of the largest there is."""
    sizes = COLUMN_CLASSES[path]
    return f"{path}/{next((size for size in sizes if size >= n), sizes[-1])}"


def line_of(lines: Mapping[str, Line], path: str, n: int) -> Line:
    """The line of a path and class of columns."""
    return lines[class_of(path, n)]
