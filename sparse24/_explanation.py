"""`Explanation`: what `explain` tells of a product, as attributes and as a table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparse24 import _planner
from sparse24._planner import Candidate
from sparse24._table import duration, table


@dataclass(frozen=True)
class Explanation:
    """Which kernel runs a product, the alternatives, and the reason; ``str()`` gives a table.

    Attributes
    ----------
    chosen : str
        Name of the candidate that runs; ``"none"`` where the result has no elements.  Of a
        `HybridArray` a path, as in `HybridArray.explain`.  Of a grouped product its kernel, or
        ``"each"`` (``"cpu"``) where every expert has a product of its own.
    candidates : tuple of Candidate
        Fastest prediction first, refused ones last; empty on the CPU, and where none is chosen.
    measured : dict
        Seconds by candidate name where this problem was tuned.
    reason : str
        One sentence.
    keeps_dense : bool
        Whether the dense product is among those that may run.
    """

    chosen: str
    candidates: tuple[Candidate, ...]
    measured: dict[str, float]
    reason: str
    keeps_dense: bool = False

    def __str__(self) -> str:
        first = f"{self.chosen}: {self.reason}"
        if not self.candidates:
            return first
        able: dict[str, Candidate] = {}  # of one name the first, which is the one that runs
        for candidate in self.candidates:
            if candidate.refusal is None:
                able.setdefault(candidate.name, candidate)
        rows = [self._row(candidate) for candidate in self._shown(list(able.values()))]
        lines = [first, "", table(["best of each kernel", "predicted", "measured", ""], rows)]
        if len(able) > len(rows):
            lines.append(f"and {len(able) - len(rows)} other configurations: see .candidates")
        refused = {c.kernel: c.refusal for c in self.candidates if c.refusal is not None}
        for kernel, why in refused.items():
            if kernel not in {candidate.kernel for candidate in able.values()}:
                lines.append(f"{kernel} cannot: {why}")
        return "\n".join(lines)

    def _shown(self, able: list[Candidate]) -> list[Candidate]:
        """The chosen candidate, and the fastest of each kernel, measured or else predicted."""
        best: dict[str, Candidate] = {}
        for candidate in sorted(able, key=lambda c: self.measured.get(c.name, math.inf)):
            best.setdefault(candidate.kernel, candidate)
        keep = {self.chosen, *(candidate.name for candidate in best.values())}
        return [candidate for candidate in able if candidate.name in keep]

    def _row(self, candidate: Candidate) -> list[str]:
        name, notes = candidate.name, []
        if name == self.chosen:
            notes.append("runs")
        if candidate.kernel == _planner.DENSE_KERNEL and not self.keeps_dense:
            notes.append("not kept")
        if candidate.copies:
            notes.append("copies first")
        measured = duration(self.measured[name]) if name in self.measured else ""
        return [name, duration(candidate.seconds), measured, ", ".join(notes)]
