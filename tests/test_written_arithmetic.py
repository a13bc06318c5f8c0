"""What pages and headers say of errors and shares follows from the arithmetic."""

from __future__ import annotations

import re

import numpy as np
from scipy.special import ndtr
from test_evidence import ROOT
from test_written_claims import says

from sparse24.kernels import reference


def test_the_products_of_pieces_that_are_left_out():
    says("docs/explanation/float32_split.rst", r"together at most 2\ :sup:`-22` of it")
    rng = np.random.default_rng(0)
    every = np.arange(1 << 23, dtype=np.uint32) + 0x3F800000  # the significands of float32
    most_of_a_piece = [np.abs(p / every.view(np.float32)).max() for p in _pieces(every)]
    assert 2 * most_of_a_piece[1] * most_of_a_piece[2] + most_of_a_piece[2] ** 2 < 2.0**-22

    x, y = rng.standard_normal((2, 1 << 20)).astype(np.float32)
    product = np.float64(x) * y
    p, q = _pieces(x), _pieces(y)
    left_out = p[1] * q[2] + p[2] * q[1] + p[2] * q[2]
    of_left_out, of_rounding = (
        np.sqrt(np.mean((error / product) ** 2)) for error in (left_out, x * y - product)
    )
    says("docs/explanation/float32_split.rst", "on average as large as the rounding of the product")
    assert 0.8 < of_left_out / of_rounding < 1.2


def _pieces(x: np.ndarray) -> list[np.ndarray]:
    return [np.float64(piece) for piece in reference.split_bfloat16(x.view(np.float32))]


def test_the_error_of_gelu_by_an_instruction():
    path, header = "docs/explanation/hopper_kernel.rst", "kernels/cuda/include/epilogue.cuh"
    says(path, "the relative error is at most 8e-4 where x is positive")
    says(path, r"Where x is negative the error is at most 2.5e-4 \|x\| + 2.7e-4")
    found = re.search(r"kGelu\).*x \* \((\S+)f \+ (\S+)f \* ", (ROOT / header).read_text())
    first, third = map(float, found.groups())
    x = np.concatenate([np.linspace(-30, 30, 600_001), np.geomspace(1e-6, 1, 1000)])
    for worst in (-(2.0**-11), 2.0**-11):  # the relative error of tanh.approx
        rough = 0.5 * x * (1 + np.tanh(x * (first + third * x * x)) * (1 + worst))
        error, positive = np.abs(rough - x * ndtr(x)), x > 0
        assert (error <= 8e-4 * x * ndtr(x))[positive].all()
        assert (error <= 2.5e-4 * np.abs(x) + 2.7e-4)[~positive].all()


def test_the_tiles_that_integers_cannot_search():
    path = "docs/explanation/packing_kernels.rst"
    says(path, "that is one tile in four hundred, of their squared relu one in ten")
    normal = np.random.default_rng(0).standard_normal((1 << 20, 16)).astype(np.float32)
    relu = np.maximum(_bfloat16(normal), 0)
    assert 350 < 1 / _searched(normal) < 450
    assert 9 < 1 / _searched(relu * relu) < 11


def _bfloat16(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32)


def _searched(tiles: np.ndarray) -> float:
    """The share of tiles with non-zeros below 2**-13 of the power of two in the largest."""
    sizes = np.abs(_bfloat16(tiles))
    _, exponent = np.frexp(sizes.max(1, keepdims=True))
    return ((sizes > 0) & (sizes < np.ldexp(1.0, exponent - 1 - 13))).any(1).mean()
