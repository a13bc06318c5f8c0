"""A checked product of experts, and its description for kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparse24._records import Fused, Operand24, Problem
from sparse24._target import Result


class Grouped(NamedTuple):
    """A checked product: ``out[:, j] = epilogue(a[i] @ b[:, j])``, where expert i has token j."""

    a: Operand24  # (e, m, k), or (e, 2 m, k) if gated; with rows
    b: Any  # (k, t)
    out: Any  # (m, t)
    offsets: Any  # (e + 1,), as `grouped_offsets.taken` gives it
    epilogue: Fused  # of `fuse.fused`
    gated: bool  # the activation of the first half of the rows multiplies the other


def problem_of(product: Grouped, types: Result) -> Problem:
    """The description of a product on the GPU, as it is after all copies."""
    (experts, _, k), (m, tokens) = product.a.shape, product.out.shape
    return Problem(
        m, tokens, k, experts, types.type_a.name, types.type_b.name, types.name, "column", "column",
        a_batched=experts > 1, b_aligned=True, out_aligned=True,
        compute_capability=int(product.b.device.compute_capability),
    )  # fmt: skip
