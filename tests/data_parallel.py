"""A small model, and its training in one or several processes.

A module of its own, because a new process imports the function that it runs by name.
"""

from __future__ import annotations

from pathlib import Path

import torch

from sparse24 import schedule as S
from sparse24 import torch as st


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.Linear(32, 4)
    )


def reduced(scores):
    """Scores that were made of a rank's own data, added up."""
    total = scores.clone()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(total)
    return total


def setups():
    """(layer options, scheduler): 4x4 tiles, the two-level controller, and RigL."""
    tiles = S.Recipe(S.ConstantScheduler(0.5, every=2), pattern=S.Transposable24())
    ramp = S.CosineScheduler(0.6, stop=4)
    yield {"transposable": True, "decay": 1e-3}, S.MaskScheduler(tiles)
    yield {"gradient": "24dense"}, S.DynamicScheduler(0.3, ramp)
    yield {"sparse": "masked"}, S.MaskScheduler(S.rigl(0.5, total_steps=8, every=1), reduce=reduced)


def train(rank, world):
    """The states that the setups end with."""
    return [train_one(rank, world, *setup) for setup in setups()]


def run(rank, world, folder):
    """One of several processes, which meet in a file; it leaves its states in another."""
    torch.set_num_threads(1)
    meeting = Path(folder, "meeting").as_uri()
    torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=world)
    torch.save(train(rank, world), Path(folder, f"{rank}.pt"))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train_one(rank, world, options, scheduler):
    net = st.sparsify(model(), {"*": options})
    wrapped = torch.nn.parallel.DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in torch.randn(5, 8, 32, generator=torch.Generator().manual_seed(3)):
        optimizer.zero_grad()
        wrapped(batch.chunk(world)[rank]).square().mean().backward()
        optimizer.step()
        st.update_masks(net, scheduler)
    return net.state_dict()
