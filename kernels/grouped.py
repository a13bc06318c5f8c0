"""What the kernels of grouped products share on the host: their types, refusals and operands."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse24._records import Compressed24, Fused, Problem
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import loader

OUTPUTS = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float8_e4m3fn": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "float8_e5m2": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "int8": ("int32", "int8", "bfloat16", "float16", "float32"),
}
OFFSETS = {"int32": "int", "int64": "long"}  # of 64 bits in CUDA on Linux
MOST_GROUPS = 1024
REMEMBERED = 1024  # launches, by the addresses of their operands
GATED = Fused(activation="silu")  # the epilogue of most gated layers

_GROUPING = np.dtype(
    [("offsets", "u8"), ("groups", "i4"), ("columns", "i4"), ("tiles_m", "i4"), ("band", "i4")]
)


class Types(NamedTuple):
    """What a specialisation is compiled for, beside its tile."""

    dtype: str
    b_dtype: str
    out_dtype: str
    offsets: str
    epilogue: Fused  # its `skeleton`
    gated: bool
    fast_accumulation: bool

    @property
    def promotes(self) -> bool:
        return self.dtype.startswith("float8") and not self.fast_accumulation

    @property
    def halves(self) -> int:
        """Parts of the rows of A: 2 if those of a gate precede those that it gates, else 1."""
        return 2 if self.gated else 1


class Operands(NamedTuple):
    """Sizes, and where everything lies: addresses, and pitches in bytes."""

    groups: int
    rows: int  # of A
    stored: int  # elements of a row of A
    columns: int
    atoms_k: int
    atoms_m: int
    values: int
    values_pitch: int
    values_group: int
    packed: int
    packed_group: int
    b: int
    k: int
    b_pitch: int
    offsets: int
    out: int
    m: int  # rows of the result
    out_pitch: int
    params: bytes


def refuses(problem: Problem, rows_of_gate: int | None) -> str | None:
    """Why no kernel of grouped products can run `problem`, as a sentence; None if one can.

    Parameters
    ----------
    problem : Problem
        With the columns of all groups together, and as many matrices as groups.
    rows_of_gate : int or None
        The rows of a gate must be a multiple of this; None for a product without gate.
    """
    p = problem
    if p.dtype not in OUTPUTS:
        return f"the kernel multiplies {', '.join(OUTPUTS)}, not {p.dtype}"
    if p.dtype[:6] != p.b_dtype[:6]:  # both types of fp8 go together
        return f"{p.dtype} and {p.b_dtype} cannot be multiplied by one instruction; convert b"
    if p.out_dtype not in OUTPUTS[p.dtype]:
        return f"{p.dtype} results are stored as {', '.join(OUTPUTS[p.dtype])}, not {p.out_dtype}"
    if 0 in (p.m, p.n, p.k, p.batch):
        return "an empty product needs no kernel"
    if rows_of_gate and p.m % rows_of_gate:
        return f"a gate must have a multiple of {rows_of_gate} rows, not {p.m}"
    if p.batch > MOST_GROUPS:
        return f"there are {p.batch} groups; the kernel's table has room for {MOST_GROUPS}"
    if p.b_order != "column" or p.out_order != "column" or not p.aligned:
        return "columns of b and of the result must be contiguous, on 16-byte boundaries; copy them"
    return None


def types_of(
    dtype: str, b_dtype: str, out_dtype: str, offsets: str, epilogue: Fused, *, gated: bool,
    fast_accumulation: bool,
) -> Types:  # fmt: skip
    """What a kernel is compiled for that serves such operands and such an epilogue.

    Names of types are logical ones, also where arrays carry fp8 as bytes; `fast_accumulation` is
    that of `sparse24.matmul`.
    """
    skeleton = _epilogue.skeleton(epilogue)
    return Types(dtype, b_dtype, out_dtype, offsets, skeleton, gated, fast_accumulation)


def params_of(epilogue: Fused) -> bytes:
    """The parameters of an epilogue as a kernel takes them.

    Its vectors of rows are C-contiguous, with a row for each group: `row_scale` and `row_bias`
    (groups, m), or (groups, 2 m) if gated; `column_scale` (n,).  It has no `c`, `aux`,
    `column_bias` or `out_scale`.
    """
    return _epilogue.params(epilogue).tobytes()


def operands(a: Compressed24, b: Any, out: Any, offsets: int, params: bytes) -> Operands:
    """What a launch has to know of its operands.

    Parameters
    ----------
    a : Compressed24, shape (groups, m, k), or (groups, 2 m, k) if gated
        With `packed`.  The first half of the rows of a gated matrix is the gate.
    b : cupy.ndarray, shape (k, n)
        k contiguous, columns on 16-byte boundaries.  Of `b` and `out` only the layouts and
        addresses count.
    out : cupy.ndarray, shape (m, n)
        m contiguous, columns on 16-byte boundaries.
    offsets : int
        The address of `groups` + 1 integers on the device: columns ``offsets[g]`` to
        ``offsets[g + 1]`` belong to group g.
    params : bytes
        Of `params_of`.
    """
    values, packed = a.values, a.packed
    groups, rows, stored = values.shape
    return Operands(  # type: ignore[call-arg]
        groups, rows, stored, b.shape[1], *packed.shape[-3:-1],
        values.data.ptr, values.strides[-2] if rows > 1 else rounded(stored * values.itemsize, 16),
        values.strides[0], packed.data.ptr, packed.strides[-4],
        b.data.ptr, b.shape[0], _pitch(b), offsets, out.data.ptr, out.shape[0], _pitch(out), params,
    )  # fmt: skip


def _pitch(x: Any) -> int:
    """Bytes from one column to the next; of a single column, any that is legal."""
    return x.strides[1] if x.shape[1] > 1 else rounded(x.shape[0] * x.itemsize, 16)


def rounded(size: int, step: int) -> int:
    """Up to a multiple."""
    return -(-size // step) * step


def grouping(of: Operands, tiles_m: int, band: int) -> np.ndarray:
    """The `Grouping` argument of ``group_scheduler.cuh``, by value."""
    block = (of.offsets, of.groups, of.columns, tiles_m, band)
    return loader.by_value(np.array([block], _GROUPING))


def table_bytes(groups: int) -> int:
    """Bytes of shared memory of the table in ``group_scheduler.cuh``."""
    return 2 * (groups + 1) * 4


def most_tiles(of: Operands, tiles_m: int, block_n: int) -> int:
    """A bound of the number of tiles: every group may have one that is not full."""
    return tiles_m * (of.columns // block_n + min(of.groups, of.columns))


def by_value(params: bytes) -> np.ndarray:
    """Parameters of an epilogue as an argument."""
    return np.frombuffer(params, f"V{len(params)}")
