"""Fits `kernels/sparse_wgmma_plan.py` to timings of `bench_tiles.py`; needs no GPU, but minutes.

    python tests/bench/fit_tiles.py FILE...

Prints the constants, the error of the model, and how much longer than the fastest tile the one
that it puts first takes.  A quarter of the products takes no part in the fit, and is told apart.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from sparse24._dtypes import numpy_dtype
from sparse24._records import Problem
from sparse24.kernels import sparse_wgmma_plan as plan
from sparse24.kernels.sparse_wgmma_configs import TABLE, Config

# POWER is that of large products in gemm.json, and USABLE is counted, not fitted.
FITTED = (
    "LAUNCH", "INSTRUCTION_CLOCKS", "STAGE_SECONDS", "LATENCY", "INTO_SM", "L2_PER_SM", "READING",
    "STORE", "TILE", "OF_PART", "SHARED_SUM", "HALF_LINE", "WHOLE_B", "ASTRIDE_B", "ROWS_OF_B",
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


def read(files: Iterable[Path]) -> list[Product]:
    """The products that ran with two tiles or more of those that there are."""
    tiles = {config.name: config for config in TABLE}
    cases = [case for file in files for case in json.loads(file.read_text())["cases"]]
    products = []
    for case in cases:
        seconds = {tiles[name]: 1e-6 * us for name, us in case["us"].items() if name in tiles}
        if len(seconds) > 1:
            products.append(Product(problem_of(case), seconds))
    return products


def problem_of(case: dict) -> Problem:
    dtype, order = case["dtype"], case["b_order"]
    line = (case["k"] if order == "column" else case["n"]) * numpy_dtype(dtype).itemsize
    types = dtype, dtype, RESULTS.get(dtype, dtype)
    extents = case["m"], case["n"], case["k"], 1
    return Problem(*extents, *types, order, "row", b_in_lines=line % 128 == 0)


def errors(products: list[Product]) -> np.ndarray:
    """Logarithms of predicted over measured time, tile after tile."""
    ratios = [
        plan.predict(product.problem, config, plan.CHIP) / seconds
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


def fit(products: list[Product]) -> None:
    """Set the constants of the planner, each by a factor of what it was."""
    start, weight = {name: getattr(plan, name) for name in FITTED}, weights(products)

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        for name, logarithm in zip(FITTED, logarithms, strict=True):
            setattr(plan, name, start[name] * math.exp(logarithm))
        return weight * errors(products)

    found = least_squares(residuals, np.zeros(len(FITTED)), loss="soft_l1", f_scale=OUTLIER)
    residuals(found.x)


def tell(label: str, products: list[Product]) -> None:
    error = errors(products)
    loss = []
    for product in products:
        first = min(product.seconds, key=lambda c: plan.predict(product.problem, c, plan.CHIP))
        loss.append(product.seconds[first] / min(product.seconds.values()))
    print(
        f"{label}: {len(products)} products, {len(error)} timings; error {np.std(error):.3f}, "
        f"mean {error.mean():+.3f}; the tile put first takes {np.exp(np.log(loss).mean()):.3f} "
        f"times the best, at most {max(loss):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    products = read(parser.parse_args().files)
    test = products[::HELD_BACK]
    train = [product for i, product in enumerate(products) if i % HELD_BACK]
    tell("as it is", products)
    fit(train)
    for name in FITTED:
        print(f"{name} = {getattr(plan, name):.3g}")
    tell("fitted", train)
    tell("held back", test)


if __name__ == "__main__":
    main()
