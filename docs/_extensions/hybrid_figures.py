"""The figures of the page on unstructured matrices: speed-up by zeros, break-even, balance."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import recorded

RIVAL = "cublas"
FAMILY = "iid"
PUBLISHED = (
    ("Sputnik", 76.0), ("TVM-Sparse", 80.5), ("SparseTIR", 82.6), ("ASpT", 89.4),
    ("cuSPARSE", 98.1), ("CROSS", 60.0),
)  # fmt: skip

Curve = dict[float, float]


def curves(cases: list[dict[str, Any]]) -> dict[tuple[tuple[int, int], int], Curve]:
    """Speed-up over the dense product by share of zeros, for every (shape, columns)."""
    found: dict[tuple[tuple[int, int], int], Curve] = defaultdict(dict)
    for case in cases:
        rival = case["rivals"].get(RIVAL)
        if case.get("family") == FAMILY and rival:
            found[(case["m"], case["k"]), case["n"]][case["zeros"]] = rival / case["ours_us"]
    return {key: dict(sorted(curve.items())) for key, curve in sorted(found.items())}


def break_even(cases: list[dict[str, Any]]) -> dict[str, dict[int, float | None]]:
    """By family and columns, the recorded share of zeros from which on ours always wins."""
    wins: dict[tuple[str, int], dict[float, bool]] = defaultdict(dict)
    for case in cases:
        rival = case["rivals"].get(RIVAL)
        if "family" in case and rival:
            won = case["ours_kernel"] != RIVAL and rival > case["ours_us"]
            points = wins[case["family"], case["n"]]
            points[case["zeros"]] = points.get(case["zeros"], True) and won
    table: dict[str, dict[int, float | None]] = defaultdict(dict)
    for (family, n), points in sorted(wins.items()):
        lowest = None
        for zeros in sorted(points, reverse=True):
            if not points[zeros]:
                break
            lowest = zeros
        table[family][n] = lowest
    return dict(table)


def balance_ratios(cases: list[dict[str, Any]]) -> list[float]:
    """How many times as long products take that are cut evenly instead of by predicted time."""
    return [case["unbalanced_us"] / case["ours_us"] for case in cases if "unbalanced_us" in case]


def write(folder: Path) -> None:
    """Write ``hybrid_figures.txt`` and, if there is data, ``hybrid_curves.png``."""
    cases = recorded.suites().get("hybrid", {}).get("cases", [])
    cases = [case for case in cases if case["dtype"] == "float16"]
    if not cases:
        (folder / "hybrid_figures.txt").write_text("No run has been recorded yet.\n")
        return
    _draw(curves(cases), folder / "hybrid_curves.png")
    lines = [
        ".. image:: /benchmarks/generated/hybrid_curves.png",
        "   :width: 100%",
        "   :alt: speed-up over cuBLAS by share of zeros, for several numbers of columns",
        "",
        *_break_even_lines(break_even(cases)),
        *_balance_lines(balance_ratios(cases)),
    ]
    (folder / "hybrid_figures.txt").write_text("\n".join(lines) + "\n")


def _break_even_lines(table: dict[str, dict[int, float | None]]) -> list[str]:
    published = ", ".join(f"{name} {zeros:g} %" for name, zeros in PUBLISHED)
    lines = [
        "The lowest recorded share of zeros from which on the product beats cuBLAS at every",
        "shape, by family and number of columns.  Published for pruned BERT weights on an A100:",
        f"{published}.",
        "",
    ]
    alike: dict[tuple[int, ...], list[str]] = defaultdict(list)  # families by their columns
    for family, row in table.items():
        alike[tuple(sorted(row))].append(family)
    for columns, families in sorted(alike.items(), key=lambda pair: -len(pair[0])):
        lines += [
            ".. list-table:: Break-even with cuBLAS, by columns",
            "   :header-rows: 1",
            "",
            "   * - family",
            *(f"     - {n}" for n in columns),
        ]
        for family in families:
            found = [table[family][n] for n in columns]
            lines.append(f"   * - {family}")
            lines += [f"     - {zeros:.0%}" if zeros else "     - –" for zeros in found]
        lines.append("")
    return lines


def _balance_lines(ratios: list[float]) -> list[str]:
    if not ratios:
        return []
    mean = statistics.geometric_mean(ratios)
    return [
        f"Cut evenly instead of by predicted time, the {len(ratios)} recorded products of scatter "
        f"and stream take {min(ratios):.2f} to {max(ratios):.2f} times as long, {mean:.2f} in the "
        "geometric mean.",
        "",
    ]


def _draw(found: dict[tuple[tuple[int, int], int], Curve], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shapes = list(dict.fromkeys(shape for shape, _ in found))
    count = max(len(shapes), 1)
    figure, axes = plt.subplots(
        1, count, figsize=(3.4 * count, 3.8), sharey=True, squeeze=False, layout="constrained"
    )
    columns = sorted({n for _, n in found})
    colours = plt.colormaps["viridis"].resampled(len(columns) + 1)  # but for the palest
    for ax, shape in zip(axes[0], shapes):
        for (of, n), curve in found.items():
            if of == shape:
                colour = colours(columns.index(n))
                ax.plot(list(curve), list(curve.values()), marker=".", label=str(n), color=colour)
        ax.axhline(1.0, color="0.5", linewidth=1)
        ax.set(title=f"{shape[0]} x {shape[1]}", xlabel="share of zeros", yscale="log")
        ax.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        ax.minorticks_off()
    axes[0][0].set_ylabel("cuBLAS time / ours")
    handles = {line.get_label(): line for ax in axes[0] for line in ax.get_lines()}
    figure.legend(
        [handles[str(n)] for n in columns], columns, title="columns", loc="outside right upper"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
