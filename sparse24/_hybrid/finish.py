"""The epilogue of repeated products of hybrid matrices: one launch, laid out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sparse24 import _arrays, _finish, _replay
from sparse24._options import Call
from sparse24._ready import ReadyInTurn, allocator, bound
from sparse24._records import Fused
from sparse24._target import Target
from sparse24._views import View
from sparse24.kernels import dense, loader
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels.launch import Launch

VECTORS = ("row_scale", "column_scale", "row_bias", "column_bias")


def prepared(
    first: Callable[..., Any], product: Any, array: Any, result: Any, call: Call, k: int
) -> ReadyInTurn | None:
    """What repeats a layer's product and its epilogue; None where no kernel can do that alone.

    Parameters
    ----------
    first : callable
        Repeats the product, ``first(x, None)``.
    product, result : array
        Of the call that prepared it: the product, by rows, and what the epilogue made of it.
    array : CuPy array, shape (..., m, n) or (n,)
        The product as well.
    call : Call
        With an epilogue of a bias and an activation.
    k : int
        The number of elements that each sum of the product is of.
    """
    assert call.epilogue is not None
    bias, shapes = call.epilogue.bias, ((*array.shape[:-1], k), (k, array.shape[-1]))
    full = _finish.whole(array, _finish.dropped_axis(*shapes))
    if not full.size or not (bias is None or _lie_together(bias, product)):
        return None
    goes = Target(full.shape, full.dtype.name, None, True)
    epilogue, convert = _finish.fused(full, goes, call, *shapes), None
    if not _replay.is_the_callers(epilogue, call):
        made = epilogue.column_bias
        if made is None or tuple(bias.shape) not in (made.shape, (1, *made.shape)):
            return None  # of rows, or a single number
        convert = _converter(made.dtype.name)
    laid = _Laid(full, epilogue)
    second = bound(laid.bind, array, array, allocator(result))
    return ReadyInTurn(first, second, convert)


def _lie_together(x: Any, y: Any) -> bool:
    """Whether two arrays are of one library and on one device, so that work on both is in order."""
    if _arrays.is_cupy(x) and _arrays.is_cupy(y):
        return x.data.device_id == y.data.device_id
    return _arrays.is_torch(x) and _arrays.is_torch(y) and x.device == y.device


def _converter(name: str) -> Callable[[Any], Any]:
    """Makes a bias of columns as the kernel reads it, in the type of this name."""

    def convert(bias: Any) -> Any:
        if _arrays.is_cupy(bias):
            flat = bias.reshape(-1).astype(name, copy=False)
            return _arrays.namespace(bias).ascontiguousarray(flat)
        import torch

        return bias.detach().reshape(-1).to(getattr(torch, name)).contiguous()

    return convert


class _Laid:
    """An epilogue as a launch, laid out for each place of the product; keeps no array alive."""

    def __init__(self, full: Any, epilogue: Fused):
        views = {name: View(x) for name in VECTORS if (x := getattr(epilogue, name)) is not None}
        self._epilogue = replace(epilogue, **views)  # type: ignore[arg-type]
        *_, self._m, self._n = full.shape
        self._batch = full.size // (self._m * self._n)
        names, seen = (full.dtype.name, full.dtype.name), self._readable()
        defines = (*zip(("ACCUMULATOR", "OUTPUT"), names, strict=True), *_epilogue.defines(seen))
        self._kernel = loader.function(dense.EPILOGUE_STEM, dense.EPILOGUE_STEM, defines)

    def _readable(self, *vector: int) -> Fused:
        """The epilogue as the kernel takes it, with the bias at another address if one is given."""
        e = self._epilogue
        if vector:
            e = replace(e, column_bias=e.column_bias.at(*vector))
        return _finish.readable(e, self._m)

    def bind(self, product: Any, out: Any, stream: int, *vector: int) -> Launch:
        m, n, batch = self._m, self._n, self._batch
        addresses = (np.array([x.data.ptr], np.uint64) for x in (product, out))
        numbers = (np.array([x], np.int64) for x in (n, 1, m * n, m, n, batch))
        params = _epilogue.params(self._readable(*vector))
        blocks = min(-(-product.size // dense.THREADS), dense.MAX_BLOCKS)
        return Launch(self._kernel, blocks, dense.THREADS, 0, (*addresses, *numbers, params))
