"""The rivals, each at its best: dense cuBLAS, and cuSPARSELt with all algorithms searched.

Layout of a linear layer: the weight w is (m, k), the tokens x are (n, k) row-major, so
the product sees b = x.T in column order and the result y (n, m) is out.T.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import torch
from harness import Contender


def dense(weights: Sequence[torch.Tensor], x: torch.Tensor) -> Contender:
    """y = x @ w.T by cuBLAS, for every copy of the weight, into one result."""
    y = torch.empty(x.shape[0], weights[0].shape[0], dtype=x.dtype, device="cuda")
    return Contender([lambda w=w: torch.mm(x, w.t(), out=y) for w in weights], library="torch")


def dense_float8(weights: Sequence[torch.Tensor], x: torch.Tensor, *, fast=True) -> Contender:
    """The same for fp8 operands through cuBLASLt, bfloat16 out."""
    one = torch.ones((), device="cuda")
    kw = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
    calls = [lambda w=w: torch._scaled_mm(x, w.t(), one, one, **kw) for w in weights]
    return Contender(calls, library="torch")


def dense_int8(weights: Sequence[torch.Tensor], x: torch.Tensor) -> Contender:
    """The same for int8 operands, int32 out."""
    return Contender([lambda w=w: torch._int_mm(x, w.t()) for w in weights], library="torch")


# Searches one range of algorithms and prints every timing at once, so that a crash
# loses only the algorithm that caused it.
_SEARCH = """
import sys, torch
m, k, n, first = map(int, sys.argv[1:5])
dtype = getattr(torch, sys.argv[5])
out = None if sys.argv[6] == "none" else getattr(torch, sys.argv[6])
keep = torch.tensor([1.0, 1, 0, 0], device="cuda").repeat(k // 4)
w, x = torch.randn(m, k, device="cuda") * keep, torch.randn(n, k, device="cuda")
scale = 30 if dtype == torch.int8 else 1
w, x = (scale * w).to(dtype), (scale * x).to(dtype)
packed = torch._cslt_compress(w)
most = torch.backends.cusparselt.get_max_alg_id() or 40
for alg in range(first, most):
    for split in (1, 2, 4):
        mode = -1 if split == 1 else 1
        print("TRY", alg, flush=True)
        call = lambda: torch._cslt_sparse_mm(packed, x.t(), None, None, out, True, alg, split, mode)
        try:
            for _ in range(2):
                call()
            torch.cuda.synchronize()
            start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            for _ in range(5):
                call()
            stop.record()
            torch.cuda.synchronize()
        except RuntimeError:
            break
        print("TIME", start.elapsed_time(stop) / 5, alg, split, mode, flush=True)
print("END", flush=True)
"""


def cusparselt_search(m: int, k: int, n: int, dtype: str, out_dtype: str = "none"):
    """The fastest (algorithm, split, mode) of cuSPARSELt, or None if none survives.

    Runs in child processes: an algorithm that kills its process is skipped.
    """
    found: list[tuple[float, int, int, int]] = []
    first = 0
    for _ in range(8):  # at most that many crashes are survived
        command = [sys.executable, "-c", _SEARCH, *map(str, (m, k, n, first)), dtype, out_dtype]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        lines = done.stdout.splitlines()
        for line in lines:
            if line.startswith("TIME"):
                time, *rest = line.split()[1:]
                found.append((float(time), *map(int, rest)))
        tried = [int(line.split()[1]) for line in lines if line.startswith("TRY")]
        if "END" in lines or not tried:
            break
        first = tried[-1] + 1
    return min(found)[1:] if found else None


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
