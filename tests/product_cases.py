"""Problems, operands and judgement shared by the tests of the product kernels."""

from __future__ import annotations

import numpy as np

from sparse24 import _dtypes
from sparse24._arrays import empty_rows
from sparse24._dtypes import TABLE, numpy_dtype
from sparse24._records import PLAIN, Compressed24, Fused, Problem
from sparse24.kernels import reference


def random_24(rng, shape, dtype: str) -> np.ndarray:
    """Random 2:4 matrix; integers small, so that any product of it is exact."""
    return reference.prune(random_dense(rng, shape, dtype))


def random_dense(rng, shape, dtype: str) -> np.ndarray:
    if dtype == "int8":
        return rng.integers(-7, 8, shape).astype(np.int8)
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


def to_device(x: np.ndarray, *, order: str = "row", pad: int = 0, rows_aligned: bool = False):
    """A CuPy array in storage dtype: row or column order, rows `pad` elements apart or aligned."""
    import cupy as cp

    turned = x.swapaxes(-1, -2) if order == "column" else x
    row = _dtypes.lookup(x.dtype) if x.dtype != np.int32 else None
    host = np.ascontiguousarray(turned)
    if row is not None and row.is_float8:
        host = host.view(np.uint8)
    if rows_aligned:
        out = empty_rows(cp, host.shape, host.dtype)
    else:
        out = cp.empty((*host.shape[:-1], host.shape[-1] + pad), host.dtype)[..., : host.shape[-1]]
    out[...] = cp.asarray(host)
    return out.swapaxes(-1, -2) if order == "column" else out


def compressed(a: np.ndarray) -> Compressed24:
    """`a` as the records that GPU kernels take."""
    import cupy as cp

    values, metadata = reference.compress(a)
    packed = reference.pack_metadata(metadata, a.shape[-1], a.dtype.itemsize)
    row = _dtypes.lookup(a.dtype)
    return Compressed24(
        to_device(values, rows_aligned=True), cp.asarray(metadata), cp.asarray(packed), a.shape, row
    )


def problem_of(a, b, out_dtype, **fields) -> Problem:
    batch = max((x.shape[0] for x in (a, b) if x.ndim == 3), default=1)
    names = _dtypes.lookup(a.dtype).name, _dtypes.lookup(b.dtype).name
    return Problem(
        a.shape[-2], b.shape[-1], a.shape[-1], batch, *names, out_dtype,
        a_batched=a.ndim == 3, b_batched=b.ndim == 3, **fields,
    )  # fmt: skip


def empty_result(problem: Problem):
    """A poisoned result array of the problem's dtype and order."""
    import cupy as cp

    host = np.zeros((problem.batch, problem.m, problem.n), numpy_dtype(problem.out_dtype))
    order = problem.out_order if problem.out_order != "strided" else "row"
    out = to_device(host, order=order, rows_aligned=problem.aligned)
    if out.size:
        out[...] = cp.nan if out.dtype.kind == "f" else 77
    return out


def on_device(e: Fused) -> Fused:
    """The epilogue with its NumPy arrays moved to the GPU."""
    from dataclasses import fields

    import cupy as cp

    moved = {f.name: getattr(e, f.name) for f in fields(e)}
    for name in ("row_scale", "column_scale", "row_bias", "column_bias", "c", "aux"):
        if moved[name] is not None:
            moved[name] = cp.asarray(moved[name])
    return Fused(**moved)


def tolerance(a, b, want, out_dtype: str) -> np.ndarray:
    """Bound on |result - exact| from the rounding of float32 sums and of the result.

    A float32 dot product of length k errs by at most about k eps |a| |b|; errors that are not
    aligned grow with sqrt(k), and the tensor cores truncate, so 2 sqrt(k) eps |a| |b| is granted.
    """
    size = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    sums = 2.0 * np.sqrt(max(a.shape[-1], 1)) * 2.0**-23 * size
    return sums + unit_roundoff(out_dtype) * np.abs(want.astype(np.float64)) + 1e-6


def dense_float8(a, b, *, fast: bool) -> tuple[np.ndarray, np.ndarray]:
    """The dense product of fp8 matrices by cuBLAS, in float32, and the exact one.

    cuBLAS takes no pair of e5m2: the values of `a` are then rounded to e4m3.
    """
    import torch

    def padded(x):
        rows, columns = (-(-size // 16) * 16 for size in x.shape)
        full = np.zeros((rows, columns), x.dtype)
        full[: x.shape[0], : x.shape[1]] = x
        kind = torch.float8_e5m2 if "e5m2" in x.dtype.name else torch.float8_e4m3fn
        return torch.from_numpy(full.view(np.uint8)).cuda().view(kind)

    if "e5m2" in a.dtype.name and "e5m2" in b.dtype.name:
        a = a.astype(np.float32).astype(numpy_dtype("float8_e4m3fn"))
    one = torch.ones((), device="cuda")
    product = torch._scaled_mm(
        padded(a), padded(b.T).t(), one, one, out_dtype=torch.float32, use_fast_accum=fast
    )
    got = product.cpu().numpy()[: a.shape[0], : b.shape[1]]
    return got, reference.matmul(a, b)


def no_worse_than_dense(got, want, a, b, problem: Problem, epilogue: Fused) -> None:
    """The tensor cores keep about 14 bits of an fp8 sum: at most twice the error of cuBLAS."""
    dense, exact = dense_float8(a, b, fast=problem.fast_accumulation)
    dense, exact = (
        reference.apply_epilogue(x, epilogue, problem.out_dtype)[0].astype(np.float64)
        for x in (dense, exact)
    )
    allowed = 2 * np.linalg.norm(dense - exact) / np.linalg.norm(exact)
    want = want.astype(np.float64)
    error = np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want)
    assert error <= allowed, f"{problem}: relative error {error}, twice that of cuBLAS {allowed}"


def unit_roundoff(dtype: str) -> float:
    if dtype.startswith("int"):
        return 0.5
    import ml_dtypes

    return float(ml_dtypes.finfo(numpy_dtype(dtype)).eps)


def result_to_numpy(out, dtype: str) -> np.ndarray:
    host = out.get()
    return host.view(numpy_dtype(dtype)) if dtype.startswith("float8") else host


def check(kernel, a, b, out_dtype=None, *, config=None, epilogue=PLAIN, b_pad=0, **fields):
    """Run `kernel` on the problem and compare it with the reference; returns the result."""
    import cupy as cp

    out_dtype = out_dtype or TABLE[_dtypes.lookup(a.dtype).name].result
    fields.setdefault("plain", epilogue.is_plain)
    fields.setdefault("activation", epilogue.activation)
    problem = problem_of(a, b, out_dtype, **fields)
    assert kernel.refuses(problem) is None, kernel.refuses(problem)
    config = config or kernel.configs(problem)[0]
    b_order = problem.b_order if problem.b_order != "strided" else "row"
    device_b = to_device(b, order=b_order, pad=b_pad, rows_aligned=problem.aligned)
    out = empty_result(problem)
    device_epilogue = on_device(epilogue)
    kernel.prepare(problem, config, device_epilogue)(compressed(a), device_b, out, device_epilogue)
    cp.cuda.get_current_stream().synchronize()
    got = result_to_numpy(out, out_dtype)
    exact = reference.matmul(a, b)
    exact = np.broadcast_to(exact, got.shape)
    want, _ = reference.apply_epilogue(exact, epilogue, out_dtype)
    if out_dtype == "int32" and epilogue.is_plain:
        np.testing.assert_array_equal(got, want)
    elif problem.b_dtype.startswith("float8") and got.size:
        no_worse_than_dense(got, want, a, b, problem, epilogue)
    else:
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
        bound = tolerance(a, b, want, out_dtype) * (1.0 if epilogue.is_plain else 4.0)
        bad = ~(error <= bound)
        assert not bad.any(), (
            f"{config.name} {problem}: {bad.sum()} of {bad.size} wrong, worst {np.nanmax(error)}, "
            f"first at {np.argwhere(bad)[0]}"
        )
    return out
