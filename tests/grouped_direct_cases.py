"""Experts in fewer bits than their tokens, and checks that every kernel for them passes."""

from __future__ import annotations

import numpy as np
from grouped_cases import offsets_of, poisoned
from guards import Guarded
from matmul_cases import logical, put, sample
from mixed_cases import weight
from product_cases import compressed
from quantised_cases import random_stack

from sparse24._dtypes import numpy_dtype
from sparse24._records import PLAIN, Fused
from sparse24.kernels import grouped, reference_grouped
from sparse24.kernels.launch import current_stream
from sparse24.kernels.reference_product import activate

COUNTS = (0, 1, 7, 33, 0, 64, 129, 0)
# What every such kernel refuses of a problem of 8 experts.
REFUSED = [
    ({"compute_capability": 80}, "compute capability 9.0, the device has 80"),
    ({"out_dtype": "float64"}, "results are stored as bfloat16, float32, not float64"),
    ({"b_order": "row"}, "must be contiguous"),
    ({"batch": 2000}, "has room for 1024"),
]
OUTSIDE = [
    [-5, 10, 20, 200], [90, 95, 99, 99], [99, 50, 20, 0], [74, 74, 74, 74], [-9, -8, -7, -6],
    [-(2**31), 2**31 - 1, -(2**31), 2**31 - 1],
]  # fmt: skip


class Layer:
    """Experts, their tokens, and exact products.

    Attributes
    ----------
    record : Compressed24, shape (e, m, k)
    exact : ndarray of float64, shape (m, t)
    """

    def __init__(self, kernel, rng, counts, m, k, *, bits=0, stored="int8", dtype="bfloat16",
                 rounded=False, dense=None):  # fmt: skip
        """Of `bits`, rounded to the type of the tokens or not, or of the 8-bit type `stored`.

        `dense` tells the elements of 8 bits.
        """
        import cupy as cp

        self.kernel, self.dtype, self.offsets = kernel, dtype, offsets_of(counts)
        shape = len(counts), m, k
        if bits:
            self.record, self.dense = random_stack(rng, shape, bits, dtype)
        else:
            self.dense = weight(rng, shape, stored) if dense is None else dense
            self.record = compressed(self.dense)
        if rounded:
            self.dense = self.dense.astype(np.float32).astype(numpy_dtype(dtype))
        self.dense = self.dense.astype(np.float64)
        x = sample((int(self.offsets[-1]), k), dtype, rng)
        room = cp.zeros((len(x), -(-k // 8) * 8), put(x[:0], cp).dtype)  # rows on 16 bytes
        room[:, :k] = put(x, cp)
        self.x = room[:, :k]
        self.exact = reference_grouped.grouped_matmul(self.dense, x.T, self.offsets)

    def multiply(self, config=None, *, epilogue=PLAIN, gated=False, result=None, offsets=None):
        """By the kernel, over poison."""
        import cupy as cp

        result = result or self.dtype
        rows = self.record.shape[1] // (2 if gated else 1)
        vector = 16 // numpy_dtype(result).itemsize  # of what is stored behind the last row
        out = poisoned(cp, (-(-rows // vector) * vector, len(self.x)), result)[:rows]
        where = cp.asarray(self.offsets if offsets is None else offsets)
        types = grouped.types_of(self.dtype, self.dtype, result, where.dtype.name, epilogue,
                                 gated=gated, fast_accumulation=True)  # fmt: skip
        stream, params = current_stream(), grouped.params_of(epilogue)
        of = self.record, self.x.T, out, types, where.data.ptr, params
        self.kernel.bind(*of, config)(stream)
        return logical(out, result).astype(np.float64)

    def check(self, config=None, **options):
        """As `multiply`; what is stored is rounded once from sums in float32."""
        got = self.multiply(config, **options)
        eps = 2.0 ** -(8 if (options.get("result") or self.dtype) == "bfloat16" else 11)
        size = np.abs(self.dense).max((1, 2)).max() * np.sqrt(self.record.shape[2])
        np.testing.assert_allclose(got, self.exact, rtol=eps, atol=2e-5 * size)
        return got


def check_gate(layer: Layer, config, activation: str) -> None:
    half = layer.record.shape[1] // 2
    factor = np.float32(1 / np.abs(layer.exact).max() * 8)  # so that activations are not all 0 or 1
    exact = layer.exact * float(factor)
    want = activate(exact[:half], activation, 0.0, np.inf) * exact[half:]
    epilogue = Fused(float(factor), activation=activation)
    got = layer.multiply(config, gated=True, epilogue=epilogue, result="float32")
    bound = 1e-4 * np.abs(exact).max() * (1 + np.abs(exact[half:]) + np.abs(exact[:half]))
    assert (np.abs(got - want) <= bound).all()


def check_scales_and_biases(layer: Layer, config, rng, xp) -> None:
    (e, m, _), t = layer.record.shape, len(layer.x)
    rows, bias, tokens = (rng.standard_normal(x).astype("f4") for x in ((e, m), (e, m), t))
    of_tokens = np.repeat(np.arange(e), np.diff(layer.offsets))
    exact = 0.5 * layer.exact * rows[of_tokens].T * tokens + bias[of_tokens].T
    held = (xp.asarray(x) for x in (rows, tokens, bias))
    names = ("row_scale", "column_scale", "row_bias")
    epilogue = Fused(0.5, activation="relu", **dict(zip(names, held)))
    got = layer.multiply(config, epilogue=epilogue, result="float32")
    np.testing.assert_allclose(got, np.maximum(exact, 0), atol=1e-4 * np.abs(exact).max())


def check_offsets_outside(make, kind: str, offsets, cupy) -> None:
    """``make(counts)`` makes a layer; nothing beside its arrays is touched."""
    guards = Guarded(cupy)
    with cupy.cuda.using_allocator(guards):
        layer = make((3, 70, 1))
        layer.multiply(offsets=np.array(offsets, kind))
        assert not guards.damage()
    right = layer.multiply(offsets=np.array([-4, 3, 73, 2000], kind))
    np.testing.assert_array_equal(right, layer.check())


def check_nan_stays(layer: Layer, config) -> None:
    """NaN in the tokens of one expert of `COUNTS` reaches no others."""
    nan, want = slice(41, 105), layer.multiply(config)
    layer.x[nan] = np.nan
    got = layer.multiply(config)
    assert np.isnan(got[:, nan]).all()
    np.testing.assert_array_equal(np.delete(got, nan, axis=1), np.delete(want, nan, axis=1))


def check_same_bits(layer: Layer, config) -> None:
    first = layer.multiply(config)
    for _ in range(20):
        np.testing.assert_array_equal(layer.multiply(config), first)
