"""The figure of the front page: how many times faster than its rival each kind of work ran."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import NamedTuple

import headlines
import recorded

# Titles of `headlines.HEADLINES`, and the rival where several rows have one title.
SHOWN = (
    ("1 to 32 tokens, bfloat16", "cublas"),
    ("4096 tokens and more, 16 bits", "cublas"),
    ("fp8 and int8, at most 32 tokens", "cublas"),
    ("float32, 64 columns and more", "cublas"),
    ("mixture of experts, 512 tokens and more, bfloat16", "best"),
    ("unstructured, 90 % zeros, 1 to 16 columns", "best"),
    ("unstructured, 90 % zeros, 512 columns and more", "best"),
    ("training step of 4 transformer layers, width 4096", "torch_compiled"),
    ("check and pack", "cusparselt"),
    ("CPU, 1 to 64 columns, float32", "numpy_float32"),
    ("CPU, unstructured, 90 % zeros, 64 columns and more", "best"),
)
CPU = "CPU"
RIVALS = {
    "cublas": "cuBLAS",
    "cusparselt": "cuSPARSELt",
    "torch_compiled": "dense torch.compile",
    "numpy_float32": "NumPy",
    "best": "the best rival",
}


class Bar(NamedTuple):
    """One kind of work: against which rival, on which machine, how many times faster."""

    title: str
    rival: str
    where: str
    ratios: list[float]
    told: str  # the mean, marked where a case is stale

    @property
    def mean(self) -> float:
        return statistics.geometric_mean(self.ratios)

    @property
    def label(self) -> str:
        factor, _, mark = self.told.partition("x")
        return f"{factor}x {self.rival}, {self.where}{mark}"


def bars() -> list[Bar]:
    """What is recorded of `SHOWN`, on the first GPU, the CPU, or else on another GPU."""
    known = {(row.title, row.rival): row for row in headlines.HEADLINES}
    found = []
    for key in SHOWN:
        row = known[key]
        gpu = next((gpu for gpu in ("", *recorded.others()) if row.cases(gpu)), None)
        if gpu is None:
            continue
        header = recorded.suites(gpu)[row.suite]["header"]
        name = header.get("gpu")
        where = CPU if name is None else name.removeprefix("NVIDIA ").split()[0]
        title = row.title.removeprefix(f"{CPU}, ")
        found.append(Bar(title, RIVALS[row.rival], where, row.ratios(gpu), row.mean(gpu)))
    return found


def write(folder: Path) -> None:
    """Write ``glance.txt`` and, if there is data, the figure that it shows."""
    found = bars()
    if not found:
        (folder / "glance.txt").write_text("No run has been recorded yet.\n")
        return
    _draw(found, folder / "glance.png")
    lines = [
        ".. figure:: /benchmarks/generated/glance.png",
        "   :width: 100%",
        "   :alt: how many times faster than its rival each kind of work ran",
        "",
        "   Geometric means of the recorded runs, and their ranges (†: a kernel changed after",
        "   some of them); :doc:`all cases </benchmarks/index>`.",
    ]
    (folder / "glance.txt").write_text("\n".join(lines) + "\n")


def _draw(found: list[Bar], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(9, 0.42 * len(found) + 0.8), layout="constrained")
    for place, bar in enumerate(found):
        colour = "tab:orange" if bar.where == CPU else "tab:blue"
        ax.barh(place, bar.mean - 1, left=1, color=colour, height=0.6)
        ax.plot([min(bar.ratios), max(bar.ratios)], [place, place], color="0.2", linewidth=1)
        ax.text(max(bar.ratios), place, f"  {bar.label}", va="center", fontsize=9)
    ax.axvline(1, color="0.5", linewidth=1)
    ax.set_yticks(range(len(found)), [bar.title for bar in found], fontsize=9)
    ax.invert_yaxis()
    every = [ratio for bar in found for ratio in bar.ratios]
    ax.set(xscale="log", xlim=(min(0.95, *every), 6 * max(every)))  # with room for the words
    ticks = [1, 2, 4, 8, 16, 32]
    ax.set_xticks(ticks, [f"{tick}x" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel("times as fast as the rival")
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
