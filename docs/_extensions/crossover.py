"""The figure of the page "when does 2:4 pay": speed-up over dense, by number of tokens."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import recorded

DTYPE = "bfloat16"
RIVAL = "cublas"


def curves(suites: dict[str, dict[str, Any]]) -> dict[tuple[int, int], dict[int, float]]:
    """Speed-up over the dense product by tokens, for every weight (m, k) with few tokens."""
    found: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    few = suites.get("few_tokens", {}).get("cases", [])
    weights = {(case["m"], case["k"]) for case in few if "m" in case}
    for case in [*few, *suites.get("gemm", {}).get("cases", [])]:
        weight = (case.get("m"), case.get("k"))
        rival = case.get("rivals", {}).get(RIVAL)
        if case.get("dtype") == DTYPE and weight in weights and rival:
            found[weight].setdefault(case["n"], rival / case["ours_us"])
    return {weight: dict(sorted(points.items())) for weight, points in found.items()}


def write(folder: Path) -> None:
    """Write ``crossover.txt`` and, if there is data, ``crossover.png`` into the folder."""
    found = curves(recorded.suites())
    if not found:
        (folder / "crossover.txt").write_text("No run with few tokens has been recorded yet.\n")
        return
    _draw(found, folder / "crossover.png")
    tokens = sorted({n for points in found.values() for n in points})
    lines = [
        ".. image:: /benchmarks/generated/crossover.png",
        "   :width: 100%",
        "   :alt: speed-up of the 2:4 product over the dense one, by number of tokens",
        "",
        ".. list-table:: Speed-up over the dense product, bfloat16",
        "   :header-rows: 1",
        "",
        "   * - weight",
        *(f"     - {n}" for n in tokens),
    ]
    for (m, k), points in found.items():
        lines.append(f"   * - {m} x {k}")
        lines += [f"     - {points[n]:.2f}" if n in points else "     - –" for n in tokens]
    (folder / "crossover.txt").write_text("\n".join(lines) + "\n")


def _draw(found: dict[tuple[int, int], dict[int, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
    for (m, k), points in found.items():
        ax.plot(list(points), list(points.values()), marker="o", label=f"{m} x {k}")
    ax.axhline(1.0, color="0.5", linewidth=1)
    ax.axhline(16 / 9, color="0.5", linewidth=1, linestyle=":")
    ax.annotate("bytes: 16/9", (1, 16 / 9), xytext=(0, 3), textcoords="offset points")
    ax.set_xscale("log", base=2)
    ax.set_xlabel("tokens n")
    ax.set_ylabel("dense time / 2:4 time")
    ax.legend(title="weight m x k")
    figure.savefig(path, dpi=110)
    plt.close(figure)
