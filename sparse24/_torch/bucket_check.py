"""What ranks tell each other of packed gradients, so that no gradient is lost or misplaced unseen.

It travels with the values and is added up over the ranks as they are, in any type of element: so
each number is 0 or 1, and of the sums one asks only whether they are 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24._place_hash import mixed

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
    """What ranks tell of codes, (SIZE,) of int64: two zeros, bits of a hash, their complement."""
    flat = codes.reshape(-1)
    words = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(torch.int64)
    total = mixed(words, torch.arange(1, len(words) + 1, device=words.device)).sum()
    bits = (total ^ total >> BITS) >> torch.arange(BITS, device=words.device) & 1
    return torch.cat([bits.new_zeros(2), bits, 1 - bits])
