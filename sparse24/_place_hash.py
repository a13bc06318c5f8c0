"""A hash of codes by which ranks tell whether they keep elements in the same places."""

from __future__ import annotations

from typing import Any

# Numbers without signs as those of int64, which every library has.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FACTOR = 0xBF58476D1CE4E5B9 - 2**64


def mixed(words: Any, numbers: Any) -> Any:
    """Words of int64, mixed with their numbers 1, 2, ...; their sum modulo 2**64 is the hash.

    For arrays of any library.  Of words that are only multiplied by numbers, differences in two
    would often cancel.  The first steps of SplitMix64: G. Steele et al., *Fast Splittable
    Pseudorandom Number Generators*, 2014.
    """
    return _folded(_folded(words + numbers * _STEP, 30) * _FACTOR, 27)


def _folded(words: Any, shift: int) -> Any:
    """``words ^ words >> shift`` of numbers without signs."""
    return words ^ words >> shift & (1 << 64 - shift) - 1
