"""Unstructured matrices beside cuBLAS on the same zeros and cuSPARSE: writes ``hybrid.json``.

    python tests/bench/bench_hybrid.py [--quick] [--fit] [--only DTYPE] [--minilm FILE] [--out DIR]

Each case is checked against a float64 product of some rows before it is timed.  Layouts
rotate through more than the L2 cache, as do the dense weights.  Where the library itself
chooses cuBLAS, or the product without empty columns, the same calls are timed through torch,
because CuPy refuses to capture cuBLAS calls into a graph.  Kernels of a matrix compile in
parallel.  ``--minilm`` adds real weights: a safetensors file of the encoder's matrices, pruned by
magnitude over all of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import cupy as cp
import numpy as np
import torch
from harness import Contender, case, copies, race, to_torch, write_suite

from sparse24 import families
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
STEMS = sorted({stem for stems in STEMS_OF.values() for stem in stems})
SHAPES = ((4096, 4096), (14336, 4096), (8192, 8192))
SMALL = ((768, 768), (768, 3072), (1024, 1024), (1024, 4096), (2048, 2048), (3072, 768))
NEARLY_EMPTY = (16384, 16384)
ZEROS = (0.6, 0.7, 0.8, 0.9, 0.95)
SMALL_COLUMNS = (1, 8, 16, 64, 128, 512)
MIDDLE = (96, 128, 192, 256)  # columns between few and many
BY_CHANCE = ("iid", "small")  # families whose elements are independent
CHECKED_ROWS = 64
ROTATED_COLUMNS = 256  # up to here products are bound by memory
CUSPARSE_MOST = 64  # columns of 16 bits; beyond, cuSPARSE takes milliseconds
FLOAT32_ZEROS = (0.9, 0.97, 0.99)
FLOAT32_COLUMNS = (8, 64, 512, 4096)
MOST_ERROR = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13}


def iid(shape, zeros: float, dtype: str) -> cp.ndarray:
    """A matrix of the i.i.d. family, drawn on the GPU."""
    rng = cp.random.default_rng(1)
    values = rng.standard_normal(shape, dtype=cp.float32)
    return cp.where(rng.random(shape, dtype=cp.float32) >= zeros, values, 0).astype(dtype)


def beside_cusparse(dtype, n: int) -> bool:
    """Whether cuSPARSE is timed as well."""
    return n <= CUSPARSE_MOST or dtype in (cp.float32, cp.float64)


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


def error_of(out, w, b) -> float:
    """Relative Frobenius error of some rows against float64."""
    want = w[:CHECKED_ROWS].astype(cp.float64) @ b.astype(cp.float64)
    return float(cp.linalg.norm(out[:CHECKED_ROWS] - want) / cp.linalg.norm(want))


def twins(h: HybridArray, path: str, n: int) -> list[HybridArray]:
    """Copies of the matrix whose layout of this path lies elsewhere in memory."""
    if n > ROTATED_COLUMNS or path == "tiles":
        return [h]
    layout = h._prepared[path]
    found = []
    for _ in range(copies(layout.nbytes)):
        twin = HybridArray(h.tiles, h.nnz)
        if hasattr(layout, "copy"):
            twin.prepared(path, layout.copy)
        found.append(twin)
    return found


class Rivals:
    """What does not change with the number of columns: dense copies and the CSR matrix."""

    def __init__(self, w: cp.ndarray, few: bool):
        self.dense = [to_torch(w)]
        self.dense += [to_torch(w.copy()) for _ in range(copies(w.nbytes) - 1)]
        self.csr = None
        if few:
            wide = self.dense[0].to_sparse_csr()
            places = wide.crow_indices().int(), wide.col_indices().int()
            self.csr = torch.sparse_csr_tensor(*places, wide.values(), size=w.shape)


def compact(h: HybridArray, right: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    """The calls of the path that leaves out empty columns."""
    layout = hybrid_layouts.layout(h, "compact")
    live, dense = to_torch(layout.live), to_torch(layout.dense)
    gathered = right.new_zeros(dense.shape[1], right.shape[1])

    def call() -> object:
        torch.index_select(right, 0, live, out=gathered[: len(live)])
        return torch.mm(dense, gathered, out=target)

    return call


def contenders(h: HybridArray, rivals: Rivals, path: str, w, b, out) -> dict[str, Contender]:
    n = b.shape[1]
    right, target = to_torch(b), to_torch(cp.empty_like(out))
    weights = rivals.dense if n <= ROTATED_COLUMNS else rivals.dense[:1]
    dense = [lambda x=x: torch.mm(x, right, out=target) for x in weights]
    found = {"cublas": Contender(dense, library="torch")}
    if beside_cusparse(w.dtype, n):
        found["cusparse"] = Contender([lambda: rivals.csr @ right], library="torch")
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


def measure(family: str, w: cp.ndarray, zeros: float, columns) -> list[dict]:
    h = hybrid(w)
    m, k = w.shape
    dtype = w.dtype.name
    rivals = Rivals(w, few=any(beside_cusparse(w.dtype, n) for n in columns))
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
    rows, title = [], family if dtype == "float16" else f"{dtype} {family}"
    for n in columns:
        (b, out), path = operands[n], paths[n]
        out.fill(cp.nan)
        h.matmul(b, out=out, algorithm=path)
        error = error_of(out, w, b)
        if not error < MOST_ERROR[dtype]:
            raise SystemExit(f"{family} {w.shape} {zeros} n={n} {path}: error {error}")
        found = contenders(h, rivals, path, w, b, out)
        if n > ROTATED_COLUMNS:  # as long as in gemm.json: the chip slows down at its power limit
            race(found)
        else:
            race(found, rounds=6, budget_ms=3)
        ours, unbalanced = found.pop("ours"), found.pop("unbalanced", None)
        extra = {"unbalanced_us": round(unbalanced.us, 3)} if unbalanced else {}
        rows.append(
            case(
                f"{title}-{m}x{k}x{n}-{zeros}", ours=ours, kernel=path, rivals=found,
                family=family, zeros=zeros, m=m, k=k, n=n, dtype=dtype, error=error,
                bytes=h.nbytes, used=STEMS_OF[path], **extra,
            )
        )  # fmt: skip
        gain = min(rows[-1]["rivals"].values()) / ours.us
        print(f"{rows[-1]['name']:34} {path:9} {ours.us:8.1f} us  {gain:5.2f}x", flush=True)
    return rows


def break_even(rows: list[dict]) -> dict[tuple[str, int], float]:
    """By family and columns, the lowest share of zeros from which on ours beats cuBLAS, float16."""
    lowest: dict[tuple[str, int], float] = {}
    for row in sorted(rows, key=lambda row: -row["zeros"]):
        if row["dtype"] != "float16":
            continue
        key = row["family"], row["n"]
        wins = row["rivals"]["cublas"] > row["ours_us"]
        if wins and lowest.get(key, 1.0) > row["zeros"] and row["ours_kernel"] != "cublas":
            lowest[key] = row["zeros"]
    return lowest


def plan_float32():
    """(family, shape, zeros, columns) of every float32 matrix."""
    for family in ("iid", "row_skewed"):
        for zeros in FLOAT32_ZEROS:
            yield family, SHAPES[0], zeros, FLOAT32_COLUMNS
    for shape in SMALL:
        for zeros in FLOAT32_ZEROS:
            yield "small", shape, zeros, SMALL_COLUMNS[::2]
    yield from plan_nearly_empty()


def plan_nearly_empty():
    """Large matrices with hardly any elements, as of graphs, in float32."""
    for zeros in (0.997, 0.999, 0.9999):
        yield "iid", NEARLY_EMPTY, zeros, (1, 8, 64, 256)


def plan_float64():
    """The same of float64."""
    for zeros in (0.9, 0.95, 0.99):
        yield "iid", SHAPES[0], zeros, (64, 512)


def plan(quick: bool):
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


def drawn(
    asked: list[tuple], dtype: str
) -> Iterator[tuple[str, cp.ndarray, float, tuple[int, ...]]]:
    """The matrices of a plan; families are drawn on the CPU, some ahead of their turn."""
    with ThreadPoolExecutor(8) as pool:
        waiting: dict[int, Future] = {}
        for i, (family, shape, zeros, columns) in enumerate(asked):
            for ahead, (name, size, share, _) in enumerate(asked[i : i + 12], start=i):
                if name not in BY_CHANCE and ahead not in waiting:
                    waiting[ahead] = pool.submit(
                        families.make, name, size, zeros=share, dtype=dtype, rng=1
                    )
            by_chance = family in BY_CHANCE
            w = iid(shape, zeros, dtype) if by_chance else cp.asarray(waiting.pop(i).result())
            yield family, w, zeros, columns


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--minilm", type=Path)
    parser.add_argument("--fit", action="store_true", help="fit the cost model first")
    parser.add_argument("--only", choices=("float16", "float32", "float64"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.fit:
        for name, line in hybrid_fit.fit().items():
            print(name, line, flush=True)
    rows = []
    asked = {
        "float32": list(plan_float32()), "float16": list(plan(options.quick)),
        "float64": list(plan_float64()),
    }  # fmt: skip
    for dtype in (options.only,) if options.only else asked:
        for family, w, zeros, columns in drawn(asked[dtype], dtype):
            rows += measure(family, w, zeros, columns)
            write_suite("hybrid", rows, stems=STEMS, out=options.out)
    for zeros in ZEROS if options.minilm else ():
        for name, w in minilm(options.minilm, zeros):
            rows += measure(f"minilm {name}", w, zeros, (1, 8, 64, 512))
            write_suite("hybrid", rows, stems=STEMS, out=options.out)
    for (family, n), zeros in sorted(break_even(rows).items()):
        print(f"break-even {family} n={n}: {zeros:.0%} zeros")


if __name__ == "__main__":
    main()
