"""The figures of the page on the Hopper kernel: roofline and speed-ups of 16-bit products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import recorded

# Measured on an H200 (700 W) with random normal data: a copy, and products of operands that stay in
# shared memory.
BANDWIDTH, DENSE, SPARSE = 4.24e12, 840e12, 1430e12
DTYPES = ("float16", "bfloat16")
NAMES = {"ours_us": "sparse24", "cublas": "cuBLAS", "cusparselt": "cuSPARSELt"}


def products() -> list[dict[str, Any]]:
    """The recorded plain products of 16-bit types."""
    cases = recorded.suites().get("gemm", {}).get("cases", [])
    return [case for case in cases if case["dtype"] in DTYPES and "bytes" in case]


def write(folder: Path) -> None:
    """Write ``hopper_figures.txt`` and, if there is data, the figures that it shows."""
    cases = products()
    if not cases:
        (folder / "hopper_figures.txt").write_text("No run has been recorded yet.\n")
        return
    _draw(cases, folder)
    lines = []
    for name, words in (("roofline", "roofline"), ("speedup", "speed-up over cuBLAS")):
        lines += [f".. image:: /benchmarks/generated/hopper_{name}.png", "   :width: 100%"]
        lines += [f"   :alt: {words} of the 16-bit products", ""]
    (folder / "hopper_figures.txt").write_text("\n".join(lines))


def _draw(cases: list[dict[str, Any]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from sparse24 import plot

    figure, ax = plt.subplots(figsize=(8, 5), layout="constrained")
    plot.roofline(bandwidth=BANDWIDTH, dense_peak=DENSE, sparse_peak=SPARSE, ax=ax)
    for key, name in NAMES.items():
        found = [(_point(case, key)) for case in cases if _microseconds(case, key)]
        if found:
            ax.plot(*zip(*found, strict=True), "o", markersize=4, label=name)
    ax.set(yscale="linear", xlim=(100, 1e4), ylim=(0, 1600))
    ax.legend(frameon=False)
    figure.savefig(folder / "hopper_roofline.png", dpi=110)
    plt.close(figure)

    figure, ax = plt.subplots(figsize=(9, 0.8 + 0.22 * len(cases)), layout="constrained")
    plot.speedup(cases, rival="cublas", ax=ax).set_xlabel("cuBLAS time / ours")
    figure.savefig(folder / "hopper_speedup.png", dpi=110)
    plt.close(figure)


def _microseconds(case: dict[str, Any], key: str) -> float | None:
    return case["ours_us"] if key == "ours_us" else case["rivals"].get(key)


def _point(case: dict[str, Any], key: str) -> tuple[float, float]:
    """(operations a byte, 10^12 operations a second); a dense rival moves the whole weight."""
    m, k, n = case["m"], case["k"], case["n"]
    moved = 2 * (m * k + k * n + m * n) if key == "cublas" else case["bytes"]
    return 2 * m * k * n / moved, 2e-6 * m * k * n / _microseconds(case, key)
