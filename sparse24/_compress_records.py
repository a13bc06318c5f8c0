"""Compress a dense array to `Compressed24` records, on either device."""

from __future__ import annotations

from typing import Any

from sparse24 import _arrays, _excess, _storage
from sparse24._errors import ArgumentError
from sparse24._records import Compressed24


def compress_rows(x, dtype, rule: str, chosen=None) -> tuple[Compressed24, Any]:
    """Record and check status of (..., m, k), groups along the last axis, on x's device.

    `chosen` holds the scores or the mask of the rules of these names.
    """
    given = {rule: chosen} if rule in ("scores", "mask") else {}
    if _arrays.is_cupy(x):
        from sparse24.kernels import compress as kernel

        _storage.refuse_long(x.shape)
        return kernel.launch(x, dtype, rule=rule, **given)
    from sparse24.kernels import cpu

    values, metadata, status = cpu.compress(x, rule, **given)
    return Compressed24(values, metadata, None, x.shape, dtype), status


def transposable_records(x, dtype) -> tuple[Compressed24, Compressed24]:
    """Records of (..., m, k), pruned by the best 4x4 masks, and of its transpose."""
    if _arrays.is_cupy(x):
        from sparse24.kernels import transposable

        _storage.refuse_long(x.shape)
        return transposable.launch(x, dtype)
    from sparse24.kernels import cpu

    keep = cpu.transposable_mask(x)
    rows, _ = compress_rows(x, dtype, "mask", keep)
    columns, _ = compress_rows(x.swapaxes(-1, -2), dtype, "mask", keep.swapaxes(-1, -2))
    return rows, columns


def records_both_ways(x, dtype, check) -> tuple[Compressed24, Compressed24]:
    """Records of (..., m, k), which obeys 2:4 along both axes, and of its transpose."""
    if check == "deferred":
        raise ArgumentError(
            "check='deferred' keeps the check of one axis, and transposable=True needs two; pass "
            "check=True, or on_excess='prune', which needs none"
        )
    (rows, status), (columns, turned) = (
        compress_rows(part, dtype, "check") for part in (x, x.swapaxes(-1, -2))
    )
    if check:
        prune = "sparse24.prune(x, transposable=True)"
        _excess.refuse(status, rows.shape, prune=prune)
        _excess.refuse(turned, columns.shape, axis=-2, prune=prune)
    return rows, columns
