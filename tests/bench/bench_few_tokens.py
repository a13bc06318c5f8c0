"""Products of few tokens beside dense cuBLAS: writes ``few_tokens.json``.

    python tests/bench/bench_few_tokens.py [--dtypes bfloat16 ...] [--tokens 1 8 ...]
        [--only block small]

Every contender goes round over copies of its weight that together exceed the L2 cache
several times.  The layout is that of a linear layer: y (n, m) = x (n, k) @ w.T.  Ours is what
`autotune` chose; ``untuned`` is what the planner chooses from its predictions alone, which is ours
for ``small`` layers.  The last cases, ``block``, are a token step: the seven linear layers of a
transformer block.

Some hundred candidates are compiled first, by as many processes as there are cores.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import cupy as cp
import precompile
import rivals
import shapes
import torch
from bench_gemm import as_cupy, error_of
from harness import (
    Contender,
    case,
    copies,
    free,
    geometric_mean,
    race,
    to_torch,
    write_suite,
)
from machine import needs_gpus

import sparse24 as s24
from sparse24._planner import DENSE_KERNEL
from sparse24._records import Problem

STEMS = (
    "sparse_wgmma", "sparse_mma", "sparse_skinny", "sparse_decode", "sparse_matvec", "split_skinny",
    "sparse_split", "split_mma", "sparse_fma",
)  # fmt: skip
TORCH = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int8": torch.int8,
    "float32": torch.float32,
}
EIGHT_BIT = ("float8_e4m3fn", "int8")
# (m, k) of query, key, value, output, gate, up and down in an 8B model with grouped queries.
BLOCK = (
    (4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096),
    (14336, 4096), (14336, 4096), (4096, 14336),
)  # fmt: skip
BLOCK_TOKENS = (1, 8, 16, 32, 64)
EIGHT_BIT_TOKENS = (1, 8, 16, 32)
FLOAT32_TOKENS = (1, 2, 4, 8, 16, 32, 64)
SMALL_TOKENS = (1, 8, 16, 32, 64, 256)


class Layer:
    """A linear layer of random 2:4 weight, and as many dense copies of it."""

    def __init__(self, m: int, k: int, n: int, name: str, count: int, x=None, *, tuned=True):
        torch.manual_seed(m + k + n)
        scale = 30 if name == "int8" else 1
        draw = lambda rows: (scale * torch.randn(rows, k, device="cuda")).to(TORCH[name])  # noqa: E731
        wide = name not in EIGHT_BIT
        self.x = draw(n) if x is None else x
        self.dense = [draw(m) for _ in range(count)]
        self.sparse = [
            s24.compress(w, on_excess="prune", keep_dense=wide, dtype=None if wide else name)
            for w in self.dense
        ]
        self.tokens = as_cupy(self.x)
        self.out_name = name if wide else ("int32" if name == "int8" else "bfloat16")
        self.y = cp.empty((n, m), s24._dtypes.numpy_dtype(self.out_name))
        self.options = {"dtype": self.out_name, "a_dtype": name}
        self.untuned = self.chosen
        if tuned:
            with s24.autotune():
                self.step(0)

    @property
    def chosen(self) -> str:
        """What the planner chooses as things are, of what a graph can hold: not cuBLAS."""
        told = s24.explain(self.tokens, self.sparse[0].T, **self.options)
        if not told.chosen.startswith(DENSE_KERNEL):
            return told.chosen
        able = (c for c in told.candidates if c.refusal is None and c.kernel != DENSE_KERNEL)
        return next(able).name

    def step(self, copy: int, algorithm: str = "auto") -> None:
        a = self.sparse[copy].T
        s24.matmul(self.tokens, a, self.y, algorithm=algorithm, **self.options)

    def contender(self, algorithm: str = "auto") -> Contender:
        turns = range(len(self.sparse))
        return Contender([lambda i=i: self.step(i, algorithm) for i in turns])

    def error(self, name: str) -> float:
        """Relative error of the first copy's product, written over poison, against float64."""
        self.y.view(cp.uint8).fill(0xFF)
        self.step(0)
        pruned = to_torch(self.sparse[0].toarray(), TORCH[name])
        return error_of(self.y, pruned, self.x, name)

    @property
    def bytes(self) -> int:
        a = self.sparse[0]
        return a.values.nbytes + a.packed.nbytes + self.tokens.nbytes + self.y.nbytes


def run(m: int, k: int, n: int, name: str, *, small: bool = False) -> dict:
    layer = Layer(m, k, n, name, copies(m * k * TORCH[name].itemsize // 2), tuned=not small)
    ours = layer.contender()
    racing = {"ours": ours, **dense_rivals(layer, name)}
    if layer.untuned != layer.chosen:
        racing["untuned"] = layer.contender(layer.untuned)
    error = layer.error(name)
    race(racing)
    ways = [way for label, way in racing.items() if label.startswith("cublas")]
    return case(
        f"{'small ' * small}{name} {m}x{k}x{n}", ours=ours, kernel=layer.chosen,
        rivals={"cublas": min(ways, key=lambda way: way.us)},
        m=m, k=k, n=n, dtype=name, error=error, bytes=layer.bytes,
        untuned_kernel=layer.untuned, untuned_us=round(racing.get("untuned", ours).us, 3),
    )  # fmt: skip


def dense_rivals(layer: Layer, name: str) -> dict[str, Contender]:
    """The dense product by cuBLAS; in float32 in two ways, as the usual one is not its best."""
    x = layer.x
    if name in EIGHT_BIT:
        missing = rivals.LEAST_ROWS[name] - len(x)
        if missing > 0:
            x = torch.cat([x, x.new_zeros(missing, x.shape[1])])
        make = rivals.dense_float8 if name == "float8_e4m3fn" else rivals.dense_int8
        return {"cublas": make(layer.dense, x)}
    found = {"cublas": rivals.dense(layer.dense, x)}
    if name == "float32":
        found["cublas, batched"] = rivals.dense_batched(layer.dense, x)
    return found


def run_block(n: int, name: str = "bfloat16") -> dict:
    """A token step: all layers of a block, one copy of each (together far above the L2 cache)."""
    tokens = {k: torch.randn(n, k, device="cuda").to(TORCH[name]) for k in (4096, 14336)}
    layers = [Layer(m, k, n, name, 1, tokens[k]) for m, k in BLOCK]
    error = max(layer.error(name) for layer in layers)
    ours = Contender([lambda: [layer.step(0) for layer in layers]])
    outs = [torch.empty(n, m, dtype=TORCH[name], device="cuda") for m, _ in BLOCK]
    calls = [lambda: [torch.mm(a.x, a.dense[0].t(), out=y) for a, y in zip(layers, outs)]]
    dense = Contender(calls, library="torch")
    race({"ours": ours, "cublas": dense})
    return case(
        f"block {name} n={n}", ours=ours, kernel="planned", rivals={"cublas": dense},
        n=n, dtype=name, error=error, bytes=sum(layer.bytes for layer in layers),
    )  # fmt: skip


def problems(names: list[str], tokens: list[int], *, block: bool) -> Iterator[Problem]:
    """What `autotune` will be asked."""
    of_block = itertools.product(BLOCK_TOKENS if block else (), set(BLOCK))
    shapes_of_block = [(m, k, n, "bfloat16") for n, (m, k) in of_block]
    few = [
        (m, k, n, name)
        for name in names
        for n in tokens_of(name, tokens)
        for m, k in shapes.FEW_TOKENS_WEIGHTS
    ]
    for m, k, n, name in few + shapes_of_block:
        out = {"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(name, name)
        yield Problem(m, n, k, 1, name, name, out, "column", "column")


def report(rows: list[dict]) -> None:
    by_tokens: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        ratio = row["rivals"]["cublas"] / row["ours_us"]
        speed = row["bytes"] / row["ours_us"] * 1e-6
        print(
            f"{row['name']:28} ours {row['ours_us']:7.1f} us {speed:5.2f} TB/s  "
            f"cublas {row['rivals']['cublas']:7.1f} us  {ratio:5.2f}x  "
            f"{row['ours_kernel']}  error {row['error']:.1e}"
        )
        kind = row["name"].split()[0]
        by_tokens.setdefault((kind, row["n"]), []).append(ratio)
    for (kind, n), ratios in by_tokens.items():
        print(f"{kind} n={n}: {geometric_mean(ratios):.2f}x cublas (worst {min(ratios):.2f}x)")


def tokens_of(name: str, asked: list[int]) -> tuple[int, ...]:
    if name in EIGHT_BIT:
        return EIGHT_BIT_TOKENS
    return FLOAT32_TOKENS if name == "float32" else tuple(asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", choices=TORCH, default=list(TORCH))
    parser.add_argument("--tokens", nargs="+", type=int, default=list(shapes.FEW_TOKENS))
    parser.add_argument("--only", nargs="+", choices=("block", "small"), default=())
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    needs_gpus()
    names = [] if arguments.only else arguments.dtypes
    small = "small" in arguments.only or not arguments.only
    block = "block" in arguments.only or not arguments.only
    precompile.candidates_of(problems(names, arguments.tokens, block=block))
    rows = []
    for (m, k), n in itertools.product(shapes.SMALL_WEIGHTS, SMALL_TOKENS) if small else ():
        rows.append(run(m, k, n, "bfloat16", small=True))
        free()
    for name in names:
        for n in tokens_of(name, arguments.tokens):
            for m, k in shapes.FEW_TOKENS_WEIGHTS:
                rows.append(run(m, k, n, name))
                free()
    for n in BLOCK_TOKENS if block else ():
        rows.append(run_block(n))
        free()
    report(rows)
    write_suite("few_tokens", rows, stems=STEMS, out=arguments.out)


if __name__ == "__main__":
    main()
