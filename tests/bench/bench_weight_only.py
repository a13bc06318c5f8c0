"""8-bit and 4-bit weights with 16-bit tokens: adds cases to ``few_tokens.json``.

    python tests/bench/bench_weight_only.py [--stored int8 int4 ...] [--tokens 1 8 ...]

The weight is quantised, the tokens are not: y (n, m) = x (n, k) @ w.T.  Ours is what the planner
chooses untuned; of int4, a `Quantised24Array`.  For many tokens it may make a matrix of 16 bits at
each call.
Rivals are cuBLAS with a dense weight of 16 bits and, up to 16 tokens, torch with a dense weight of
int8, compiled, or of 4 bits with a scale for every 128 columns: with more than one token these take
longer than cuBLAS, with 16 up to three times as long.  As in bench_few_tokens.py, all go round over
copies of their weight that together exceed the L2 cache.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import cupy as cp
import rivals
import shapes
import torch
from bench_few_tokens import TORCH
from bench_gemm import as_cupy, error_of
from harness import Contender, case, copies, free, geometric_mean, race, to_torch, write_suite
from machine import needs_gpus

import sparse24 as s24

STEMS = ("sparse_decode", "sparse_mixed", "sparse_quantised", "sparse_wgmma", "dequantise", "widen")
STORED = ("int8", "float8_e4m3fn", "int4")
TOKENS = (1, 8, 16, 32, 64, 128, 512, 2048)
AS_STORED = ("sparse_decode", "sparse_mixed", "sparse_quantised")
MOST_OF_TORCH = 16  # tokens by which torch's own products of narrow weights run
ACTIVATIONS = "bfloat16"


class Layer:
    """A linear layer of a random 2:4 weight of 8 or 4 bits, as often as needed."""

    def __init__(self, m: int, k: int, n: int, stored: str):
        torch.manual_seed(m + k + n)
        self.x = torch.randn(n, k, device="cuda").to(TORCH[ACTIVATIONS])
        self.tokens, self.y = (
            as_cupy(self.x),
            cp.empty((n, m), s24._dtypes.numpy_dtype(ACTIVATIONS)),
        )
        held = ACTIVATIONS if stored == "int4" else stored
        scale = 30 if stored == "int8" else 1
        self.dense = [
            (scale * torch.randn(m, k, device="cuda")).to(TORCH[held])
            for _ in range(copies(m * k // (4 if stored == "int4" else 2)))
        ]
        self.sparse = [s24.compress(w, on_excess="prune", dtype=held) for w in self.dense]
        if stored == "int4":
            self.sparse = [s24.quantise(a, bits=4, method="absmax") for a in self.sparse]
        self.chosen = s24.explain(self.tokens, self.sparse[0].T).chosen

    def contender(self) -> Contender:
        return Contender([lambda a=a: s24.matmul(self.tokens, a.T, self.y) for a in self.sparse])

    def error(self) -> float:
        """Relative error of the first copy's product, written over poison, against float64."""
        self.y.view(cp.uint8).fill(0xFF)
        s24.matmul(self.tokens, self.sparse[0].T, self.y)
        pruned = to_torch(self.sparse[0].astype("float32").toarray(), torch.float32)
        return error_of(self.y, pruned, self.x, ACTIVATIONS)

    @property
    def bytes(self) -> int:
        return self.sparse[0].nbytes + self.tokens.nbytes + self.y.nbytes


def of_torch(layer: Layer, stored: str) -> list[Contender]:
    """Torch's own products of a weight of such elements."""
    if stored == "int8":
        return rivals.compiled_int8_weights(layer.dense, layer.x)
    return [rivals.int4_weights(layer.dense, layer.x)] if stored == "int4" else []


def run(m: int, k: int, n: int, stored: str) -> dict:
    layer = Layer(m, k, n, stored)
    ours = layer.contender()
    wide = [w.to(TORCH[ACTIVATIONS]) for w in layer.dense[: copies(2 * m * k)]]
    racing = {"ours": ours, "cublas": rivals.dense(wide, layer.x)}
    narrow = of_torch(layer, stored) if n <= MOST_OF_TORCH else []
    error = layer.error()
    race(racing | {f"torch {i}": way for i, way in enumerate(narrow)})
    named = {"cublas": racing["cublas"]}
    if narrow:
        named[f"torch_{stored}_weights"] = min(narrow, key=lambda way: way.us)
    kernel = layer.chosen.partition("/")[0]
    making = [] if kernel in AS_STORED else ["dequantise" if stored == "int4" else "widen"]
    return case(
        f"{stored} weights {m}x{k}x{n}", ours=ours, kernel=layer.chosen, rivals=named,
        used=[kernel, *making], m=m, k=k, n=n,
        dtype=f"{stored} by {ACTIVATIONS}", error=error, bytes=layer.bytes,
    )  # fmt: skip


def report(rows: list[dict]) -> None:
    by_tokens: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        times = "  ".join(f"{rival} {us:7.1f}" for rival, us in row["rivals"].items())
        print(f"{row['name']:32} ours {row['ours_us']:7.1f} us  {times}  {row['ours_kernel']}  "
              f"error {row['error']:.1e}")  # fmt: skip
        for rival, us in row["rivals"].items():
            kind = row["name"].split()[0], row["n"], rival
            by_tokens.setdefault(kind, []).append(us / row["ours_us"])
    for (stored, n, rival), ratios in by_tokens.items():
        print(f"{stored} n={n}: {geometric_mean(ratios):.2f}x {rival} (worst {min(ratios):.2f}x)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stored", nargs="+", choices=STORED, default=STORED)
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    needs_gpus()
    rows = []
    for stored in arguments.stored:
        for n, (m, k) in itertools.product(arguments.tokens, shapes.FEW_TOKENS_WEIGHTS):
            rows.append(run(m, k, n, stored))
            free()
    report(rows)
    write_suite("few_tokens", rows, stems=STEMS, out=arguments.out)


if __name__ == "__main__":
    main()
