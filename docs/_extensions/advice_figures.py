"""How far the predictions of `sparse24.advise` are from the recorded runs, as a table."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, NamedTuple

import recorded

from sparse24 import _advise, _dtypes

SIXTEEN = ("bfloat16", "float16")
# Title, element types, least and most tokens, whether weights are small.
CLASSES = (
    ("16 bits, 1 to 64 tokens", SIXTEEN, 1, 64, False),
    ("16 bits, 1 to 256 tokens, weights of 4 to 17 million elements", SIXTEEN, 1, 256, True),
    ("16 bits, 128 to 512 tokens", SIXTEEN, 128, 512, False),
    ("16 bits, 1024 tokens and more", SIXTEEN, 1024, 1 << 30, False),
    ("fp8", ("float8_e4m3fn",), 1, 1 << 30, False),
    ("int8", ("int8",), 1, 1 << 30, False),
    ("float32, 1 to 64 tokens", ("float32",), 1, 64, False),
    ("float32, 512 tokens and more", ("float32",), 65, 1 << 30, False),
)


class Compared(NamedTuple):
    """One recorded product: predicted over measured."""

    dtype: str
    n: int
    dense: float
    sparse: float
    small: bool  # a smaller weight, of cases of their own

    @property
    def speedup(self) -> float:
        return self.dense / self.sparse


def compared() -> list[Compared]:
    """Every plain product of a recorded suite that timed cuBLAS, beside its prediction."""
    suites = recorded.suites()
    found = []
    for name in ("few_tokens", "gemm"):
        for case in suites.get(name, {}).get("cases", []):
            rival = case["rivals"].get("cublas")
            # The name of a plain product is its type and its shape.
            plain = "{dtype} {m}x{k}x{n}".format_map({"m": 0, "k": 0} | case)
            if rival and case["name"].removeprefix("small ") == plain:
                found.append(_compare(case, rival))
    return found


def _compare(case: dict[str, Any], rival: float) -> Compared:
    shape, row = (case["m"], case["k"]), _dtypes.lookup(case["dtype"])
    told = _advise.estimate(shape, (case["n"],), row, _advise.h200())
    dense, sparse = 1e6 * told.dense[0] / rival, 1e6 * told.sparse[0] / case["ours_us"]
    small = case["name"].startswith("small ")
    return Compared(case["dtype"], case["n"], dense, sparse, small)


def write(folder: Path) -> None:
    """Write ``advice.txt``: predicted over measured, geometric mean and range, by class."""
    lines = [
        ".. list-table:: Predicted over recorded, model of an H200: geometric mean and range",
        "   :header-rows: 1",
        "",
        *_cells("products", "cases", "dense time", "2:4 time", "speed-up"),
    ]
    everything = compared()
    for title, dtypes, low, high, small in CLASSES:
        rows = [
            row
            for row in everything
            if row.dtype in dtypes and low <= row.n <= high and row.small == small
        ]
        if rows:
            parts = [[getattr(row, p) for row in rows] for p in ("dense", "sparse", "speedup")]
            lines += _cells(title, str(len(rows)), *map(_span, parts))
    (folder / "advice.txt").write_text("\n".join(lines) + "\n")


def _cells(*cells: str) -> list[str]:
    return [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(cells)]


def _span(ratios: list[float]) -> str:
    mean = statistics.geometric_mean(ratios)
    return f"{mean:.2f} ({min(ratios):.2f} – {max(ratios):.2f})"
