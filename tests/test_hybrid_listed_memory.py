"""Parts and joins of listed matrices: memory beside what they return."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from listed_cases import graph

import sparse24 as s24

SIZE, ELEMENTS = 20_000, 150_000  # eight bytes each, four of the value and four of the column

# Bytes for each element of the matrix, with its rows' starts; half of them are in some parts.
MADE = {
    "half of the rows": (lambda h: h[: SIZE // 2], 10),
    "half of the columns": (lambda h: h[:, : SIZE // 2], 25),
    "every second row": (lambda h: h[::2], 25),
    "rows in another order": (lambda h: h[np.arange(SIZE)[::-1]], 32),
    "columns in another order": (lambda h: h[:, np.arange(SIZE)[::-1]], 36),
    "below one another": (lambda h: np.concatenate([h, h]), 25),
    "side by side": (lambda h: np.concatenate([h, h], axis=1), 42),
}


@pytest.mark.parametrize("what", MADE)
def test_parts_and_joins_take_little_memory_beside_what_they_return(rng, what):
    make, most = MADE[what]
    m = graph(rng, (SIZE, SIZE), ELEMENTS)
    h = s24.hybrid(m)
    make(h)
    tracemalloc.start()
    made = make(h)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made.stored.is_listed
    assert peak < most * m.nnz
