"""Launch ``cuda/hybrid_tiles.cu``: decode and multiply block-hybrid matrices on the GPU."""

from __future__ import annotations

import numpy as np

from sparse24._dtypes import TABLE, DType
from sparse24.kernels import loader

NAME = "hybrid_tiles"
TILE = 64
THREADS = 256
WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
MATRIX = np.dtype([(name, "u8") for name in (
    "kinds", "starts", "values", "slots", "codes",
    "overflow_starts", "overflow_values", "overflow_places",
)])  # fmt: skip


def _defines(dtype: DType, output: str | None = None) -> loader.Defines:
    word = ("WORD", WORDS[dtype.itemsize])
    return (word,) if output is None else (word, ("ELEMENT", dtype.name), ("OUTPUT", output))


def blocks(m: int, k: int) -> tuple[int, int]:
    """A grid with a block for each tile."""
    return -(-k // TILE), -(-m // TILE)


def pitch(bits) -> int:
    """Elements from a row of a matrix to the next."""
    return bits.strides[0] // bits.itemsize


def matrix(tiles) -> np.ndarray:
    """The addresses of a record, passed by value."""
    pointers = tuple(getattr(tiles, name).data.ptr for name in MATRIX.names or ())
    return loader.by_value(np.array([pointers], MATRIX))


def decode(tiles, out) -> None:
    """Write the dense matrix of bits; rows of `out` are contiguous."""
    m, k = out.shape
    if out.size:
        kernel = loader.function(NAME, "decode", _defines(tiles.dtype))
        kernel(blocks(m, k), (THREADS,), (out, m, k, pitch(out), matrix(tiles)))


def product(tiles, b, out, output: str) -> None:
    """out = tiles @ b for CuPy matrices of any strides."""
    (m, k), n = tiles.shape, b.shape[1]
    columns = 16 if tiles.dtype.itemsize == 8 else 32
    kernel = loader.function(NAME, "product", _defines(tiles.dtype, output))
    strides = (
        *(s // b.itemsize for s in b.strides), *(s // out.itemsize for s in out.strides),
    )  # fmt: skip
    grid = (-(-n // columns), -(-m // TILE))
    across = np.int32(-(-k // TILE))
    kernel(grid, (THREADS,), (out, b, m, n, k, *strides, across, matrix(tiles)))


def _check(name: str, output: str, arch: str, mnemonic: str | None):
    return _defines(TABLE[name], output), arch, mnemonic


COMPILE_CHECKS = [
    _check("bfloat16", "bfloat16", "sm_90a", None),
    _check("float32", "float32", "sm_80", "FFMA"),
    _check("float64", "float64", "sm_90a", "DFMA"),
    _check("int8", "int32", "sm_120", None),
]
