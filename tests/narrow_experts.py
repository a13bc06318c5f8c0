"""Experts in fewer bits than their tokens, from the public functions on."""

from __future__ import annotations

import numpy as np
from grouped_cases import offsets_of
from matmul_cases import logical, put

import sparse24 as s24
from sparse24._arrays import to_numpy
from sparse24.kernels import reference_grouped
from sparse24.kernels.reference_product import activate

FEW, MANY = (3, 0, 7, 1), (300, 0, 900, 10)  # tokens; for many all kernels take wide tiles


class Layer:
    """Experts on the CPU or the GPU, their tokens, and exact products (t, m)."""

    def __init__(self, xp, experts, dense: np.ndarray, x: np.ndarray, dtype: str, counts):
        """Of an array of sparse24 on the CPU, and of the same matrices in float64."""
        self.xp, self.dtype, self.offsets = xp, dtype, offsets_of(counts)
        self.exact = reference_grouped.grouped_matmul(dense, x.T, self.offsets).T
        self.experts = experts if xp is np else experts.to_device("cuda")
        self.x = put(x, xp)

    def linear(self, *arguments, **options):
        options.setdefault("offsets", self.xp.asarray(self.offsets))
        options.setdefault("x_dtype", self.dtype)
        return s24.grouped_linear(self.x, self.experts, *arguments, **options)

    def near(self, got, want=None):
        want = self.exact if want is None else want
        got = logical(to_numpy(got), self.dtype).astype(np.float64)
        eps = 2.0 ** -(8 if self.dtype == "bfloat16" else 10)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=eps, atol=2 * eps * np.abs(want).max(initial=0))


def check_repeats(layer: Layer) -> None:
    for _ in range(3):  # the first call prepares the others
        layer.near(layer.linear())
    layer.near(layer.linear(offsets=layer.offsets.tolist()))


def check_gate_bias_and_scale(layer: Layer, rng) -> None:
    (e, m), xp = layer.experts.shape[:2], layer.xp
    rows, bias = (rng.standard_normal((e, m)).astype(np.float32) for _ in range(2))
    rows /= np.abs(layer.exact).max() / 4  # so that activations are not all 0 or 1
    of_tokens = np.repeat(np.arange(e), np.diff(layer.offsets))
    y = layer.exact * rows[of_tokens] + bias[of_tokens]
    want = activate(y[:, : m // 2], "silu", 0.0, np.inf) * y[:, m // 2 :]
    options = {"scales": (None, xp.asarray(rows)), "activation": "silu", "gated": True}
    for _ in range(2):
        layer.near(layer.linear(xp.asarray(bias), **options), want)
