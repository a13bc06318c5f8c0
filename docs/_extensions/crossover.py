"""The figure of the page "when does 2:4 pay": speed-up over dense, by number of tokens."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import recorded

DTYPE = "bfloat16"
RIVAL = "cublas"

Curves = dict[tuple[int, int], dict[int, float]]


def curves(suites: dict[str, dict[str, Any]]) -> Curves:
    """Speed-up over the dense product by tokens, for every weight (m, k) with few tokens."""
    found: Curves = defaultdict(dict)
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
    suites = recorded.suites()
    found = curves(suites)
    if not found:
        (folder / "crossover.txt").write_text("No run with few tokens has been recorded yet.\n")
        return
    _draw(found, folder / "crossover.png")
    lines = [
        ".. image:: /benchmarks/generated/crossover.png",
        "   :width: 100%",
        "   :alt: speed-up of the 2:4 product over the dense one, by number of tokens",
        "",
        f"Recorded on {recorded.machine(suites['few_tokens']['header'])}; dense is cuBLAS.  "
        f"{_least(suites)}",
        "",
        *_table(found),
    ]
    (folder / "crossover.txt").write_text("\n".join(lines) + "\n")


def _least(suites: dict[str, dict[str, Any]]) -> str:
    """The worst recorded case in 16 bits, in a sentence."""
    cases = [
        case
        for name in ("few_tokens", "gemm")
        for case in suites.get(name, {}).get("cases", [])
        if case["dtype"] in ("bfloat16", "float16") and RIVAL in case["rivals"] and "m" in case
    ]
    worst = min(cases, key=lambda case: case["rivals"][RIVAL] / case["ours_us"])
    ratio = worst["rivals"][RIVAL] / worst["ours_us"]
    weight = f"{worst['m']} x {worst['k']} with {worst['n']} tokens in {worst['dtype']}"
    count = len(cases)
    return f"The least speed-up of the {count} products in 16 bits is {ratio:.2f}, at {weight}."


def _table(found: Curves) -> list[str]:
    tokens = sorted({n for points in found.values() for n in points})
    lines = [
        ".. list-table:: Speed-up over the dense product, bfloat16",
        "   :header-rows: 1",
        "",
        *_row("weight", tokens),
    ]
    for (m, k), points in found.items():
        lines += _row(f"{m} x {k}", [f"{points[n]:.2f}" if n in points else "–" for n in tokens])
    of_all = [[points[n] for points in found.values() if n in points] for n in tokens]
    means = [f"**{statistics.geometric_mean(ratios):.2f}**" for ratios in of_all]
    return lines + _row("geometric mean", means)


def _row(title: str, cells: list[Any]) -> list[str]:
    return [f"   * - {title}", *(f"     - {cell}" for cell in cells)]


def _draw(found: Curves, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
    for (m, k), points in found.items():
        ax.plot(list(points), list(points.values()), marker="o", label=f"{m} x {k}")
    ax.axhline(1.0, color="0.5", linewidth=1)
    ax.axhline(16 / 9, color="0.5", linewidth=1, linestyle=":")
    tokens = sorted({n for points in found.values() for n in points})
    beside = {"xytext": (0, 3), "textcoords": "offset points", "ha": "right", "color": "0.3"}
    ax.annotate("ratio of bytes, 16/9", (tokens[-1], 16 / 9), **beside)
    ax.annotate("as fast as dense", (tokens[-1], 1.0), **beside)
    ax.set_xscale("log", base=2)
    ax.set_xticks(tokens, [str(n) for n in tokens])
    ax.set_xlabel("tokens n")
    ax.set_ylabel("dense time / 2:4 time")
    ax.set_ylim(top=1.05 * 16 / 9)  # room for the words above the line
    ax.legend(title="weight m x k", loc="lower left", bbox_to_anchor=(0, 0.05))
    figure.savefig(path, dpi=110)
    plt.close(figure)
