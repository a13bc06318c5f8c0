"""The rivals, each at its best: dense cuBLAS, and cuSPARSELt with all algorithms searched.

Layout of a linear layer: the weight w is (m, k), the tokens x are (n, k) row-major, so
the product sees b = x.T in column order and the result y (n, m) is out.T.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import torch
from harness import Contender

# Fewest rows of x that torch's products take in these types.
LEAST_ROWS = {"float8_e4m3fn": 16, "int8": 17}


def dense(weights: Sequence[torch.Tensor], x: torch.Tensor) -> Contender:
    """y = x @ w.T by cuBLAS, for every copy of the weight, into one result."""
    y = torch.empty(x.shape[0], weights[0].shape[0], dtype=x.dtype, device="cuda")
    return Contender([lambda w=w: torch.mm(x, w.t(), out=y) for w in weights], library="torch")


def dense_batched(weights: Sequence[torch.Tensor], x: torch.Tensor) -> Contender:
    """The same as a batch of one, which cuBLAS may give to another kernel."""
    y = torch.empty(1, x.shape[0], weights[0].shape[0], dtype=x.dtype, device="cuda")
    calls = [lambda w=w: torch.bmm(x[None], w.t()[None], out=y) for w in weights]
    return Contender(calls, library="torch")


def dense_float8(weights: Sequence[torch.Tensor], x: torch.Tensor, *, fast=True) -> Contender:
    """The same for fp8 operands through cuBLASLt, bfloat16 out."""
    one = torch.ones((), device="cuda")
    kw = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
    calls = [lambda w=w: torch._scaled_mm(x, w.t(), one, one, **kw) for w in weights]
    return Contender(calls, library="torch")


def dense_int8(weights: Sequence[torch.Tensor], x: torch.Tensor) -> Contender:
    """The same for int8 operands, int32 out."""
    return Contender([lambda w=w: torch._int_mm(x, w.t()) for w in weights], library="torch")


def int4_weights(weights: Sequence[torch.Tensor], x: torch.Tensor) -> Contender:
    """y = x @ w.T with dense weights of 4 bits, scales for groups of 128, by torch's own kernel."""
    scales = torch.ones(x.shape[1] // 128, weights[0].shape[0], 2, device="cuda", dtype=x.dtype)
    packed = [torch._convert_weight_to_int4pack(_nibbles(w), 8) for w in weights]
    calls = [lambda w=w: torch._weight_int4pack_mm(x, w, 128, scales) for w in packed]
    return Contender(calls, library="torch")


def _nibbles(w: torch.Tensor) -> torch.Tensor:
    """A weight of as many elements with random bits, two in a byte."""
    return torch.randint(256, (w.shape[0], w.shape[1] // 2), dtype=torch.uint8, device="cuda")


def compiled_int8_weights(weights: Sequence[torch.Tensor], x: torch.Tensor) -> list[Contender]:
    """y = x @ w.T with weights of int8 and tokens of 16 bits, in the ways that torch compiles it.

    As a product, for which it makes a weight of 16 bits first or, where it finds that faster, in
    its own kernel; and for one token as sums of rows, which read the weight once.
    """
    torch._dynamo.reset()  # it compiles only so many shapes of a function

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w.to(x.dtype))

    def sums(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.float() * w.float()).sum(dim=1, dtype=torch.float32).to(x.dtype)

    ways = [product, sums] if len(x) == 1 else [product]
    found = []
    for way in ways:
        fast = torch.compile(way, mode="max-autotune-no-cudagraphs", dynamic=False)
        found.append(Contender([lambda w=w, f=fast: f(x, w) for w in weights], library="torch"))
    return found


# Searches the algorithms of one problem after another and prints every timing at once,
# so that a crash loses only the algorithm that caused it.  Calls are timed in a CUDA graph, as the
# race times them: each makes a plan, which takes the host 0.3 to 0.7 ms, so that timed one by one
# all algorithms of a shorter product look alike (docs/benchmarks/log_gemm.rst).  In float16 an
# algorithm may take a thousand times as long as in bfloat16 (145 ms for 4096^3): below `slow_tera`,
# the rate of FP32 units, it is given up for all problems.
_SEARCH = """
import sys, torch
dtype = getattr(torch, sys.argv[1])
out = None if sys.argv[2] == "none" else getattr(torch, sys.argv[2])
skip = set(sys.argv[3].split(",")) if sys.argv[3] else set()
most = torch.backends.cusparselt.get_max_alg_id() or 40
scale = 30 if dtype == torch.int8 else 1
slow_tera = 25

def milliseconds(calls, arguments, replays):
    start, stop, graph = torch.cuda.Event(True), torch.cuda.Event(True), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            torch._cslt_sparse_mm(*arguments)
    found = []
    for _ in range(replays):
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(stop) / calls)
    return min(found)

for problem in sys.argv[4:]:
    m, k, n = map(int, problem.split("x"))
    keep = torch.tensor([1.0, 1, 0, 0], device="cuda").repeat(k // 4)
    w, x = torch.randn(m, k, device="cuda") * keep, torch.randn(n, k, device="cuda")
    w, x = (scale * w).to(dtype), (scale * x).to(dtype)
    packed = torch._cslt_compress(w)
    for alg in range(most):
        if {f"{problem}/{alg}", f"*/{alg}"} & skip:
            continue
        print("TRY", problem, alg, flush=True)
        for split in (1, 2, 4):
            mode = -1 if split == 1 else 1
            arguments = (packed, x.t(), None, None, out, True, alg, split, mode)
            try:
                torch._cslt_sparse_mm(*arguments)
                torch.cuda.synchronize()
                once = milliseconds(1, arguments, 2)
                if 2e-9 * m * n * k / once < slow_tera:
                    skip.add(f"*/{alg}")
                    break
                calls = max(2, min(20, int(0.5 / once)))
                taken = milliseconds(calls, arguments, 4)  # 2 ms in all: less chose by chance
            except RuntimeError:
                break
            print("TIME", problem, taken, alg, split, mode, flush=True)
print("END", flush=True)
"""
MOST_CRASHES = 12
START_SECONDS, SILENT_SECONDS = 90, 8  # of a child, before it counts as crashed


def _lines_of(command: list[str]) -> Iterator[str]:
    """What a child process prints, until it ends or is silent for too long and is killed."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        patience = START_SECONDS
        while True:
            alarm = threading.Timer(patience, child.kill)
            alarm.start()
            line = child.stdout.readline()
            alarm.cancel()
            if not line:
                return
            yield line
            patience = SILENT_SECONDS


def cusparselt_search(
    problems: Sequence[tuple[int, int, int]], dtype: str, out_dtype: str = "none"
) -> dict[tuple[int, int, int], tuple[int, int, int]]:
    """The fastest (algorithm, split, mode) of cuSPARSELt for every problem that has one.

    Runs in child processes: an algorithm that kills its process, or never ends, is skipped, for
    all other problems too, and the search goes on behind it.  A problem whose algorithms were not
    all tried in the end has none.
    """
    left = ["x".join(map(str, problem)) for problem in problems]
    best: dict[str, tuple[float, int, int, int]] = {}
    skip: set[str] = set()
    for _ in range(MOST_CRASHES):
        command = [sys.executable, "-c", _SEARCH, dtype, out_dtype, ",".join(sorted(skip)), *left]
        tried = []
        for line in _lines_of(command):
            kind, *rest = line.split()
            if kind == "TRY":
                tried.append((rest[0], rest[1]))
            elif kind == "TIME":
                timed = (float(rest[1]), *map(int, rest[2:]))
                best[rest[0]] = min(best.get(rest[0], timed), timed)
            elif kind == "END":
                left = []
        if not left or not tried:
            break
        skip |= {f"{problem}/{algorithm}" for problem, algorithm in tried}
        skip.add(f"*/{tried[-1][1]}")
        left = left[left.index(tried[-1][0]) :]
    whole = {name: found for name, found in best.items() if name not in left}
    return {tuple(map(int, name.split("x"))): found[1:] for name, found in whole.items()}  # type: ignore[misc]


def cusparselt(
    pruned: Sequence[torch.Tensor], x: torch.Tensor, choice, *, out_dtype=None
) -> Contender:
    """y = x @ w.T by cuSPARSELt's algorithm `choice`, for every copy of the pruned weight."""
    packed = [torch._cslt_compress(w) for w in pruned]
    calls = [
        lambda p=p: torch._cslt_sparse_mm(p, x.t(), None, None, out_dtype, True, *choice)
        for p in packed
    ]
    return Contender(calls, library="torch")
