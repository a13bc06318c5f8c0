"""Products with matrices that are packed anew at every call, launched without planning.

`sparse24._replay` remembers launches of one array; a training step makes new arrays of the same
shapes, at addresses that torch's allocator soon hands out again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _arrays, _autotune, _foreign, _tuning_cache
from sparse24._dispatch import Launched
from sparse24._ready import View
from sparse24._records import PLAIN, Compressed24, Fused
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels.launch import Launch, Launcher

MOST_SIGNATURES = 512
MOST_ADDRESSES = 1024  # a signature

_known: dict[tuple, Repeat] = {}


def signature(values: Tensor, dense: Tensor, bias: Tensor | None, m: int, k: int, form: str):
    """All that the choice of a kernel depends on; None where calls are not remembered."""
    if not dense.is_cuda or _autotune.active.get():
        return None
    return (
        form, m, k, values.dtype, dense.shape, dense.stride(), dense.dtype, dense.data_ptr() & 15,
        bias is None, dense.device.index, _tuning_cache.generation(),
    )  # fmt: skip


def find(key: tuple | None) -> Repeat | None:
    return None if key is None else _known.get(key)


def remember(key: tuple | None, launched: Launched | None, out: Tensor) -> None:
    """Keep what a call launched, if that can be launched again elsewhere."""
    if key is None or launched is None or not isinstance(launched.launcher, Launcher):
        return
    if len(_known) >= MOST_SIGNATURES:
        _known.clear()
    _known[key] = Repeat(launched, out)


class Repeat:
    """A prepared product of one signature."""

    def __init__(self, launched: Launched, out: Tensor):
        self._bind, record = launched.launcher.bind, launched.a
        self._values, self._packed = View(record.values), View(record.packed)
        self._shape, self._dtype = record.shape, record.dtype
        self._b, self._out = View(launched.b), View(launched.out)
        self._result = (tuple(out.shape), out.dtype)
        self._launches: dict[tuple, Launch] = {}

    def __call__(self, values: Tensor, codes: Tensor, dense: Tensor, epilogue: Fused) -> Tensor:
        shape, dtype = self._result
        out, stream = dense.new_empty(shape, dtype=dtype), _arrays.torch_stream(dense)
        key = (values.data_ptr(), codes.data_ptr(), dense.data_ptr(), out.data_ptr(), stream)
        launch = self._launches.get(key)
        if launch is None:
            if len(self._launches) >= MOST_ADDRESSES:
                self._launches.clear()
            with torch.cuda.device(dense.device):
                launch = self._launches[key] = self._lay_out(*key)
        if epilogue is not PLAIN:
            launch = launch.with_last(_epilogue.params(epilogue))
        _foreign.make_current()
        with torch.cuda.device(dense.device):
            launch(stream)
        return out

    def _lay_out(self, values: int, codes: int, dense: int, out: int, stream: int) -> Launch:
        record = Compressed24(
            self._values.at(values), None, self._packed.at(codes), self._shape, self._dtype
        )
        return self._bind(record, self._b.at(dense), self._out.at(out), stream)
