"""The rivals of grouped products, each at its best, and the routings that all contenders share.

The weights are (e, m, k), the tokens x (t, k) row-major and sorted by expert; y is (t, m).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from rivals import LEAST_ROWS

Product = Callable[["Routing"], torch.Tensor]


@dataclass(frozen=True)
class Routing:
    """How many tokens each expert has.

    Attributes
    ----------
    offsets : torch.Tensor of int32, shape (e + 1,), on the GPU
    ends : torch.Tensor of int32, shape (e,), on the GPU
        Those of torch's grouped product, an array of its own.
    busy : list of (int, slice)
        The experts that have tokens, and which.
    """

    offsets: torch.Tensor
    ends: torch.Tensor
    busy: list[tuple[int, slice]]

    @classmethod
    def of(cls, counts: np.ndarray) -> Routing:
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        spans = zip(offsets.tolist(), offsets[1:].tolist(), strict=False)
        busy = [(i, slice(*span)) for i, span in enumerate(spans) if span[0] < span[1]]
        on_gpu = torch.from_numpy(offsets).cuda()
        return cls(on_gpu, on_gpu[1:].clone(), busy)


def of(weights: torch.Tensor, x: torch.Tensor, name: str, *, passes: bool) -> dict[str, Product]:
    """All rivals of a type by name; ``"name, way"`` where one has several ways.

    With `passes`, each has one pass more for a gate, compiled by torch.
    """
    products = _products(weights, x, name)
    if not passes:
        return products
    passed = torch.compile(gated, dynamic=False)
    return {key: lambda r, f=f: passed(f(r)) for key, f in products.items()}


def gated(y: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, in float32 at least, for y (t, 2 m) = [gate, up]."""
    gate, up = y.to(torch.promote_types(y.dtype, torch.float32)).chunk(2, dim=1)
    return (torch.nn.functional.silu(gate) * up).to(y.dtype)


def _products(weights: torch.Tensor, x: torch.Tensor, name: str) -> dict[str, Product]:
    if name == "bfloat16":
        # The same weights stored with m contiguous, which torch's product takes as well.
        turned = weights.transpose(-2, -1).contiguous()
        return {
            "torch_grouped": lambda r: _grouped(x, weights.transpose(-2, -1), r),
            "torch_grouped, turned": lambda r: _grouped(x, turned, r),
            "cublas_loop": _loop(weights, x, name),
        }
    found = {"cublas_loop": _loop(weights, x, name)}
    if name == "float8_e4m3fn" and hasattr(torch, "_scaled_grouped_mm"):
        found["torch_grouped"] = _grouped_float8(weights, x)
    return found


def _grouped(x: torch.Tensor, right: torch.Tensor, routing: Routing) -> torch.Tensor:
    public = getattr(torch.nn.functional, "grouped_mm", None)
    return (public or torch._grouped_mm)(x, right, offs=routing.ends)


def _grouped_float8(weights: torch.Tensor, x: torch.Tensor) -> Product:
    """Scales of one, as our product has none; fast accumulation."""
    e, m, _ = weights.shape
    of_x = torch.ones(len(x), device="cuda")
    of_weights = torch.ones(e, m, device="cuda")
    right = weights.transpose(-2, -1)
    how = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    return lambda r: torch._scaled_grouped_mm(x, right, of_x, of_weights, offs=r.ends, **how)


def _loop(weights: torch.Tensor, x: torch.Tensor, name: str) -> Product:
    """A product by cuBLAS for each expert that has tokens, into one result.

    Types of 8 bits take no fewer rows than `LEAST_ROWS`: an expert with fewer tokens multiplies
    those behind, too, whose own experts write the same rows of the result later.
    """
    rows, kind = LEAST_ROWS.get(name, 1), torch.int32 if name == "int8" else torch.bfloat16
    longer = torch.cat([x, x.new_zeros(rows, x.shape[1])]) if rows > 1 else x
    y = torch.empty(len(x) + rows, weights.shape[1], dtype=kind, device="cuda")
    one = torch.ones((), device="cuda")

    def multiply(routing: Routing) -> torch.Tensor:
        for i, span in routing.busy:
            some = slice(span.start, max(span.stop, span.start + rows))
            if name == "bfloat16":
                torch.mm(longer[some], weights[i].t(), out=y[some])
            elif name == "int8":
                torch._int_mm(longer[some], weights[i].t(), out=y[some])
            else:
                torch._scaled_mm(
                    longer[some], weights[i].t(), one, one, out_dtype=kind, use_fast_accum=True,
                    out=y[some],
                )  # fmt: skip
        return y[: len(x)]

    return multiply
