"""Times the tiles of the Hopper kernel on random products, for `fit_tiles.py`: writes FILE.

    python tests/bench/bench_tiles.py FILE [--seconds 150] [--seed 1] [--dtypes float16 int8]

Each product runs by all tiles that the planner expects to take at most half as long again as the
best one, and by cuBLAS.  Every result is checked against the dense product of the pruned matrix.
What else a product could take, copies of b among it, is left out: this is about tiles.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import cupy as cp
import torch
from bench_gemm import TORCH as PLAIN_TYPES
from bench_gemm import as_cupy
from harness import Contender, copies, geometric_mean, race, to_torch
from machine import needs_gpus

import sparse24 as s24
from sparse24 import _dtypes, _evidence

ROWS, COLUMNS, DEPTHS = (64, 14000), (64, 14000), (512, 18000)  # of the result; along k
PRODUCTS = (1e7, 6e11)  # multiply-adds
WORTH_A_RUN = 1.5  # times the least predicted time
MOST_ERROR = 4e-3  # relative, of 16-bit results
RESULTS = {"int8": "int32", "float8_e4m3fn": "bfloat16"}
TORCH = PLAIN_TYPES | {"float32": torch.float32}
KERNELS = {"float32": "sparse_split"}  # others: sparse_wgmma


def draw(rng: random.Random) -> tuple[int, int, int]:
    """Rows, k and columns, each log-uniform."""

    def extent(low: int, high: int, step: int) -> int:
        return max(step, int(low * (high / low) ** rng.random()) // step * step)

    while True:
        m, k, n = extent(*ROWS, 16), extent(*DEPTHS, 32), extent(*COLUMNS, 16)
        if PRODUCTS[0] < m * k * n < PRODUCTS[1]:
            return m, k, n


def operands(m: int, k: int, n: int, name: str, order: str):
    """A compressed matrix, its pruned form, and b (k, n) as CuPy and as torch have it."""
    shape = (n, k) if order == "column" else (k, n)
    w, x = (torch.randint(-3, 4, size, device="cuda").to(TORCH[name]) for size in ((m, k), shape))
    a = s24.compress(w, on_excess="prune", dtype=name)
    b, b_dense = (as_cupy(x).T, x.t()) if order == "column" else (as_cupy(x), x)
    return a, to_torch(a.toarray(), TORCH[name]), b, b_dense


def dense(pruned: torch.Tensor, b: torch.Tensor, count: int, name: str) -> Contender | None:
    """cuBLAS on copies of the matrix; None where it does not take these sizes."""
    weights = [pruned.clone() for _ in range(count)]
    if name == "int8":
        return None  # wants b.T with rows of its own; see bench_few_tokens.py
    if name.startswith("float8"):
        one = torch.ones((), device="cuda")
        call = lambda w: torch._scaled_mm(w, b, one, one, out_dtype=torch.bfloat16)  # noqa: E731
    else:
        out = torch.empty(pruned.shape[0], b.shape[1], dtype=pruned.dtype, device="cuda")
        call = lambda w: torch.mm(w, b, out=out)  # noqa: E731
    return Contender([lambda w=w: call(w) for w in weights], library="torch")


def run(m: int, k: int, n: int, name: str, order: str) -> dict | None:
    a, pruned, b, b_dense = operands(m, k, n, name, order)
    options = {"dtype": RESULTS.get(name, name)}
    if name.startswith("float8"):
        options["b_dtype"] = name
    known = [
        c for c in s24.explain(a, b, **options).candidates
        if c.refusal is None and c.kernel == KERNELS.get(name, "sparse_wgmma") and not c.copies
    ]  # fmt: skip
    if not known:
        return None
    least = min(c.seconds for c in known)
    tiles = [c for c in known if c.seconds <= WORTH_A_RUN * least]
    of_pieces = 6 * k * n if name == "float32" else 0  # which each call has in its graph
    count = copies(m * k * TORCH[name].itemsize // 2 + of_pieces)
    several = [a, *(a.copy() for _ in range(count - 1))]
    out = cp.empty((m, n), _dtypes.numpy_dtype(options["dtype"]))
    want = pruned.float() @ b_dense.float()
    racing = {"cublas": dense(pruned, b_dense, max(1, count // 2), name)}
    for tile in tiles:
        out.view(cp.uint8).fill(0xFF)
        call = lambda one, tile=tile: s24.matmul(  # noqa: E731
            one, b, out, algorithm=tile.name, **options
        )
        racing[tile.config] = Contender([lambda one=one, call=call: call(one) for one in several])
        got = to_torch(out, torch.bfloat16 if options["dtype"] == "bfloat16" else None).float()
        error = float((got - want).norm() / want.norm())
        if not error < MOST_ERROR:
            raise AssertionError(f"{tile.name} of {m}x{k}x{n}, {name}: relative error {error}")
    racing = {label: way for label, way in racing.items() if way is not None}
    race(racing, rounds=3, budget_ms=1.0)
    us = {label: round(way.us, 3) for label, way in racing.items()}
    shape = {"m": m, "k": k, "n": n, "dtype": name, "b_order": order}
    return {**shape, "cublas_us": us.pop("cublas", None), "us": us}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtypes", nargs="+", choices=list(TORCH), default=["float16"])
    arguments = parser.parse_args()
    needs_gpus()
    rng, rows, end = random.Random(arguments.seed), [], time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        name = rng.choice(arguments.dtypes)
        order = rng.choice(["column", "row"]) if TORCH[name].itemsize > 1 else "column"
        row = run(*draw(rng), name, order)
        cp.get_default_memory_pool().free_all_blocks()  # those of the streams of each race
        if row is not None:
            rows.append(row)
    _evidence.write_json(arguments.file, {"header": _evidence.header(), "cases": rows})
    ratios = [row["cublas_us"] / min(row["us"].values()) for row in rows if row["cublas_us"]]
    print(f"{len(rows)} products", f"{geometric_mean(ratios):.3f}x cuBLAS" if ratios else "")


if __name__ == "__main__":
    main()
