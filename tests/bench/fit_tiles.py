"""Fits models of the Hopper kernel to timings of `bench_tiles.py`; needs no GPU, but minutes.

    python tests/bench/fit_tiles.py FILE... [--pieces]

Prints the numbers of the model, its error, and how much longer than the fastest tile the one
that it puts first takes.  A quarter of the products takes no part in the fit, and is told apart.
With --pieces it is the model of float32 in pieces (`kernels/sparse_split.py`), and only products
of float32 count, which do not otherwise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from sparse24._dtypes import numpy_dtype
from sparse24._records import Problem
from sparse24.kernels import sparse_split, sparse_wgmma_configs
from sparse24.kernels import sparse_wgmma_plan as plan
from sparse24.kernels.sparse_wgmma_configs import Config

# `power` is that of large products in gemm.json; it is fitted for pieces only.
FITTED = (
    "launch", "instruction_clocks", "stage_seconds", "latency", "into_sm", "l2_per_sm", "reading",
    "store", "tile", "of_part", "shared_sum", "half_line", "whole_b", "astride_b", "rows_of_b",
)  # fmt: skip
RESULTS = {"int8": "int32", "float8_e4m3fn": "bfloat16"}
HELD_BACK = 4  # one product of so many
SLOW, LESS = 1.3, 0.4  # tiles that take so much longer than the best one count less
OUTLIER = 0.08  # errors beyond it count by their size, not by its square


@dataclass(frozen=True)
class Product:
    """A product and the seconds of its tiles."""

    problem: Problem
    seconds: dict[Config, float]


@dataclass(frozen=True)
class Kind:
    """What is fitted: the tiles, the prediction with a model, where it starts, and its names."""

    tiles: tuple[Config, ...]
    predict: Callable[..., float]
    start: plan.Model
    fitted: tuple[str, ...]


PLAIN = Kind(sparse_wgmma_configs.TABLE, plan.predict, plan.PLAIN_OPERANDS, FITTED)
PIECES = Kind(
    sparse_split.TABLE, sparse_split.predict, sparse_split.MODEL,
    (*(name for name in FITTED if name != "astride_b"), "power"),  # whose lines are all whole
)  # fmt: skip


def read(files: Iterable[Path], kind: Kind) -> list[Product]:
    """The products that ran with two tiles or more of those that there are."""
    tiles = {config.name: config for config in kind.tiles}
    cases = [case for file in files for case in json.loads(file.read_text())["cases"]]
    products = []
    for case in cases:
        seconds = {tiles[name]: 1e-6 * us for name, us in case["us"].items() if name in tiles}
        if len(seconds) > 1 and (case["dtype"] == "float32") == (kind is PIECES):
            products.append(Product(problem_of(case), seconds))
    return products


def problem_of(case: dict) -> Problem:
    dtype, order = case["dtype"], case["b_order"]
    line = (case["k"] if order == "column" else case["n"]) * numpy_dtype(dtype).itemsize
    types = dtype, dtype, RESULTS.get(dtype, dtype)
    extents = case["m"], case["n"], case["k"], 1
    return Problem(*extents, *types, order, "row", b_in_lines=line % 128 == 0)


def errors(products: list[Product], kind: Kind, model: plan.Model) -> np.ndarray:
    """Logarithms of predicted over measured time, tile after tile."""
    ratios = [
        kind.predict(product.problem, config, plan.CHIP, model) / seconds
        for product in products
        for config, seconds in product.seconds.items()
    ]
    return np.log(ratios)


def weights(products: list[Product]) -> np.ndarray:
    rows = []
    for product in products:
        best = min(product.seconds.values())
        rows += [1.0 if s < SLOW * best else LESS for s in product.seconds.values()]
    return np.array(rows)


def fit(products: list[Product], kind: Kind) -> plan.Model:
    """The model whose numbers are those of the start, each times a factor."""
    weight = weights(products)

    def scaled(logarithms: np.ndarray) -> plan.Model:
        factors = zip(kind.fitted, np.exp(logarithms), strict=True)
        return replace(kind.start, **{name: getattr(kind.start, name) * x for name, x in factors})

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        return weight * errors(products, kind, scaled(logarithms))

    start = np.zeros(len(kind.fitted))
    return scaled(least_squares(residuals, start, loss="soft_l1", f_scale=OUTLIER).x)


def tell(label: str, products: list[Product], kind: Kind, model: plan.Model) -> None:
    error = errors(products, kind, model)
    loss = []
    for product in products:
        seconds = {c: kind.predict(product.problem, c, plan.CHIP, model) for c in product.seconds}
        first = min(seconds, key=seconds.__getitem__)
        loss.append(product.seconds[first] / min(product.seconds.values()))
    print(
        f"{label}: {len(products)} products, {len(error)} timings; error {np.std(error):.3f}, "
        f"mean {error.mean():+.3f}; the tile put first takes {np.exp(np.log(loss).mean()):.3f} "
        f"times the best, at most {max(loss):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--pieces", action="store_true", help="of products of float32")
    arguments = parser.parse_args()
    kind = PIECES if arguments.pieces else PLAIN
    products = read(arguments.files, kind)
    test = products[::HELD_BACK]
    train = [product for i, product in enumerate(products) if i % HELD_BACK]
    tell("as it is", products, kind, kind.start)
    model = fit(train, kind)
    for name in kind.fitted:
        print(f"{name} = {getattr(model, name):.3g}")
    tell("fitted", train, kind, model)
    tell("held back", test, kind, model)


if __name__ == "__main__":
    main()
