"""Activate, prune to 2:4 and quantise in one pass: launcher of ``cuda/activate_compress.cu``.

Nothing here waits for the device.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _check, _spec
from sparse24._dtypes import TABLE, DType
from sparse24._errors import UnsupportedError
from sparse24._records import Compressed24
from sparse24.kernels import compress, loader

NAME = "activate_compress"
ACTIVATIONS = ("relu", "relu2", "silu")
MOST_WARPS = 8  # that share a row
PIECES = 8  # stretches of 256 columns that a warp holds in registers


def launch(x, row: DType, *, activation: str = "relu2", gate=None, quantise: bool = False):
    """Compress ``activation(x)``, pruned to 2:4 along its features.

    Parameters
    ----------
    x : cupy.ndarray, shape (m, k), float16 or bfloat16
        Tokens by features.  Copied unless its rows are contiguous and 16-byte aligned.
    row : DType
    activation : {"relu", "relu2", "silu"}
        ``"silu"`` is multiplied by `gate`.
    gate : cupy.ndarray, like `x`; with ``"silu"`` only
    quantise : bool
        Store float8_e4m3fn, with a scale for each row.

    Returns
    -------
    compressed : Compressed24
        With packed metadata.
    scales : cupy.ndarray of float32, shape (m,), or None
        ``compressed * scales[:, None]`` is the pruned activation.

    Raises
    ------
    UnsupportedError
        If `row` is another type, or `x` no matrix.
    """
    xp = _arrays.cupy_module()
    _check.one_of(activation, ACTIVATIONS, argument="activation")
    if row.name not in ("float16", "bfloat16") or x.ndim != 2:
        raise UnsupportedError(
            "x must be a float16 or bfloat16 matrix (tokens, features), got "
            f"{row.name} of shape {x.shape}; apply the activation first, then sparse24.compress"
        )
    m, k = x.shape
    result = TABLE["float8_e4m3fn"] if quantise else row
    width = _spec.values_per_row(k)
    values = _arrays.empty_rows(xp, (m, width), np.uint8 if quantise else x.dtype)
    packed = xp.empty(_spec.packed_shape(m, k), np.uint8)
    scales = xp.empty(m, np.float32) if quantise else None
    if x.size:
        x = _by_row(xp, x)
        source = (x, x.strides[0], compress.NULL, 0)
        if activation == "silu":
            gate = _by_row(xp, gate)
            source = (x, x.strides[0], gate, gate.strides[0])
        output = (values, values.strides[0], packed)
        (_quantise if quantise else _keep)(row, activation, source, output, scales, m, k)
    elif scales is not None:
        scales.fill(1)  # as of rows of zeros
    return Compressed24(values, None, packed, (m, k), result), scales


def _keep(row, activation, source, output, _, m, k):
    kernel = loader.function(NAME, "activate_rows", defines(row.name, activation))
    kernel((compress.blocks(m, k, 2, False),), (128,), (*source, *output, m, k))


def _quantise(row, activation, source, output, scales, m, k):
    # A warp holds up to 1024 columns in half as many registers.
    pieces = PIECES if k > 1024 else 4
    warps = min(-(-k // (256 * pieces)), MOST_WARPS)
    rows = max(4 // warps, 1)  # of a block
    padded = -(-m // _spec.ATOM_M) * _spec.ATOM_M  # the padding of the metadata is written too
    long_rows = k > 256 * pieces * warps
    macros = defines(row.name, activation, pieces, warps, long_rows)
    kernel = loader.function(NAME, "activate_quantise", macros)
    kernel((-(-padded // rows),), (32 * warps * rows,), (*source, *output, scales, m, k))


def _by_row(xp, x):
    """`x`, or a copy, with contiguous rows on 16-byte boundaries."""
    if compress.row_alignment(x[None], x.itemsize) == 16:
        return x
    fresh = _arrays.empty_rows(xp, x.shape, x.dtype)
    fresh[...] = x
    return fresh


def defines(
    name: str,
    activation: str = "relu2",
    pieces: int = PIECES,
    warps: int = 2,
    long_rows: bool = False,
) -> loader.Defines:
    """The macros of ``activate_compress.cu``."""
    return (
        ("ELEMENT", name),
        ("ACTIVATION", ACTIVATIONS.index(activation)),
        ("GATED", int(activation == "silu")),
        ("PIECES", pieces),
        ("WARPS", warps),
        ("LONG_ROWS", int(long_rows)),
    )


COMPILE_CHECKS = (
    *((defines("bfloat16", name), "sm_90a", None) for name in ACTIVATIONS),
    *((defines("bfloat16", warps=warps), "sm_90a", None) for warps in (1, 8)),
    (defines("bfloat16", warps=8, long_rows=True), "sm_90a", None),
    *((defines("float16"), f"sm_{arch}", None) for arch in ("80", "86", "89", "100a", "120")),
)
