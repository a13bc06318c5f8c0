"""Arrays of ranks, and their sums over two processes of torch.distributed.

A module of its own, because a new process imports the function that it runs by name.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

import sparse24 as s24
from sparse24._errors import ArgumentError
from sparse24.distributed import all_reduce, from_nccl, from_torch, reduce_scatter, row_block

WORLD = 2
TOLD = "4 sums of arrays that are alike, 18 of others, 2 refused"  # how much each process compares
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "float8_e4m3fn")


def device_of(xp):
    return "cpu" if xp is np else "cuda"


def on_host(x):
    return x.get() if hasattr(x, "get") else np.asarray(x)


def alike(rank, dtype, shape=(6, 20), device="cpu"):
    """A rank's array, in the places that all have."""
    places = s24.random(shape, dtype="float32", rng=9)
    x = np.random.default_rng(rank).standard_normal(shape).astype(np.float32)
    x[..., 0] = 1 - 2 * (rank % 2)  # these cancel
    return s24.compress(x, like=places, dtype=dtype).to_device(device)


def apart(rank, dtype, shape=(7, 22), device="cpu"):
    """A rank's array, in places of its own."""
    return s24.random(shape, dtype=dtype, rng=rank).to_device(device)


@contextlib.contextmanager
def of_torch(rank, meeting, kind):
    """A communicator of torch, with the ranks turned round."""
    import torch

    backend = "nccl" if kind == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, meeting.as_uri(), rank=rank, world_size=WORLD)
    yield from_torch(torch.distributed.new_group([1, 0]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@contextlib.contextmanager
def of_nccl(rank, meeting, kind):
    """A communicator of CuPy; rank 0 leaves the identifier in the file where they meet."""
    from cupy.cuda import nccl

    if rank == 0:
        part = meeting.with_suffix(".part")
        part.write_bytes(pickle.dumps(nccl.get_unique_id()))
        part.rename(meeting)
    wait_for(meeting)
    yield from_nccl(nccl.NcclCommunicator(WORLD, pickle.loads(meeting.read_bytes()), rank))
    meeting.with_suffix(f".{rank}").touch()
    wait_for(meeting.with_suffix(f".{1 - rank}"))  # which may still take from this one


def wait_for(file):
    while not file.exists():
        time.sleep(0.01)


def run(rank, folder, kind, connect):
    """One of the processes, which meet in a file; it leaves in another how much it compared."""
    device = kind
    if kind == "cuda":
        import cupy

        cupy.cuda.Device(rank).use()
        device = f"cuda:{rank}"
    with connect(rank, Path(folder, "meeting"), kind) as comm:
        told = compared(rank, comm, device)
    Path(folder, f"{rank}.txt").write_text(told)


def compared(rank, comm, device):
    """How many sums were as they should."""
    sums = others = refused = 0
    for dtype in DTYPES[:4]:
        total = all_reduce(alike(rank, dtype, device=device), comm)
        one, other = (alike(r, dtype) for r in range(WORLD))
        np.testing.assert_array_equal(on_host(total.values), one.values + other.values)
        sums += 1
    for dtype in DTYPES:
        for m in (7, 1, 0):
            block = row_block(m, comm.rank, WORLD)
            wide = "int32" if dtype == "int8" else "float64" if dtype == "float64" else "float32"
            dense = [apart(r, dtype, (m, 22)).toarray().astype(wide) for r in range(WORLD)]
            total = reduce_scatter(apart(rank, dtype, (m, 22), device), comm)
            np.testing.assert_array_equal(on_host(total), (dense[0] + dense[1])[block], strict=True)
            others += 1
    wanted = rf"and ranks \[{1 - comm.rank}\] passed something else" if rank else "got None"
    for function in (all_reduce, reduce_scatter):
        with pytest.raises(ArgumentError, match=wanted):
            function(alike(rank, "float32", device=device) if rank else None, comm)
        refused += 1
    return f"{sums} sums of arrays that are alike, {others} of others, {refused} refused"
