"""`HybridArray.summary`: what a hybrid matrix holds and costs, in a few lines."""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid.choice import explain
from sparse24.kernels import hybrid_kinds
from sparse24.kernels.hybrid_tiles import TILE


def summary(h, n: int) -> str:
    """A few lines for people; see `HybridArray.summary`."""
    dtype = h._dtype
    dense_bytes = h.size * dtype.itemsize
    csr_bytes = h.nnz * (dtype.itemsize + 4) + 4 * (h.shape[0] + 1)
    plan = explain(h, n)
    return "\n".join(
        [
            repr(h)[1:-1],
            *(_of_rows(h) if h.stored.is_listed else _of_tiles(h, n)),
            f"memory  {h.nbytes:,} bytes; dense {dense_bytes:,}; CSR {csr_bytes:,}",
            f"choice  {plan['choice']}: {plan['reason']}",
        ]
    )


def _of_rows(h) -> list[str]:
    least = round(1 / hybrid_cost.rows_below(h.size))
    return [f"rows    of non-zeros, not tiles: fewer than one element in {least} is a non-zero"]


def _of_tiles(h, n: int) -> list[str]:
    """Tiles by kind, and by band."""
    rates = hybrid_cost.rates_for(h._dtype, h.device != "cpu")
    low, high = hybrid_cost.bands(h._dtype, n, rates)
    density = tile_density(h)
    counts = np.bincount(h.kinds.ravel(), minlength=len(hybrid_kinds.NAMES))
    kinds = ", ".join(
        f"{count} {name}" for count, name in zip(counts, hybrid_kinds.NAMES, strict=True)
    )
    banded = (
        f"{int((density > high).sum())} dense (above {high:.0%} full), "
        f"{int(((density >= low) & (density <= high)).sum())} swing, "
        f"{int((density < low).sum())} sparse (below {low:.0%})"
    )
    return [f"tiles   {kinds}", f"bands   {banded}, for n = {n} on {rates.name}"]


def tile_density(h) -> np.ndarray:
    """Share of non-zeros in the places of every tile, shape (tiles down, tiles across).

    Kernels multiply all places of a tile, also those past the edges of the matrix.  Copies to the
    host.
    """
    tiles = h.tiles
    xp, held = _arrays.namespace(tiles.values), tiles.values.view(tiles.dtype.storage) != 0
    count = np.min_scalar_type(held.size)
    counted = xp.concatenate([xp.zeros(1, count), xp.cumsum(held, dtype=count)])
    stored = counted[tiles.starts[1:]] - counted[tiles.starts[:-1]]
    stored = _arrays.to_numpy(stored + xp.diff(tiles.overflow_starts))
    return (stored / hybrid_cost.ELEMENTS).reshape(tiles.grid)


def tile_fill(h) -> np.ndarray:
    """Share of non-zeros among the elements of each tile, which has fewer at an edge.

    `tile_density` counts whole tiles there, too.
    """
    sizes = zip(h.tiles.grid, h.shape, strict=True)
    sides = (np.diff(np.minimum(np.arange(n + 1) * TILE, size)) for n, size in sizes)
    return tile_density(h) * hybrid_cost.ELEMENTS / np.outer(*sides)
