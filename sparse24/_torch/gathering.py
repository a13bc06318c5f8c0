"""Custom operators that take kept elements out of a matrix and put them back, in given memory."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from sparse24 import _foreign, _foreign_streams, _storage
from sparse24._torch import replay as torch_replay
from sparse24._torch.operators import meaning_for_tracing, operator
from sparse24._torch.parts import dtype_of, empty_parts, record_of, typed
from sparse24._torch.repack import Gathering, Unpacking, is_in_rows, unpacking_key


@functools.partial(operator, mutates=("values", "seen"))
def gather(x: Tensor, codes: Tensor, values: Tensor, seen: Tensor | None) -> None:
    """Write the elements of x (..., m, k) that have codes to `values` (..., m, n), contiguous.

    Of `seen`, two zeros of the type of x, the first becomes 1 if x has non-zeros elsewhere, and the
    second if it has infinities or NaNs.
    """
    if not x.is_cuda:
        _gather_on_cpu(x, codes, values, seen)
    elif is_in_rows(values):
        _gather_on_gpu(x, codes, values, seen)
    else:
        wide = empty_parts(x, *x.shape)[0]
        _gather_on_gpu(x, codes, wide, seen)
        values.copy_(wide[..., : values.shape[-1]])


def _gather_on_gpu(x: Tensor, codes: Tensor, values: Tensor, seen: Tensor | None) -> None:
    key = "gather", seen is None, *torch_replay.layout(x), *torch_replay.layout(values)
    known = torch_replay.find(key)
    if known is None:
        with _foreign_streams.stream_of(x):
            known = Gathering(x, codes, values)
        torch_replay.keep(key, known)
    known(x, codes, values, seen)


def _gather_on_cpu(x: Tensor, codes: Tensor, values: Tensor, seen: Tensor | None) -> None:
    from sparse24.kernels import reference

    m, k = x.shape[-2:]
    record = record_of(values, codes, m, k, dtype_of(x))
    found = reference.like(_storage.canonical(record), _foreign.view_of(x))
    values.copy_(typed(found, x.dtype))
    if seen is not None:
        lost = (_non_zeros(x) != _non_zeros(values)).any()
        seen.copy_(torch.stack([lost, ~torch.linalg.vector_norm(x, math.inf).isfinite()]))


def _non_zeros(x: Tensor) -> Tensor:
    """Non-zeros of each row, NaN among them; exact in float32 below 2**24 columns."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(x, 0, dim=-1, dtype=dtype)


@meaning_for_tracing("gather")
def _(x, codes, values, seen):
    return None


@functools.partial(operator, mutates=("out",))
def spread(values: Tensor, codes: Tensor, out: Tensor) -> None:
    """Write values (..., m, n) to their places in `out` (..., m, k), and zeros to all others."""
    m, k = out.shape[-2:]
    parts = [values, codes]
    key = unpacking_key(parts, m, k, out)
    known = torch_replay.find(key)
    if known is not None:
        known(parts, out)
        return
    with _foreign_streams.stream_of(values):
        record = record_of(values, codes, m, k, dtype_of(values))
        _storage.decompress(record, _foreign.view_of(out))
        if key is not None:
            torch_replay.keep(key, Unpacking.of(parts, m, k, out))


@meaning_for_tracing("spread")
def _(values, codes, out):
    return None
