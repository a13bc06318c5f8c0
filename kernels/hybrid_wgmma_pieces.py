"""What every block of ``hybrid_wgmma`` multiplies: tiles of the result, or pieces of them."""

from __future__ import annotations

import numpy as np

from sparse24.kernels.hybrid_strips import FIRST_ROWS
from sparse24.kernels.hybrid_wgmma_configs import Config
from sparse24.kernels.hybrid_wgmma_plan import LEAST_PIECE, Walk, Work, loads, walk

# `helpers`: blocks before this one that give their sums of the tile; -1: this one gives them.
PIECE = np.dtype(
    [(name, "i4") for name in ("first", "end", "plain", "row", "column", "helpers")]
    + [("unused", "i4", 2), ("rows", "i4", 4)]
)


def pieces(table: np.ndarray, work: Work, config: Config, n: int) -> np.ndarray:
    """What every block multiplies, in order; empty pieces follow.

    Parameters
    ----------
    table : ndarray of int, shape (strips, FIRST_ROWS + rows of a strip / 64)
        As in `hybrid_strips.Tables`.

    Returns
    -------
    ndarray of PIECE, shape (blocks, most pieces and one)
    """
    if config.parts > 1:
        walked = walk(len(table), -(-n // config.block_n), min(config.band, len(table)))
        tile, part = np.divmod(np.arange(len(walked.strip) * config.parts), config.parts)
        atoms = table[walked.strip[tile], 1] // 2
        first, end = (atoms * (part + i) // config.parts for i in (0, 1))
        found = _pieces(table, walked, config, tile, first, end)
        return _by_block(found, np.arange(len(found)))
    walked, blocks, cut, block, _ = work.deal(config, n)
    atoms = table[walked.strip, 1] // 2
    whole = np.arange(cut, len(atoms))
    found = _pieces(table, walked, config, whole, np.zeros_like(whole), atoms[whole])
    if cut:
        costs = work.costs[walked.strip] / 2
        load = loads(costs, block, blocks)
        first, owner = _cut(table, walked, config, atoms[:cut], costs[:cut], load)
        found, block = np.concatenate([first, found]), np.concatenate([owner, block])
    return _by_block(found, block)


def _cut(
    table: np.ndarray, walked: Walk, config: Config, atoms: np.ndarray, costs: np.ndarray,
    load: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Pieces of tiles of so many atoms, and whose they are: all blocks then have equally much.

    `load` is what blocks have besides, and `costs` are those of the tiles, both in atoms of which
    all rows have elements.  A block takes a range of atoms and walks it backwards: the
    beginning of a tile that the next block finishes comes first.
    """
    edges = np.concatenate([[0], np.cumsum(atoms)])
    spent = np.concatenate([[0], np.cumsum(costs)])
    share = np.maximum((spent[-1] + load.sum()) / len(load) - load, 2 * LEAST_PIECE)
    cuts = np.concatenate([[0], np.cumsum(share)]) * spent[-1] / share.sum()
    cuts = np.rint(np.interp(cuts, spent, edges)).astype(int)
    if np.diff(cuts).min() < 2 * LEAST_PIECE:
        cuts = np.rint(np.linspace(0, edges[-1], len(cuts))).astype(int)
    near = edges[np.abs(edges[:, None] - cuts).argmin(axis=0)]
    cuts = np.where(np.abs(near - cuts) < LEAST_PIECE, near, cuts)
    bounds = np.union1d(cuts, edges)
    first, end = bounds[:-1], bounds[1:]
    block = np.searchsorted(cuts, first, "right") - 1
    tile = np.searchsorted(edges, first, "right") - 1
    found = _pieces(table, walked, config, tile, first - edges[tile], end - edges[tile])
    began = np.searchsorted(cuts, edges[tile], "right") - 1  # the block with the tile's first atom
    found["helpers"] = np.where(end < edges[tile + 1], -1, block - began)
    backwards = np.lexsort((-first, block))
    return found[backwards], block[backwards]


def _pieces(table: np.ndarray, walked: Walk, config: Config, tile, first, end) -> np.ndarray:
    """Atoms `first` to `end` of some tiles."""
    strip = table[walked.strip[tile]]
    found = np.zeros(len(tile), PIECE)
    found["first"], found["end"] = strip[:, 0] + 2 * first, strip[:, 0] + 2 * end
    found["plain"] = np.clip(strip[:, 0] + strip[:, 2], found["first"], found["end"])
    found["rows"][:, : strip.shape[1] - FIRST_ROWS] = strip[:, FIRST_ROWS:]
    found["row"] = strip[:, FIRST_ROWS]
    found["column"] = walked.column[tile] * config.block_n
    return found


def _by_block(found: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Pieces block by block, those of a block in the order in which they come."""
    order = np.argsort(block, kind="stable")
    found, block = found[order], block[order]
    within = np.arange(len(block)) - np.searchsorted(block, block)
    table = np.zeros((block.max(initial=-1) + 1, within.max(initial=0) + 2), PIECE)
    table[block, within] = found
    return table
