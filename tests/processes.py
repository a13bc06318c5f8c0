"""Processes of torch for tests, which import torch once for all of them."""

from __future__ import annotations

import multiprocessing

import torch

IMPORTS = ["torch._dynamo", "torch.distributed.fsdp", "sparse24.torch", "sparse24.kernels.cpu"]


def run(function, arguments, count: int) -> None:
    """Call ``function(rank, *arguments)`` in so many new processes, and raise what they raise.

    They are forks of a process that has imported `IMPORTS` and done nothing else.
    """
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    if forks:
        multiprocessing.set_forkserver_preload(IMPORTS)
    method = "forkserver" if forks else "spawn"
    torch.multiprocessing.start_processes(function, arguments, count, start_method=method)
