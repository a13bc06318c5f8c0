"""What `sanitize.py` runs under compute-sanitizer: every kernel, on small, ragged shapes."""

from __future__ import annotations

import contextlib
import functools
import itertools
from unittest import mock

import numpy as np

import sparse24 as s24
from sparse24 import _arrays, _dtypes, _storage, _target
from sparse24._grouped import choice as grouped_choice
from sparse24._hybrid import dispatch as hybrid_dispatch
from sparse24._hybrid import predict as hybrid_predict
from sparse24.kernels import (
    activate_compress,
    block_sums,
    decompress,
    grouped_mixed,
    grouped_mixed_configs,
    hybrid_scatter,
    hybrid_wgmma_plan,
    like,
    sample,
)

TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "float8_e4m3fn")


def draw(shape, name: str):
    """Whole numbers from -4 to 4 on the GPU, as the library carries the type."""
    import cupy as cp

    row = _dtypes.TABLE[name]
    x = np.random.default_rng(1).integers(-4, 5, shape).astype(row.logical)
    return cp.asarray(x.view(np.uint8) if row.is_float8 else x)


def products(name: str, columns: int) -> None:
    """Every kernel that multiplies this type, plain and through an epilogue.

    bfloat16 in all configurations, others in the first of each kernel; b in both orders.
    """
    import cupy as cp

    m, k = 200, 264
    a = s24.compress(draw((m, k), name), on_excess="prune", dtype=name, keep_dense=True)
    epilogue = s24.Epilogue(bias=cp.ones(columns, _target.real_of(name)), activation="gelu")
    by_rows = draw((k, columns), name)
    for b in (draw((columns, k), name).T, by_rows):
        options = {"b_dtype": name if name.startswith("float8") else None}
        known = [c for c in s24.explain(a, b, **options).candidates if c.refusal is None]
        firsts = {c.kernel: c for c in reversed(known)}.values()
        for choice in known if name == "bfloat16" else firsts:
            with _cleared_for(choice):
                s24.matmul(a, b, algorithm=choice.name, **options)
        for choice in firsts:
            with _cleared_for(choice):
                s24.matmul(a, b, algorithm=choice.name, epilogue=epilogue, **options)
    if name == "float32":
        half = s24.compress(draw((m, k), name), pattern=(1, 2), on_excess="prune")
        s24.matmul(half, by_rows, precision="tf32")


def widened() -> None:
    """8-bit matrices with 16-bit arrays, by every tile, of experts, and made such of 16 bits."""
    for stored, dtype in (("int8", "bfloat16"), ("float8_e4m3fn", "float16")):
        a = s24.compress(draw((200, 264), stored), on_excess="prune", dtype=stored)
        a.astype(dtype)
        for columns in (5, 16, 20, 30, 44, 72, 264):
            b = draw((columns, 264), dtype).T
            for choice in s24.explain(a, b).candidates:
                if choice.kernel in ("sparse_decode", "sparse_mixed"):
                    s24.matmul(a, b, algorithm=choice.name)
        long = s24.compress(draw((200, 1100), stored), on_excess="prune", dtype=stored)
        b = draw((72, 1100), dtype).T
        for choice in s24.explain(long, b).candidates:  # tiles that blocks share
            if choice.kernel == "sparse_mixed" and choice.settings and choice.settings.parts > 1:
                s24.matmul(long, b, algorithm=choice.name)
        for columns in (16, 72):  # by rows
            s24.matmul(a, draw((264, columns), dtype))
            s24.matmul(a, draw((264, columns), dtype), algorithm="sparse_mixed")
        experts = s24.compress(draw((4, 256, 264), stored), on_excess="prune", dtype=stored)
        experts_that_are_widened(experts, dtype)


def quantised() -> None:
    """Quantised matrices with 16-bit arrays, by every tile, dequantised, and of experts."""
    for bits, dtype in ((4, "bfloat16"), (8, "float16")):
        a = s24.compress(draw((200, 264), dtype), on_excess="prune", dtype=dtype)
        q = s24.quantise(a, bits=bits)
        for columns in (5, 16, 30, 72, 144):
            b = draw((columns, 264), dtype).T
            for choice in s24.explain(q, b).candidates:
                if choice.kernel in ("sparse_quantised", "sparse_mixed"):
                    s24.matmul(q, b, algorithm=choice.name)
        s24.matmul(q, draw((264, 16), dtype))  # by rows
        q.toarray()
        a = s24.compress(draw((4, 192, 264), dtype), on_excess="prune", dtype=dtype)
        gate = s24.quantise(a, bits=bits)
        for t in (74, 200):  # by narrow tiles and wide ones
            x, offsets = draw((t, 264), dtype), [0, 0, t - 71, t - 1, t]
            s24.grouped_linear(x, gate, offsets=offsets, activation="silu", gated=True)
        with mock.patch.object(grouped_choice, "MIXED_PAYS", {bits: 0}):
            experts_that_are_widened(gate, dtype)


def experts_that_are_widened(experts, dtype: str) -> None:
    """By every tile, with a gate and without in turn."""
    x = draw((74, 264), dtype)
    for gated, tile in zip(itertools.cycle((False, True)), grouped_mixed_configs.TILES):
        with mock.patch.object(grouped_mixed, "choose", lambda *of, tile=tile: tile):
            s24.grouped_linear(
                x, experts, offsets=[0, 0, 3, 73, 74], activation="silu", gated=gated
            )


def shared_tiles() -> None:
    """Tiles that the blocks of a cluster share along k."""
    a = s24.compress(draw((136, 2056), "bfloat16"), on_excess="prune", dtype="bfloat16")
    for b in (draw((72, 2056), "bfloat16").T, draw((2056, 72), "bfloat16")):
        known = [c for c in s24.explain(a, b).candidates if c.refusal is None]
        for tile in ("64x64x128k2d", "128x64x128k4", "128x128x128k3", "256x128x128k2"):
            choice = next(c for c in known if c.name == f"sparse_wgmma/{tile}")
            with _cleared_for(choice):
                s24.matmul(a, b, algorithm=choice.name)


def pieces_by_warps() -> None:
    """float32 in pieces by instructions of a warp, by every tile."""
    a = s24.compress(draw((200, 264), "float32"), on_excess="prune")
    for b in (draw((144, 264), "float32").T, draw((264, 144), "float32")):
        for choice in s24.explain(a, b).candidates:
            if choice.kernel in ("split_mma", "split_skinny") and choice.refusal is None:
                with _cleared_for(choice):
                    s24.matmul(a, b, algorithm=choice.name)


def experts() -> None:
    """Products of experts by each of their kernels."""
    for kernel in grouped_choice.KERNELS:
        with mock.patch.object(grouped_choice, "KERNELS", (kernel,)):
            experts_in_one_launch()


def experts_in_one_launch() -> None:
    """As the kernel takes operands, then with copies, biases and gates."""
    import cupy as cp

    offsets = cp.asarray([0, 0, 3, 73, 74])
    for name in TYPES:
        a = s24.compress(draw((4, 200, 272), name), on_excess="prune", dtype=name)
        x = draw((74, 272), name)
        s24.grouped_matmul(a, x.T, offsets=offsets, b_dtype=name)
        cp.cuda.set_allocator(_cleared)
        s24.grouped_matmul(a, cp.ascontiguousarray(x.T), offsets=offsets, b_dtype=name)
        if not name.startswith("float8"):
            s24.grouped_linear(x, a, cp.ones((4, 200), _target.real_of(name)), offsets=offsets)
        gate = s24.compress(draw((4, 384, 272), name), on_excess="prune", dtype=name)
        for tokens in (x, draw((1900, 272), name)):  # narrow tiles and wide ones
            t = len(tokens)
            scales = cp.ones(t, _target.real_of(name)), cp.ones((4, 384), _target.real_of(name))
            s24.grouped_linear(
                tokens, gate, offsets=cp.asarray([0, 0, t - 71, t - 1, t]), activation="silu",
                gated=True, scales=scales, x_dtype=name,
            )  # fmt: skip
        cp.cuda.set_allocator(None)


def _cleared_for(choice):
    """Cleared memory where a result is read again, or an operand copied.

    The result is cuBLAS's, before our epilogue, or ours, before a copy.  Of an aligned copy of b
    the last 16 bytes of a row may be its end and padding: ``cp.async`` reads as many as it is told
    to, and counts as having read them all.
    """
    return _cleared_memory(choice.kernel == "dense" or choice.copies)


@contextlib.contextmanager
def _cleared_memory(needed):
    """Zeros in new memory where initcheck does not see what the TMA stores, or what is not read."""
    import cupy as cp

    if needed:
        cp.cuda.set_allocator(_cleared)
    yield
    cp.cuda.set_allocator(None)


def _cleared(size: int):
    import cupy as cp

    memory = cp.cuda.MemoryPointer(cp.cuda.Memory(size), 0)
    if size:
        memory.memset(0, size)
    return memory


def packing() -> None:
    """Prune, compress, decompress, masks of both kinds, conversions."""
    for name in TYPES:
        x = draw((68, 136), name)
        for transposable in (False, True):
            a = s24.compress(
                x, on_excess="prune", dtype=name, transposable=transposable, check="deferred"
            )
            _storage.decompress(_storage.with_packed(a._operand.rows))
            assert a.metadata is not None
            s24.compress(x, like=a, dtype=name)
        if not name.startswith("float8"):
            a = s24.compress(x, pattern=(1, 4), on_excess="prune")
            a @ draw((136, 8), name)
            s24.mask(x, pattern=(2, 8))
    sample.launch(draw((70, 304), "float16"), _dtypes.TABLE["float16"], 7)
    activate_compress.launch(draw((70, 304), "bfloat16"), _dtypes.TABLE["bfloat16"], quantise=True)
    s24.compress(draw((64, 64), "float32"), on_excess="prune").astype("float16")


def gradients() -> None:
    """Gradients of packed weights: by their codes, by masks of bytes, and looked at for others."""
    import cupy as cp

    for name in TYPES:
        row, x = _dtypes.TABLE[name], draw((68, 136), name)
        record = s24.compress(x, on_excess="prune", dtype=name)._operand.rows
        for weight in (None, x):
            like.masked_gradient(record, x, weight=weight, decay=0.5)
        codes, packed = decompress.codes_of(record)
        for dense in (x[None], cp.ascontiguousarray(x.T).T[None]):
            values = _arrays.empty_rows(cp, record.values.shape, x.dtype)
            seen = None if row.itemsize == 1 else cp.zeros(2, x.dtype)  # as for gradients of torch
            like.gathering_call(dense, codes, values, row, packed=packed, seen=seen).enqueue()
        mask, out = cp.asarray(x.view(f"i{x.itemsize}") != 0), cp.empty_like(x)
        like.under_mask_call(x, mask, out, row).enqueue()


def hybrids() -> None:
    """Each way that a hybrid matrix is built and multiplies."""
    import cupy as cp
    from cupyx.scipy import sparse as cupyx_sparse

    def each_path(
        shape: tuple[int, int], zeros: float, columns: tuple[int, ...], dtype: str = "float16"
    ) -> None:
        w = draw(shape, dtype)
        w[cp.random.default_rng(1).random(w.shape) < zeros] = 0
        h = s24.hybrid(w)
        s24.hybrid(cupyx_sparse.csr_matrix(w.astype("float32")), dtype=dtype).toarray()
        for n in columns:
            b, result = draw((shape[1], n), dtype), _dtypes.TABLE[dtype].result
            for path in hybrid_predict.predictions(h, n):
                adds = path in ("two_four", "twice")  # to a result, which may lie by columns
                with _cleared_memory(adds):
                    hybrid_dispatch.multiply(h, b, cp.empty((shape[0], n), result), path)
                    if adds:
                        by_columns = cp.empty((n, shape[0]), result).T
                        hybrid_dispatch.multiply(h, b, by_columns, path)

    each_path((150, 330), 0.8, (1, 2, 5, 16, 24, 100, 300))
    each_path((40, 9001), 0.95, (2, 16))  # three panels of gather
    each_path((150, 332), 0.6, (24, 64, 100))  # scatter with 2:4 tiles
    for sharing in block_sums.Sharing:
        with mock.patch.object(block_sums, "sharing", return_value=sharing):
            flat_units()
    each_path((150, 330), 0.8, (5, 28), "float32")
    each_path((150, 330), 0.8, (5, 28), "float64")
    each_path((150, 330), 0.8, (5, 28), "int8")
    each_path((40, 4500), 0.9, (8,), "float32")  # two panels
    long_rows()
    regrouped = property(lambda work: work.rows == 256)
    few = mock.patch.multiple(
        hybrid_wgmma_plan, multiprocessors=lambda: 4, SHARING={False: 0, True: 0},
        SKIPPING=hybrid_wgmma_plan.SKIPPING[:1],
    )  # fmt: skip
    with mock.patch.object(hybrid_wgmma_plan.Work, "skips", regrouped):
        each_path((300, 700), 0.97, (130, 900))  # 64 rows without elements are passed by
        with few:
            each_path((600, 1024), 0.97, (300,))
    with few:
        each_path((600, 1024), 0.8, (300,))  # tiles that blocks share


def long_rows() -> None:
    """A nearly empty matrix with a row that blocks share."""
    import cupy as cp
    from cupyx.scipy import sparse as cupyx_sparse

    w = cp.zeros((3000, 6000), np.float32)
    w[[5, 70], [3, 4000]] = 2
    w[9] = 1
    for dtype in ("float16", "float32", "float64"):
        h = s24.hybrid(cupyx_sparse.csr_matrix(w), dtype=dtype)
        for n in (1, 8, 64):
            h.matmul(draw((6000, n), dtype), algorithm="csr")


def flat_units() -> None:
    """The scatter kernel with units of 128 columns, which large matrices have."""
    import cupy as cp

    w, dtype = draw((150, 332), "float16"), _dtypes.TABLE["float16"]
    w[cp.random.default_rng(1).random(w.shape) < 0.7] = 0
    for base in (False, True):
        layout = hybrid_scatter.prepare(w.view(np.uint16), dtype, base=base, columns=128)
        for n in (5, 24, 64, 100):
            out = cp.empty((150, n), "float16")
            hybrid_scatter.product(layout, draw((332, n), "float16"), out)


PARTS = {
    "packing": packing,
    "gradients": gradients,
    "hybrids": hybrids,
    "widened": widened,
    "quantised": quantised,
    "shared tiles": shared_tiles,
    "pieces by warps": pieces_by_warps,
    "experts": experts,
    **{
        f"{name}, {columns} columns": functools.partial(products, name, columns)
        for name in TYPES
        for columns in (144, 8, 1)
    },
}
