"""Unstructured matrices beside cuBLAS on the same zeros and cuSPARSE: writes ``hybrid.json``.

    python tests/bench/bench_hybrid.py [--quick] [--fit] [--only DTYPE] [--families NAME ...]
        [--columns LEAST MOST] [--part NUMBER PARTS] [--minilm FILE] [--stale] [--out DIR]

Each case is checked against a float64 product of some rows before it is timed.  Layouts
rotate through more than the L2 cache, as do the dense weights and cuSPARSE's matrices.  Matrices
of graphs and meshes are not multiplied densely.  Where the library itself chooses cuBLAS, or the
product without empty columns, the same calls are timed through torch, because CuPy refuses to
capture cuBLAS calls into a graph.  Kernels of a matrix compile in parallel.  ``--minilm`` adds real
weights: a safetensors file of the encoder's matrices, pruned by magnitude over all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cupy as cp
import cupyx.scipy.sparse
import numpy as np
import rivals_cusparse
import torch
from harness import Contender, case, copies, race, stale_names, to_torch, write_suite
from hybrid_matrices import (
    DTYPES,
    FAMILIES,
    ZEROS,
    Planned,
    drawn,
    minilm,
    name_of,
    named,
    plan,
    selected,
)
from machine import needs_gpus
from rivals_cusparse import Csr

from sparse24._hybrid import fit as hybrid_fit
from sparse24._hybrid import layouts as hybrid_layouts
from sparse24._to_hybrid import hybrid
from sparse24.formats.hybrid import HybridArray

# What builds and multiplies on each path.
STEMS_OF = {
    "cublas": (), "compact": (),
    "csr": ("hybrid_csr",), "rows": ("hybrid_rows",),
    "gather": ("hybrid_gather",), "panel": ("hybrid_panel",),
    "stream": ("hybrid_stream",), "scatter": ("hybrid_scatter",), "tiles": ("hybrid_tiles",),
    "slots": ("hybrid_evict", "hybrid_wgmma"), "regrouped": ("hybrid_regroup", "hybrid_wgmma"),
    "two_four": ("compress", "sparse_wgmma", "hybrid_overflow"),
}  # fmt: skip
STEMS_OF_FLOAT32 = {
    "two_four": ("compress", "sparse_split", "hybrid_overflow"),
    "twice": ("compress", "sparse_split"),
}
STEMS = sorted({stem for stems in (STEMS_OF | STEMS_OF_FLOAT32).values() for stem in stems})
CHECKED_ROWS = 64
ROTATED_COLUMNS = 256  # up to here products are bound by memory
CUSPARSE_MOST = 64  # columns of 16 bits; beyond, cuSPARSE takes milliseconds
EVERY_COLUMNS, WHOLE = (1, 1 << 30), (1, 1)
MOST_ERROR = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13}
CUSPARSE_ERROR = 1e-2  # of any type: that it is the product at all


def stems_of(path: str, dtype: str) -> tuple[str, ...]:
    """What builds and multiplies on a path."""
    stems = STEMS_OF | STEMS_OF_FLOAT32 if dtype == "float32" else STEMS_OF
    return stems[path]


def beside_cusparse(w: cp.ndarray | Csr, n: int) -> bool:
    """Whether cuSPARSE is timed as well."""
    return n <= CUSPARSE_MOST or w.dtype in (cp.float32, cp.float64) or isinstance(w, Csr)


def stored(w: cp.ndarray | Csr) -> HybridArray:
    """The matrix in the format of ours."""
    if isinstance(w, cp.ndarray):
        return hybrid(w)
    wide = w.values.astype(cp.float32)  # cupyx has no 16 bits
    of_cupyx = cupyx.scipy.sparse.csr_matrix((wide, w.columns, w.starts), shape=w.shape)
    return hybrid(of_cupyx, dtype=w.dtype)


class Checked:
    """Some rows in float64: the first of a dense matrix, else the longest."""

    def __init__(self, w: cp.ndarray | Csr):
        self.rows: Any = slice(CHECKED_ROWS)
        if isinstance(w, cp.ndarray):
            left = w[self.rows]
        else:
            rows, left = w.longest(CHECKED_ROWS)
            self.rows = cp.asarray(rows)
        self.left = left.astype(cp.float64)

    def error(self, out, b) -> float:
        """Relative Frobenius error of these rows of the product."""
        want = self.left @ b.astype(cp.float64)
        return float(cp.linalg.norm(out[self.rows] - want) / cp.linalg.norm(want))


def twins(h: HybridArray, path: str, n: int) -> list[HybridArray]:
    """Copies of the matrix whose layout of this path lies elsewhere in memory."""
    if n > ROTATED_COLUMNS or path == "tiles":
        return [h]
    layout = h._prepared[path]
    found = []
    for _ in range(copies(layout.nbytes)):
        twin = HybridArray(h.stored, h.nnz)
        if hasattr(layout, "copy"):
            twin.prepared(path, layout.copy)
        found.append(twin)
    return found


class Rivals:
    """What does not change with the number of columns: copies of the matrix, dense and as CSR."""

    def __init__(self, w: cp.ndarray | Csr, columns: Sequence[int]):
        self.dense: list[torch.Tensor] = []
        if isinstance(w, cp.ndarray):
            self.dense = [to_torch(w)]
            self.dense += [to_torch(w.copy()) for _ in range(copies(w.nbytes) - 1)]
        self.csr: list[Csr] = []
        if any(beside_cusparse(w, n) for n in columns):
            csr = Csr.of(w) if isinstance(w, cp.ndarray) else w
            self.csr = [csr, *(csr.copy() for _ in range(copies(csr.nbytes) - 1))]


def rotated(these: list, n: int) -> list:
    """The copies that a product with that many columns reads in turn."""
    return these if n <= ROTATED_COLUMNS else these[:1]


def compact(h: HybridArray, right: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    """The calls of the path that leaves out empty columns."""
    layout = hybrid_layouts.layout(h, "compact")
    live, dense = to_torch(layout.live), to_torch(layout.dense)
    gathered = right.new_zeros(dense.shape[1], right.shape[1])

    def call() -> object:
        torch.index_select(right, 0, live, out=gathered[: len(live)])
        return torch.mm(dense, gathered, out=target)

    return call


def contenders(h: HybridArray, rivals: Rivals, path: str, b, out) -> dict[str, Contender]:
    """Ours, and cuBLAS where the matrix is dense."""
    n = b.shape[1]
    right, target = to_torch(b), to_torch(cp.empty_like(out))
    dense = [lambda x=x: torch.mm(x, right, out=target) for x in rotated(rivals.dense, n)]
    found = {"cublas": Contender(dense, library="torch")} if dense else {}
    if path == "cublas":
        found["ours"] = Contender(dense, library="torch")
        return found
    if path == "compact":
        found["ours"] = Contender([compact(h, right, target)], library="torch")
        return found
    turns = twins(h, path, n)
    calls = [lambda t=t: t.matmul(b, out=out, algorithm=path) for t in turns]
    found["ours"] = Contender(calls)
    if path in ("stream", "scatter"):
        calls = [lambda t=t: t.matmul(b, out=out, algorithm=path, balance=False) for t in turns]
        found["unbalanced"] = Contender(calls)
    return found


def measure(family: str, w: cp.ndarray | Csr, zeros: float, columns: Sequence[int]) -> list[dict]:
    """A row for each number of columns."""
    h, rivals, checked = stored(w), Rivals(w, columns), Checked(w)
    (m, k), dtype = w.shape, w.dtype.name
    operands = {
        n: (cp.random.standard_normal((k, n), dtype=np.float32).astype(dtype),
            cp.full((m, n), cp.nan, dtype))
        for n in columns
    }  # fmt: skip
    paths = {n: h.explain(n)["choice"] for n in columns}

    def warm(n: int) -> None:
        b, out = operands[n]
        h.matmul(b, out=out, algorithm=paths[n])

    with ThreadPoolExecutor(len(columns)) as pool:
        list(pool.map(warm, columns))
    cp.cuda.Device().synchronize()
    rows = []
    for n in columns:
        name, (b, out), path = name_of(family, w.shape, zeros, dtype, n), operands[n], paths[n]
        out.fill(cp.nan)
        h.matmul(b, out=out, algorithm=path)
        error = checked.error(out, b)
        if not error < MOST_ERROR[dtype]:
            raise SystemExit(f"{name} {path}: error {error}")
        found = contenders(h, rivals, path, b, out)
        extra = {"error": error, "bytes": h.nbytes, "used": stems_of(path, dtype)}
        if beside_cusparse(w, n):
            found["cusparse"], extra["cusparse_algorithm"] = cusparse(name, rivals, checked, b)
        fields = {"family": family, "zeros": zeros, "m": m, "k": k, "n": n, "dtype": dtype}
        rows.append(timed(name, path, found, **fields, **extra))
    return rows


def cusparse(name: str, rivals: Rivals, checked: Checked, b) -> tuple[Contender, str]:
    """cuSPARSE by its fastest algorithm, and which that is."""
    best = rivals_cusparse.best(rotated(rivals.csr, b.shape[1]), b)
    error = checked.error(best.out, b)
    if not error < CUSPARSE_ERROR:
        raise SystemExit(f"{name} cuSPARSE {best.way}: error {error}")
    return best.contender, best.way


def timed(name: str, path: str, found: dict[str, Contender], **fields: Any) -> dict:
    """The row of a race."""
    if fields["n"] > ROTATED_COLUMNS:  # as long as in gemm.json: the chip slows at its power limit
        race(found)
    else:
        race(found, rounds=6, budget_ms=3)
    ours, unbalanced = found.pop("ours"), found.pop("unbalanced", None)
    if unbalanced:
        fields["unbalanced_us"] = round(unbalanced.us, 3)
    row = case(name, ours=ours, kernel=path, rivals=found, **fields)
    gain = min(row["rivals"].values()) / ours.us
    print(f"{name:34} {path:9} {ours.us:8.1f} us  {gain:5.2f}x", flush=True)
    return row


def break_even(rows: list[dict]) -> dict[tuple[str, int], float]:
    """By family and columns, the lowest share of zeros from which on ours beats cuBLAS, float16."""
    lowest: dict[tuple[str, int], float] = {}
    for row in sorted(rows, key=lambda row: -row["zeros"]):
        if row["dtype"] != "float16" or "cublas" not in row["rivals"]:
            continue
        key = row["family"], row["n"]
        wins = row["rivals"]["cublas"] > row["ours_us"]
        if wins and lowest.get(key, 1.0) > row["zeros"] and row["ours_kernel"] != "cublas":
            lowest[key] = row["zeros"]
    return lowest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--minilm", type=Path)
    parser.add_argument("--fit", action="store_true", help="fit the cost model first")
    parser.add_argument("--only", choices=DTYPES)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--columns", nargs=2, type=int, default=EVERY_COLUMNS, help="from, to")
    parser.add_argument("--part", nargs=2, type=int, default=WHOLE,
                        help="2 3 for the second of three parts of what is left")  # fmt: skip
    parser.add_argument("--stale", action="store_true",
                        help="only rows whose kernels changed after they were timed")  # fmt: skip
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    needs_gpus()
    stale = stale_names("hybrid")
    if options.fit:
        for name, line in hybrid_fit.fit().items():
            print(name, line, flush=True)
    rows = []
    for dtype in (options.only,) if options.only else DTYPES:
        every = plan(dtype, options.quick)
        if options.stale:
            every = named(every, dtype, stale)
        asked = selected(every, options.families, options.columns, options.part)
        for family, w, zeros, columns in drawn(asked, dtype):
            rows += measure(family, w, zeros, columns)
            write_suite("hybrid", rows, stems=STEMS, out=options.out)
    for zeros in ZEROS if options.minilm and "minilm" in options.families else ():
        for name, w in minilm(options.minilm, zeros):
            planned = [Planned(f"minilm {name}", w.shape, zeros, (1, 8, 64, 512))]
            for kept in named(planned, "float16", stale) if options.stale else planned:
                rows += measure(kept.family, w, zeros, kept.columns)
            write_suite("hybrid", rows, stems=STEMS, out=options.out)
    for (family, n), zeros in sorted(break_even(rows).items()):
        print(f"break-even {family} n={n}: {zeros:.0%} zeros")


if __name__ == "__main__":
    main()
