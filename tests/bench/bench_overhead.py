"""What a call costs before the GPU starts, and what a first call compiles: ``overhead.json``.

    python tests/bench/bench_overhead.py [--sets repeated turned other_tokens training compiles]
        [--out FOLDER]

A call on a matrix so small that the GPU waits for Python: its host time is the overhead.
Rivals are the dense products of CuPy and torch.  ``compile`` cases are the cold compile
of a kernel by NVRTC, source to cubin.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cupy as cp
import numpy as np
import torch
from harness import write_suite
from machine import needs_gpus

import sparse24 as s24
import sparse24.torch as st
from sparse24.kernels import loader, sparse_fma, sparse_mma, sparse_skinny, sparse_wgmma

STEMS = ("sparse_wgmma", "sparse_skinny")
IN_PIECES = ("sparse_wgmma", "sparse_split")
TURNING = ("hybrid_scatter", "transpose")
SIZE = 384
TURNED, TOKENS = 4096, 64  # features of the larger matrix, and tokens for it
UNSTRUCTURED_ZEROS = 0.95
STACKED = 8
LAYERS = 24
ADDRESSES = 512
CALLS, ROUNDS, WARM_UP = 100, 27, 30
ARCH = "sm_90a"

Call = Callable[[], object]
Calls = dict[str, tuple[Call, dict[str, Call]]]  # name: our call, and rivals that do it densely


def host_us(contenders: Sequence[Call]) -> list[float]:
    """Median times of calls in µs until they return; the device is idle at each round's start.

    In turn, for on a host that others use, too, some seconds are slower than the next.
    """
    for call in contenders:
        for _ in range(WARM_UP):
            call()
    samples: list[list[float]] = [[] for _ in contenders]
    for _ in range(ROUNDS):
        for call, times in zip(contenders, samples, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times.append(1e6 * (time.perf_counter() - start) / CALLS)
    torch.cuda.synchronize()
    return [statistics.median(times) for times in samples]


def calls(n: int) -> Calls:
    """The calls on a 2:4 matrix, and with torch."""
    weight = cp.random.standard_normal((SIZE, SIZE), dtype=np.float32).astype(np.float16)
    a = s24.compress(weight, on_excess="prune")
    b = cp.random.standard_normal((SIZE, n), dtype=np.float32).astype(np.float16)
    x, out = cp.ascontiguousarray(b.T), cp.empty((SIZE, n), np.float16)
    bias = cp.zeros(SIZE, np.float32)
    dense, tokens = torch.from_dlpack(weight), torch.from_dlpack(x)
    layer = torch.nn.Linear(SIZE, SIZE, device="cuda", dtype=torch.float16)
    sparse = st.SparseLinear.from_dense(layer)
    planned = s24.plan(a, b)
    torch_call = {"torch": lambda: tokens @ dense.T}
    return {
        "A @ b": (lambda: a @ b, {"cupy": lambda: weight @ b}),
        "x @ A.T": (lambda: x @ a.T, {"cupy": lambda: x @ weight.T}),
        "matmul, out": (
            lambda: s24.matmul(a, b, out), {"cupy": lambda: cp.matmul(weight, b, out=out)},
        ),
        "plan.execute": (lambda: planned.execute(b), {"cupy": lambda: weight @ b}),
        "linear, bias and gelu": (lambda: s24.linear(x, a, bias, activation="gelu"), {}),
        "torch tensor": (lambda: tokens @ a.T, torch_call),
        "SparseLinear": (lambda: sparse(tokens), {"torch": lambda: layer(tokens)}),
    }  # fmt: skip


def calls_in_pieces(n: int) -> Calls:
    """Calls on a float32 matrix whose kernel multiplies bfloat16 pieces."""
    weight = cp.random.standard_normal((SIZE, SIZE), dtype=np.float32)
    a = s24.compress(weight, on_excess="prune")
    x, bias = cp.random.standard_normal((n, SIZE), dtype=np.float32), cp.zeros(SIZE, np.float32)
    chosen = {"algorithm": "sparse_split"}
    fused = chosen | {"epilogue": s24.Epilogue(bias=bias, activation="gelu")}
    return {
        "float32 in pieces, x @ A.T": (
            lambda: s24.matmul(x, a.T, **chosen), {"cupy": lambda: x @ weight.T},
        ),
        "float32 in pieces, bias and gelu": (lambda: s24.matmul(x, a.T, **fused), {}),
    }  # fmt: skip


def steps(n: int) -> Calls:
    """A forward and a backward pass of one layer."""
    x = torch.randn(n, SIZE, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    dy = torch.ones_like(x)
    layer = torch.nn.Linear(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    options = {"": {}, ", transposable": {"transposable": True}}
    options[", masked gradient"] = {"transposable": True, "gradient": "24dense"}
    options[", sampled gradient"] = {"gradient": "ste_sampled"}

    def step(module: torch.nn.Linear) -> Call:
        return lambda: module(x).backward(dy)

    return {
        f"step of SparseLinear{name}": (
            step(st.SparseLinear.from_dense(layer, **chosen)), {"torch": step(layer)},
        )
        for name, chosen in options.items()
    }  # fmt: skip


def moving_calls(n: int) -> Calls:
    """Calls whose operands lie elsewhere each time."""
    layer = torch.nn.Linear(SIZE, SIZE, device="cuda", dtype=torch.float16)
    sparse = st.SparseLinear.from_dense(layer)
    inputs = torch.randn(ADDRESSES, n, SIZE, device="cuda", dtype=torch.float16)
    ours, theirs = (itertools.cycle(inputs.unbind()) for _ in range(2))
    return {
        "SparseLinear, other addresses": (
            lambda: sparse(next(ours)), {"torch": lambda: layer(next(theirs))},
        ),
    }  # fmt: skip


def other_numbers_of_tokens(bias: bool) -> dict:
    """The mean call of layers of one shape with numbers of tokens that were not there before."""
    layers = [
        torch.nn.Linear(SIZE, SIZE, bias, device="cuda", dtype=torch.float16) for _ in range(LAYERS)
    ]
    sparse = [st.SparseLinear.from_dense(layer) for layer in layers]
    times: dict[str, list[float]] = {"ours": [], "torch": []}
    for n in range(1000, 1000 + 3 * ROUNDS, 3):
        x = torch.randn(n, SIZE, device="cuda", dtype=torch.float16)
        for name, model in (("ours", sparse), ("torch", layers)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for layer in model:
                layer(x)
            times[name].append(1e6 * (time.perf_counter() - start) / LAYERS)
    median = {name: statistics.median(samples) for name, samples in times.items()}
    name = f"{LAYERS} SparseLinear{', bias' if bias else ''}, another number of tokens"
    facts = {"ours_kernel": "replayed", "m": SIZE, "k": SIZE, "n": 1000, "dtype": "float16"}
    ours = median.pop("ours")
    return {"name": name, "ours_us": ours, "rivals": median, "used": STEMS, **facts}


def hybrid_calls(n: int) -> Calls:
    """The calls on an unstructured matrix."""
    weight = cp.random.standard_normal((SIZE, SIZE), dtype=np.float32).astype(np.float16)
    zeros = cp.random.random((SIZE, SIZE)) < UNSTRUCTURED_ZEROS
    h = s24.hybrid(cp.where(zeros, np.float16(0), weight))
    b = cp.random.standard_normal((SIZE, n), dtype=np.float32).astype(np.float16)
    x, bias = cp.ascontiguousarray(b.T), cp.zeros(SIZE, np.float32)
    many_b, many_x = cp.stack([b] * STACKED), cp.stack([x] * STACKED)
    tokens, dense = torch.from_dlpack(x), torch.from_dlpack(weight)
    rows = {"cupy": lambda: x @ weight.T}
    return {
        "hybrid, H @ b": (lambda: h @ b, {"cupy": lambda: weight @ b}),
        "hybrid, x @ H.T": (lambda: x @ h.T, rows),
        "hybrid, linear": (lambda: s24.linear(x, h), rows),
        "hybrid, linear, bias and gelu": (lambda: s24.linear(x, h, bias, activation="gelu"), {}),
        f"hybrid, {STACKED} of H @ b": (lambda: h @ many_b, {"cupy": lambda: weight @ many_b}),
        f"hybrid, {STACKED} of x @ H.T": (
            lambda: many_x @ h.T, {"cupy": lambda: many_x @ weight.T},
        ),
        "hybrid, torch tensor": (lambda: tokens @ h.T, {"torch": lambda: tokens @ dense.T}),
    }  # fmt: skip


def turned_calls(n: int) -> Calls:
    """Calls with tokens by rows on an unstructured matrix whose kernel wants columns of them."""
    weight = cp.random.standard_normal((TURNED, TURNED), dtype=np.float32).astype(np.float16)
    h = s24.hybrid(cp.where(cp.random.random(weight.shape) < 0.9, np.float16(0), weight))
    x = cp.random.standard_normal((n, TURNED), dtype=np.float32).astype(np.float16)
    tokens, dense = torch.from_dlpack(x), torch.from_dlpack(weight)
    return {
        "hybrid, 90 % zeros, x @ H.T": (lambda: x @ h.T, {"cupy": lambda: x @ weight.T}),
        "hybrid, 90 % zeros, torch tensor": (
            lambda: tokens @ h.T, {"torch": lambda: tokens @ dense.T},
        ),
    }  # fmt: skip


@torch.no_grad()
def repeated() -> list[dict]:
    rows = []
    for n in (1, 16, 512):
        for name, (ours, rivals) in (calls(n) | moving_calls(n) | hybrid_calls(n)).items():
            rows.append(timed(f"{name}, n = {n}", ours, rivals, n, "float16"))
        for name, (ours, rivals) in calls_in_pieces(n).items():
            row = timed(f"{name}, n = {n}", ours, rivals, n, "float32")
            rows.append(row | {"used": IN_PIECES})
    return rows


@torch.no_grad()
def turned() -> list[dict]:
    found = turned_calls(TOKENS).items()
    return [
        timed(f"{name}, n = {TOKENS}", ours, rivals, TOKENS, "float16", size=TURNED)
        | {"used": TURNING}
        for name, (ours, rivals) in found
    ]


@torch.no_grad()
def other_tokens() -> list[dict]:
    return [other_numbers_of_tokens(bias) for bias in (False, True)]


def training() -> list[dict]:
    return [
        timed(name, ours, rivals, 512, "bfloat16") for name, (ours, rivals) in steps(512).items()
    ]


def timed(
    name: str, ours: Call, rivals: dict[str, Call], n: int, dtype: str, *, size: int = SIZE
) -> dict:
    ours_us, *others = host_us((ours, *rivals.values()))
    row = {"name": name, "ours_kernel": "replayed", "ours_us": ours_us}
    row["rivals"] = dict(zip(rivals, others, strict=True))
    return row | {"m": size, "k": size, "n": n, "dtype": dtype, "used": STEMS}


def compiles() -> list[dict]:
    """Seconds of NVRTC for one specialisation of every product kernel."""
    rows = []
    for module in (sparse_wgmma, sparse_skinny, sparse_mma, sparse_fma):
        macros = next(m for m, arch, _ in module.COMPILE_CHECKS if arch == ARCH)
        samples = []
        for salt in range(3):  # a macro that nothing reads keeps caches out
            start = time.perf_counter()
            loader.compile_cubin(module.NAME, (*macros, ("SALT", salt)), ARCH)
            samples.append(time.perf_counter() - start)
        us = 1e6 * statistics.median(samples)
        name = f"compile {module.NAME}"
        rows.append({"name": name, "ours_kernel": module.NAME, "ours_us": us, "rivals": {}})
    return rows


SETS = {
    "repeated": repeated, "turned": turned, "other_tokens": other_tokens, "training": training,
    "compiles": compiles,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    needs_gpus()
    rows = [row for name in arguments.sets for row in SETS[name]()]
    for row in rows:
        rivals = "  ".join(f"{name} {us:.1f}" for name, us in row["rivals"].items())
        print(f"{row['name']:32} {row['ours_us']:10.1f} us  {rivals}")
    write_suite("overhead", rows, stems=(*STEMS, *IN_PIECES, *TURNING), out=arguments.out)


if __name__ == "__main__":
    main()
