"""Data-parallel steps with and without packed gradients, one process for each GPU.

On a machine with several GPUs: ``python tests/bench/bench_reduction.py``, which writes the suite
``reduction``.  A step is a forward and a backward pass of feed-forward blocks in bfloat16, masks
set, in which DDP averages the gradients: all of them, or kept ones alone.  Beside it a step that
averages nothing, which tells what there is to save.  ``--sockets`` keeps NCCL from the links
between the GPUs: it averages through the network stack of the machine, as between machines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from bench_training import FeedForward
from harness import write_suite
from machine import needs_gpus
from torch.nn.parallel import DistributedDataParallel

from sparse24 import schedule as S
from sparse24 import torch as st

STEMS = ("compress", "decompress", "like", "sparse_wgmma")
WIDTH, BLOCKS = 4096, 4
TOKENS = (1024, 4096, 16384)  # of each rank
HOOKS = {"ddp": None, "packed": True, "packed, unchecked": False}  # the check of `reduce_packed`
NOTHING = "without averages"
SOCKETS = {
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}  # fmt: skip


class Plan(NamedTuple):
    world: int
    sockets: bool
    tokens: Sequence[int]
    rounds: int
    repeats: int


class Blocks(torch.nn.Sequential):
    """A residual stack of feed-forward blocks."""

    def forward(self, x):
        for block in self:
            x = x + block(x)
        return x


def wrapped(rank: int, check: bool | None) -> DistributedDataParallel:
    torch.manual_seed(0)
    model = Blocks(*(FeedForward(WIDTH) for _ in range(BLOCKS))).to(rank, torch.bfloat16)
    st.sparsify(model, {"*": {"gradient": "24dense"}})
    recipe = S.Recipe(S.ConstantScheduler(0.5), pattern=S.NM(2, 4))
    st.update_masks(model, S.MaskScheduler(recipe))
    # Masks are buffers, which all ranks have; DDP would send them in each step.
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    if check is not None:
        st.reduce_packed(ddp, check=check)
    return ddp


def step(ddp, x, averages: bool = True) -> None:
    with contextlib.nullcontext() if averages else ddp.no_sync():
        ddp(x).backward(x)
    ddp.zero_grad(set_to_none=False)  # gradients stay views of the buckets


def microseconds(ddp, x, averages: bool, repeats: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.distributed.barrier()
    start.record()
    for _ in range(repeats):
        step(ddp, x, averages)
    stop.record()
    stop.synchronize()
    return 1e3 * start.elapsed_time(stop) / repeats


def race(contenders: dict, x, plan: Plan) -> dict[str, list[float]]:
    """Samples of all contenders in turn, as many on each rank, which wait for each other."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(-1, plan.rounds):  # the first compiles and fills caches
        for name, (ddp, averages) in contenders.items():
            taken = microseconds(ddp, x, averages, plan.repeats)
            if i >= 0:
                samples[name].append(taken)
    return samples


def rows(tokens: int, samples: dict[str, list[float]], plan: Plan) -> list[dict]:
    """A case for each way of packing."""
    median = {name: round(statistics.median(times), 1) for name, times in samples.items()}
    where = "sockets" if plan.sockets else "the GPUs' links"
    found = []
    for name in ("packed", "packed, unchecked"):
        low, _, high = statistics.quantiles(samples[name], n=4)
        found.append({
            "name": f"{tokens} tokens on each of {plan.world} GPUs, by {where}, {name}",
            "tokens": tokens, "width": WIDTH, "blocks": BLOCKS, "dtype": "bfloat16",
            "ours_kernel": "reduce_packed", "ours_us": median[name],
            "rivals": {"ddp": median["ddp"]}, "without_averages_us": median[NOTHING],
            "spread": round((high - low) / 2, 1),
        })  # fmt: skip
    return found


def run(rank: int, plan: Plan, folder: str) -> None:
    torch.cuda.set_device(rank)
    os.environ.update(SOCKETS if plan.sockets else {})
    meeting = Path(folder, "meeting").as_uri()
    torch.distributed.init_process_group("nccl", meeting, rank=rank, world_size=plan.world)
    contenders = {name: (wrapped(rank, check), True) for name, check in HOOKS.items()}
    contenders[NOTHING] = wrapped(rank, None), False
    cases = []
    for tokens in plan.tokens:
        x = torch.randn(tokens, WIDTH, device=rank, dtype=torch.bfloat16)
        cases += rows(tokens, race(contenders, x, plan), plan)
        if rank == 0:
            print(*map(json.dumps, cases[-2:]), sep="\n", flush=True)
    Path(folder, f"{rank}.json").write_text(json.dumps(cases))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder of the record, instead of docs")
    parser.add_argument("--sockets", action="store_true")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=8)
    chosen = parser.parse_args()
    needs_gpus(2)
    world = torch.cuda.device_count()
    plan = Plan(world, chosen.sockets, chosen.tokens, chosen.rounds, chosen.repeats)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (plan, folder), nprocs=world)
        cases = json.loads(Path(folder, "0.json").read_text())
    write_suite("reduction", cases, stems=STEMS, out=chosen.out)


if __name__ == "__main__":
    main()
