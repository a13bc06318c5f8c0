"""Quantised matrices and problems shared by the tests of their kernels."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
from product_cases import empty_result, result_to_numpy, to_device, tolerance
from product_cases import on_device as epilogue_on_device

from sparse24._dtypes import TABLE, numpy_dtype
from sparse24._quantised import Parts, record_of, with_bricks
from sparse24._records import PLAIN, Compressed24, Problem
from sparse24.kernels import reference, reference_quantised


def random_parts(rng, shape: tuple[int, int], bits: int) -> Parts:
    """Every integer of the type at random places, and factors of both signs, zeros among them."""
    m, k = shape
    _, metadata = reference.compress(reference.prune(rng.standard_normal(shape)))
    least, stored = -(1 << bits - 1), 2 * -(-k // 4)
    integers = rng.integers(least, -least, (m, stored)).astype(np.int8)
    integers[:, (k + 1) // 2 :] = 0  # behind the last column; a single element may be there twice
    factors = rng.standard_normal((m, -(-k // 128))).astype(np.float32)
    factors[rng.random(factors.shape) < 0.1] = 0
    return Parts(integers, metadata, factors)


def exact_matrix(parts: Parts, k: int) -> np.ndarray:
    """The dense matrix in float64."""
    values = reference_quantised.dequantise(parts.integers, parts.factors)
    return reference.decompress(values, parts.metadata, k)


def on_device(parts: Parts, shape: tuple[int, int], bits: int, dtype: str) -> Compressed24:
    """The record on the GPU, packed there."""
    import cupy as cp

    return record_of(Parts(*map(cp.asarray, parts)), shape, bits, TABLE[dtype])


def random_matrix(rng, shape: tuple[int, int], bits: int, dtype: str):
    """The record of a random matrix on the GPU, and the dense matrix in float64."""
    parts = random_parts(rng, shape, bits)
    return on_device(parts, shape, bits, dtype), exact_matrix(parts, shape[1])


def random_stack(rng, shape: tuple[int, int, int], bits: int, dtype: str):
    """As `random_matrix`, for a stack."""
    import cupy as cp

    records, dense = zip(
        *(random_matrix(rng, shape[1:], bits, dtype) for _ in range(shape[0])), strict=True
    )
    bricks = cp.stack([record.values for record in records])
    return with_bricks(bricks, shape, bits, TABLE[dtype]), np.stack(dense)


def problem(m=4096, n=8, k=4096, *, bits=4, dtype="bfloat16", **fields) -> Problem:
    fields = {"out_dtype": dtype, "b_order": "column", "out_order": "column", "batch": 1, **fields}
    return Problem(m, n, k, dtype=dtype, b_dtype=dtype, quantised=bits, **fields)


def check_product(kernel, rng, shape, n, *, bits, dtype, rounded=False, config=None,
                  epilogue=PLAIN, b=None, settled=False, **fields):  # fmt: skip
    """Multiply, and compare with the exact product; returns the result.

    `rounded` tells that the kernel rounds elements to the type.
    """
    import cupy as cp

    m, k = shape
    lead = (fields["batch"],) if fields.get("b_batched") else ()
    if fields.get("a_batched"):
        record, a = random_stack(rng, (fields["batch"], m, k), bits, dtype)
    else:
        record, a = random_matrix(rng, shape, bits, dtype)
    a = a.astype(np.float32).astype(numpy_dtype(dtype)) if rounded else a
    b = rng.standard_normal((*lead, k, n)).astype(numpy_dtype(dtype)) if b is None else b
    wanted = problem(m, n, k, bits=bits, dtype=dtype, plain=epilogue.is_plain,
                     activation=epilogue.activation, **fields)  # fmt: skip
    assert kernel.refuses(wanted) is None
    config = config or kernel.configs(wanted)[0]
    record = dataclasses.replace(record, settled=settled)
    held, out = epilogue_on_device(epilogue), empty_result(wanted)
    dense = to_device(b, order=wanted.b_order, rows_aligned=True)
    kernel.prepare(wanted, config, held)(record, dense, out, held)
    cp.cuda.get_current_stream().synchronize()
    got = result_to_numpy(out, wanted.out_dtype)
    exact = np.broadcast_to(reference.matmul(a, b), got.shape)
    want, _ = reference.apply_epilogue(exact, epilogue, wanted.out_dtype)
    bound = tolerance(a, b, want, wanted.out_dtype) * (1 if epilogue.is_plain else 4)
    error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    known = np.isfinite(want.astype(np.float64))
    np.testing.assert_array_equal(np.isfinite(got.astype(np.float64)), known)
    assert (error[known] <= bound[known]).all(), f"{config.name}: worst {np.nanmax(error[known])}"
    return out


def near(got, want):
    """Equal, but for the order of sums: kernels that read integers add the ends of rows earlier."""
    error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert error <= 4 * ml_dtypes.finfo(want.dtype).eps * np.abs(want.astype(np.float64)).max()


def assert_same(a, b):
    """Quantised arrays of the same integers, codes and scales."""
    assert (a.shape, a.dtype, a.bits, a.axis) == (b.shape, b.dtype, b.bits, b.axis)
    for part in ("integers", "metadata", "scales"):
        np.testing.assert_array_equal(getattr(a, part), getattr(b, part))
