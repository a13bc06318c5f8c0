"""8-bit weights that meet 16-bit tokens, for tests of the kernels that widen them."""

from __future__ import annotations

import dataclasses

import numpy as np
from product_cases import (
    check,
    compressed,
    empty_result,
    problem_of,
    random_dense,
    to_device,
)

from sparse24._dtypes import OF_16_BITS, numpy_dtype
from sparse24._records import PLAIN, Fused, Problem
from sparse24.kernels import reference
from sparse24.kernels.sparse_decode_plan import WIDENED

PAIRS = [(stored, dtype) for stored in WIDENED for dtype in OF_16_BITS]


def weight(rng, shape, dtype: str) -> np.ndarray:
    """A random 2:4 matrix; integers of all sizes."""
    if dtype == "int8":
        return reference.prune(rng.integers(-128, 128, shape).astype(np.int8))
    return reference.prune(rng.standard_normal(shape).astype(np.float32).astype(numpy_dtype(dtype)))


def problem(**fields) -> Problem:
    base = Problem(4096, 8, 4096, 1, "int8", "bfloat16", "bfloat16", "column", "column")
    return dataclasses.replace(base, **fields)


def assert_every_byte_is_exact(kernel, stored: str, dtype: str, order: str, n: int, choose=next):
    """Each of the 256 values, alone in its row, in each place of a group and of a step of K.

    `choose` picks one of an iterator of the kernel's configurations.
    """
    values = np.arange(256, dtype=np.uint8).view(numpy_dtype(stored))
    for place in range(0, 136, 9):
        a = np.zeros((256, 136), values.dtype)
        a[:, place] = values
        b = np.zeros((136, n), numpy_dtype(dtype))
        b[place] = 1
        b[(place + 1) % 136] = 3  # of which nothing is seen
        wanted = problem_of(a, b, "float32", b_order=order, out_order="column")
        out = empty_result(wanted)
        launch = kernel.prepare(wanted, choose(iter(kernel.configs(wanted))), PLAIN)
        launch(compressed(a), to_device(b, order=order, rows_aligned=True), out, PLAIN)
        exact = np.repeat(values.astype(np.float32)[:, None], n, axis=1)
        np.testing.assert_array_equal(out.get()[0], exact)


def check_epilogues_and_batches(kernel, rng, n: int) -> None:
    """Of int8 by float16, also stacks of them."""
    a, b = weight(rng, (130, 4096), "int8"), random_dense(rng, (3, 4096, n), "float16")
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    for e in (
        Fused(alpha=0.5 / 64, row_bias=f32(130), activation="relu", upper=6.0),
        Fused(row_scale=f32(130) / 64, column_bias=f32(n), activation="silu"),
    ):
        check(kernel, a, b, "float16", epilogue=e, b_order="column", out_order="column")
    many = weight(rng, (3, 130, 4096), "int8")
    check(kernel, many, b, "float32", b_order="column")


def assert_same_bits(kernel, rng, n: int) -> None:
    """Of one product, several times."""
    a, b = weight(rng, (640, 8192), "int8"), random_dense(rng, (8192, n), "bfloat16")
    first, *others = (check(kernel, a, b, "float32", b_order="column").get() for _ in range(5))
    for other in others:
        np.testing.assert_array_equal(first, other)
