"""Powers of two that bring numbers near 1, where their squares neither overflow nor vanish.

In float64 the squares of numbers above 1e154 are infinite and those below 1e-162 are zero.  A
product with a power of two is exact, so that all other results keep their bits.
"""

from __future__ import annotations

import math

from sparse24._arrays import namespace

_MOST = 1000  # powers beyond have no reciprocal in float64


def of_largest(largest: float) -> float:
    """The scale of numbers up to `largest`; 1 if it is zero, inf or NaN."""
    if not largest or not math.isfinite(largest):
        return 1.0
    return math.ldexp(1.0, max(-_MOST, min(_MOST, -math.frexp(largest)[1])))


def largest(x) -> float:
    """The largest magnitude of an array; waits for the device."""
    return float(namespace(x).abs(x).max()) if x.size else 0.0


def of(x) -> float:
    """The scale of the numbers of an array; waits for the device."""
    return of_largest(largest(x))
