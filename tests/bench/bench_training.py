"""Training steps, dense against 2:4 weights, with pruning and packing at every step.

On a GPU: ``python tests/bench/bench_training.py``, which writes the suite ``training``.
Dense is torch, compiled where a compiler is there (the record says so), and eager.  Each case is
checked against the dense computation with masked weights before it is timed.  ``--tiny`` runs all
cases at toy sizes on the CPU and writes nothing.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from machine import needs_gpus

import sparse24 as s24
from sparse24 import schedule as S
from sparse24 import torch as st

STEMS = ("compress", "transposable", "like", "n_m", "sample", "sparse_wgmma")
RULE = {"transposable": True, "gradient": "ste"}
SAMPLED = {"transposable": True, "gradient": "24sparse"}
SAMPLE_US = 60_000


@dataclass(frozen=True)
class Sizes:
    width: int
    tokens: int
    sequence: int
    heads: int
    layers: int
    side: int  # of a matrix in the mask update
    matrices: int


FULL = Sizes(4096, 16384, 2048, 32, 4, 8192, 16)
TINY = Sizes(32, 64, 16, 4, 2, 64, 2)


class FeedForward(torch.nn.Module):
    """Two linear layers around squared relu; `fused`: its output, the activations, is 2:4."""

    fused = False

    def __init__(self, width: int):
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        if self.fused:
            return st.feed_forward(x, self.up.weight, self.down.weight)
        return self.down(torch.relu(self.up(x)).square())


class Block(torch.nn.Module):
    """A transformer layer: attention dense, feed-forward as it is made."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.ffn = FeedForward(width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.ffn(self.norm2(x))


class Timer:
    """Median and spread of calls, contenders in turn."""

    def __init__(self, device: str, rounds: int, compile: bool):
        self.device, self.rounds, self.compile = device, rounds, compile

    def race(self, contenders: dict[str, Callable[[], object]]) -> dict[str, tuple[float, float]]:
        samples: dict[str, list[float]] = {name: [] for name in contenders}
        for call in contenders.values():
            for _ in range(3):  # compile, load, fill caches
                call()
        repeats = {name: self._repeats(call) for name, call in contenders.items()}
        for _ in range(self.rounds):
            for name, call in contenders.items():
                samples[name].append(self._time(call, repeats[name]))
        return {n: (statistics.median(s), _half_range(s)) for n, s in samples.items()}

    def _repeats(self, call) -> int:
        """Calls of a sample: enough that the first one's way to the GPU does not count."""
        if self.device == "cpu":
            return 1
        return max(3, min(60, round(SAMPLE_US / self._time(call, 3))))

    def _time(self, call, repeats: int) -> float:
        """Microseconds of one call."""
        if self.device == "cpu":
            began = time.perf_counter()
            call()
            return 1e6 * (time.perf_counter() - began)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        stop.record()
        stop.synchronize()
        return 1e3 * start.elapsed_time(stop) / repeats


def _half_range(samples: list[float]) -> float:
    low, _, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2


def compiled(module, x, timer):
    """The module through torch.compile, or None where no compiler works or none is asked for."""
    if not timer.compile:
        return None
    try:
        fast = torch.compile(module)
        fast(x)
    except (RuntimeError, ImportError) as error:
        print(f"torch.compile is not available: {error}")
        return None
    return fast


class MaskedActivations(FeedForward):
    """The same as a fused layer, computed densely."""

    def forward(self, x):
        hidden = torch.relu(self.up(x)).square()
        keep = s24.mask(hidden.detach().flatten(0, -2), transposable=True).view_as(hidden)
        return self.down(hidden * keep)


def masked_twin(module):
    """A dense copy that multiplies what the sparse layers multiply."""
    twin = st.desparsify(copy.deepcopy(module))
    if getattr(module, "fused", False):
        twin.__class__ = MaskedActivations
    return twin


def check(sparse, x, dy) -> float:
    """Largest relative difference of output and input gradient from the masked dense layer's."""
    worst = 0.0
    ours, theirs = (_output_and_gradient(m, x, dy) for m in (sparse, masked_twin(sparse)))
    for a, b in zip(ours, theirs, strict=True):
        worst = max(worst, ((a - b).float().norm() / b.float().norm()).item())
    if not worst < 2e-2:
        raise AssertionError(f"the sparse layer differs from the masked dense one by {worst:.2e}")
    return worst


def _output_and_gradient(module, x, dy):
    x = x.detach().requires_grad_()
    y = module(x)
    return y, torch.autograd.grad(y, x, dy)[0]


def forward_backward(module, x, dy) -> Callable[[], object]:
    def call():
        module(x).backward(dy)
        x.grad = None
        module.zero_grad(set_to_none=True)

    return call


def layer_case(name: str, module, rule, sizes: Sizes, device: str, timer: Timer) -> dict:
    """One linear layer or feed-forward, forward and backward; rule None: 2:4 activations."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    module = module.to(device, dtype)
    sparse = copy.deepcopy(module)
    if rule is None:
        sparse.fused = True
    else:
        st.sparsify(sparse, {"*": rule})
    x = torch.randn(sizes.tokens, sizes.width, device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn_like(x)
    error = check(sparse, x, dy)
    modules = {"eager": module, "compiled": compiled(module, x, timer)}
    modules |= {"ours": sparse, "ours_compiled": compiled(sparse, x, timer)}
    calls = {n: forward_backward(m, x, dy) for n, m in modules.items() if m is not None}
    return row(name, timer.race(calls), sizes, str(dtype), error)


def step_case(sizes: Sizes, device: str, timer: Timer) -> dict:
    """A whole step of a transformer: forward, loss, backward, AdamW."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    blocks = [Block(sizes.width, sizes.heads) for _ in range(sizes.layers)]
    dense = torch.nn.Sequential(*blocks).to(device, dtype)
    shape = (sizes.tokens // sizes.sequence, sizes.sequence, sizes.width)
    x = torch.randn(shape, device=device, dtype=dtype)
    sparse = st.sparsify(copy.deepcopy(dense), {"*.ffn.*": RULE})
    error = check(sparse, x, torch.randn_like(x))
    runs = {"eager": (dense, dense), "compiled": (dense, compiled(dense, x, timer))}
    runs |= {"ours": (sparse, sparse), "ours_compiled": (sparse, compiled(sparse, x, timer))}
    calls = {n: _step(model, run, x) for n, (model, run) in runs.items() if run is not None}
    times = timer.race(calls)
    return row(f"{sizes.layers}-layer transformer step", times, sizes, str(dtype), error)


def _step(model, run, x) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=x.is_cuda)

    def call():
        optimizer.zero_grad(set_to_none=True)
        run(x).square().mean().backward()
        optimizer.step()

    return call


def update_case(sizes: Sizes, device: str, timer: Timer) -> dict:
    """2:4 masks by magnitude for many matrices."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape = (sizes.side, sizes.side)
    names = [str(i) for i in range(sizes.matrices)]
    weights = {n: torch.randn(shape, device=device, dtype=dtype) for n in names}
    if device == "cuda":
        import cupy

        weights = {n: cupy.from_dlpack(w.half()) for n, w in weights.items()}
    recipe = S.Recipe(S.ConstantScheduler(0.5, every=1), pattern=S.NM())
    state = S.init(recipe, weights)
    times = timer.race({"ours": lambda: S.step(state, weights=weights, measure=False)})
    count = sizes.matrices * sizes.side**2
    return row(f"mask update, {count / 2**30:.2g} Gi weights", times, sizes, "float16", 0.0)


def row(name: str, times, sizes: Sizes, dtype: str, error: float) -> dict:
    """A case of the record: ours is the faster of eager and compiled."""
    own = {n: t for n, t in times.items() if n.startswith("ours")}
    best = min(own, key=lambda n: own[n][0])
    return {
        "name": name,
        "m": sizes.width,
        "k": sizes.width,
        "n": sizes.tokens,
        "dtype": dtype.removeprefix("torch."),
        "ours_us": round(own[best][0], 1),
        "ours_kernel": best,
        "rivals": {f"torch_{n}": round(t[0], 1) for n, t in times.items() if n not in own},
        "spread": round(own[best][1], 1),
        "error": error,
    }


def cases(sizes: Sizes, device: str, timer: Timer):
    linear = torch.nn.Sequential(torch.nn.Linear(sizes.width, sizes.width, bias=False))
    yield layer_case("linear, transposable", linear, RULE, sizes, device, timer)
    yield layer_case("linear, 24sparse gradients", linear, SAMPLED, sizes, device, timer)
    yield layer_case("FFN", FeedForward(sizes.width), RULE, sizes, device, timer)
    yield layer_case("FFN, 2:4 activations", FeedForward(sizes.width), None, sizes, device, timer)
    yield update_case(sizes, device, timer)
    yield step_case(sizes, device, timer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="where to write the record")
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cpu" if options.tiny else "cuda"
    if not options.tiny:
        needs_gpus()
    done = []
    timer = Timer(device, options.rounds, not options.eager)
    for case in cases(TINY if options.tiny else FULL, device, timer):
        print(case, flush=True)
        done.append(case)
    if not options.tiny:
        import harness

        harness.write_suite("training", done, stems=STEMS, out=options.out)


if __name__ == "__main__":
    main()
