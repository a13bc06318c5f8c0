"""Over which axes of ``jax.shard_map`` arrays vary, which their types say.

A callback knows none of them, and a derivative must vary over the same axes as its argument.
"""

from __future__ import annotations

from typing import Any

import jax


def varying(*arrays: Any) -> frozenset[str]:
    """The axes over which one of them varies; none outside of ``shard_map``, and before JAX 0.6."""
    if not hasattr(jax, "typeof"):
        return frozenset()
    return frozenset().union(*(_of_type(jax.typeof(x)) for x in arrays if x is not None))


def _of_type(kind: Any) -> frozenset[str]:
    """Of an array's type: releases of JAX name them in one of two ways."""
    ways = getattr(kind, "manual_axis_type", None)
    return getattr(kind, "vma", frozenset()) if ways is None else ways.varying


def vary(x: Any, axes: frozenset[str]) -> Any:
    """An array, or None, as one that varies over these axes as well.

    The derivative of that is the sum over the axes that it did not vary over.
    """
    missing = tuple(sorted(axes - varying(x), key=str)) if axes else ()
    if x is None or not missing:
        return x
    lax: Any = jax.lax
    if hasattr(lax, "pcast"):
        return lax.pcast(x, missing, to="varying")
    return lax.pvary(x, missing)
