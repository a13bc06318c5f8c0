"""How long the paths of unstructured matrices take on the GPU in use: samples for `_hybrid.fit`."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24._dtypes import TABLE
from sparse24._hybrid.cost import dense_work
from sparse24._hybrid.few_columns import gather_fits, rows_fit
from sparse24._hybrid.lines import COLUMN_CLASSES, PANEL_LINES, SMALL, class_of
from sparse24.kernels.chip import chip

MANY = (512, 2048)  # columns of the paths for many
FEW_COLUMNS = (8, 16, 32, 64)  # of the dense product of a small matrix
FEWER = {"float16": 16, "float32": 4, "float64": 8}  # times fewer non-zeros for the panel path
FEWEST = 100  # times fewer for the path csr
MOST_PANEL = 1 << 25  # places of a matrix of which the paths of few non-zeros are measured
FROM_MEMORY = 256  # columns up to which products are bound by reading the matrix
LEAST_SECONDS = 1e-6  # of a sample, whatever is taken off
MOST_COPIES = 7  # of a layout, which push one another out of the L2 cache,
ROTATE_BYTES = 160 << 20  # and no more bytes of them
ROUNDS = 5  # of which the median counts
REPEATS = 4  # of the calls of a sample, timed as one
FILLER_BYTES = 64 << 20  # cleared in about the time of a launch by CuPy
SUSTAINED = 0.03  # seconds after which a chip has slowed down as far as it will
FLOAT16 = TABLE["float16"]


@dataclass(frozen=True)
class _Measured:
    """A path for few columns: its layout of a matrix, and what a product costs it."""

    layout: Any
    product: Callable[..., Any]  # of a layout, b and out
    effort: Callable[[int], tuple[float, float]]  # of n columns: elements or the like, and bytes
    takes: Callable[[int], bool] = lambda n: True  # whether the chip has room for n columns


@dataclass(frozen=True)
class _Sample:
    """A product to be timed."""

    line: str  # of `_hybrid.lines`, to which it belongs
    effort: tuple[float, float]  # elements or the like, and bytes
    calls: Sequence[Callable[[], Any]]  # the product, with copies of the matrix that take turns
    captured: bool = True  # as a graph, which cuBLAS is not by CuPy
    warm: float = 0.0  # seconds for which the calls have gone on before
    apart: float = 0.0  # seconds of it that no line counts


def sample(cupy, shape: tuple[int, int], zeros: float, samples: dict[str, list]) -> None:
    """Add what each path takes by matrices of a shape and share of zeros, class by class.

    Of small matrices the paths for few columns are measured, and those of few non-zeros.  A sample
    is (elements, bytes, seconds).
    """
    rng = cupy.random.default_rng(7)
    drawn = rng.standard_normal(shape, dtype=cupy.float32)
    dense = cupy.where(rng.random(shape, dtype=cupy.float32) >= zeros, drawn, 0)
    dense = dense.astype(cupy.float16)
    groups = [_of_few(cupy, dense, 1 - zeros, rng)]
    if drawn.size >= SMALL:
        groups.append(_of_many(cupy, dense, 1 - zeros, rng))
    if drawn.size <= MOST_PANEL:
        groups += [_of_panel(cupy, drawn, zeros, name, rng) for name in FEWER]
        groups += [_of_csr(cupy, drawn, zeros, name, rng) for name in FEWER]
    for group in groups:
        _measure(cupy, list(group), samples)


def _measure(cupy, group: Sequence[_Sample], samples: dict[str, list]) -> None:
    _compile(cupy, group)
    for one in group:
        seconds = _time(cupy, one) - one.apart
        samples[one.line].append((*one.effort, max(seconds, LEAST_SECONDS)))


def _of_few(cupy, dense, density: float, rng) -> Iterator[_Sample]:
    """The paths for few columns, and the dense product; their matrices come from memory."""
    m, k = dense.shape
    for name, path in _paths_of_few(cupy, dense, density).items():
        turns = _turns(path.layout)
        for n in filter(path.takes, FEW_COLUMNS if name == "small" else COLUMN_CLASSES[name]):
            b = rng.standard_normal((k, n), dtype=cupy.float32).astype(cupy.float16)
            out = cupy.empty((m, n), cupy.float16)
            calls = [functools.partial(path.product, turn, b=b, out=out) for turn in turns]
            captured = name not in ("cublas", "small")
            yield _Sample(class_of(name, n), path.effort(n), calls, captured)


def _turns(layout) -> list:
    """A layout and copies of it, which push one another out of the L2 cache."""
    copies = min(MOST_COPIES, ROTATE_BYTES // max(layout.nbytes, 1))
    return [layout, *(layout.copy() for _ in range(copies))]


def _paths_of_few(cupy, dense, density: float) -> dict[str, _Measured]:
    """The paths for few columns by name, and the dense product."""
    from sparse24.kernels import (
        hybrid_gather,
        hybrid_gather_plan,
        hybrid_rows,
        hybrid_rows_plan,
        hybrid_stream,
    )

    here, bits, size, k = chip(), dense.view(np.uint16), dense.size, dense.shape[1]
    stream = hybrid_stream.prepare(dense, FLOAT16, density)
    rows = hybrid_rows.prepare(bits, FLOAT16, cupy)
    of_rows = hybrid_rows_plan.effort(rows.plan, FLOAT16, here.multiprocessors)
    fit = functools.partial(rows_fit, k, FLOAT16, device=here)
    paths = {
        "stream": _Measured(stream, hybrid_stream.product, lambda n: (size, stream.nbytes)),
        "rows": _Measured(rows, hybrid_rows.product, lambda n: of_rows, fit),
    }
    if gather_fits(here):
        gather = hybrid_gather.prepare(bits, FLOAT16, cupy)
        of_gather = functools.partial(hybrid_gather_plan.effort, gather.units, k, chip=here)
        paths["gather"] = _Measured(gather, hybrid_gather.product, of_gather)
    if here.has_wgmma:
        paths |= {name: _scatter(bits, base=name == "base") for name in ("scatter", "base")}
    multiply = lambda dense, b, out: cupy.matmul(dense, b, out=out)  # noqa: E731
    name = "small" if size < SMALL else "cublas"
    return paths | {name: _Measured(dense, multiply, lambda n: (k, dense.nbytes))}


def _scatter(bits, *, base: bool) -> _Measured:
    from sparse24.kernels import hybrid_scatter, hybrid_scatter_plan

    layout = hybrid_scatter.prepare(bits, FLOAT16, base=base)
    effort = functools.partial(hybrid_scatter_plan.effort, layout.units, sms=chip().multiprocessors)
    return _Measured(layout, hybrid_scatter.product, effort)


def _of_many(cupy, dense, density: float, rng) -> Iterator[_Sample]:
    """The paths for many columns: the dense product, 2:4 strips, and what a 2:4 part leaves out."""
    from sparse24.kernels import (
        hybrid_evict,
        hybrid_overflow,
        hybrid_regroup,
        hybrid_wgmma,
    )

    (m, k), bits = dense.shape, dense.view(np.uint16)
    few = bits * (rng.random(dense.shape, dtype=cupy.float32) >= 0.99)
    rest = hybrid_overflow.prepare(few, FLOAT16, cupy)
    for n in MANY:
        b = rng.standard_normal((k, n), dtype=cupy.float32).astype(cupy.float16)
        out = cupy.zeros((m, n), cupy.float16)
        add = functools.partial(hybrid_overflow.add, rest, b, out)
        yield _Sample("overflow/512", (rest.values.size * n, 2 * out.nbytes), [add])
        multiply = functools.partial(cupy.matmul, dense, b, out=out)
        work = dense_work(m, k, n, chip().multiprocessors, density)
        yield _Sample("dense/512", (work, 0), [multiply] * 4, captured=False, warm=SUSTAINED)
    rewrites = {"slots": hybrid_evict, "regrouped": hybrid_regroup} if chip().has_wgmma else {}
    for path, rewrite in rewrites.items():
        strips = hybrid_wgmma.prepare(bits, FLOAT16, rewrite)
        yield from _of_strips(cupy, path, strips, rng)


def _of_strips(cupy, path: str, layout, rng) -> Iterator[_Sample]:
    """A path of 2:4 strips; with few columns the strips come from memory, as `b` does not."""
    from sparse24.kernels import hybrid_wgmma

    (m, k), turns = layout.shape, _turns(layout)
    for n in COLUMN_CLASSES[path]:
        b = rng.standard_normal((k, n), dtype=cupy.float32).astype(cupy.float16)
        out = cupy.zeros((m, n), cupy.float16)
        config = layout.work.choose(n)
        calls = [
            functools.partial(hybrid_wgmma.product, turn, b, out, config)
            for turn in (turns if n <= FROM_MEMORY else turns[:1])
        ]
        effort, exchange = layout.work.effort(config, n), layout.work.exchange(config, n)
        yield _Sample(class_of(path, n), effort, calls, warm=SUSTAINED, apart=exchange)


def _of_panel(cupy, drawn, zeros: float, name: str, rng) -> Iterator[_Sample]:
    """The path of few non-zeros, of elements of one type."""
    from sparse24.kernels import hybrid_panel, hybrid_panel_plan

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
        effort = hybrid_panel_plan.effort(layout.units, k, n, here, dtype.itemsize)
        call = functools.partial(hybrid_panel.product, layout, b, out)
        yield _Sample(class_of(line, n), effort, [call])


def _of_csr(cupy, drawn, zeros: float, name: str, rng) -> Iterator[_Sample]:
    """The path of hardly any non-zeros, of elements of one type."""
    from sparse24.kernels import hybrid_csr, hybrid_csr_plan

    dtype, (m, k) = TABLE[name], drawn.shape
    held = rng.random(drawn.shape, dtype=cupy.float32) >= 1 - (1 - zeros) / FEWEST
    bits = cupy.where(held, drawn, 0).astype(dtype.logical).view(dtype.storage)
    rows = _csr_rows(cupy, bits)
    layout = hybrid_csr.prepare(rows, drawn.shape, dtype)
    for n in COLUMN_CLASSES["csr"]:
        b = rng.standard_normal((k, n), dtype=cupy.float32).astype(dtype.logical)
        out = cupy.empty((m, n), dtype.logical)
        effort = hybrid_csr_plan.effort(drawn.shape, rows.bits.size, n, dtype)
        call = functools.partial(hybrid_csr.product, layout, b, out)
        yield _Sample(class_of("csr", n), effort, [call])


def _csr_rows(cupy, bits):
    from sparse24.kernels.csr import CsrRows

    row, column = cupy.nonzero(bits)
    starts = cupy.searchsorted(row, cupy.arange(bits.shape[0] + 1))
    return CsrRows(starts.astype(np.int64), column.astype(np.int32), bits[row, column])


def _compile(cupy, samples: Sequence[_Sample]) -> None:
    """Run each product once, in threads, which compile kernels side by side."""
    device = cupy.cuda.Device()

    def run(one: _Sample) -> None:
        with device, cupy.cuda.Stream(non_blocking=True) as stream:
            one.calls[0]()
            stream.synchronize()

    cupy.cuda.get_current_stream().synchronize()  # what the operands are made by
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, [one for one in samples if one.captured]))


def _time(cupy, sample: _Sample) -> float:
    """Median seconds of a call, the calls as one graph where they can be captured.

    Those that cannot are queued behind other work, so that the GPU does not wait for their
    launches.
    """
    stream, calls = cupy.cuda.get_current_stream(), [*sample.calls] * REPEATS
    filler = cupy.empty(0 if sample.captured else FILLER_BYTES, np.uint8)

    def run() -> None:
        for call in calls:
            call()

    run()
    launch = run
    if sample.captured:
        stream.begin_capture()
        run()
        graph = stream.end_capture()
        launch = functools.partial(graph.launch, stream)
    begin = time.perf_counter()
    while True:
        launch()
        stream.synchronize()
        if time.perf_counter() - begin >= sample.warm:
            break
    times = []
    for _ in range(ROUNDS):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        if not sample.captured:
            for _ in calls:
                filler.data.memset_async(0, filler.nbytes, stream)
        start.record(stream)
        launch()
        stop.record(stream)
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop) * 1e-3 / len(calls))
    return float(np.median(times))
