"""What the scatter kernel reads of a deal (``cuda/include/scatter_tables.cuh``)."""

from __future__ import annotations

import numpy as np

from sparse24.kernels.hybrid_scatter_plan import WRITERS, Deal
from sparse24.kernels.hybrid_scatter_units import Units

UNIT = np.dtype([("column", "i4"), ("first", "i4"), ("groups", "i4"), ("lines", "i4")])
PART = np.dtype([("band", "i4"), ("steps", "i4"), ("slot", "i4"), ("blocks", "i4")])
MOST_BLOCKS = 144  # all multiprocessors of Hopper's largest chip
LEADS = np.dtype([("first", "i4", (MOST_BLOCKS,)), ("lines", "i4", (MOST_BLOCKS,))])


def leads(units: Units, dealt: Deal, turn: int) -> np.ndarray:
    """Where each block's first `turn` units lie, one after the other: a `LEADS`."""
    lines, cuts = units.lines.ravel(), dealt.cuts
    before = np.append(0, np.cumsum(lines, dtype=np.int64))
    last = dealt.units[np.minimum(cuts[:-1] + turn, cuts[1:]) - 1]
    first = before[dealt.units[cuts[:-1]]]
    found = np.zeros(1, LEADS)
    found["first"][0, : len(first)] = first
    found["lines"][0, : len(first)] = before[last + 1] - first
    return found


def schedule(units: Units, dealt: Deal) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the kernel reads of a deal.

    Returns
    -------
    steps : ndarray of UNIT, shape (blocks, most steps)
        Empty ones follow the last.
    parts : ndarray of PART, shape (blocks, most parts)
        Of every block, as in the kernel's header; an empty one follows the last.
    counts : ndarray of int32, shape (blocks, 2)
        Steps and parts.
    """
    whole, cuts = _table(units)[dealt.units], dealt.cuts
    counts = np.stack([np.diff(cuts), np.zeros(len(cuts) - 1, int)], axis=1).astype(np.int32)
    steps = np.zeros((len(counts), counts[:, 0].max() + 2 * WRITERS), UNIT)
    for to, start, end in zip(steps, cuts, cuts[1:]):
        to[: end - start] = whole[start:end]
    edges = np.union1d(cuts, dealt.bands)
    block = np.searchsorted(cuts, edges[:-1], "right") - 1
    counts[:, 1] = np.bincount(block, minlength=len(counts))
    parts = np.zeros((len(counts), counts[:, 1].max() + 1), PART)
    within = np.arange(len(block)) - np.searchsorted(block, block)
    parts[block, within] = _parts(dealt, edges, block)
    return steps, parts, counts


def _table(units: Units) -> np.ndarray:
    """All units, as the kernel reads them."""
    lines, across = units.lines, units.sizes.shape[1]
    table = np.zeros(lines.size, UNIT)
    table["column"] = np.arange(lines.size) % across * units.columns
    table["first"] = np.cumsum(lines, dtype=np.int64) - lines.ravel()
    table["groups"], table["lines"] = units.sizes[..., 0].ravel(), units.sizes[..., 1].ravel()
    return table


def _parts(dealt: Deal, edges: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The parts between the edges, which lie in these blocks."""
    found = np.zeros(len(block), PART)
    found["band"] = band = np.searchsorted(dealt.bands, edges[:-1], "right") - 1
    found["steps"] = np.diff(edges)
    found["blocks"] = np.bincount(band)[band]
    begins = np.searchsorted(band, band)  # the first part of the same band
    found["slot"] = 2 * block[begins] + (edges[begins] > dealt.cuts[block[begins]])
    return found
