"""Measure the candidates of a product on the spot, and remember the winner."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sparse24 import _arrays, _planner, _quantised, _scales, _storage, _tuning_cache
from sparse24._dtypes import TABLE
from sparse24._records import PLAIN, Compressed24, Fused, Operand24, Problem
from sparse24._views import View
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import pieces
from sparse24.kernels.launch import current_stream
from sparse24.kernels.sparse_split import InPieces

REFERENCE = "sparse_fma"
ROUNDS = 5
CALLS = 5  # one after the other
FLUSH = 3  # times the L2 cache that is read before them
BUSY = 300_000  # nanoseconds that the GPU then waits, until all calls are enqueued
MEASURE_WITHIN = 2.5  # candidates predicted slower than this times the best are not measured
# Relative Frobenius distance to the reference kernel that a candidate may have: a few
# roundings of the result's type.  Integers must agree exactly.
TOLERANCE = {"float64": 1e-13, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
LOOSE = 0.15  # fp8 results


class Block:
    """A ``with`` block of `sparse24.autotune`.

    Once closed it is over in every thread or task that its context was copied to, whichever
    of them has closed it.
    """

    open = True


active: contextvars.ContextVar[tuple[Block, ...]] = contextvars.ContextVar(
    "sparse24_autotune", default=()
)


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """A context in which products are measured; several may be left in any order."""
    block = Block()
    active.set((*active.get(), block))
    try:
        yield
    finally:
        block.open = False
        active.set(tuple(other for other in active.get() if other.open))


def is_on() -> bool:
    """Whether products are measured here."""
    return any(block.open for block in active.get())


def visit(a: Operand24, b, out, epilogue: Fused, problem: Problem, device: int) -> None:
    """Inside `sparse24.autotune`, measure this problem unless it is known.  Synchronises.

    A graph that is captured cannot hold that: there what is predicted runs.
    """
    dense = a.dense is not None
    if not is_on() or _tuning_cache.measured(device, problem, dense=dense):
        return
    if _arrays.is_capturing():
        return
    seconds = measure(a, b, out, epilogue, problem, device)
    if seconds:
        _tuning_cache.record_winner(device, problem, dense=dense, seconds=seconds)


def measure(
    a: Operand24, b, out, epilogue: Fused, problem: Problem, device: int, *,
    most: int = 0, kernels: tuple[str, ...] = (),
) -> dict:  # fmt: skip
    """Seconds of every correct candidate within reach of the best prediction, by name.

    With `most`, of no more configurations of a kernel than that; with `kernels`, of these.
    Of none where the reference kernel refuses.
    """
    assert a.rows is not None  # the caller has looked
    able = _able(problem, device, dense=a.dense is not None)
    ranked = [c for c in able.values() if not kernels or c.kernel in kernels]
    if most:
        ranked = [c for i, c in enumerate(ranked) if _before(ranked[:i], c.kernel) < most]
    reference = _reference(problem, device)
    if not ranked or reference is None:
        return {}
    limit = MEASURE_WITHIN * ranked[0].seconds
    record = _storage.with_packed(a.rows)
    near = [candidate for candidate in ranked if candidate.seconds <= limit]
    refer, *launches = _planner.prepare_all([reference, *near], epilogue)
    wanted, got = _another(out), _another(out)
    refer(_dequantised(record, problem), b, wanted, epilogue)
    runs: dict[str, Sequence[Callable[[], None]]] = {}
    sparse_copies, room = _copies(record, record.values.nbytes, _copied), _shared_room()
    for candidate, run in zip(near, launches):
        operands = sparse_copies
        if candidate.kernel == _planner.DENSE_KERNEL:  # there is one at the most
            operands = _copies(a.dense, a.dense.nbytes, lambda x: x.copy(order="K"))
        got.fill(1)  # a stale result must not pass for a computed one
        run(operands[0], b, got, epilogue)
        if agrees(got, wanted, problem.out_dtype):
            runs[candidate.name] = as_repeated(run, operands, b, got, epilogue, room)
    return time_all(runs)


def _able(problem: Problem, device: int, *, dense: bool) -> dict[str, _planner.Candidate]:
    """Candidates that do not refuse, by name; of one name the first, which is the one that runs."""
    able: dict[str, _planner.Candidate] = {}
    for candidate in _planner.candidates(problem, device, dense=dense):
        if candidate.refusal is None:
            able.setdefault(candidate.name, candidate)
    return able


def _reference(problem: Problem, device: int) -> _planner.Candidate | None:
    """The reference kernel for a problem, of a quantised matrix for what `_dequantised` gives."""
    able = _able(dataclasses.replace(problem, quantised=0), device, dense=False)
    return next((c for c in able.values() if c.kernel == REFERENCE), None)


def _dequantised(record: Compressed24, problem: Problem) -> Compressed24:
    """The matrix as the reference kernel takes it, which reads no integers with factors."""
    if not record.quantised:
        return record
    return _storage.with_packed(_quantised.dequantised(record, TABLE[problem.dtype]))


def _copied(record: Compressed24) -> Compressed24:
    if not record.quantised:
        return _storage.copy(record)
    bricks = record.values.copy()
    return _quantised.with_bricks(bricks, record.shape, record.quantised, record.dtype)


def _shared_room() -> Callable[[int], Any]:
    """Gives scratch memory of that many bytes, all candidates the same: they run one by one."""
    return functools.cache(lambda size: _arrays.cupy_module().empty(size, np.uint8))


def as_repeated(
    run: Any, matrices: Sequence[Any], b, out, epilogue: Fused, room: Callable[[int], Any]
) -> list[Callable[[], None]]:
    """Calls of a candidate as they are made again and again: with matrices that are settled.

    A launcher's own calls do not know that, and those of `InPieces` take more of Python than the
    GPU waits for.  `room` gives the scratch memory of these, on the stream on which they run.
    """
    in_pieces = isinstance(run, InPieces) and run.is_whole
    if not in_pieces and not getattr(run, "reads_early", False):
        return [functools.partial(run, a, b, out, epilogue) for a in matrices]
    stream = current_stream()
    if in_pieces:
        scratch = room(run.scratch_bytes(b))
        made = [dataclasses.replace(pieces.of_sparse(a), settled=True) for a in matrices]
        views = View(b), View(out), stream, scratch.data.ptr
        bound = [run.bind(a, *views).launches for a in made]
    else:
        scratch, made = None, [dataclasses.replace(a, settled=True) for a in matrices]
        bound = [(run.bind(a, b, out, stream),) for a in made]
    if epilogue is not PLAIN:
        last = _epilogue.params(epilogue)
        bound = [(*others, launch.with_last(last)) for *others, launch in bound]
    return [functools.partial(_enqueue, launches, stream, (made, scratch)) for launches in bound]


def _enqueue(launches: Sequence[Any], stream: int, kept: Any) -> None:
    """Launch one after the other; `kept` has memory that they use, which this keeps alive."""
    for launch in launches:
        launch(stream)


def _copies(operand: Any, size: int, copy: Callable[[Any], Any]) -> list:
    """An operand of that many bytes and copies of it: one a call, or as many as L2 cannot hold."""
    import cupy

    enough = -(-FLUSH * cupy.cuda.Device().attributes["L2CacheSize"] // max(size, 1))
    return [operand, *(copy(operand) for _ in range(min(CALLS, enough) - 1))]


def _before(ranked: list, kernel: str) -> int:
    return sum(candidate.kernel == kernel for candidate in ranked)


def _another(out):
    """A CuPy array laid out as `out`, gaps between its lines included: candidates rely on that."""
    xp = _arrays.namespace(out)
    if min(out.strides) < 0:
        return xp.empty_like(out)
    extent = sum((n - 1) * stride for n, stride in zip(out.shape, out.strides))
    memory = xp.empty(extent + out.dtype.itemsize, np.uint8)
    return xp.ndarray(out.shape, out.dtype, memory.data, out.strides)


def agrees(got, wanted, out_dtype: str) -> bool:
    """True if a candidate's result is the reference's, up to rounding."""
    if out_dtype.startswith("float8"):
        from sparse24 import _dtypes

        got, wanted = (
            _arrays.to_numpy(x).view(_dtypes.TABLE[out_dtype].logical) for x in (got, wanted)
        )
    if wanted.dtype.kind in "iu":
        return bool((got == wanted).all())
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    scale = _scales.of(wanted)
    got, wanted = got * scale, wanted * scale
    distance = float(((got - wanted) ** 2).sum()) ** 0.5
    return distance <= TOLERANCE.get(out_dtype, LOOSE) * float((wanted**2).sum()) ** 0.5


@functools.cache
def _waiting():
    """A kernel that ends after that many nanoseconds."""
    import cupy

    return cupy.ElementwiseKernel(
        "int64 ns", "int64 now",
        """
        long long begun;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
        do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begun < ns);
        """,
        "sparse24_wait",
    )  # fmt: skip


def time_all(runs: dict[str, Sequence[Callable[[], None]]]) -> dict[str, float]:
    """Median seconds of one call of each, among others of it, in interleaved rounds.

    Calls follow one another, each with operands of its own, as layers do in a model: some kernels
    start while the one before them ends, and some leave it more room for that.  What more of them
    take than one does is what counts.  Before them something else is read through the L2 cache, as
    other weights are before the same one is needed again.  Written instead, it would go back to
    memory meanwhile, which favours other candidates.  Then the GPU waits until all calls are
    enqueued, so no time of Python is measured.
    """
    import cupy

    cache = cupy.cuda.Device().attributes["L2CacheSize"]
    others = cupy.zeros(FLUSH * max(cache, 4) // 4, np.float32)
    total, woke = cupy.empty((), np.float32), cupy.empty((), np.int64)
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    samples: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in runs}
    for _ in range(ROUNDS):
        for name, calls in runs.items():
            for count, kept in zip((1, CALLS), samples[name]):
                others.sum(out=total)
                _waiting()(BUSY, woke)
                start.record()
                for call in itertools.islice(itertools.cycle(calls), count):
                    call()
                stop.record()
                stop.synchronize()
                kept.append(1e-3 * cupy.cuda.get_elapsed_time(start, stop))
    median = statistics.median
    return {
        name: (median(several) - median(one)) / (CALLS - 1)
        for name, (one, several) in samples.items()
    }
