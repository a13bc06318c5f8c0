"""Products of mixture-of-experts layers beside torch and cuBLAS: writes ``grouped.json``.

    python tests/bench/bench_grouped.py [--layers NAME ...] [--dtypes bfloat16 ...]
        [--tokens 8 64 ...] [--quick]

The layout is that of linear layers, y (t, m) = x (t, k) @ w[i].T for the tokens of expert i, and
tokens are spread over the experts unevenly.  Every contender goes round over several routings,
which give the same numbers of tokens to other experts, so that weights come from memory and not
from the L2 cache.  Offsets are on the device for ours and torch's grouped product; the loop over
cuBLAS, a product for each expert that has tokens, has them in its graph.

Gated layers multiply by a gate and an up projection, (2 m, k), and give silu(gate) * up, which is
part of our launch.  The rivals have one more pass for it, which torch.compile makes.

With int4, our weights are quantised, of 4 bits, with the types "by bfloat16" of 8 bits; tokens and
the weights of the rivals are bfloat16.

Each case is first checked against float64 products of some tokens, and so are the rivals'.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rivals_grouped as rivals
import torch
from bench_gemm import TORCH
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
from rivals_grouped import Routing

import sparse24 as s24

STEMS = ("grouped_wgmma", "grouped_quantised", "grouped_mixed", "dequantise", "widen")
RESULT = {
    "bfloat16": "bfloat16", "int4": "bfloat16", "int8 by bfloat16": "bfloat16",
    "float8_e4m3fn by bfloat16": "bfloat16", "float8_e4m3fn": "bfloat16", "int8": "int32",
}  # fmt: skip
DIRECT = ("grouped_quantised", "grouped_mixed")  # take weights as they are stored
TOKENS = (8, 64, 512, 4096, 32768)  # each counted once for each of its experts
MOST_ROUTINGS = 8
CHECKED_TOKENS, CHECKED_EXPERTS = 64, 4
MOST_ERROR = 2e-2  # bfloat16 rounds to 4e-3; a wrong product is off by far more


class Shape(NamedTuple):
    """The weights (m, k) of e experts; (2 m, k) if gated."""

    name: str
    e: int
    m: int
    k: int
    gated: bool = False

    @property
    def rows(self) -> int:
        return self.m * (2 if self.gated else 1)


# Two experts of each token in Mixtral, eight in the others.
SHAPES = (
    Shape("Mixtral-8x7B gate", 8, 14336, 4096),
    Shape("Mixtral-8x7B down", 8, 4096, 14336),
    Shape("Mixtral-8x7B gate and up", 8, 14336, 4096, gated=True),
    Shape("Qwen3-30B-A3B gate", 128, 768, 2048),
    Shape("Qwen3-30B-A3B down", 128, 2048, 768),
    Shape("Qwen3-30B-A3B gate and up", 128, 768, 2048, gated=True),
    Shape("DeepSeek-like gate", 64, 2048, 7168),
    Shape("DeepSeek-like gate and up", 64, 2048, 7168, gated=True),
)
EIGHT_BIT_SHAPE = "Mixtral-8x7B gate"
OF_EVERY_SHAPE = ("bfloat16", "int4", "int8 by bfloat16")
QUICK_TOKENS = (64, 4096)


class Layer:
    """Random 2:4 weights of the experts, in the compressed form and, dense, for the rivals."""

    def __init__(self, shape: Shape, name: str):
        torch.manual_seed(shape.rows + shape.k)
        self.shape, self.name = shape, name
        stored, _, of_tokens = name.partition(" by ")
        self.held = held = "bfloat16" if name == "int4" else of_tokens or name  # by rivals; tokens
        self.scale = 30 if stored == "int8" else 1  # of the weights
        scale = self.scale if held == stored else 1
        self.draw = lambda *size: (scale * torch.randn(*size, device="cuda")).to(TORCH[held])
        size = shape.e, shape.rows, shape.k
        self.dense = torch.empty(*size, dtype=TORCH[held], device="cuda")
        for weight in self.dense:  # one at a time, as the numbers are drawn in float32
            drawn = self.draw(shape.rows, shape.k)
            weight.copy_((self.scale * drawn).to(TORCH[stored]) if of_tokens else drawn)
        if (
            shape.gated and not of_tokens
        ):  # so that silu is neither zero nor the identity everywhere
            self.dense.mul_(shape.k**-0.5)
        dtype = None if held == "bfloat16" else held
        self.sparse = s24.compress(self.dense, on_excess="prune", dtype=dtype, check=False)
        if name == "int4":
            self.sparse = s24.quantise(self.sparse, bits=4, method="absmax")
        elif of_tokens:
            self.sparse = self.sparse.astype(stored)

    def tokens(self, count: int) -> torch.Tensor:
        """Random ones; of gated layers whose weights are not small, they are."""
        x = self.draw(count, self.shape.k)
        small = self.shape.gated and " by " in self.name
        return x.mul_(self.shape.k**-0.5 / self.scale) if small else x

    def exact(self, i: int) -> torch.Tensor:
        """The matrix of an expert as our product takes it."""
        one = self.sparse[i]
        if self.name == "int4":  # in bfloat16 it were rounded
            return to_torch(one.astype("float32").toarray(), torch.float32)
        return to_torch(one.toarray(), TORCH[self.name.partition(" by ")[0]])

    def routings(self, tokens: int) -> list[Routing]:
        """Shares that fall as 1 / rank, drawn once, and given to other experts in turn."""
        rng = np.random.default_rng(tokens)
        shares = rng.permutation(1 / np.arange(1, self.shape.e + 1))
        counts = rng.multinomial(tokens, shares / shares.sum())
        touched = int((counts > 0).sum()) * self.sparse.nbytes // self.shape.e
        several = min(copies(touched), self.shape.e, MOST_ROUTINGS)
        turns = [turn * self.shape.e // several for turn in range(several)]
        return [Routing.of(np.roll(counts, turn)) for turn in turns]


class Ours:
    """Our product of a layer with tokens `x`."""

    def __init__(self, layer: Layer, x: torch.Tensor):
        self.layer, self.x = layer, x
        self.result = getattr(torch, RESULT[layer.name])
        self.options = {"activation": "silu", "gated": True} if layer.shape.gated else {}

    def step(self, offsets: torch.Tensor) -> torch.Tensor:
        return s24.grouped_linear(self.x, self.layer.sparse, offsets=offsets, **self.options)

    def contender(self, routings: list[Routing]) -> Contender:
        calls = [lambda r=r: self.step(r.offsets) for r in routings]
        return Contender(calls, library="torch")

    def error(self, routing: Routing) -> float:
        """Against float64, written over poison."""
        self.step(routing.offsets)
        poison = torch.empty(len(self.x), self.layer.shape.m, dtype=self.result, device="cuda")
        poison.view(torch.uint8).fill_(0xFF)
        where = poison.data_ptr()
        del poison  # the result takes its place
        y = self.step(routing.offsets)
        if y.data_ptr() != where:
            raise SystemExit("the result was not written over poison")
        return error_of(y, self.layer.exact, self.x, routing, gated=self.layer.shape.gated)

    def kernels(self, routing: Routing) -> list[str]:
        """Those that run, the one that multiplies first."""
        a, b = self.layer.sparse, self.x.T
        chosen = s24.explain(a, b, offsets=routing.offsets).chosen
        if self.layer.name == self.layer.held or chosen in DIRECT:
            return [chosen]
        return [chosen, "dequantise" if self.layer.name == "int4" else "widen"]

    def bytes(self, routing: Routing) -> int:
        """Read and written: of the weights, those of experts that have tokens."""
        weights = self.layer.sparse.nbytes * len(routing.busy) / self.layer.shape.e
        stored = len(self.x) * self.layer.shape.m * self.result.itemsize
        return int(weights + self.x.nbytes + stored)


def error_of(
    y: torch.Tensor, weight_of, x: torch.Tensor, routing: Routing, *, gated: bool
) -> float:
    """Relative error of some tokens of some experts against float64."""
    got, want = [], []
    for i, tokens in routing.busy[:CHECKED_EXPERTS]:
        some = slice(tokens.start, min(tokens.stop, tokens.start + CHECKED_TOKENS))
        product = x[some].double() @ weight_of(i).double().T
        want.append(rivals.gated(product) if gated else product)
        got.append(y[some].double())
    exact = torch.cat(want)
    return float((torch.cat(got) - exact).norm() / exact.norm())


def run(layer: Layer, tokens: int) -> dict:
    x = layer.tokens(tokens)
    routings, ours = layer.routings(tokens), Ours(layer, x)
    error = checked("ours", ours.error(routings[0]))
    racing = {"ours": ours.contender(routings)}
    gated = layer.shape.gated
    for name, product in rivals.of(layer.dense, x, layer.held, passes=gated).items():
        try:
            y = product(routings[0])
        except RuntimeError as reason:  # a type or layout that this version of torch does not take
            print(f"{name} cannot run {layer.held}: {reason}")
            continue
        checked(name, error_of(y, layer.dense.__getitem__, x, routings[0], gated=gated))
        calls = [lambda r=r, product=product: product(r) for r in routings]
        racing[name] = Contender(calls, library="torch")
    race(racing)
    _, e, m, k, _ = layer.shape
    used = ours.kernels(routings[0])
    return case(
        f"{layer.name} {layer.shape.name} {tokens} tokens", ours=racing["ours"],
        kernel=used[0], used=used, rivals=best_of_each(racing), m=m, k=k, n=tokens, experts=e,
        gated=gated, busy=len(routings[0].busy), routings=len(routings), dtype=layer.name,
        error=error, bytes=ours.bytes(routings[0]),
    )  # fmt: skip


def checked(name: str, error: float) -> float:
    """The relative error of a contender, if it multiplies right."""
    if not error < MOST_ERROR:
        raise SystemExit(f"{name} is wrong: relative error {error:.1e}")
    return error


def best_of_each(racing: dict[str, Contender]) -> dict[str, Contender]:
    """Rivals, each in the faster of its ways: ``"name, way"`` counts as ``"name"``."""
    best: dict[str, Contender] = {}
    for label, contender in racing.items():
        name = label.partition(",")[0]
        if name != "ours" and (name not in best or contender.us < best[name].us):
            best[name] = contender
    return best


def report(found: list[dict]) -> None:
    by_tokens: dict[tuple, list[float]] = {}
    for row in found:
        ratio = min(row["rivals"].values()) / row["ours_us"]
        rows = row["m"] * (2 if row["gated"] else 1)
        rate = 2 * rows * row["k"] * row["n"] / row["ours_us"] * 1e-6
        others = "  ".join(f"{name} {us:8.1f}" for name, us in row["rivals"].items())
        print(
            f"{row['name']:44} ours {row['ours_us']:8.1f} us "
            f"{row['bytes'] / row['ours_us'] * 1e-6:5.2f} TB/s {rate:6.0f} TFLOP/s  {others}  "
            f"{ratio:5.2f}x  error {row['error']:.1e}"
        )
        of = ("gated " if row["gated"] else "") + row["dtype"]
        by_tokens.setdefault((of, row["n"]), []).append(ratio)
    for (of, tokens), ratios in by_tokens.items():
        worst = f"worst {min(ratios):.2f}x"
        print(f"{of}, {tokens} tokens: {geometric_mean(ratios):.2f}x the best rival ({worst})")


def wanted(arguments) -> Iterator[tuple[Shape, str]]:
    for shape in SHAPES:
        for name in arguments.dtypes:
            of_layer = shape.name in (arguments.layers or [s.name for s in SHAPES])
            if of_layer and (name in OF_EVERY_SHAPE or shape.name == EIGHT_BIT_SHAPE):
                yield shape, name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--dtypes", nargs="+", choices=RESULT, default=list(RESULT))
    parser.add_argument("--tokens", nargs="+", type=int)
    parser.add_argument("--quick", action="store_true", help=f"only {QUICK_TOKENS} tokens")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    needs_gpus()
    rows = []
    for shape, name in wanted(arguments):
        layer = Layer(shape, name)
        for tokens in arguments.tokens or (QUICK_TOKENS if arguments.quick else TOKENS):
            rows.append(run(layer, tokens))
            print(rows[-1]["name"], rows[-1]["ours_us"], rows[-1]["rivals"], flush=True)
            free()
        del layer
        free()
    report(rows)
    write_suite("grouped", rows, stems=STEMS, out=arguments.out)


if __name__ == "__main__":
    main()
