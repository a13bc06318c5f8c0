"""Streams beside the caller's, on which a thread computes masks."""

from __future__ import annotations

import contextlib
from typing import Any

from sparse24 import _arrays


class _CupyLane:
    """A side stream of CuPy and the events that order it with the caller's."""

    def __init__(self, device):
        self._cupy = _arrays.cupy_module()
        self._device = device
        with device:
            self._stream = self._cupy.cuda.Stream(non_blocking=True)

    @contextlib.contextmanager
    def use(self):
        with self._device, self._stream:
            yield

    def mark(self):
        return self._cupy.cuda.get_current_stream().record()

    def wait(self, event) -> None:
        self._cupy.cuda.get_current_stream().wait_event(event)


class _TorchLane:
    """A side stream of torch, as `_CupyLane` is one of CuPy."""

    def __init__(self, device):
        import torch

        self._cuda = torch.cuda
        self._stream = torch.cuda.Stream(device)

    def use(self):
        return self._cuda.stream(self._stream)

    def mark(self):
        return self._cuda.current_stream(self._stream.device).record_event()

    def wait(self, event) -> None:
        self._cuda.current_stream(self._stream.device).wait_event(event)


def lane_of(array: Any):
    """The means to run beside the caller's stream; None where the thread itself is enough."""
    if _arrays.is_cupy(array):
        return _CupyLane(array.device)
    if _arrays.is_torch(array) and array.is_cuda:
        return _TorchLane(array.device)
    return None
