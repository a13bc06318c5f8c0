"""A model that `fully_shard` splits among processes, beside the same one in one piece.

A module of its own, because a new process imports the function that it runs by name.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import sparse24 as s24
from sparse24 import torch as st

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


class Model(torch.nn.Module):
    """Layers of both kinds, whose results are written in place."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(32, 64)
        self.experts = st.SparseExperts(2, 64, 64, gradient="24dense")
        self.down = torch.nn.Linear(64, 8)

    def forward(self, x):
        h = self.up(x)
        h += 1  # would lose the hooks of fully_shard if it were a view
        h = torch.relu(h).flatten(0, 1)
        h = self.experts(h, offsets=[0, len(h) // 2, len(h)])
        return self.down(torch.relu(h))


def model(device):
    return st.sparsify(Model(), {"*": {"gradient": "24dense"}}).to(device)


def by_masks(net):
    """The dense model with the masks of this one: what its results and gradients are by torch."""
    weights = {n: layer.weight for n, layer in st.sparse_layers(net).items()}
    kept = {n: w * s24.mask(w.detach()) for n, w in weights.items()}

    def forward(x):
        linear = torch.nn.functional.linear
        h = torch.relu(linear(x, kept["up"], net.up.bias) + 1).flatten(0, 1)
        halves = zip(h.chunk(2), kept["experts"], net.experts.bias, strict=True)
        h = torch.cat([linear(*half) for half in halves])
        return linear(torch.relu(h), kept["down"], net.down.bias)

    return forward


def run(rank, world, folder, kind):
    """One of the processes, which meet in a file; it leaves in another how much it compared."""
    torch.set_num_threads(1)
    if kind == "cuda":
        torch.cuda.set_device(rank)
    meeting = Path(folder, "meeting").as_uri()
    torch.distributed.init_process_group(BACKENDS[kind], meeting, rank=rank, world_size=world)
    mesh = init_device_mesh(kind, (world,))
    told = [compared(rank, world, mesh, kind, apart=apart) for apart in (True, False)]
    Path(folder, f"{rank}.txt").write_text(" ".join(map(str, told)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def compared(rank, world, mesh, kind, *, apart):
    """How many results and gradients were as they should; layers are sharded one by one, or not."""
    net, whole = model(kind), model(kind)
    for layer in st.sparse_layers(net).values() if apart else ():
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    if kind == "cpu":  # gloo of torch 2.8 adds up what it is asked to average
        for part in net.modules():
            if isinstance(part, FSDPModule):
                part.set_force_sum_reduction_for_comms(True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, whole)]
    count = 0
    batches = torch.randn(3, 2 * world, 4, 32, generator=torch.Generator().manual_seed(3))
    for batch in batches.to(kind):
        own = batch.chunk(world)[rank]
        dense = by_masks(whole)
        losses = [dense(part).square().mean() for part in batch.chunk(world)]
        (sum(losses) / world).backward()
        net(own).square().mean().backward()
        for (name, p), q in zip(net.named_parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(p.grad.full_tensor(), q.grad, msg=lambda m, n=name: n + m)
            count += 1
        with torch.no_grad():
            torch.testing.assert_close(net(own), dense(own))  # packs weights, which then change
        net.reshard()  # the outermost module keeps its weights together until backward
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            torch.testing.assert_close(net(own), by_masks(whole)(own))
            count += 2
        net.reshard()
    return count
