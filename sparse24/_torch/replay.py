"""Operators on matrices that are packed anew at every call, launched without planning.

`sparse24._replay` remembers launches of one array; a training step makes new arrays of the same
shapes, at addresses that torch's allocator soon hands out again.  Choosing a kernel, and seeing
tensors as arrays of CuPy, takes longer than many a kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse24 import (
    _arrays,
    _autotune,
    _bounded,
    _foreign,
    _foreign_streams,
    _streams,
    _tuning_cache,
)
from sparse24._dispatch import Launched
from sparse24._made_anew import Converting, MadeDense
from sparse24._moved_layout import MovedLayout
from sparse24._ready import product_by_address
from sparse24._records import PLAIN, Compressed24, Fused
from sparse24._torch.settled import note
from sparse24._views import View
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels.call import KernelCall
from sparse24.kernels.launch import Launch, Launcher

MOST_SIGNATURES = 512

_known: dict[tuple, Any] = {}


def find(key: tuple | None) -> Any:
    """What was prepared for the operators of a signature."""
    return None if key is None else _known.get(key)


def keep(key: tuple | None, prepared: Any) -> None:
    """Remember what serves the operators of a signature, if both are there."""
    if key is not None and prepared is not None:
        _bounded.remember(_known, key, prepared, MOST_SIGNATURES)


def layout(x: Tensor) -> tuple:
    """All of a CUDA tensor that a launch depends on, but for its address."""
    return x.shape, x.stride(), x.dtype, x.data_ptr() & 15, x.device.index


def view(x: Tensor) -> View:
    """The address and the layout of a CUDA tensor."""
    return View(_foreign.view_of(x))


def launch_of(call: KernelCall) -> Launch:
    """A launch with the arguments of a call, whose arrays are `View` s."""
    words = np.array([_word(x) for x in call.arguments], np.uint64)
    return Launch(call.kernel, call.blocks, call.threads, 0, np.split(words, len(words)))


def _word(x: Any) -> int:
    """The eight bytes of an argument."""
    if isinstance(x, View):
        return x.ptr
    return int(np.float64(x).view(np.uint64)) if isinstance(x, float) else int(x) % 2**64


class Launches:
    """The launches of one signature, laid out once and moved to each set of addresses.

    Parameters
    ----------
    lay_out : callable
        ``lay_out(*addresses, stream)`` gives launches, one after the other, for torch's stream.
    numbers : int
        So many of the addresses, the last ones, are numbers.
    """

    def __init__(self, lay_out: Callable[..., Sequence[Launch]], numbers: int = 0):
        self._layout = MovedLayout(lay_out, numbers)

    def enqueue(self, beside: Tensor, *addresses: int) -> None:
        """Launch on the device and the stream of a tensor, without waiting."""
        with on_device(beside):
            self._layout.enqueue(addresses, _arrays.torch_stream(beside))


def on_device(x: Tensor) -> contextlib.AbstractContextManager:
    """The context in which this thread launches on the device of a tensor."""
    _foreign_streams.make_current()
    if torch.cuda.current_device() == x.device.index:
        return contextlib.nullcontext()
    return torch.cuda.device(x.device)


def product_key(
    values: Tensor, dense: Tensor, bias: Tensor | None, m: int, k: int, form: str
) -> tuple | None:
    """All that the choice of a product's kernel depends on; None where it is not remembered."""
    if not dense.is_cuda or (_autotune.active.get() and _autotune.is_on()):
        return None
    operands = *layout(values), *layout(dense)  # of either device: on two they are refused
    return form, m, k, bias is None, _tuning_cache.generation(), *operands


def remember(key: tuple | None, launched: Launched, out: Tensor, *, left: bool) -> None:
    """Keep what a product launched, if that can be launched again elsewhere.

    `left` tells that the packed matrix was the right operand.  cuBLAS is left out, as graphs do not
    capture it.
    """
    launcher = launched.launcher
    if isinstance(launcher, Launcher):
        keep(key, Product(launched, out))
    elif isinstance(launcher, Converting) and not isinstance(launcher.product, MadeDense):
        keep(key, ConvertedProduct(launched, out, left=left))


class Product:
    """A prepared product of one signature."""

    def __init__(self, launched: Launched, out: Tensor):
        self._by_address, self._waits = product_by_address(launched), launched.waits
        bias = launched.epilogue.row_bias
        self._bias = None if bias is None else View(bias)
        self._result = (tuple(out.shape), out.dtype)
        self._launches = Launches(self._lay_out)

    def __call__(self, values: Tensor, codes: Tensor, dense: Tensor, bias: Tensor | None) -> Tensor:
        """The product; `bias` is of the type that kernels add."""
        shape, dtype = self._result
        out = dense.new_empty(shape, dtype=dtype)
        given = (values, codes, dense, out) if bias is None else (values, codes, dense, out, bias)
        if self._waits:
            note(values, codes, dense)
        self._launches.enqueue(dense, *[x.data_ptr() for x in given])
        return out

    def _lay_out(self, values: int, codes: int, dense: int, out: int, *rest: int) -> list[Launch]:
        *bias, stream = rest
        (launch,) = self._by_address(values, codes, dense, out, stream)
        if self._bias is not None:
            added = Fused(row_bias=self._bias.at(*bias))
            launch = launch.with_last(_epilogue.params(added))
        return [launch]


class ConvertedProduct:
    """A prepared product of one signature, which converts the matrix at each call."""

    def __init__(self, launched: Launched, out: Tensor, *, left: bool):
        a = launched.a
        self._launcher, self._left, self._columns = launched.launcher, left, a.values.shape[-1]
        self._facts = {"shape": a.shape, "dtype": a.dtype, "quantised": a.quantised}
        self._result = (tuple(out.shape), out.dtype)

    def __call__(self, values: Tensor, codes: Tensor, dense: Tensor, bias: Tensor | None) -> Tensor:
        """As of `Product`."""
        shape, dtype = self._result
        out = dense.new_empty(shape, dtype=dtype)
        with _foreign_streams.stream_of(dense):
            _streams.hold_current()
            stored, packed, b, to = (_foreign.view_of(x) for x in (values, codes, dense, out))
            a = Compressed24(stored[..., : self._columns], None, packed, **self._facts)
            b, to = (b.T, to.T) if self._left else (b, to)
            epilogue = PLAIN if bias is None else Fused(row_bias=_foreign.view_of(bias))
            self._launcher(a, b, to, epilogue)
        return out
