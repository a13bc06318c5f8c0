"""Patterns and weights for the tests of the scheduler."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sparse24 import schedule as S

SHARE = st.floats(0, 1, allow_nan=False)
PATTERNS = {
    "unstructured": S.Unstructured(),
    "elastic": S.Elastic((4, 16)),
    "tile-hybrid": S.TileHybrid((8, 8)),
    "block": S.Block((4, 4)),
    "rows": S.Channel(0),
    "columns": S.Channel(1),
}


def layers(rng, **shapes):
    return {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
