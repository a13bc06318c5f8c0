"""A communicator of CuPy's NCCL."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sparse24 import _arrays, _check
from sparse24._errors import ArgumentError, DeviceError

# CuPy's own collectives know no bfloat16; NCCL itself does.
_TYPES = {
    "float16": "NCCL_FLOAT16",
    "bfloat16": "NCCL_BFLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "int64": "NCCL_INT64",
}


def from_nccl(comm: Any) -> NcclCommunicator:
    """A communicator for CuPy arrays.

    Parameters
    ----------
    comm : cupy.cuda.nccl.NcclCommunicator
        Of this process, or of this thread.

    Returns
    -------
    Communicator
        It enqueues on CuPy's current stream of the device and waits for nothing.

    Raises
    ------
    ArgumentError
        If `comm` is something else.
    DeviceError
        If there is no CuPy; by the communicator, if an array is not on a GPU.

    Examples
    --------
    With one GPU for each process, and an identifier that rank 0 has given to the others:

    >>> from sparse24.distributed import from_nccl
    >>> from cupy.cuda import nccl                                         # doctest: +SKIP
    >>> comm = from_nccl(nccl.NcclCommunicator(size, identifier, rank))    # doctest: +SKIP
    """
    nccl = _nccl()
    if not isinstance(comm, getattr(nccl, "NcclCommunicator", ())):
        raise ArgumentError(
            f"comm must be a cupy.cuda.nccl.NcclCommunicator, got {_check.shown(comm)}; make one "
            "with NcclCommunicator(size, identifier, rank)"
        )
    return NcclCommunicator(comm, nccl)


def _nccl() -> Any:
    _arrays.cupy_module()  # or the error that says how to get it
    from cupy.cuda import nccl

    return nccl


class NcclCommunicator:
    """A `Communicator` of NCCL.  Made by `from_nccl`."""

    device = "cuda"

    def __init__(self, comm: Any, nccl: Any):
        self.rank, self.size = comm.rank_id(), comm.size()
        self._comm, self._nccl = comm, nccl

    def all_reduce(self, x: Any) -> None:
        stream = _stream(x)
        kind = getattr(self._nccl, _TYPES[x.dtype.name])
        address = x.data.ptr
        self._comm.allReduce(address, address, x.size, kind, self._nccl.NCCL_SUM, stream)

    def all_to_all(
        self, sent: Any, sent_sizes: Sequence[int], received: Any, received_sizes: Sequence[int]
    ) -> None:
        stream = _stream(sent)
        self._nccl.groupStart()  # all at once, or two ranks that send first wait for each other
        try:
            self._pass(self._comm.send, sent, sent_sizes, stream)
            self._pass(self._comm.recv, received, received_sizes, stream)
        finally:
            self._nccl.groupEnd()

    def _pass(self, function: Any, x: Any, sizes: Sequence[int], stream: int) -> None:
        """Send, or receive, the parts of `x`."""
        starts = itertools.accumulate(sizes, initial=x.data.ptr)
        for peer, (start, size) in enumerate(zip(starts, sizes, strict=False)):
            if size:
                function(start, size, self._nccl.NCCL_UINT8, peer, stream)


def _stream(x: Any) -> int:
    """CuPy's current stream of the device of `x`."""
    if not _arrays.is_cupy(x):
        raise DeviceError(
            "A must be on a GPU, for NCCL moves nothing else; use A.to_device('cuda') or from_torch"
        )
    return _arrays.cupy_module().cuda.get_current_stream(x.device.id).ptr
