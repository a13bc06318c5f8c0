"""Random n:m matrices."""

from __future__ import annotations

import numpy as np

import sparse24 as s24
from sparse24 import _dtypes


def sample(rng, shape, name, pattern):
    x = rng.integers(-9, 10, shape).astype(np.float32)
    x = np.where(rng.random(shape) < 0.2, 0, x).astype(_dtypes.TABLE[name].logical)
    return s24.prune(x, pattern=pattern)
