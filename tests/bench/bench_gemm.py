"""Products of many tokens beside cuBLAS and cuSPARSELt: writes ``gemm.json``.

    python tests/bench/bench_gemm.py [--sets large other ...] [--dtypes bfloat16 float16]

Each case is checked against a float64 product of some rows before it is timed; all
contenders run in the same rounds.  The layout is that of a linear layer:
y (n, m) = x (n, k) @ w.T.  Ours is what `autotune` chose; ``untuned`` is what the planner
chooses from its predictions alone.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import cupy as cp
import numpy as np
import precompile
import rivals
import shapes
import torch
from harness import Contender, case, geometric_mean, race, to_torch, write_suite
from machine import needs_gpus

import sparse24 as s24
from sparse24._records import Problem

STEMS = ("sparse_wgmma", "sparse_mma", "sparse_skinny", "sparse_fma")
CHECKED_ROWS = 64
TORCH = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int8": torch.int8,
}


def operands(m: int, k: int, n: int, name: str):
    """A compressed weight, the pruned and a dense weight as tensors, and tokens (n, k)."""
    torch.manual_seed(m + k + n)
    draw = lambda rows: torch.randn(rows, k, device="cuda")  # noqa: E731
    scale = 30 if name == "int8" else 1
    w, x = ((scale * draw(rows)).to(TORCH[name]) for rows in (m, n))
    wide = not name.startswith("float8") and name != "int8"
    # The dense product of 16-bit types is a candidate: the figures are those after planning.
    a = s24.compress(w, on_excess="prune", keep_dense=wide, dtype=None if wide else name)
    pruned = to_torch(a.toarray(), TORCH[name]).contiguous()
    return a, pruned, w, x


def as_cupy(x: torch.Tensor):
    from sparse24 import _foreign

    return _foreign.from_torch(x)


def error_of(y, pruned, x, name: str) -> float:
    """Relative Frobenius error of some rows of y against float64."""
    rows = slice(0, CHECKED_ROWS)
    want = x[rows].double() @ pruned.double().T
    got = to_torch(y, torch.bfloat16 if y.dtype.name == "bfloat16" else None)[rows].double()
    return float((got - want).norm() / want.norm())


def run(m: int, k: int, n: int, name: str, choice) -> dict:
    a, pruned, w, x = operands(m, k, n, name)
    tokens = as_cupy(x)
    out_name = "bfloat16" if name in ("float8_e4m3fn", "int8") else name
    y = cp.empty((n, m), s24._dtypes.numpy_dtype(out_name))
    y.view(np.uint8).fill(0xFF)  # NaN everywhere: a place that is not written shows
    options = {"dtype": out_name, "a_dtype": name}
    untuned = s24.explain(tokens, a.T, **options).chosen
    with s24.autotune():
        s24.matmul(tokens, a.T, y, **options)
    y.view(np.uint8).fill(0xFF)
    s24.matmul(tokens, a.T, y, **options)
    error = error_of(y, pruned, x, name)
    told = s24.explain(tokens, a.T, **options)
    ours = Contender([lambda: s24.matmul(tokens, a.T, y, **options)])
    contenders = {"ours": ours, "cublas": dense_rival(w, x, name)}
    if untuned != told.chosen:
        run_untuned = lambda: s24.matmul(tokens, a.T, y, algorithm=untuned, **options)  # noqa: E731
        contenders["untuned"] = Contender([run_untuned])
    if choice is not None:
        rival_out = None if name in ("bfloat16", "float16") else torch.bfloat16
        contenders["cusparselt"] = rivals.cusparselt([pruned], x, choice, out_dtype=rival_out)
    race(contenders)
    others = {key: value for key, value in contenders.items() if key not in ("ours", "untuned")}
    return case(
        f"{name} {m}x{k}x{n}", ours=ours, kernel=told.chosen,
        rivals=others, m=m, k=k, n=n, dtype=name, error=error,
        bytes=a.values.nbytes + a.packed.nbytes + x.nbytes + y.nbytes,
        untuned_kernel=untuned, untuned_us=round(contenders.get("untuned", ours).us, 3),
    )  # fmt: skip


def dense_rival(w, x, name: str) -> Contender:
    if name == "float8_e4m3fn":
        return rivals.dense_float8([w], x)
    if name == "int8":
        return rivals.dense_int8([w], x)
    return rivals.dense([w], x)


def problems(listed, dtypes) -> Iterator[Problem]:
    """What the planner will be asked."""
    for name in dtypes:
        out = name if name in ("bfloat16", "float16") else "bfloat16"
        for m, k, n in listed:
            yield Problem(m, n, k, 1, name, name, out, "column", "column")


def report(rows: list[dict]) -> None:
    for row in rows:
        tera = 2e-6 * row["m"] * row["k"] * row["n"]
        figures = {"ours": row["ours_us"], **row["rivals"]}
        print(
            f"{row['name']:28}",
            *(f"{name} {us:9.1f} us {tera / us:7.0f} TF" for name, us in figures.items()),
            f"{row['ours_kernel']}  error {row['error']:.2e}",
        )
    for rival in ("cublas", "cusparselt"):
        ratios = [row["rivals"][rival] / row["ours_us"] for row in rows if rival in row["rivals"]]
        if ratios:
            print(f"over {rival}: {geometric_mean(ratios):.3f} (worst {min(ratios):.3f})")


def main() -> None:
    sets = {
        "large": (shapes.LARGE, None),
        "other": (shapes.OTHER, None),
        "middle": (shapes.MIDDLE_TOKENS, None),
        "fp8": (shapes.EIGHT_BIT, ("float8_e4m3fn",)),
        "int8": (shapes.EIGHT_BIT, ("int8",)),
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=sets, default=list(sets))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--no-search", action="store_true", help="skip cuSPARSELt")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    needs_gpus()
    wanted = [(sets[name][0], sets[name][1] or arguments.dtypes) for name in arguments.sets]
    precompile.candidates_of(itertools.chain.from_iterable(itertools.starmap(problems, wanted)))
    for listed, dtypes in wanted:
        for dtype in dtypes:
            rival_out = "none" if dtype in ("bfloat16", "float16") else "bfloat16"
            chosen = {}
            if not arguments.no_search:
                chosen = rivals.cusparselt_search(listed, dtype, rival_out)
            rows = []
            for shape in listed:
                rows.append(run(*shape, dtype, chosen.get(shape)))
                print(json.dumps(rows[-1]), flush=True)
                gc.collect()
                torch.cuda.empty_cache()
                cp.get_default_memory_pool().free_all_blocks()
            report(rows)
            write_suite("gemm", rows, stems=STEMS, out=arguments.out)


if __name__ == "__main__":
    main()
