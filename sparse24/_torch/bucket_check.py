"""What ranks tell each other of packed gradients, so that no gradient is lost or misplaced unseen.

It travels with the values and is added up over the ranks as they are, in any type of element: so
each number is 0 or 1, and of the sums one asks only whether they are 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BITS = 32  # of the hash of places
SIZE = 2 + 2 * BITS  # elements for each gradient


def told(gradients: Sequence[Tensor], values: Sequence[Tensor], codes: Sequence[Tensor]) -> Tensor:
    """Numbers (gradients, SIZE) of a rank; nothing waits for them.

    Has it elements elsewhere; did it overflow; bits of the hash of its places; their complement.
    """
    lost = [_has_more(x, kept) for x, kept in zip(gradients, values, strict=True)]
    overflowed = [~torch.linalg.vector_norm(x, math.inf).isfinite() for x in gradients]
    hashes = torch.stack([_hash(x) for x in codes])[:, None]
    bits = hashes >> torch.arange(BITS, device=hashes.device) & 1
    return torch.cat([torch.stack([*lost, *overflowed]).view(2, -1).t(), bits, 1 - bits], dim=1)


def heard(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Of sums over the ranks (gradients, SIZE): what is not right, and what somebody did wrong.

    An overflow is nobody's fault: infinity times a mask's zero is NaN.
    """
    there = sums > 0
    lost, overflowed = there[:, 0], there[:, 1]
    differ = (there[:, 2 : 2 + BITS] & there[:, 2 + BITS :]).any(1)
    return lost | differ, lost & ~overflowed | differ


def _has_more(x: Tensor, kept: Tensor) -> Tensor:
    """Whether a row has more non-zeros than were taken of it."""
    return (_non_zeros(x) != _non_zeros(kept)).any()


def _non_zeros(x: Tensor) -> Tensor:
    """Non-zeros of each row, NaN among them; exact in float32 below 2**24 columns."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(x, 0, dim=-1, dtype=dtype)


def _hash(codes: Tensor) -> Tensor:
    """A sum of all words, each times another odd number, modulo 2**64; both halves count."""
    flat = codes.reshape(-1)
    words = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(torch.int64)
    odd = torch.arange(1, 2 * len(words), 2, device=words.device)
    total = (words * odd * 0x2545F4914F6CDD1D).sum()
    return total ^ total >> BITS
