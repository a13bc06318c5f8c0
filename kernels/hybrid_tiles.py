"""Launch ``cuda/hybrid_tiles.cu``: build, decode and multiply block-hybrid matrices on the GPU."""

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
    bits = 8 * dtype.itemsize
    mask = (1 << bits) - 1 if dtype.name == "int8" else (1 << (bits - 1)) - 1
    base = (("WORD", WORDS[dtype.itemsize]), ("MAGNITUDE", f"{mask:#x}ull"))
    return base if output is None else (*base, ("ELEMENT", dtype.name), ("OUTPUT", output))


def _grid(m: int, k: int) -> tuple[int, int]:
    return -(-k // TILE), -(-m // TILE)


def _pitch(bits) -> int:
    return bits.strides[0] // bits.itemsize


def survey(bits, dtype: DType, nonzeros, overflow) -> None:
    """Count per tile, of an (m, k) matrix of bits whose rows are contiguous."""
    m, k = bits.shape
    if bits.size:
        kernel = loader.function(NAME, "survey", _defines(dtype))
        kernel(_grid(m, k), (THREADS,), (bits, m, k, _pitch(bits), nonzeros, overflow))


def fill(bits, dtype: DType, tiles) -> None:
    """Write the values, codes and overflow of `tiles`, a record as in ``formats``."""
    m, k = bits.shape
    if bits.size:
        kernel = loader.function(NAME, "fill", _defines(dtype))
        arrays = (
            tiles.kinds, tiles.starts, tiles.values, tiles.slots, tiles.codes,
            tiles.overflow_starts, tiles.overflow_values, tiles.overflow_places,
        )  # fmt: skip
        kernel(_grid(m, k), (THREADS,), (bits, m, k, _pitch(bits), *arrays))


def matrix(tiles) -> np.ndarray:
    """The addresses of a record, passed by value."""
    pointers = tuple(getattr(tiles, name).data.ptr for name in MATRIX.names or ())
    return loader.by_value(np.array([pointers], MATRIX))


def decode(tiles, out) -> None:
    """Write the dense matrix of bits; rows of `out` are contiguous."""
    m, k = out.shape
    if out.size:
        kernel = loader.function(NAME, "decode", _defines(tiles.dtype))
        kernel(_grid(m, k), (THREADS,), (out, m, k, _pitch(out), matrix(tiles)))


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
