"""Reference in NumPy for ``cuda/hybrid_evict.cu``: slow, and the same to the last bit."""

from __future__ import annotations

import numpy as np

from sparse24.kernels.hybrid_evict import DEARER, ROWS, laid_out
from sparse24.kernels.hybrid_strips import ATOM, BLOCK, Strips

GROUP = 4
HEAVY = 26  # rows of a column from which it is counted as two slots
BINS = 32  # groups of slots that are being filled


def evict(held: np.ndarray) -> np.ndarray:
    """The elements (rows, k) that a strip must give up, two of every four may stay.

    They lie in no more than two columns of a group, and in as few as possible.
    """
    groups = held.reshape(len(held), -1, GROUP)
    count = groups.sum(2)
    out = np.zeros_like(groups)
    for g in range(groups.shape[1]):
        columns, three, four = groups[:, g], count[:, g] >= 3, count[:, g] == 4
        first = int((columns & three[:, None]).sum(0).argmax())
        out[:, g, first] = three & columns[:, first]
        rest = (three & ~columns[:, first]) | four
        if rest.any():
            covers = (columns & rest[:, None]).sum(0)
            covers[first] = -1
            second = int(covers.argmax())
            out[:, g, second] = rest & columns[:, second]
    return out.reshape(held.shape)


def weight(columns: np.ndarray) -> int:
    """Slots that columns (rows, columns) are expected to take."""
    count = columns.sum(0)
    return int((count > 0).sum() + (count >= HEAVY).sum())


def pack(evicted: np.ndarray, none: int) -> np.ndarray:
    """Columns of a strip in groups of four in which no row has more than two elements."""
    bins: list[list[int]] = [[] for _ in range(BINS)]
    load = np.zeros((BINS, len(evicted)), np.int64)
    given: list[int] = []

    def give(index: int) -> None:
        given.extend(bins[index] + [none] * (GROUP - len(bins[index])))
        bins[index], load[index] = [], 0

    for column in np.flatnonzero(evicted.any(0)):
        rows = evicted[:, column]
        fits = ((load + rows) <= 2).all(1)
        candidates = [i for i in range(BINS) if fits[i]] or list(range(BINS))
        taker = max(candidates, key=lambda i: (len(bins[i]), -i))
        if not fits[taker]:
            give(taker)
        bins[taker].append(int(column))
        load[taker] += rows
        if len(bins[taker]) == GROUP:
            give(taker)
    for index in range(BINS):
        if bins[index]:
            give(index)
    return np.array(given, np.int32)


def prepare(bits: np.ndarray, dearer: float = DEARER) -> Strips:
    """The strips of a matrix (m, k) of uint16."""
    m, k = bits.shape
    wide = np.pad(bits, ((0, -m % ROWS), (0, -k % BLOCK)))
    blocks = wide.shape[1] // BLOCK
    plans, counts = [], []
    for top in range(0, len(wide), ROWS):
        held = wide[top : top + ROWS] != 0
        evicted, plain = evict(held), []
        for block in range(blocks):
            here = slice(block * BLOCK, (block + 1) * BLOCK)
            stay, dissolve = weight(evicted[:, here]), weight(held[:, here])
            if BLOCK + np.float32(dearer) * stay <= np.float32(dearer) * dissolve:
                plain.append(block)
            else:
                evicted[:, here] = held[:, here]
        slots = pack(evicted, k)
        plans.append((evicted, plain, slots))
        counts.append((len(plain), len(slots)))
    where = laid_out(np.array(counts, np.int64))
    dense = np.zeros((len(where.strip_of_atom), ROWS, ATOM), np.uint16)
    sources = np.full((2 * len(dense), BLOCK), k, np.int32)
    for strip, (evicted, plain, slots) in enumerate(plans):
        rows = wide[strip * ROWS : (strip + 1) * ROWS]
        columns = [block * BLOCK + np.arange(BLOCK) for block in plain]
        columns += [slots[i : i + BLOCK] for i in range(0, len(slots), BLOCK)]
        for i, at in enumerate(columns):
            stage, there = 2 * where.first[strip] + i, at < k
            part = dense[stage // 2, :, stage % 2 * BLOCK :][:, : len(at)]
            gone = evicted[:, at[there]]
            part[:, there] = rows[:, at[there]] * (~gone if i < len(plain) else gone)
            sources[stage, : len(at)] = at
    return Strips(dense, sources, where)
