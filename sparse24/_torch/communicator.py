"""A communicator of torch.distributed; imports torch at its first use only."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from sparse24 import _arrays, _check, _foreign
from sparse24._errors import ArgumentError


def from_torch(group: Any = None) -> TorchCommunicator:
    """A communicator for NumPy and CuPy arrays, by a process group of torch.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        By default all processes.  Its backend decides which arrays it moves: ``"gloo"`` those of
        NumPy, ``"nccl"`` those of CuPy.

    Returns
    -------
    Communicator
        With CuPy arrays it enqueues on CuPy's current stream, and waits for nothing that torch does
        not wait for; with NumPy arrays a call returns when the result is there.

    Raises
    ------
    ArgumentError
        If there is no process group, `group` is something else, or this process is not in it.

    Examples
    --------
    In each of the processes:

    >>> import tempfile, torch
    >>> from sparse24.distributed import from_torch
    >>> file = f"file://{tempfile.mkdtemp()}/meeting"
    >>> torch.distributed.init_process_group("gloo", file, rank=0, world_size=1)
    >>> comm = from_torch()
    >>> comm.rank, comm.size
    (0, 1)
    >>> torch.distributed.destroy_process_group()
    """
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise ArgumentError(
            "group must be a process group of torch, and there is none yet; call "
            "torch.distributed.init_process_group first"
        )
    try:
        rank = torch.distributed.get_rank(group)
    except ValueError as error:
        raise ArgumentError(
            "group must be a torch.distributed.ProcessGroup that was not destroyed, got "
            f"{_check.shown(group)}; of a DeviceMesh pass mesh.get_group()"
        ) from error
    if rank < 0:
        raise ArgumentError("group must be one that this process is in; call it in its ranks only")
    return TorchCommunicator(rank, torch.distributed.get_world_size(group), group)


class TorchCommunicator:
    """A `Communicator` of torch.  Made by `from_torch`."""

    def __init__(self, rank: int, size: int, group: Any):
        self.rank, self.size, self._group = rank, size, group

    @property
    def device(self) -> str | None:
        """Where the arrays are that its backend moves; None if these may be anywhere."""
        import torch

        config = torch.distributed.get_backend_config(self._group)
        first, *others = (part.partition(":")[0] for part in config.split(","))
        return None if others else first

    def all_reduce(self, x: Any) -> None:
        import torch

        with _on_stream_of(x):
            torch.distributed.all_reduce(_foreign.to_torch(x), group=self._group)

    def all_to_all(
        self, sent: Any, sent_sizes: Sequence[int], received: Any, received_sizes: Sequence[int]
    ) -> None:
        import torch

        with _on_stream_of(sent):
            torch.distributed.all_to_all_single(
                _foreign.to_torch(received), _foreign.to_torch(sent),
                list(received_sizes), list(sent_sizes), group=self._group,
            )  # fmt: skip


@contextlib.contextmanager
def _on_stream_of(x: Any):
    """torch's work goes to CuPy's current stream, and is ordered as CuPy's own."""
    if not _arrays.is_cupy(x):
        yield
        return
    import torch

    device = x.device.id
    address = _arrays.cupy_module().cuda.get_current_stream(device).ptr
    with torch.cuda.stream(_arrays.torch_stream_at(address, device)):
        yield
