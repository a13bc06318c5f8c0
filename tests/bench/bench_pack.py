"""Suite ``pack``: pruning, checking, packing and unpacking against a device copy of the same bytes.

usage: python tests/bench/bench_pack.py [--out FOLDER] [--quick]

`copy` moves as many bytes, half read and half written; `torch_tile` is torch's 4x4 kernel
for both orientations; `cusparselt` compresses a matrix that is pruned already.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import cupy as cp
import numpy as np
import torch
from harness import Contender, case, copies, race, to_torch, write_suite

from sparse24 import _arrays, _spec
from sparse24._dtypes import TABLE
from sparse24._records import Compressed24
from sparse24.kernels import activate_compress, compress, decompress, like, loader, transposable

STEMS = ("compress", "decompress", "like", "transposable", "activate_compress")
SQUARES = ((4096, 4096), (8192, 8192), (16384, 16384))
LAYERS = ((14336, 4096), (4096, 14336))


def normal(shape, name: str, seed: int):
    """Random normal elements in storage dtype; bfloat16 cut from float32, integers scaled."""
    row = TABLE[name]
    x = cp.random.default_rng(seed).standard_normal(shape, dtype=cp.float32)
    if name == "bfloat16":
        return (x.view(cp.uint32) >> 16).astype(cp.uint16).view(row.logical)
    if row.itemsize == 1:
        return (40 * x).astype(cp.int8).view(np.uint8 if row.is_float8 else np.int8)
    return x.astype(row.logical)


def copy_of(count: int) -> Contender:
    """Copies that read and write `count` bytes together."""
    half = count // 2
    pairs = [(cp.zeros(half, cp.uint8), cp.zeros(half, cp.uint8)) for _ in range(copies(count))]

    def copy(source, target):
        stream = cp.cuda.get_current_stream().ptr
        cp.cuda.runtime.memcpyAsync(target.data.ptr, source.data.ptr, half, 3, stream)

    return Contender([partial(copy, *pair) for pair in pairs])


class Uncaptured(Contender):
    """Calls that cannot be captured into a graph; they take long enough to hide their launch."""

    def __init__(self, calls):
        self.calls, self.samples, self.stream = len(calls), [], torch.cuda.Stream()
        self._all = calls
        torch.cuda.synchronize()

    def _replay(self):
        for call in self._all:
            call()


class Recycled:
    """Allocations of a launcher, kept by call, so that a captured call only launches."""

    def __init__(self):
        self.arrays: dict = {}

    def calls(self, functions):
        return [partial(self._call, index, function) for index, function in enumerate(functions)]

    def _call(self, index, function):
        real_empty, real_zeros, real_rows = cp.empty, cp.zeros, _arrays.empty_rows
        taken = iter(range(99))

        def again(make, *arguments, **keywords):
            key = (index, next(taken))
            if key not in self.arrays:
                self.arrays[key] = make(*arguments, **keywords)
            return self.arrays[key]

        def zeros(*arguments):
            array = again(real_zeros, *arguments)
            array.data.memset_async(0, array.nbytes)
            return array

        cp.empty, cp.zeros = partial(again, real_empty), zeros
        _arrays.empty_rows = lambda xp, shape, dtype: again(_fresh_rows, real_empty, shape, dtype)
        try:
            function()
        finally:
            cp.empty, cp.zeros, _arrays.empty_rows = real_empty, real_zeros, real_rows


def _fresh_rows(empty, shape, dtype):
    pitch = _arrays.row_pitch(shape[-1], np.dtype(dtype).itemsize)
    return empty((*shape[:-1], pitch), dtype)[..., : shape[-1]]


def timed(name, kernel, functions, count, *, m, k, dtype, rivals=None, **fields) -> dict:
    """Race `functions`, one for each copy of the operand, against a copy of `count` bytes."""
    ours = Contender(Recycled().calls(functions))
    others = {"copy": copy_of(count), **(rivals or {})}
    race({"ours": ours, **others})
    row = case(name, ours=ours, kernel=kernel, rivals=others, m=m, k=k, n=0, dtype=dtype,
               bytes=count, error=0.0, **fields)  # fmt: skip
    print(
        f"{name:46s} {row['ours_us']:9.1f} us, {row['rivals']['copy'] / row['ours_us']:.3f} of copy"
    )
    cp.get_default_memory_pool().free_all_blocks()
    return row


def moved(m: int, k: int, itemsize: int) -> int:
    """Bytes of a dense matrix and of its compressed form."""
    return m * k * itemsize * 3 // 2 + int(np.prod(_spec.packed_shape(m, k)))


def pruned_by(pattern, x):
    """`x` with the elements under zeros of a repeated pattern of four cleared."""
    mask = cp.tile(cp.array(pattern, np.uint16), x.shape[1] // 4)
    return (x.view(np.uint16) * mask[None, :]).view(x.dtype)


def compress_cases(m, k, name="bfloat16"):
    row, count = TABLE[name], moved(m, k, TABLE[name].itemsize)
    xs = [normal((m, k), name, i) for i in range(copies(count))]
    shape = {"m": m, "k": k, "dtype": name}
    size = f"{m}x{k} {name}"

    def calls(arrays, rule):
        return [partial(compress.launch, x, row, rule=rule) for x in arrays]

    yield timed(f"prune+pack {size}", "compress", calls(xs, "magnitude"), count, **shape)
    turned = [x.reshape(k, m).T for x in xs]
    yield timed(
        f"prune+pack columns {size}", "compress", calls(turned, "magnitude"), count, **shape
    )
    if name != "bfloat16":
        return
    obeying = [pruned_by([1, 0, 0, 1], x) for x in xs]
    compressing = [partial(torch._cslt_compress, to_torch(x, torch.bfloat16)) for x in obeying[:4]]
    checking = calls(obeying, "check")
    rivals = {"cusparselt": Uncaptured(compressing)}
    yield timed(f"check+pack {size}", "compress", checking, count, rivals=rivals, **shape)


def reuse_cases(m, k, name="bfloat16"):
    row, count = TABLE[name], moved(m, k, 2)
    xs = [normal((m, k), name, i) for i in range(copies(count))]
    records: list[Compressed24] = [compress.launch(x, row, rule="magnitude")[0] for x in xs]
    pairs = list(zip(records, xs, strict=True))
    shape = {"m": m, "k": k, "dtype": name}
    size = f"{m}x{k} {name}"
    functions = [partial(like.launch, record, x) for record, x in pairs]
    yield timed(f"like {size}", "like", functions, count, **shape)
    functions = [partial(decompress.launch, record) for record in records]
    yield timed(f"decompress {size}", "decompress", functions, count, **shape)
    selected = 2 * m * k * 2 + m * k // 8
    functions = [partial(like.masked_gradient, record, x) for record, x in pairs]
    yield timed(f"masked gradient {size}", "like", functions, selected, **shape)
    functions = [partial(like.masked_gradient, r, x, weight=xs[0], decay=1e-4) for r, x in pairs]
    yield timed(f"sr-ste gradient {size}", "like", functions, selected + 2 * m * k, **shape)


def transposable_case(m, k, name="bfloat16"):
    count = m * k * 2 + 2 * (moved(m, k, 2) - m * k * 2)
    xs = [normal((m, k), name, i) for i in range(min(8, copies(count)))]
    tiles = [to_torch(x, getattr(torch, name)) for x in xs]
    tile = [partial(torch._sparse_semi_structured_tile, x, "", True) for x in tiles]
    functions = [partial(transposable.launch, x, TABLE[name]) for x in xs]
    rivals = {"torch_tile": Contender(tile, library="torch")}
    return timed(f"transposable {m}x{k} {name}", "transposable", functions, count, m=m, k=k,
                 dtype=name, rivals=rivals)  # fmt: skip


def activation_cases(m, k, name="bfloat16"):
    count = m * k * 2 + m * k // 2 + m * k // 8 + 4 * m
    xs = [normal((m, k), name, i) for i in range(copies(count))]
    launch = partial(activate_compress.launch, row=TABLE[name])
    functions = [partial(launch, x, quantise=True) for x in xs]
    shape = {"m": m, "k": k, "dtype": name}
    yield timed(f"relu2+prune+fp8 {m}x{k} {name}", "activate_compress", functions, count, **shape)
    functions = [partial(launch, x) for x in xs]
    count = moved(m, k, 2)
    yield timed(f"relu2+prune {m}x{k} {name}", "activate_compress", functions, count, **shape)


def run(quick: bool):
    for m, k in SQUARES[:1] if quick else (*SQUARES, *LAYERS):
        yield from compress_cases(m, k)
        yield from reuse_cases(m, k)
        yield transposable_case(m, k)
        yield from activation_cases(m, k)
    for name in ("float16", "int8", "float8_e4m3fn", "float32"):
        yield from compress_cases(8192, 8192, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--quick", action="store_true", help="the smallest shape only")
    arguments = parser.parse_args()
    path = write_suite("pack", list(run(arguments.quick)), stems=STEMS, out=arguments.out)
    print(path, len(json.loads(path.read_text())["cases"]), "cases", loader.digest("compress"))


if __name__ == "__main__":
    main()
