"""What ranks tell each other of packed gradients, so that no gradient is lost or misplaced unseen.

It travels with the values and is added up over the ranks as they are, in any type of element: so
each number is 0 or 1, and of the sums one asks only whether they are 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 32  # of the hash of places
SIZE = 2 + 2 * BITS  # elements for each gradient


def heard(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Of sums over the ranks (gradients, SIZE): what is not right, and what somebody did wrong.

    Of each gradient a rank tells whether it has elements elsewhere, whether it overflowed, and its
    places, `hashed`.  An overflow is nobody's fault: infinity times a mask's zero is NaN.
    """
    there = sums > 0
    lost, overflowed = there[:, 0], there[:, 1]
    differ = there[:, 2:].view(-1, 2, BITS).all(1).any(1)  # a bit is 1 here, and 0 there
    return lost | differ, (lost > overflowed) | differ


def hashed(codes: Tensor) -> Tensor:
    """What ranks tell of codes, (SIZE,) of int64: two zeros, bits of a hash, their complement.

    The hash is the sum of all words, each mixed with its place, modulo 2**64; both halves count.
    """
    flat = codes.reshape(-1)
    words = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(torch.int64)
    total = _mixed(words).sum()
    bits = (total ^ total >> BITS) >> torch.arange(BITS, device=words.device) & 1
    return torch.cat([bits.new_zeros(2), bits, 1 - bits])


def _mixed(words: Tensor) -> Tensor:
    """Words by which no differences cancel in a sum, as they would of words times numbers.

    The first steps of SplitMix64: G. Steele et al., *Fast Splittable Pseudorandom Number
    Generators*, 2014.
    """
    places = torch.arange(1, len(words) + 1, device=words.device)
    mixed = words + places * (0x9E3779B97F4A7C15 - 2**64)
    mixed = _folded(mixed, 30) * (0xBF58476D1CE4E5B9 - 2**64)
    return _folded(mixed, 27)


def _folded(words: Tensor, shift: int) -> Tensor:
    """``words ^ words >> shift`` of numbers without signs."""
    return words ^ words >> shift & (1 << 64 - shift) - 1
