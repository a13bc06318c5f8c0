"""Time the CPU kernels beside NumPy's dense product, SciPy's CSR and a plain copy.

Contenders are checked first, then called in turn.  The figure is the fastest round: on a
machine that others use too, every disturbance makes a round longer.  With one thread it is
the thread's own CPU time, otherwise the time on the wall, which means little on a busy machine:
record that with ``--threads 1``.  With several threads every turn begins with a pause, in which
those of OpenBLAS stop to wait actively for the next product, and a call that is not timed and
wakes the contender's own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import scipy.sparse
from threadpoolctl import threadpool_limits

import sparse24 as s24
from sparse24 import _dtypes, _evidence, _timing, families
from sparse24.kernels import _simd, cpu, reference

DATA = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "data"
ROUNDS = 7

# (m, k, n); 4096 x 4096 are the square matrices of an 8-billion-parameter model
PRODUCTS = [
    *((4096, 4096, n) for n in (1, 2, 4, 8, 16, 32, 64, 256)),
    (1024, 1024, 1024), (2048, 2048, 2048), (768, 3072, 512), (3072, 768, 512),
]  # fmt: skip
OTHER_TYPES = [(4096, 4096, 1), (4096, 4096, 16), (2048, 2048, 2048)]
WEIGHT_ONLY = [(4096, 4096, n) for n in (1, 8, 64)]  # int8 beside float32
QUANTISED = [(4096, 4096, n) for n in (1, 4)]  # 4 bits beside float32, as they are stored
MATRIX = (4096, 4096)
# (m, k, n) and shares of zeros of matrices without a pattern
UNSTRUCTURED = [(2048, 2048, n) for n in (1, 4, 16, 64, 512)] + [
    (4096, 4096, n) for n in (1, 8, 64)
]
ZEROS = (0.5, 0.7, 0.9, 0.95)


def rounds(
    contenders: dict[str, Callable[[], object]], clock, pause: float
) -> dict[str, list[float]]:
    """Microseconds of every round of every contender, each called in turn."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()
    for _ in range(ROUNDS):
        for name, call in contenders.items():
            if pause:
                time.sleep(pause)
                call()
            start = clock()
            call()
            times[name].append(1e6 * (clock() - start))
    return times


def case(name: str, contenders, threads: int, **fields) -> dict:
    """One row of the record; the first contender is ours."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    times = rounds(contenders, clock, 0.0 if threads == 1 else _timing.BLAS_SETTLES)
    ours, *rivals = contenders
    low, _, high = statistics.quantiles(times[ours], n=4)
    row = {
        "name": f"{name}, {threads} thread{'s' * (threads > 1)}",
        "ours_us": round(min(times[ours]), 1),
        "ours_kernel": ours,
        "rivals": {rival: round(min(times[rival]), 1) for rival in rivals},
        "spread": round((high - low) / 2, 1),
        "threads": threads,
        **fields,
    }
    print(json.dumps(row), flush=True)
    return row


def product(m: int, k: int, n: int, name: str, threads: int, stored: str = "") -> dict:
    """A product against NumPy's in the type that NumPy has fast code for, and SciPy's CSR.

    The matrix is of the type `name`, or `stored` if that is given.
    """
    rng = np.random.default_rng(m + n)
    dtype = _dtypes.TABLE[name]
    of_a = _dtypes.TABLE[stored or name].logical
    a = cpu.prune((4 * rng.standard_normal((m, k))).astype(of_a))
    b = (4 * rng.standard_normal((k, n))).astype(dtype.logical)
    values, metadata, _ = cpu.compress(a, "check")
    out = np.empty((m, n), _dtypes.numpy_dtype(dtype.result))
    cpu.matmul(values, metadata, k, b, out)
    want = reference.matmul(a, b)
    error = float(np.abs(out - want).max() / np.abs(want).max())
    assert error < {"float32": 1e-5, "float64": 1e-13, "int8": 1e-30}.get(name, 1e-2)
    wide = np.float64 if name == "float64" else np.float32
    dense, columns = a.astype(wide), b.astype(wide)
    contenders = {
        "cpu_sparse": lambda: cpu.matmul(values, metadata, k, b, out),
        "decompress_blas": lambda: cpu.decompress_matmul(values, metadata, k, b, out),
        f"numpy_{np.dtype(wide).name}": lambda: dense @ columns,
    }
    if name in ("float32", "float64"):
        rows = scipy.sparse.csr_array(dense)
        contenders["scipy_csr"] = lambda: rows @ columns
    moved = values.nbytes + metadata.nbytes + b.nbytes + out.nbytes
    types = f"{stored} by {name}" if stored else name
    return case(
        f"product {m}x{k}x{n} {types}", contenders, threads,
        m=m, k=k, n=n, dtype=types, error=error, bytes=moved,
    )  # fmt: skip


def quantised(m: int, k: int, n: int, bits: int, threads: int) -> dict:
    """The product of a quantised matrix against the dense one."""
    rng = np.random.default_rng(m + n)
    a = s24.random((m, k), rng=rng)
    q, b = s24.quantise(a, bits=bits), rng.standard_normal((k, n), np.float32)
    dense, out = q.toarray(), np.empty((m, n), np.float32)
    before = q.nbytes
    s24.matmul(q, b, out)
    assert q.nbytes == before  # nothing was dequantised
    want = dense.astype(np.float64) @ b
    error = float(np.abs(out - want).max() / np.abs(want).max())
    assert error < 1e-5
    contenders = {
        "cpu_bricks": lambda: s24.matmul(q, b, out),
        "cpu_sparse": lambda: s24.matmul(a, b, out),
        "numpy_float32": lambda: np.matmul(dense, b, out=out),
    }
    return case(
        f"product {m}x{k}x{n} int{bits} by float32", contenders, threads,
        m=m, k=k, n=n, dtype=f"int{bits} by float32", error=error,
        bytes=q.nbytes + b.nbytes + out.nbytes,
    )  # fmt: skip


def unstructured(m: int, k: int, n: int, zeros: float, threads: int) -> dict:
    """The product of a hybrid matrix against the dense one and SciPy's CSR."""
    rng = np.random.default_rng(m + n)
    w = families.make("iid", (m, k), zeros=zeros, dtype="float32", rng=rng)
    b, out = rng.standard_normal((k, n), np.float32), np.empty((m, n), np.float32)
    rows, h = scipy.sparse.csr_array(w), s24.hybrid(w)
    h.matmul(b, out=out)
    want = w.astype(np.float64) @ b
    error = float(np.abs(out - want).max() / np.abs(want).max())
    assert error < 1e-5
    contenders = {
        f"cpu_hybrid_{h.explain(n)['choice']}": lambda: h.matmul(b, out=out),
        "numpy_float32": lambda: np.matmul(w, b, out=out),
        "scipy_csr": lambda: rows @ b,
    }
    return case(
        f"unstructured {m}x{k}x{n} at {zeros:.0%} zeros", contenders, threads,
        m=m, k=k, n=n, dtype="float32", zeros=zeros, error=error,
        bytes=h.nbytes + b.nbytes + out.nbytes,
    )  # fmt: skip


def packing(name: str, threads: int) -> list[dict]:
    """What turns matrices into compressed ones and back, against a copy of the dense matrix."""
    m, k = MATRIX
    rng = np.random.default_rng(m)
    x = (4 * rng.standard_normal(MATRIX)).astype(_dtypes.TABLE[name].logical)
    pruned, target = cpu.prune(x), np.empty_like(x)
    values, metadata, _ = cpu.compress(x)
    assert np.array_equal(cpu.decompress(values, metadata, k), pruned)
    jobs = {
        "prune": lambda: cpu.prune(x),
        "compress": lambda: cpu.compress(x),
        "check": lambda: cpu.compress(pruned, "check"),
        "like": lambda: cpu.like(metadata, x),
        "decompress": lambda: cpu.decompress(values, metadata, k, out=target),
        "transposable_mask": lambda: cpu.transposable_mask(x),
    }
    copy = {"copy": lambda: np.copyto(target, x)}
    return [
        case(
            f"{job} {m}x{k} {name}", {f"cpu_{job}": call} | copy, threads,
            m=m, k=k, n=0, dtype=name, error=0.0, bytes=x.nbytes,
        )
        for job, call in jobs.items()
    ]  # fmt: skip


def suite(threads: int) -> list[dict]:
    rows = [product(*shape, "float32", threads) for shape in PRODUCTS]
    for name in ("float16", "bfloat16", "float64", "int8", "float8_e4m3fn"):
        rows += [product(*shape, name, threads) for shape in OTHER_TYPES]
    rows += [product(*shape, "float32", threads, stored="int8") for shape in WEIGHT_ONLY]
    rows += [quantised(*shape, 4, threads) for shape in QUANTISED]
    rows += [unstructured(*shape, zeros, threads) for shape in UNSTRUCTURED for zeros in ZEROS]
    for name in ("float32", "bfloat16", "int8"):
        rows += packing(name, threads)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DATA, help="folder of cpu.json")
    everything = sorted({1, numba.config.NUMBA_NUM_THREADS})
    parser.add_argument("--threads", type=int, nargs="+", default=everything)
    arguments = parser.parse_args()
    cases = []
    for threads in arguments.threads:
        numba.config.NUMBA_NUM_THREADS = threads
        with threadpool_limits(threads):
            cases += suite(threads)
    header = _evidence.header() | {"vector_bytes": _simd.VECTOR_BYTES}
    _evidence.write_json(arguments.out / "cpu.json", {"header": header, "cases": cases})


if __name__ == "__main__":
    main()
