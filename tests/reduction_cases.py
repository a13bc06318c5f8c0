"""Training in two processes by DDP's own average and by that of `reduce_packed`, side by side.

A module of its own, because a new process imports the function that it runs by name.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sparse24 import schedule as S
from sparse24 import torch as st

WORLD = 2
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
ODD = 30, 34  # of inputs of the first layer and outputs of the second
STEPS = 5
LEAVING = {"find_unused_parameters": True, "leaves_from": 0}  # the second rank, from this step on
CASES = {
    "plain": {},
    "views of the bucket": {"gradient_as_bucket_view": True},
    "weights by columns": {"columns": True},
    "many buckets": {"bucket_cap_mb": 0.004},
    "static graph": {"static_graph": True},
    "a group of its own": {"group": True},
    "accumulation": {"passes": 2, "gradient_as_bucket_view": True},
    "layers that one rank leaves out": LEAVING,
    "layers left out under autocast": {**LEAVING, "autocast": STEPS, "rounds": True},
    "layers left out under autocast in the model": {**LEAVING, "inside": True, "rounds": True},
    "layers left out after autocast": {**LEAVING, "leaves_from": 2, "autocast": 2, "rounds": True},
    "two types": {"wide": True},
    "bfloat16": {"dtype": torch.bfloat16},
    "autocast": {"autocast": STEPS},  # in so many steps
    "masks of a schedule": {"scheduler": "24"},
    "masks that become 2:4": {"scheduler": "elastic", "sizes": (32, 64)},
}


class Net(torch.nn.Module):
    """Layers that are packed, and others among them."""

    def __init__(self, wide=False, sizes=ODD, inside=False):
        super().__init__()
        k, m = sizes
        self.inside = inside  # whether autocast begins here
        torch.manual_seed(0)
        self.first = st.SparseLinear(k, 64, gradient="24dense")
        self.tiles = st.SparseLinear(64, m, gradient="24dense", transposable=True)
        self.plain = torch.nn.Linear(m, 32)
        self.sampled = st.SparseLinear(32, 32, bias=False, gradient="24sparse")
        self.straight = st.SparseLinear(32, 32)
        self.experts = st.SparseExperts(2, 32, 16, gradient="24dense")
        if wide:
            self.first.double()

    def forward(self, x, leaves_out=False):
        with torch.autocast(x.device.type) if self.inside else contextlib.nullcontext():
            return self.through(x, leaves_out)

    def through(self, x, leaves_out):
        x = self.first(x.to(self.first.weight.dtype)).to(self.tiles.weight.dtype)
        x = self.plain(self.tiles(x.relu()))
        x = x if leaves_out else self.straight(self.sampled(x))
        return self.experts(x, offsets=[0, len(x) // 2, len(x)])


def wrapped(case, packed, device):
    net = Net(**{name: case[name] for name in ("wide", "sizes", "inside") if name in case})
    net.to(device, case.get("dtype"))
    if case.get("rounds"):  # magnitudes that are equal in bfloat16
        with torch.no_grad():
            net.sampled.weight[:, :4] = torch.tensor([1.0, 1.001, 1.002, 1.003])
    if "columns" in case:
        for layer in net.first, net.tiles, net.experts:
            layer.weight = torch.nn.Parameter(layer.weight.detach().mT.contiguous().mT)
    names = "gradient_as_bucket_view", "static_graph", "bucket_cap_mb", "find_unused_parameters"
    options = {name: case[name] for name in names if name in case}
    if "group" in case:
        options["process_group"] = torch.distributed.new_group([0, 1])
    ddp = DistributedDataParallel(net, **options)
    return ddp, st.reduce_packed(ddp) if packed else None


def scheduler(name):
    if name is None:
        return None
    sparsity = S.ConstantScheduler(0.5)
    if name == "24":
        return S.MaskScheduler(S.Recipe(sparsity, pattern=S.NM(2, 4)))
    ramp = S.CubicScheduler(0.5, stop=3)
    return S.MaskScheduler(S.Recipe(ramp, pattern=S.Elastic(tile=(4, 32), least=2)))


def trained(rank, case, packed, device):
    """The gradients of each step, the state at the end, and what was sent."""
    ddp, reduction = wrapped(case, packed, device)
    masks = scheduler(case.get("scheduler"))
    passes, found = case.get("passes", 1), []
    generator = torch.Generator().manual_seed(3)
    for step in range(STEPS):
        leaves_out = rank == 1 and step >= case.get("leaves_from", STEPS)
        autocast = torch.autocast(device.type, enabled=step < case.get("autocast", 0))
        ddp.zero_grad()
        for i in range(passes):
            x = torch.randn(16, case.get("sizes", ODD)[0], generator=generator).chunk(WORLD)[rank]
            x = x.to(device, case.get("dtype"))
            waits = ddp.no_sync() if i < passes - 1 else contextlib.nullcontext()
            with waits, autocast:
                ddp(x, leaves_out).float().square().mean().backward()
        found.append({name: p.grad.clone() for name, p in ddp.module.named_parameters()})
        with torch.no_grad():
            for p in ddp.parameters():
                p -= 0.1 * p.grad
        if masks is not None:
            st.update_masks(ddp.module, masks)
    return found, ddp.module.state_dict(), reduction


def compare(rank, case, device):
    """Bytes with and without packing, once all gradients are seen to be the same."""
    steps, state, _ = trained(rank, case, False, device)
    same_steps, same_state, reduction = trained(rank, case, True, device)
    for step, same in zip(steps, same_steps, strict=True):
        for name, gradient in step.items():
            torch.testing.assert_close(same[name], gradient, rtol=0, atol=0)
    for name, value in state.items():
        torch.testing.assert_close(same_state[name], value, rtol=0, atol=0)
    reduction.check()
    return reduction.sent, reduction.whole, reduction.layers


def penalised(rank, device):
    """A loss with the weight in it reaches pruned places, on one rank even."""
    layer = st.SparseLinear(32, 32, gradient="24dense").to(device)
    ddp = DistributedDataParallel(layer)
    reduction = st.reduce_packed(ddp)
    loss = ddp(torch.ones(4, 32, device=device)).sum() + rank * layer.weight.square().sum()
    loss.backward()
    return layer.weight.grad.isnan().sum().item(), reduction


def joined(rank, packed, device):
    """The weight of a rank that stops two steps before the other one."""
    torch.manual_seed(0)
    layer = st.SparseLinear(32, 32, gradient="24dense").to(device)
    ddp = DistributedDataParallel(layer)
    reduction = st.reduce_packed(ddp) if packed else None
    generator = torch.Generator().manual_seed(rank)
    with ddp.join():
        for _ in range(2 + 2 * rank):
            ddp.zero_grad()
            x = torch.randn(8, 32, generator=generator).to(device)
            ddp(x).square().sum().backward()
            with torch.no_grad():
                layer.weight -= 0.1 * layer.weight.grad
    return layer.weight.detach().clone(), reduction


def sent(rank, device):
    """Whether gradients are those of DDP where it sends masks that the first rank alone sets."""
    results = []
    for packed in (False, True):
        torch.manual_seed(0)
        layer = st.SparseLinear(32, 32, gradient="24dense").to(device)
        first = layer.current_mask()
        layer.set_mask(first)
        ddp = DistributedDataParallel(layer)
        reduction = st.reduce_packed(ddp) if packed else None
        for mask in (first, first.roll(4, 1), first.roll(8, 1)):
            if rank == 0:
                layer.set_mask(mask)
            ddp.zero_grad()
            ddp(torch.full((4, 32), rank + 1.0, device=device)).square().sum().backward()
            results.append((layer.weight.grad.clone(), reduction))
    for (plain, _), (grad, reduction) in zip(results[:3], results[3:], strict=True):
        yield torch.equal(plain, grad), wrong(reduction)


def wrong(reduction):
    """What `check` says of earlier passes."""
    try:
        reduction.check()
    except ValueError as error:
        return str(error)
    return ""


def apart(rank, device):
    """What `reduce_packed` says where ranks would pack other layers, or one of them none."""
    dense = {"gradient": "24dense"}
    cases = (
        ({"*": dense}, {"layers": [str(rank)]}),
        ({"*": dense}, {"check": not rank}),
        ({"*": {} if rank else dense}, {}),
    )
    for rules, options in cases:
        net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)).to(device)
        try:
            st.reduce_packed(DistributedDataParallel(st.sparsify(net, rules)), **options)
        except ValueError as error:
            yield str(error)


def other_hook(state, bucket):
    """A communication hook, which no pass calls."""


def hooked(rank, device):
    """What `reduce_packed` says where the second rank has a communication hook already."""
    ddp = DistributedDataParallel(st.SparseLinear(32, 32, gradient="24dense").to(device))
    if rank:
        ddp.register_comm_hook(None, other_hook)
    try:
        st.reduce_packed(ddp)
    except ValueError as error:
        return str(error)
    return ""


def run(rank, folder, kind):
    """One of the processes, which meet in a file; it leaves what it found in another."""
    torch.set_num_threads(1)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    meeting, backend = Path(folder, "meeting").as_uri(), BACKENDS[kind]
    torch.distributed.init_process_group(backend, meeting, rank=rank, world_size=WORLD)
    found = {name: compare(rank, case, device) for name, case in CASES.items()}
    spoilt, reduction = penalised(rank, device)
    found["penalty"] = spoilt, wrong(reduction)
    (wanted, _), (weight, reduction) = (joined(rank, packed, device) for packed in (False, True))
    message = wrong(reduction)
    right = weight.isnan().any() if message else torch.equal(weight, wanted)
    found["join"] = bool(right), message
    found["sent masks"] = list(sent(rank, device))
    found["apart"] = list(apart(rank, device))
    found["hooked"] = hooked(rank, device)
    torch.save(found, Path(folder, f"{rank}.pt"))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
