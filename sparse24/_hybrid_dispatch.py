"""Which path multiplies a hybrid matrix, for how many columns, and why.

Paths: ``cpu`` (Numba), ``stream`` (16-bit, few columns: non-zeros streamed into sparse
tensor-core fragments), ``tiles`` (any dtype, tile by tile) and ``cublas`` (the dense
product on a dense copy that is made at the first need and kept).
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _dtypes, _hybrid_cost
from sparse24._errors import ArgumentError, DeviceError

PATHS = ("cpu", "stream", "tiles", "cublas")


def result_dtype(dtype: _dtypes.DType) -> np.dtype:
    return _dtypes.numpy_dtype(dtype.result)


def same_device(device: str, b) -> None:
    if _arrays.device_of(b) != device:
        raise DeviceError(
            f"b must be on {device}, where the matrix is, got {_arrays.device_of(b)}; "
            "move one of them, for example with H.to_device(...)"
        )


def multiply(h, b, out, algorithm: str = "auto", balance: bool = True) -> None:
    """out = h @ b for matrices (k, n) and (m, n); both may be empty."""
    if not out.size:
        return
    if not b.size:
        out[...] = 0
        return
    path = _choose(h, b.shape[1], algorithm)
    if path == "cpu":
        _multiply_cpu(h, b, out)
    elif path == "stream":
        _multiply_stream(h, b, out, balance)
    elif path == "tiles":
        from sparse24.kernels import hybrid_tiles

        hybrid_tiles.product(h.tiles, b, out, h.tiles.dtype.result)
    else:
        _multiply_cublas(h, b, out)


def _choose(h, n: int, algorithm: str) -> str:
    if algorithm == "auto":
        return explain(h, n)["choice"] if h.device != "cpu" else "cpu"
    possible = predictions(h, n)
    if algorithm not in possible:
        listed = ", ".join(repr(name) for name in ("auto", *possible))
        raise ArgumentError(
            f"algorithm must be one of {listed} for this matrix and n = {n}, got {algorithm!r}"
        )
    return algorithm


def _multiply_cpu(h, b, out) -> None:
    from sparse24.kernels import cpu_hybrid

    accumulator = h.tiles.dtype.accumulator
    wide = np.ascontiguousarray(b.astype(accumulator, copy=False))
    direct = out.dtype == accumulator
    acc = out if direct else np.empty(out.shape, accumulator)
    cpu_hybrid.matmul(h.tiles, wide, acc)
    if not direct:
        with np.errstate(over="ignore"):
            out[...] = acc


def predictions(h, n: int) -> dict[str, float]:
    """Seconds that every possible path is expected to take."""
    if h.device == "cpu":
        return {"cpu": _tile_time(h, n)}
    times = {"tiles": _tile_time(h, n), "cublas": _dense_time(h, n)}
    from sparse24.kernels import hybrid_stream

    if hybrid_stream.refuses(h.tiles.dtype, n) is None:
        times["stream"] = _stream_time(h, n)
    return times


def _stream_time(h, n: int) -> float:
    rates = _hybrid_cost.rates_for(h.tiles.dtype, True)
    stored = h.size * 0.25 + h.nnz * h.dtype.itemsize * 1.15
    return max(stored / rates.bandwidth, h.size * n / rates.two_four)


def _tile_time(h, n: int) -> float:
    rates = _hybrid_cost.rates_for(h.tiles.dtype, h.device != "cpu")
    stored = h.kinds.size and np.bincount(h.kinds.ravel(), minlength=4)
    work = float(np.sum(stored[1:])) * _hybrid_cost.ELEMENTS * n if h.kinds.size else 0.0
    return h.tiles.nbytes / rates.bandwidth + work / rates.bitmap


def _dense_time(h, n: int) -> float:
    rates = _hybrid_cost.rates_for(h.tiles.dtype, True)
    return max(h.size * h.dtype.itemsize / rates.bandwidth, h.size * n / rates.dense)


def explain(h, n: int) -> dict:
    """Predicted seconds by path, the choice, and the reason in words."""
    times = predictions(h, n)
    choice = min(times, key=times.__getitem__)
    others = {name: t for name, t in times.items() if name != choice}
    if not others:
        reason = "the only path on this device"
    else:
        second = min(others, key=others.__getitem__)
        reason = f"predicted {others[second] / max(times[choice], 1e-12):.2f}x faster than {second}"
    return {"n": n, "candidates": times, "choice": choice, "reason": reason}


def _multiply_cublas(h, b, out) -> None:
    dense = h.prepared("dense", h.toarray)
    cupy = _arrays.cupy_module()
    if out.dtype == h.dtype and out.flags.c_contiguous:
        cupy.matmul(dense, b, out=out)
    else:
        out[...] = cupy.matmul(dense.astype(out.dtype, copy=False), b.astype(out.dtype, copy=False))


def _multiply_stream(h, b, out, balance: bool) -> None:
    from sparse24.kernels import hybrid_stream

    def make():
        return hybrid_stream.prepare(h.toarray(), h.tiles.dtype, h.density)

    hybrid_stream.product(h.prepared("stream", make), b, out, balance=balance)


def summary(h, n: int) -> str:
    """A few lines for people; see `HybridArray.summary`."""
    dtype = h.tiles.dtype
    rates = _hybrid_cost.rates_for(dtype, h.device != "cpu")
    low, high = _hybrid_cost.bands(dtype, n, rates)
    density = tile_density(h)
    names = ("empty", "dense", "2:4", "bitmap")
    counts = np.bincount(h.kinds.ravel(), minlength=4)
    kinds = ", ".join(f"{count} {name}" for count, name in zip(counts, names))
    banded = (
        f"{int((density > high).sum())} dense (above {high:.0%} full), "
        f"{int(((density >= low) & (density <= high)).sum())} swing, "
        f"{int((density < low).sum())} sparse (below {low:.0%})"
    )
    dense_bytes = h.size * dtype.itemsize
    csr_bytes = h.nnz * (dtype.itemsize + 4) + 4 * (h.shape[0] + 1)
    plan = explain(h, n)
    return "\n".join(
        [
            repr(h)[1:-1],
            f"tiles   {kinds}",
            f"bands   {banded}, for n = {n} on {rates.name}",
            f"memory  {h.nbytes:,} bytes; dense {dense_bytes:,}; CSR {csr_bytes:,}",
            f"choice  {plan['choice']}: {plan['reason']}",
        ]
    )


def tile_density(h) -> np.ndarray:
    """Share of non-zeros of every tile, shape (tiles down, tiles across)."""
    tiles = h.tiles
    stored = np.diff(_arrays.to_numpy(tiles.starts)).astype(np.float64)
    kinds = _arrays.to_numpy(tiles.kinds)
    counted = np.concatenate([[0], np.cumsum(_arrays.to_numpy(tiles.values) != 0)])
    starts = _arrays.to_numpy(tiles.starts)
    stored = counted[starts[1:]] - counted[starts[:-1]]
    stored = stored + np.where(kinds == 2, np.diff(_arrays.to_numpy(tiles.overflow_starts)), 0)
    return (stored / _hybrid_cost.ELEMENTS).reshape(tiles.grid)
