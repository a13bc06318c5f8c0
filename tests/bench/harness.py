"""Timing for the benchmark suites: graphs, interleaved rounds, one row a case.

Every contender becomes a CUDA graph of several calls (rotated over copies of the
weights, so that a memory-bound product cannot live in the L2 cache).  Rounds
visit all contenders in turn; the figure is the median round, the spread half the
distance between the quartiles.
"""

from __future__ import annotations

import functools
import gc
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import cupy as cp
import torch

from sparse24 import _evidence
from sparse24.kernels import loader

DOCS = Path(__file__).resolve().parents[2] / "docs"
DATA = DOCS / "benchmarks" / "data"
ROTATE_BYTES = 256 << 20  # several times the 60 MB L2 of an H200


def copies(bytes_of_one: int, *, most: int = 64) -> int:
    """How many copies of an operand push one another out of the L2 cache."""
    return max(1, min(most, -(-ROTATE_BYTES // max(bytes_of_one, 1))))


class Contender:
    """A sequence of calls, captured once and replayed; `us` is the time of one call.

    Calls of ``library="torch"`` may allocate; those of CuPy must write into
    arrays that exist already.
    """

    def __init__(self, calls: Sequence[Callable[[], object]], *, library: str = "cupy"):
        self.calls = len(calls)
        self._kept = calls  # and with them the operands whose addresses the graph holds
        self.samples: list[float] = []
        self.stream = torch.cuda.Stream()
        external = cp.cuda.Stream.from_external(self.stream)
        torch.cuda.synchronize()
        with external, torch.cuda.stream(self.stream):
            for call in calls:  # compile, load, fill caches
                call()
            self.stream.synchronize()
            if library == "torch":
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=self.stream):
                    for call in calls:
                        call()
                self._replay = self.graph.replay
            else:
                external.begin_capture()
                for call in calls:
                    call()
                self.graph = external.end_capture()
                # Not a closure over this object: that would be a cycle, and not freed at once.
                self._replay = functools.partial(self.graph.launch, external)

    def run(self, repeats: int) -> None:
        """Replay `repeats` times between two events and keep the time of one call in µs."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.stream):
            start.record()
            for _ in range(repeats):
                self._replay()
            stop.record()
        stop.synchronize()
        self.samples.append(1e3 * start.elapsed_time(stop) / repeats / self.calls)

    @property
    def us(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        if len(self.samples) < 3:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / 2


def race(contenders: dict[str, Contender], *, rounds: int = 7, budget_ms: float = 8.0) -> None:
    """Time all contenders in turn, `rounds` times; each turn lasts about `budget_ms`.

    Every other round goes backwards: who comes first meets a chip that has cooled down.
    """
    repeats = {}
    for name, contender in contenders.items():
        contender.run(1)
        contender.run(1)
        one_ms = contender.samples[-1] * contender.calls * 1e-3
        repeats[name] = max(1, min(200, int(budget_ms / max(one_ms, 1e-3))))
        contender.samples.clear()
    for i in range(rounds):
        for name in list(contenders)[:: -1 if i % 2 else 1]:
            contenders[name].run(repeats[name])


def case(
    name: str, *, ours: Contender, kernel: str, rivals: dict[str, Contender], **fields
) -> dict:
    """One row of a suite's record; `fields` are m, k, n, dtype, error, bytes and the like."""
    return {
        "name": name,
        "ours_us": round(ours.us, 3),
        "ours_kernel": kernel,
        "rivals": {key: round(rival.us, 3) for key, rival in rivals.items()},
        "spread": round(ours.spread, 3),
        **fields,
    }


def write_suite(
    suite: str, cases: list[dict], *, stems: Sequence[str], out: Path | None = None
) -> Path:
    """Write or merge ``<suite>.json``: cases of the same name are replaced.

    By default in the folder of the GPU's records; a file of another GPU is refused.  A case keeps
    the digests of its `used` stems if it has that field, else of its kernel, or of all `stems`
    where it names none of them.
    """
    head = _evidence.header()
    path = (out or _evidence.folder(DATA, head.get("gpu"))) / f"{suite}.json"
    _evidence.refuse_other_gpu(path, head.get("gpu"))
    known = json.loads(path.read_text())["cases"] if path.exists() else []
    digests = {stem: loader.digest(stem) for stem in stems}
    fresh = {}
    for row in cases:
        named = [row["ours_kernel"]] if row["ours_kernel"] in digests else stems
        used = {stem: digests[stem] for stem in row.get("used", named)}
        fields = {key: value for key, value in row.items() if key != "used"}
        fresh[row["name"]] = {**fields, "digests": used}
    kept = [row for row in known if row["name"] not in fresh]
    record = {"header": head, "cases": kept + list(fresh.values())}
    _evidence.write_json(path, record)
    return path


def stale_names(suite: str) -> set[str]:
    """The rows in the record of this GPU whose kernels changed after they were timed."""
    sys.path.insert(0, str(DOCS / "_extensions"))
    import recorded

    path = _evidence.folder(DATA, _evidence.header().get("gpu")) / f"{suite}.json"
    rows = json.loads(path.read_text())["cases"] if path.exists() else []
    return {row["name"] for row in rows if recorded.is_stale(row)}


def geometric_mean(ratios: Sequence[float]) -> float:
    return statistics.geometric_mean(ratios)


def free() -> None:
    """Give the memory of arrays that are gone back to the GPU."""
    gc.collect()
    torch.cuda.empty_cache()
    cp.get_default_memory_pool().free_all_blocks()


def to_torch(x: cp.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A torch view of a CuPy array; `dtype` reinterprets bits that DLPack cannot carry."""
    bits = {2: cp.int16, 1: cp.uint8}
    if dtype is None or x.dtype.kind == "f":
        return torch.from_dlpack(x)
    return torch.from_dlpack(x.view(bits[x.dtype.itemsize])).view(dtype)
