"""What each training method costs in accuracy on digits, and what masks cost in time.

Runs on the CPU in a few minutes: ``python tests/bench/bench_schedule.py``.  Writes
``docs/benchmarks/data/schedule.json``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import digits
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from sparse24 import _evidence
from sparse24 import schedule as S

DATA = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "data"
PATTERNS = {
    "2:4": (S.NM(), 0.5),
    "2:4 transposable": (S.Transposable24(), 0.5),
    "elastic": (S.Elastic(), 0.5),
    "tile-hybrid": (S.TileHybrid(), 0.6),
    "unstructured": (S.Unstructured(), 0.6),
}
KERNELS = (S.NM, S.Transposable24)


def accuracy_rows(seeds: int):
    """One row a method and library; dense first, for the difference."""
    for library, train in (("numpy", digits.train_numpy), ("torch", digits.train_torch)):
        dense = None
        for name, method in digits.METHODS.items():
            began = time.perf_counter()
            results = [train(method, seed) for seed in range(seeds)]
            seconds = (time.perf_counter() - began) / seeds
            scores = [100 * digits.accuracy(parameters) for parameters, _ in results]
            mean = statistics.mean(scores)
            dense = mean if dense is None else dense
            yield {
                "method": name,
                "library": library,
                "accuracy": round(mean, 2),
                "difference": round(mean - dense, 2),
                "spread": round(statistics.stdev(scores), 2),
                "sparsity": round(_sparsity(results[0][1]), 4),
                "seeds": seeds,
                "steps": digits.STEPS,
                "seconds": round(seconds, 2),
            }


def _sparsity(masks) -> float:
    size = sum(mask.size for mask in masks.values())
    return 1 - sum(int(mask.sum()) for mask in masks.values()) / size if size else 0.0


def update_cases(side: int = 2048):
    """Seconds of one mask update of a (side, side) float32 matrix in NumPy."""
    weights = {"w": np.random.default_rng(0).normal(size=(side, side)).astype(np.float32)}
    for name, (pattern, sparsity) in PATTERNS.items():
        state = S.init(S.Recipe(S.ConstantScheduler(sparsity, every=1), pattern=pattern), weights)
        times = []
        for _ in range(5):
            began = time.perf_counter()
            state, _, _ = S.step(state, weights=weights, measure=False)
            times.append(time.perf_counter() - began)
        yield {
            "name": f"mask update / {name} / numpy",
            "m": side,
            "k": side,
            "dtype": "float32",
            "ours_us": round(1e6 * statistics.median(times[1:]), 1),
            "ours_kernel": "Numba" if isinstance(pattern, KERNELS) else "array API",
            "rivals": {},
            "spread": round(1e6 * statistics.pstdev(times[1:]), 1),
            "bytes": weights["w"].nbytes + weights["w"].size,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        cases = list(update_cases())
        accuracy = []
        for row in accuracy_rows(options.seeds):
            accuracy.append(row)
            print(row, flush=True)
    record = {"header": _evidence.header(), "cases": cases, "accuracy": accuracy}
    _evidence.write_json(options.out / "schedule.json", record)


if __name__ == "__main__":
    main()
