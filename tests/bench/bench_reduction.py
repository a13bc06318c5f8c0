"""Data-parallel steps with and without packed gradients, one process for each GPU.

On a machine with several GPUs: ``python tests/bench/bench_reduction.py``, which writes the suite
``reduction``.  A step is a forward and a backward pass of feed-forward blocks in bfloat16, masks
set, in which DDP averages the gradients: all of them, or kept ones alone.  Beside it a step that
averages nothing, which tells what there is to save.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from pathlib import Path

import torch
from bench_training import FeedForward
from harness import write_suite
from torch.nn.parallel import DistributedDataParallel

from sparse24 import schedule as S
from sparse24 import torch as st

STEMS = ("compress", "decompress", "like", "sparse_wgmma")
WIDTH, BLOCKS = 4096, 4
TOKENS = (1024, 4096, 16384)  # of each rank
ROUNDS, REPEATS = 7, 8
HOOKS = {"all of them": None, "ours": True, "unchecked": False}  # the check of `reduce_packed`


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
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if check is not None:
        st.reduce_packed(ddp, check=check)
    return ddp


def step(ddp, x, averages: bool = True) -> None:
    with contextlib.nullcontext() if averages else ddp.no_sync():
        ddp(x).backward(x)
    ddp.zero_grad(set_to_none=False)  # gradients stay views of the buckets


def milliseconds(ddp, x, averages: bool) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.distributed.barrier()
    start.record()
    for _ in range(REPEATS):
        step(ddp, x, averages)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / REPEATS


def race(contenders: dict, x) -> dict[str, list[float]]:
    """Samples of all contenders in turn, as many on each rank, which wait for each other."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(-1, ROUNDS):  # the first compiles and fills caches
        for name, (ddp, averages) in contenders.items():
            taken = milliseconds(ddp, x, averages)
            if i >= 0:
                samples[name].append(taken)
    return samples


def case(tokens: int, samples: dict[str, list[float]]) -> dict:
    median = {name: round(1e3 * statistics.median(times), 1) for name, times in samples.items()}
    low, _, high = statistics.quantiles(samples["ours"], n=4)
    return {
        "name": f"{tokens} tokens on each of {torch.distributed.get_world_size()} GPUs",
        "tokens": tokens, "width": WIDTH, "blocks": BLOCKS, "dtype": "bfloat16",
        "ours_kernel": "reduce_packed", "ours_us": median.pop("ours"), "rivals": median,
        "spread": round(5e2 * (high - low), 1),
    }  # fmt: skip


def run(rank: int, world: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    meeting = Path(folder, "meeting").as_uri()
    torch.distributed.init_process_group("nccl", meeting, rank=rank, world_size=world)
    contenders = {name: (wrapped(rank, check), True) for name, check in HOOKS.items()}
    contenders["none"] = wrapped(rank, None), False
    cases = []
    for tokens in TOKENS:
        x = torch.randn(tokens, WIDTH, device=rank, dtype=torch.bfloat16)
        cases.append(case(tokens, race(contenders, x)))
        if rank == 0:
            print(json.dumps(cases[-1]))
    Path(folder, f"{rank}.json").write_text(json.dumps(cases))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder of the record, instead of docs")
    out = parser.parse_args().out
    world = torch.cuda.device_count()
    if world < 2:
        raise SystemExit("needs two GPUs")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (world, folder), nprocs=world)
        cases = json.loads(Path(folder, "0.json").read_text())
    write_suite("reduction", cases, stems=STEMS, out=out)


if __name__ == "__main__":
    main()
