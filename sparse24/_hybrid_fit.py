"""The cost model of the GPU in use: measured once with `fit`, kept beside the tuning file.

Without a fit the shipped figures of an H200 serve; they rank the paths about right on
other chips, and a fit makes them right.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sparse24 import _evidence, _tuning_cache
from sparse24._hybrid_cost import (
    COLUMN_CLASSES,
    H200_LINES,
    PANEL_LINES,
    Line,
    class_of,
    dense_work,
)
from sparse24._version import __version__

STEMS = (
    "hybrid_stream", "hybrid_scatter", "hybrid_gather", "hybrid_rows", "hybrid_overflow",
    "hybrid_wgmma", "hybrid_panel",
)  # fmt: skip
MANY = (512, 2048)  # columns of the paths for many
SHAPES = ((4096, 4096), (4096, 8192), (8192, 8192))
ZEROS = (0.6, 0.8, 0.95)
FEWER = {"float16": 16, "float32": 4, "float64": 8}  # times fewer non-zeros for the panel path
MOST_PANEL = 1 << 25  # places of a matrix of which the panel path is measured
ROTATE_BYTES = 160 << 20  # copies of a layout that push one another out of the L2 cache
FILLER_BYTES = 64 << 20  # cleared in about the time of a launch by CuPy
SUSTAINED = 0.03  # seconds after which a chip has slowed down as far as it will

_lock = threading.Lock()
_known: dict[int, dict[str, Line]] = {}


def path(device: int) -> Path:
    """The file of a device's fit."""
    return _tuning_cache.path(device).with_name(
        _tuning_cache.path(device).name.replace("tuning-", "hybrid-")
    )


def _key() -> dict:
    from sparse24.kernels import loader

    return {"sparse24": __version__, "kernels": {stem: loader.digest(stem) for stem in STEMS}}


def lines(device: int) -> dict[str, Line]:
    """The figures of a device: its own fit where there is one, else those shipped."""
    with _lock:
        if device not in _known:
            _known[device] = _read(path(device)) or H200_LINES
        return _known[device]


def _read(file: Path) -> dict[str, Line] | None:
    """The fit in a file, or None if it is absent, damaged or of other kernels."""
    try:
        record = json.loads(file.read_text())
        if record["key"] != _key():
            return None
        found = {name: Line(**line) for name, line in record["lines"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.keys() == H200_LINES.keys() else None


def solve(samples: list[tuple[float, float, float]]) -> Line:
    """Least squares for (elements, bytes, seconds); no figure is negative."""
    table = np.array(samples, np.float64)
    basis = np.column_stack([np.full(len(table), 1e6), table[:, 0], table[:, 1]]) * 1e-12
    weight = 1 / table[:, 2:]
    from scipy.optimize import nnls

    found, _ = nnls(basis * weight, np.ones(len(table)))
    return Line(float(found[0]) * 1e-6, float(found[1]) * 1e-12, float(found[2]) * 1e-12)


def fit(device: int | None = None) -> dict[str, Line]:
    """Measure the paths on a GPU and keep the figures for this and later processes.

    Takes a few seconds and waits for the device.

    Parameters
    ----------
    device : int, optional
        Number of the GPU; by default the current one.

    Returns
    -------
    dict of str to Line
    """
    import cupy

    device = cupy.cuda.Device().id if device is None else device
    samples: dict[str, list] = {name: [] for name in H200_LINES}
    with cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True):
        for shape in SHAPES:
            for zeros in ZEROS:
                _sample(cupy, shape, zeros, samples)
    found = {name: solve(rows) if rows else H200_LINES[name] for name, rows in samples.items()}
    record = {"key": _key(), "lines": {name: dataclasses.asdict(x) for name, x in found.items()}}
    _evidence.write_json(path(device), record)
    with _lock:
        _known[device] = found
    _tuning_cache.changed()  # choices that were made by other figures are out of date
    return found


def _sample(cupy, shape, zeros: float, samples: dict[str, list]) -> None:
    from sparse24._dtypes import TABLE
    from sparse24.kernels import (
        hybrid_gather,
        hybrid_gather_plan,
        hybrid_rows,
        hybrid_rows_plan,
        hybrid_scatter,
        hybrid_scatter_plan,
        hybrid_stream,
    )
    from sparse24.kernels.chip import chip

    dtype = TABLE["float16"]
    rng = cupy.random.default_rng(7)
    drawn = rng.standard_normal(shape, dtype=cupy.float32)
    dense = cupy.where(rng.random(shape, dtype=cupy.float32) >= zeros, drawn, 0)
    dense = dense.astype(cupy.float16)
    bits = dense.view(np.uint16)
    stream = hybrid_stream.prepare(dense, dtype, 1 - zeros)
    gather, here = hybrid_gather.prepare(bits, dtype, cupy), chip()
    rows = hybrid_rows.prepare(bits, dtype, cupy)
    layouts: dict[str, Any] = {
        "stream": stream,
        "gather": gather,
        "rows": rows,
        "cublas": dense,
    }
    efforts: dict[str, Callable[[int], tuple[float, float]]] = {
        "stream": lambda n: (dense.size, stream.nbytes),
        "gather": lambda n: hybrid_gather_plan.effort(gather.units, shape[1], n, here),
        "rows": lambda n: hybrid_rows_plan.effort(rows.plan, dtype, here.multiprocessors),
        "cublas": lambda n: (dense.size, dense.nbytes),
    }
    if here.has_wgmma:
        for name in ("scatter", "base"):
            layouts[name] = made = hybrid_scatter.prepare(bits, dtype, base=name == "base")
            efforts[name] = functools.partial(
                hybrid_scatter_plan.effort, made.units, sms=here.multiprocessors
            )
    products: dict[str, Callable[..., Any]] = {
        "stream": hybrid_stream.product,
        "scatter": hybrid_scatter.product,
        "base": hybrid_scatter.product,
        "gather": hybrid_gather.product,
        "rows": hybrid_rows.product,
        "cublas": lambda dense, b, out: cupy.matmul(dense, b, out=out),
    }
    for name, layout in layouts.items():
        copies = min(7, ROTATE_BYTES // max(layout.nbytes, 1))
        turns = [layout, *(layout.copy() for _ in range(copies))]
        for n in COLUMN_CLASSES[name]:
            b = rng.standard_normal((shape[1], n), dtype=cupy.float32).astype(cupy.float16)
            out = cupy.empty((shape[0], n), cupy.float16)
            call = functools.partial(products[name], b=b, out=out)
            calls = [functools.partial(call, turn) for turn in turns]
            seconds = _time(cupy, calls, captured=name != "cublas")
            samples[f"{name}/{n}"].append((*efforts[name](n), seconds))
    _sample_many(cupy, dense, 1 - zeros, rng, samples)
    if drawn.size <= MOST_PANEL:
        for name in FEWER:
            _sample_panel(cupy, drawn, zeros, name, rng, samples)


def _sample_many(cupy, dense, density: float, rng, samples: dict[str, list]) -> None:
    """The paths for many columns: the dense product, 2:4 strips, and what a 2:4 part leaves out."""
    from sparse24._dtypes import TABLE
    from sparse24.kernels import (
        hybrid_evict,
        hybrid_overflow,
        hybrid_regroup,
        hybrid_wgmma,
        hybrid_wgmma_plan,
    )
    from sparse24.kernels.chip import chip

    dtype, (m, k), bits = TABLE["float16"], dense.shape, dense.view(np.uint16)
    few = bits * (rng.random(dense.shape, dtype=cupy.float32) >= 0.99)
    rest = hybrid_overflow.prepare(few, dtype, cupy)
    rewrites = {"slots": hybrid_evict, "regrouped": hybrid_regroup} if chip().has_wgmma else {}
    strips = {
        path: hybrid_wgmma.prepare(bits, dtype, rewrite) for path, rewrite in rewrites.items()
    }
    for n in MANY:
        b = rng.standard_normal((k, n), dtype=cupy.float32).astype(cupy.float16)
        out = cupy.zeros((m, n), cupy.float16)
        call = functools.partial(hybrid_overflow.add, rest, b, out)
        seconds = _time(cupy, [call], captured=True)
        samples["overflow/512"].append((rest.values.size * n, 2 * out.nbytes, seconds))
        call = functools.partial(cupy.matmul, dense, b, out=out)
        seconds = _time(cupy, [call] * 4, captured=False, warm=SUSTAINED)
        work = dense_work(m, k, n, chip().multiprocessors, density)
        samples["dense/512"].append((work, 0, seconds))
        for path, layout in strips.items():
            config = hybrid_wgmma_plan.TABLES[layout.work.rows][0]
            call = functools.partial(hybrid_wgmma.product, layout, b, out, config)
            effort = layout.work.effort(config, n)
            seconds = _time(cupy, [call], captured=True, warm=SUSTAINED)
            samples[f"{path}/512"].append((*effort, seconds))


def _sample_panel(cupy, drawn, zeros: float, name: str, rng, samples: dict[str, list]) -> None:
    """The path of few non-zeros, of elements of one type."""
    from sparse24._dtypes import TABLE
    from sparse24.kernels import hybrid_panel, hybrid_panel_plan
    from sparse24.kernels.chip import chip

    dtype, (m, k), here = TABLE[name], drawn.shape, chip()
    if hybrid_panel.refuses(k, dtype, here.most_shared) is not None:
        return
    held = rng.random(drawn.shape, dtype=cupy.float32) >= 1 - (1 - zeros) / FEWER[name]
    dense = cupy.where(held, drawn, 0).astype(dtype.logical)
    layout = hybrid_panel.prepare(dense.view(dtype.storage), dtype, cupy)
    line = PANEL_LINES[dtype.itemsize]
    for n in (*COLUMN_CLASSES[line], MANY[-1]):
        b = rng.standard_normal((k, n), dtype=cupy.float32).astype(dtype.logical)
        out = cupy.empty((m, n), dtype.logical)
        call = functools.partial(hybrid_panel.product, layout, b, out)
        seconds = _time(cupy, [call], captured=True)
        effort = hybrid_panel_plan.effort(layout.units, k, n, here, dtype.itemsize)
        samples[class_of(line, n)].append((*effort, seconds))


def _time(cupy, calls, *, captured: bool, rounds: int = 5, warm: float = 0.0) -> float:
    """Median seconds of a call, the calls as one graph where they can be captured.

    CuPy does not capture cuBLAS; those calls are queued behind other work, so that the GPU does
    not wait for their launches.  The calls have gone on for `warm` seconds before.
    """
    stream = cupy.cuda.get_current_stream()
    filler = cupy.empty(0 if captured else FILLER_BYTES, np.uint8)

    def run() -> None:
        for call in calls * 4:
            call()

    run()
    launch = run
    if captured:
        stream.begin_capture()
        run()
        graph = stream.end_capture()
        launch = functools.partial(graph.launch, stream)
    begin = time.perf_counter()
    while True:
        launch()
        stream.synchronize()
        if time.perf_counter() - begin >= warm:
            break
    times = []
    for _ in range(rounds):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        if not captured:
            for _ in calls * 4:
                filler.data.memset_async(0, filler.nbytes, stream)
        start.record(stream)
        launch()
        stop.record(stream)
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop) * 1e-3 / (4 * len(calls)))
    return float(np.median(times))
