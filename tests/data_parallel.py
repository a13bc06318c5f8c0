"""A small model, and its training in one or several processes.

A module of its own, because a spawned process imports the function that it runs by name.
"""

from __future__ import annotations

import os

import torch

from sparse24 import schedule as S
from sparse24 import torch as st


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.Linear(32, 4)
    )


def train(rank, world, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    net = st.sparsify(model(), {"*": {"transposable": True, "decay": 1e-3}})
    wrapped = torch.nn.parallel.DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = S.MaskScheduler(
        S.Recipe(S.ConstantScheduler(0.5, every=2), pattern=S.Transposable24())
    )
    data = torch.randn(5, 8, 32, generator=torch.Generator().manual_seed(3))
    for batch in data:
        optimizer.zero_grad()
        wrapped(batch.chunk(world)[rank]).square().mean().backward()
        optimizer.step()
        st.update_masks(net, scheduler)
    results.put((rank, {k: v.numpy() for k, v in net.state_dict().items()}))
    if world > 1:
        torch.distributed.destroy_process_group()
