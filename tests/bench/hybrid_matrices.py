"""The matrices of `bench_hybrid.py`: which, by how many columns, and how they are drawn.

Dense ones are CuPy arrays; those of graphs and meshes, too large for that, are `Csr`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import cupy as cp
import graphs
import numpy as np
from rivals_cusparse import Csr

from sparse24 import families

FAMILIES = (*families.FAMILIES, "small", *graphs.FAMILIES, "minilm")
DTYPES = ("float32", "float16", "float64")
SHAPES = ((4096, 4096), (14336, 4096), (8192, 8192))
SMALL = ((768, 768), (768, 3072), (1024, 1024), (1024, 4096), (2048, 2048), (3072, 768))
NEARLY_EMPTY = (16384, 16384)
ZEROS = (0.6, 0.7, 0.8, 0.9, 0.95)
SMALL_COLUMNS = (1, 8, 16, 64, 128, 512)
MIDDLE = (96, 128, 192, 256)  # columns between few and many
BY_CHANCE = ("iid", "small")  # families whose elements are independent
FLOAT32_ZEROS = (0.9, 0.97, 0.99)
FLOAT32_FULLER = (0.5, 0.6, 0.7, 0.8)  # zeros of matrices with more elements
FLOAT32_COLUMNS = (8, 64, 512, 4096)
NEARLY_EMPTY_COLUMNS = (1, 8, 64, 256)
GRAPHS = (
    ("graph_lognormal", (50000, 50000), 0.9996), ("graph_power_law", (40000, 40000), 0.9995),
    ("stencil", (40000, 40000), 0.999875),
)  # fmt: skip


class Planned(NamedTuple):
    """A matrix of a plan, and the columns of the dense operands."""

    family: str
    shape: tuple[int, int]
    zeros: float
    columns: tuple[int, ...]

    def name(self, dtype: str, n: int) -> str:
        """That of the row by n columns in the record."""
        return name_of(self.family, self.shape, self.zeros, dtype, n)


def name_of(family: str, shape: tuple[int, int], zeros: float, dtype: str, n: int) -> str:
    """The name of a row in the record."""
    title = family if dtype == "float16" else f"{dtype} {family}"
    return f"{title}-{shape[0]}x{shape[1]}x{n}-{zeros}"


def plan_float32():
    """(family, shape, zeros, columns) of every float32 matrix."""
    for family in ("iid", "row_skewed"):
        for zeros in FLOAT32_ZEROS:
            yield family, SHAPES[0], zeros, FLOAT32_COLUMNS
    for zeros in FLOAT32_FULLER:
        yield "iid", SHAPES[0], zeros, FLOAT32_COLUMNS
    for shape in SMALL:
        for zeros in FLOAT32_ZEROS:
            yield "small", shape, zeros, SMALL_COLUMNS[::2]
    yield from plan_nearly_empty()
    yield from plan_graphs()


def plan_nearly_empty():
    """Large matrices with hardly any elements, in float32."""
    for zeros in (0.997, 0.999, 0.9999):
        yield "iid", NEARLY_EMPTY, zeros, NEARLY_EMPTY_COLUMNS


def plan_graphs():
    """Those of graphs and meshes, with rows of unequal lengths, in float32 and float16."""
    for family, shape, zeros in GRAPHS:
        yield family, shape, zeros, NEARLY_EMPTY_COLUMNS


def plan_float64():
    """(family, shape, zeros, columns) of every float64 matrix."""
    for zeros in (0.9, 0.95, 0.99):
        yield "iid", SHAPES[0], zeros, (64, 512)


def plan_float16(quick: bool):
    """(family, shape, zeros, columns) of every float16 matrix."""
    for shape in SHAPES[:2] if quick else SHAPES:
        for zeros in ZEROS:
            columns = (1, 4, 8, 16, 64) if quick else (1, 2, 4, 8, 16, 32, 64, *MIDDLE, 512, 4096)
            yield "iid", shape, zeros, columns
    if quick:
        for zeros in (0.7, 0.9, 0.95):
            yield "iid", SHAPES[2], zeros, (1, 512, 4096)
        for family in ("row_skewed", "dead_columns", "beta5"):
            yield family, SHAPES[0], 0.8, (1, 8, 512)
        return
    for family in families.FAMILIES:
        for zeros in ZEROS if family != "iid" else ():
            yield family, SHAPES[0], zeros, (1, 8, 64, 512, 4096)
    for shape in SHAPES[1:]:
        for zeros in ZEROS:
            yield "beta5", shape, zeros, (512, 4096)
    for shape in SHAPES:
        yield "iid", shape, 0.99, (256, 512, 4096)
    for shape in SMALL:
        for zeros in ZEROS[1:]:
            yield "small", shape, zeros, SMALL_COLUMNS
    yield from plan_graphs()


def plan(dtype: str, quick: bool = False) -> list[Planned]:
    """Every matrix of a type, or with `quick` fewer."""
    found = {
        "float32": plan_float32, "float64": plan_float64, "float16": lambda: plan_float16(quick),
    }[dtype]()  # fmt: skip
    return [Planned(*matrix) for matrix in found]


def selected(
    planned: Sequence[Planned],
    names: Sequence[str],
    columns: tuple[int, int],
    part: tuple[int, int],
) -> list[Planned]:
    """Those of some families, by columns in a range; of these a part.

    `part` is (number, parts), the first is 1.
    """
    low, high = columns
    number, parts = part
    within = [
        matrix._replace(columns=tuple(n for n in matrix.columns if low <= n <= high))
        for matrix in planned
        if matrix.family in names
    ]
    return [matrix for matrix in within if matrix.columns][number - 1 :: parts]


def named(planned: Sequence[Planned], dtype: str, names: Collection[str]) -> list[Planned]:
    """What of a plan has one of these names in the record."""
    kept = [
        matrix._replace(columns=tuple(n for n in matrix.columns if matrix.name(dtype, n) in names))
        for matrix in planned
    ]
    return [matrix for matrix in kept if matrix.columns]


def iid(shape, zeros: float, dtype: str) -> cp.ndarray:
    """A matrix of the i.i.d. family, drawn on the GPU."""
    rng = cp.random.default_rng(1)
    values = rng.standard_normal(shape, dtype=cp.float32)
    return cp.where(rng.random(shape, dtype=cp.float32) >= zeros, values, 0).astype(dtype)


def listed(w, dtype: str) -> Csr:
    """A matrix of SciPy on the GPU, rounded to the type."""
    starts, columns = (cp.asarray(x.astype(np.int32)) for x in (w.indptr, w.indices))
    return Csr(starts, columns, cp.asarray(w.data).astype(dtype), w.shape)


def drawn(
    asked: Sequence[Planned], dtype: str
) -> Iterator[tuple[str, cp.ndarray | Csr, float, tuple[int, ...]]]:
    """The matrices of a plan; dense ones of families are drawn on the CPU, ahead of their turn."""
    with ThreadPoolExecutor(8) as pool:
        waiting: dict[int, Future] = {}
        for i, (family, shape, zeros, columns) in enumerate(asked):
            for ahead, (name, size, share, _) in enumerate(asked[i : i + 12], start=i):
                if name in families.FAMILIES and name not in BY_CHANCE and ahead not in waiting:
                    waiting[ahead] = pool.submit(
                        families.make, name, size, zeros=share, dtype=dtype, rng=1
                    )
            if family in graphs.FAMILIES:
                w = listed(graphs.make(family, shape, zeros), dtype)
            elif family in BY_CHANCE:
                w = iid(shape, zeros, dtype)
            else:
                w = cp.asarray(waiting.pop(i).result())
            yield family, w, zeros, columns


def read_float32(file: Path) -> dict[str, np.ndarray]:
    """The matrices of a safetensors file of float32."""
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(raw[start:], np.float32)[
            entry["data_offsets"][0] // 4 : entry["data_offsets"][1] // 4
        ].reshape(entry["shape"])
        for name, entry in header.items()
        if entry["dtype"] == "F32" and len(entry["shape"]) == 2
    }


def minilm(file: Path, zeros: float) -> Iterator[tuple[str, cp.ndarray]]:
    """The largest matrices of the first and the last layer, pruned as part of the whole."""
    matrices = {name: cp.asarray(x) for name, x in read_float32(file).items()}
    threshold = cp.quantile(cp.abs(cp.concatenate([x.ravel() for x in matrices.values()])), zeros)
    largest = max(x.size for x in matrices.values())
    names = [name for name, x in matrices.items() if x.size == largest]
    for name in dict.fromkeys((names[0], names[-1])):
        x = matrices[name]
        yield name, cp.where(cp.abs(x) >= threshold, x, 0).astype(cp.float16)
