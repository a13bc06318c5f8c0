"""Suite ``pack``: pruning, checking, packing and unpacking against a device copy of the same bytes.

usage: python tests/bench/bench_pack.py [--out FOLDER] [--quick]

`copy` moves as many bytes, half read and half written; `torch_tile` is torch's 4x4 kernel
for both orientations; `cusparselt` compresses a matrix that is pruned already; `cublas` is the
dense product that one with a 1:4 or 6:8 matrix replaces.
"""

from __future__ import annotations

import argparse
import json
import operator
from functools import partial
from pathlib import Path

import cupy as cp
import numpy as np
import torch
from copy_race import Uncaptured, timed
from harness import Contender, case, copies, race, to_torch, write_suite
from machine import needs_gpus

import sparse24 as s24
from sparse24 import _spec
from sparse24._dtypes import TABLE
from sparse24._records import Compressed24
from sparse24.kernels import (
    activate_compress,
    compress,
    decompress,
    like,
    loader,
    n_m,
    sample,
    transposable,
)

STEMS = (
    "compress", "decompress", "like", "transposable", "activate_compress", "n_m", "sample",
    "sparse_wgmma",
)  # fmt: skip
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


def under_mask_case(m, k, name="bfloat16"):
    """A gradient where a mask of bytes is true, and zeros elsewhere."""
    count = 5 * m * k
    xs = [normal((m, k), name, i) for i in range(copies(count))]
    masks, out = [x.view(cp.int16) > 0 for x in xs], cp.empty_like(xs[0])
    calls = [like.under_mask_call(x, mask, out, TABLE[name]) for x, mask in zip(xs, masks)]
    tensors = [(to_torch(mask), to_torch(x, getattr(torch, name))) for x, mask in zip(xs, masks)]
    where = [partial(torch.where, mask, x, 0) for mask, x in tensors]
    rivals = {"torch": Contender(where, library="torch")}
    return timed(f"under mask {m}x{k} {name}", "like", [call.enqueue for call in calls], count,
                 m=m, k=k, dtype=name, rivals=rivals)  # fmt: skip


def transposable_case(m, k, name="bfloat16", *, squared=False):
    """Of normal elements, or of activations: their squares, half of which are zero."""
    count = m * k * 2 + 2 * (moved(m, k, 2) - m * k * 2)
    xs = [normal((m, k), name, i) for i in range(min(8, copies(count)))]
    tiles = [to_torch(x, getattr(torch, name)) for x in xs]  # views
    for x in tiles if squared else ():
        x.relu_().square_()
    tile = [partial(torch._sparse_semi_structured_tile, x, "", True) for x in tiles]
    functions = [partial(transposable.launch, x, TABLE[name]) for x in xs]
    rivals = {"torch_tile": Contender(tile, library="torch")}
    title = "squared relu, transposable" if squared else "transposable"
    return timed(f"{title} {m}x{k} {name}", "transposable", functions, count, m=m, k=k,
                 dtype=name, rivals=rivals)  # fmt: skip


def sample_case(m, k, name="bfloat16"):
    """A gradient of m tokens and k features, sampled along the tokens."""
    count = moved(m, k, 2)
    xs = [normal((m, k), name, i) for i in range(copies(count))]
    functions = [partial(sample.launch, x.T, TABLE[name], 1 + i) for i, x in enumerate(xs)]
    return timed(f"sample {m}x{k} {name}", "sample", functions, count, m=m, k=k, dtype=name)


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


def n_m_cases(m, k, name="bfloat16"):
    row = TABLE[name]
    xs = [normal((m, k), name, i) for i in range(copies(4 * m * k))]
    shape = {"m": m, "k": k, "dtype": name}
    for pattern in ((2, 4), (1, 4), (4, 8), (8, 16)):
        size = f"{pattern[0]}:{pattern[1]} {m}x{k} {name}"
        functions = [partial(n_m.prune_n_m, x, row, *pattern) for x in xs]
        yield timed(f"prune {size}", "n_m", functions, 4 * m * k, **shape)
        functions = [partial(n_m.mask_n_m, x, row, *pattern) for x in xs]
        yield timed(f"mask {size}", "n_m", functions, 3 * m * k, **shape)


def mask_update_case(m=32768, k=32768, name="bfloat16"):
    """The 2:4 mask by magnitude of 2**30 weights, as a mask scheduler asks for it."""
    functions = [partial(n_m.mask_n_m, normal((m, k), name, 0), TABLE[name], 2, 4)]
    return timed(f"mask update, 1 Gi weights, {name}", "n_m", functions, 3 * m * k,
                 m=m, k=k, dtype=name)  # fmt: skip


def pattern_products(m, k, n, name="bfloat16"):
    """Products with 1:4 and 6:8 matrices on the 2:4 kernels; preparing is not counted."""
    b = normal((k, n), name, 1)
    dense = normal((m, k), name, 0)
    left, right = (to_torch(x, torch.bfloat16) for x in (dense, b))
    for pattern in ((1, 4), (6, 8)):
        packed = s24.compress(dense, pattern=pattern, on_excess="prune")
        packed = packed.to_24() if pattern == (1, 4) else packed.windows()
        pruned = to_torch(s24.prune(dense, pattern=pattern), torch.bfloat16)
        off = to_torch(packed @ b, torch.bfloat16).float() - pruned.float() @ right.float()
        ours = Uncaptured([partial(operator.matmul, packed, b)] * 4)
        dense_product = Contender([partial(torch.matmul, left, right)] * 4, library="torch")
        race({"ours": ours, "cublas": dense_product})
        title = f"product {pattern[0]}:{pattern[1]} {m}x{k}x{n} {name}"
        row = case(title, ours=ours, kernel="sparse_wgmma", rivals={"cublas": dense_product},
                   m=m, k=k, n=n, dtype=name, bytes=0, error=float(off.abs().max()))  # fmt: skip
        times = row["rivals"]["cublas"] / row["ours_us"]
        print(f"{title:46s} {row['ours_us']:9.1f} us, {times:.3f} times cublas")
        yield row


def run(quick: bool):
    yield mask_update_case()
    for m, k in SQUARES[1:2] if quick else (*SQUARES[1:], LAYERS[0]):
        yield from n_m_cases(m, k)
    for size in ((8192, 8192, 4096),) if quick else ((8192, 8192, 4096), (16384, 16384, 8192)):
        yield from pattern_products(*size)
    for m, k in SQUARES[:1] if quick else (*SQUARES, *LAYERS):
        yield from compress_cases(m, k)
        yield from reuse_cases(m, k)
        yield under_mask_case(m, k)
        yield transposable_case(m, k)
        yield sample_case(m, k)
        yield from activation_cases(m, k)
    for name in ("bfloat16", "float16"):
        yield transposable_case(*SQUARES[0 if quick else 2], name, squared=True)
    for name in ("float16", "int8", "float8_e4m3fn", "float32"):
        yield from compress_cases(8192, 8192, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--quick", action="store_true", help="the smallest shape only")
    arguments = parser.parse_args()
    needs_gpus()
    path = write_suite("pack", list(run(arguments.quick)), stems=STEMS, out=arguments.out)
    print(path, len(json.loads(path.read_text())["cases"]), "cases", loader.digest("compress"))


if __name__ == "__main__":
    main()
