"""What whole products of hybrid matrices take on a GPU: three numbers a path and class of columns.

Measured on an H200 and an H100, and chosen by the device's name.  On other GPUs the numbers of the
H200 are scaled by what the driver says of the chip, so that they rank the paths about right.
`sparse24._hybrid_fit.fit` measures those of the GPU in use.
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


# "path/columns": the line of a path for products with up to so many columns, of 16-bit elements;
# "panel" is for float32, "panel16" for 16 bits, "panel64" for float64, and "base" is scatter with
# 2:4 tiles.  What counts as elements and bytes differs:
#
# path                  elements                                      bytes
# stream, cublas        of the matrix, zeros too                      read of the matrix
# rows, gather          non-zeros and padding                         read of the matrix
# scatter, base         cycles of shared memory                       read of the matrix
# panels                multiply-adds                                 all that are read
# slots, regrouped      multiply-adds                                 gathered of b
# overflow              elements left out, times columns              of the result
#
# The dense product is the longest of several: "cublas", of which small matrices take less ("small",
# by the elements of a row); with more than 64 columns "short", by the bytes of all operands; and
# "dense", by multiply-adds as `dense_work` counts them.  Of other types than 16-bit floats it is
# "plain" and "int8", by multiply-adds.  "tiles" is by multiply-adds and bytes of the stored tiles;
# "copy" by the bytes that a copy of b reads and writes.
COLUMN_CLASSES = {
    "stream": (8, 16, 32, 64),
    "scatter": (8, 16, 32, 64, 96, 128), "base": (8, 16, 32, 64, 128),
    "gather": (1, 2, 4, 8, 16),
    "panel16": (8, 64, 512), "panel": (8, 64, 512), "panel64": (8, 64, 512),
    "rows": (1, 2, 4),
    "slots": (128, 256, 512, 2048), "regrouped": (128, 256, 512, 2048), "overflow": (512,),
    "cublas": (8, 32, 64, 120, 128, 192, 256), "small": (512,), "short": (512,), "dense": (512,),
    "plain": (512,), "int8": (512,), "tiles": (512,), "copy": (512,),
}  # fmt: skip
PANEL_LINES = {2: "panel16", 4: "panel", 8: "panel64"}  # by bytes of an element

# docs/benchmarks/log_hybrid.rst and hybrid.json; "panel16/8" and "panel64/8" are 1.6 times what
# `hybrid_panel_plan` expects.
H200_LINES = {
    "stream/8": Line(4.95e-6, 1.38e-13, 1.535e-13),
    "stream/16": Line(6.03e-6, 1.783e-13, 1.273e-13),
    "stream/32": Line(7.77e-6, 1.71e-13, 1.409e-13),
    "stream/64": Line(8.35e-6, 3.107e-13, 1.192e-13),
    "scatter/8": Line(2.85e-6, 5.83e-10, 2.07e-14),
    "scatter/16": Line(3.06e-6, 5.24e-10, 3.03e-14),
    "scatter/32": Line(3.03e-6, 4.72e-10, 5.01e-14),
    "scatter/64": Line(2.18e-6, 4.31e-10, 9.46e-14),
    "scatter/96": Line(1.01e-6, 5.77e-10, 5.71e-14),
    "scatter/128": Line(1.27e-6, 5.3e-10, 5.79e-14),
    "base/8": Line(2.94e-6, 5.53e-11, 2.08e-13),
    "base/16": Line(3.61e-6, 0.0, 2.28e-13),
    "base/32": Line(3.19e-6, 3.65e-10, 1.21e-13),
    "base/64": Line(1.66e-6, 6e-10, 0.0),
    "base/128": Line(1.79e-6, 4.82e-10, 3.56e-14),
    "gather/1": Line(1.63e-6, 0.0, 2.7e-13),
    "gather/2": Line(1.86e-6, 0.0, 2.73e-13),
    "gather/4": Line(2.13e-6, 0.0, 2.76e-13),
    "gather/8": Line(3.3e-6, 0.0, 2.73e-13),
    "gather/16": Line(1.23e-5, 0.0, 4.1e-13),
    "panel/8": Line(4.29e-6, 0.0, 3.2e-13),
    "panel/64": Line(4.44e-6, 0.0, 2.44e-13),
    "panel/512": Line(0.0, 2.37e-14, 2.94e-13),
    "panel64/8": Line(8.4e-6, 1.23e-13, 2.69e-13),
    "panel64/64": Line(5e-6, 0.0, 2.52e-13),
    "panel64/512": Line(0.0, 0.0, 2.41e-13),
    "panel16/8": Line(8.4e-6, 3.15e-14, 2.7e-13),
    "panel16/64": Line(8.14e-6, 8.29e-14, 6.46e-14),
    "panel16/512": Line(4.83e-6, 8.6e-14, 1.25e-13),
    "rows/1": Line(2.93e-6, 0.0, 3.5e-13),
    "rows/2": Line(3.74e-6, 0.0, 3.46e-13),
    "rows/4": Line(4.32e-6, 0.0, 5.27e-13),
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
    "cublas/120": Line(6.5e-6, 0.0, 2.45e-13),
    "cublas/128": Line(4.15e-6, 0.0, 2.49e-13),
    "cublas/192": Line(4.15e-6, 0.0, 2.49e-13),
    "cublas/256": Line(4.15e-6, 0.0, 2.49e-13),
    "small/512": Line(2.9e-6, 1.45e-9, 2.5e-13),
    "short/512": Line(3.6e-6, 0.0, 2.4e-13),
    "dense/512": Line(0.0, 2.82e-15, 0.0),
    "plain/512": Line(3e-6, 4e-14, 0.0),
    "int8/512": Line(1e-5, 5e-13, 0.0),
    "tiles/512": Line(0.0, 2e-13, 2.5e-13),
    "copy/512": Line(3e-6, 0.0, 2.5e-13),
}
# `fit` on an H100.  The dense product, gather, scatter and strips are fitted anew to 444 times by
# 96 to 4096 columns and to its hybrid.json; "slots/128", "slots/512", "regrouped/256" and rows by 1
# and 2 columns are then set by hand (docs/benchmarks/log_hybrid.rst, "An H100").  What is not here
# is as on an H200; "small", "short", "tiles" and "copy" are, too, but their bytes, which are scaled
# by the bandwidth of copies.
H100_LINES = H200_LINES | {
    "stream/8": Line(4.58e-6, 1.18e-13, 2.68e-13),
    "stream/16": Line(5.66e-6, 1.62e-13, 2.37e-13),
    "stream/32": Line(7.88e-6, 1.43e-13, 2.44e-13),
    "stream/64": Line(8.77e-6, 2.74e-13, 2.14e-13),
    "scatter/8": Line(2.84e-6, 4.86e-10, 8.69e-14),
    "scatter/16": Line(3.33e-6, 5.02e-10, 6.44e-14),
    "scatter/32": Line(3.26e-6, 4.45e-10, 8.98e-14),
    "scatter/64": Line(2.03e-6, 4.87e-10, 9.41e-14),
    "scatter/96": Line(1.95e-6, 5.94e-10, 0.0),
    "scatter/128": Line(1.45e-6, 5.49e-10, 5.53e-14),
    "base/8": Line(2.88e-6, 1.03e-9, 4.01e-14),
    "base/16": Line(3.27e-6, 0.0, 2.94e-13),
    "base/32": Line(3.21e-6, 4.21e-10, 1.65e-13),
    "base/64": Line(3.68e-7, 7.64e-10, 1.83e-14),
    "base/128": Line(2.19e-6, 5.67e-10, 2.84e-14),
    "gather/1": Line(1.41e-6, 0.0, 3.47e-13),
    "gather/2": Line(1.56e-6, 0.0, 3.52e-13),
    "gather/4": Line(1.83e-6, 0.0, 3.53e-13),
    "gather/8": Line(2.96e-6, 0.0, 3.45e-13),
    "gather/16": Line(1.34e-5, 0.0, 4.07e-13),
    "panel/8": Line(4.32e-6, 0.0, 3.23e-13),
    "panel/64": Line(5.01e-6, 0.0, 2.39e-13),
    "panel/512": Line(0.0, 1.89e-14, 2.97e-13),
    "panel64/64": Line(1.66e-6, 0.0, 3.19e-13),
    "panel64/512": Line(3.79e-6, 0.0, 2.88e-13),
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
    "small/512": Line(2.9e-6, 1.45e-9, 3.48e-13),
    "short/512": Line(3.6e-6, 0.0, 3.34e-13),
    "tiles/512": Line(0.0, 2e-13, 3.48e-13),
    "copy/512": Line(3e-6, 0.0, 3.48e-13),
}
SHIPPED = {"NVIDIA H200": H200_LINES, "NVIDIA H100 80GB HBM3": H100_LINES}

# What the elements and the bytes of a path wait for: memory; all multiprocessors at their clock
# ("chip"), which the L2 cache follows; their tensor cores; or one multiprocessor ("clock").
Limit = Literal["memory", "chip", "tensor", "clock"]
LIMITS: dict[str, tuple[Limit, Limit]] = {
    "stream": ("chip", "memory"), "scatter": ("clock", "memory"), "base": ("clock", "memory"),
    "gather": ("chip", "memory"), "rows": ("chip", "memory"),
    "panel16": ("chip", "chip"), "panel": ("chip", "chip"), "panel64": ("chip", "chip"),
    "slots": ("chip", "chip"), "regrouped": ("chip", "chip"), "overflow": ("chip", "memory"),
    "cublas": ("chip", "memory"), "small": ("clock", "memory"), "short": ("chip", "memory"),
    "dense": ("tensor", "memory"), "plain": ("chip", "memory"), "int8": ("chip", "memory"),
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
