"""Run every kernel on small, ragged shapes under compute-sanitizer; records ``sanitizer.json``.

    python tests/sanitize.py [--tools memcheck racecheck initcheck synccheck] [--out FOLDER]

Needs a GPU and NVIDIA's compute-sanitizer.  The record says for each tool and part how many
errors were reported in our kernels (null: it did not finish), what was reported in which kernel,
CuPy's own included, and for each kernel the digest of what ran.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

import sparse24 as s24
from sparse24 import _dtypes, _evidence, _storage
from sparse24._grouped import dispatch as grouped_dispatch
from sparse24._hybrid import dispatch as hybrid_dispatch
from sparse24._hybrid import predict as hybrid_predict
from sparse24.kernels import (
    activate_compress,
    block_sums,
    hybrid_scatter,
    hybrid_wgmma_plan,
    loader,
    sample,
    targets,
)

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
DATA = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "data"
PROCESSES = 14
TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "float8_e4m3fn")


def draw(shape, name: str):
    """Whole numbers from -4 to 4 on the GPU, as the library carries the type."""
    import cupy as cp

    row = _dtypes.TABLE[name]
    x = np.random.default_rng(1).integers(-4, 5, shape).astype(row.logical)
    return cp.asarray(x.view(np.uint8) if row.is_float8 else x)


def products(name: str, columns: int) -> None:
    """Every kernel that multiplies this type, plain and through an epilogue.

    bfloat16 in all configurations, others in the first of each kernel; b in both orders.
    """
    import cupy as cp

    m, k = 200, 264
    a = s24.compress(draw((m, k), name), on_excess="prune", dtype=name, keep_dense=True)
    epilogue = s24.Epilogue(bias=cp.ones(columns, _real(name)), activation="gelu")
    by_rows = draw((k, columns), name)
    for b in (draw((columns, k), name).T, by_rows):
        options = {"b_dtype": name if name.startswith("float8") else None}
        known = [c for c in s24.explain(a, b, **options).candidates if c.refusal is None]
        firsts = {c.kernel: c for c in reversed(known)}.values()
        for choice in known if name == "bfloat16" else firsts:
            with _cleared_for(choice):
                s24.matmul(a, b, algorithm=choice.name, **options)
        for choice in firsts:
            with _cleared_for(choice):
                s24.matmul(a, b, algorithm=choice.name, epilogue=epilogue, **options)
    if name == "float32":
        half = s24.compress(draw((m, k), name), pattern=(1, 2), on_excess="prune")
        s24.matmul(half, by_rows, precision="tf32")


def shared_tiles() -> None:
    """Tiles that the blocks of a cluster share along k."""
    a = s24.compress(draw((136, 2056), "bfloat16"), on_excess="prune", dtype="bfloat16")
    for b in (draw((72, 2056), "bfloat16").T, draw((2056, 72), "bfloat16")):
        known = [c for c in s24.explain(a, b).candidates if c.refusal is None]
        for tile in ("64x64x128k2d", "128x64x128k4", "128x128x128k3", "256x128x128k2"):
            choice = next(c for c in known if c.name == f"sparse_wgmma/{tile}")
            with _cleared_for(choice):
                s24.matmul(a, b, algorithm=choice.name)


def pieces_by_warps() -> None:
    """float32 in pieces by instructions of a warp, by every tile."""
    a = s24.compress(draw((200, 264), "float32"), on_excess="prune")
    for b in (draw((144, 264), "float32").T, draw((264, 144), "float32")):
        for choice in s24.explain(a, b).candidates:
            if choice.kernel in ("split_mma", "split_skinny") and choice.refusal is None:
                with _cleared_for(choice):
                    s24.matmul(a, b, algorithm=choice.name)


def experts() -> None:
    """Products of experts by each of their kernels."""
    for kernel in grouped_dispatch.KERNELS:
        with mock.patch.object(grouped_dispatch, "KERNELS", (kernel,)):
            experts_in_one_launch()


def experts_in_one_launch() -> None:
    """As the kernel takes operands, then with copies, biases and gates."""
    import cupy as cp

    offsets = cp.asarray([0, 0, 3, 73, 74])
    for name in TYPES:
        a = s24.compress(draw((4, 200, 272), name), on_excess="prune", dtype=name)
        x = draw((74, 272), name)
        s24.grouped_matmul(a, x.T, offsets=offsets, b_dtype=name)
        cp.cuda.set_allocator(_cleared)
        s24.grouped_matmul(a, cp.ascontiguousarray(x.T), offsets=offsets, b_dtype=name)
        if not name.startswith("float8"):
            s24.grouped_linear(x, a, cp.ones((4, 200), _real(name)), offsets=offsets)
        gate = s24.compress(draw((4, 384, 272), name), on_excess="prune", dtype=name)
        for tokens in (x, draw((1900, 272), name)):  # narrow tiles and wide ones
            t = len(tokens)
            scales = cp.ones(t, _real(name)), cp.ones((4, 384), _real(name))
            s24.grouped_linear(
                tokens, gate, offsets=cp.asarray([0, 0, t - 71, t - 1, t]), activation="silu",
                gated=True, scales=scales, x_dtype=name,
            )  # fmt: skip
        cp.cuda.set_allocator(None)


@contextlib.contextmanager
def _cleared_for(choice):
    """Zeros in new memory where initcheck does not see what is stored, or what is not read.

    A result that is read again may have come by the copy engine: cuBLAS's, before our epilogue, and
    ours, before a copy.  Of an aligned copy of b the last 16 bytes of a row may be its end and
    padding: ``cp.async`` reads as many as it is told to, and counts as having read them all.
    """
    import cupy as cp

    if choice.kernel == "dense" or choice.copies:
        cp.cuda.set_allocator(_cleared)
    yield
    cp.cuda.set_allocator(None)


def _cleared(size: int):
    import cupy as cp

    memory = cp.cuda.MemoryPointer(cp.cuda.Memory(size), 0)
    if size:
        memory.memset(0, size)
    return memory


def _real(name: str):
    return np.float64 if name == "float64" else np.float32


def packing() -> None:
    """Prune, compress, decompress, masks of both kinds, conversions."""
    for name in TYPES:
        x = draw((68, 136), name)
        for transposable in (False, True):
            a = s24.compress(
                x, on_excess="prune", dtype=name, transposable=transposable, check="deferred"
            )
            _storage.decompress(_storage.with_packed(a._operand.rows))
            assert a.metadata is not None
            s24.compress(x, like=a, dtype=name)
        if not name.startswith("float8"):
            a = s24.compress(x, pattern=(1, 4), on_excess="prune")
            a @ draw((136, 8), name)
            s24.mask(x, pattern=(2, 8))
    sample.launch(draw((70, 304), "float16"), _dtypes.TABLE["float16"], 7)
    activate_compress.launch(draw((70, 304), "bfloat16"), _dtypes.TABLE["bfloat16"], quantise=True)
    s24.compress(draw((64, 64), "float32"), on_excess="prune").astype("float16")


def hybrids() -> None:
    """Each way that a hybrid matrix is built and multiplies."""
    import cupy as cp
    from cupyx.scipy import sparse as cupyx_sparse

    def each_path(
        shape: tuple[int, int], zeros: float, columns: tuple[int, ...], dtype: str = "float16"
    ) -> None:
        w = draw(shape, dtype)
        w[cp.random.default_rng(1).random(w.shape) < zeros] = 0
        h = s24.hybrid(w)
        s24.hybrid(cupyx_sparse.csr_matrix(w.astype("float32")), dtype=dtype).toarray()
        for n in columns:
            b = draw((shape[1], n), dtype)
            out = cp.empty((shape[0], n), dtype)
            for path in hybrid_predict.predictions(h, n):
                hybrid_dispatch.multiply(h, b, out, path)

    each_path((150, 330), 0.8, (2, 24, 100, 300))
    each_path((150, 332), 0.6, (24, 64, 100))  # scatter with 2:4 tiles
    for sharing in block_sums.Sharing:
        with mock.patch.object(block_sums, "sharing", return_value=sharing):
            flat_units()
    each_path((150, 330), 0.8, (5, 28), "float32")
    each_path((150, 330), 0.8, (5, 28), "float64")
    each_path((40, 4500), 0.9, (8,), "float32")  # two panels
    long_rows()
    regrouped = property(lambda work: work.rows == 256)
    few = mock.patch.multiple(
        hybrid_wgmma_plan, multiprocessors=lambda: 4, SHARING={False: 0, True: 0},
        SKIPPING=hybrid_wgmma_plan.SKIPPING[:1],
    )  # fmt: skip
    with mock.patch.object(hybrid_wgmma_plan.Work, "skips", regrouped):
        each_path((300, 700), 0.97, (130, 900))  # 64 rows without elements are passed by
        with few:
            each_path((600, 1024), 0.97, (300,))
    with few:
        each_path((600, 1024), 0.8, (300,))  # tiles that blocks share


def long_rows() -> None:
    """A nearly empty matrix with a row that blocks share."""
    import cupy as cp
    from cupyx.scipy import sparse as cupyx_sparse

    w = cp.zeros((3000, 6000), np.float32)
    w[[5, 70], [3, 4000]] = 2
    w[9] = 1
    for dtype in ("float16", "float32", "float64"):
        h = s24.hybrid(cupyx_sparse.csr_matrix(w), dtype=dtype)
        for n in (1, 8, 64):
            h.matmul(draw((6000, n), dtype), algorithm="csr")


def flat_units() -> None:
    """The scatter kernel with units of 128 columns, which large matrices have."""
    import cupy as cp

    w, dtype = draw((150, 332), "float16"), _dtypes.TABLE["float16"]
    w[cp.random.default_rng(1).random(w.shape) < 0.7] = 0
    for base in (False, True):
        layout = hybrid_scatter.prepare(w.view(np.uint16), dtype, base=base, columns=128)
        for n in (5, 24, 64, 100):
            out = cp.empty((150, n), "float16")
            hybrid_scatter.product(layout, draw((332, n), "float16"), out)


PARTS = {
    "packing": packing,
    "hybrids": hybrids,
    "shared tiles": shared_tiles,
    "pieces by warps": pieces_by_warps,
    "experts": experts,
    **{
        f"{name}, {columns} columns": functools.partial(products, name, columns)
        for name in TYPES
        for columns in (144, 8, 1)
    },
}


# Racecheck orders the accesses of a thread by the barriers at which it arrives itself.  In rings
# whose barriers lie in shared memory a lane arrives for its warp, so there every lane is made to.
EVERY_LANE = {
    "class Pipeline": (
        ("consumer_warps * cluster)", "consumer_warps * cluster * (cluster == 1 ? 32 : 1))"),
        ("if (lane == 0) barrier_arrive(empty_", "barrier_arrive(empty_"),
    ),
    "struct Ring {": (  # of the scatter kernel
        ("barrier_init(empty + 8 * s, kConsumers)", "barrier_init(empty + 8 * s, 32 * kConsumers)"),
        (
            "if (previous_ >= 0 && threadIdx.x % 32 == 0) barrier_arrive(ring_.empty",
            "if (previous_ >= 0) barrier_arrive(ring_.empty",
        ),
    ),
    "class MmaRing {": (
        ("empty(slot).init(kWarps)", "empty(slot).init(kThreads)"),
        ("if (w.lane == 0) empty(slot).arrive();", "empty(slot).arrive();"),
    ),
    "class GroupGate": (
        ("kArrivals = 4;", "kArrivals = 128;"),
        ("if (threadIdx.x % 32 == 0) barrier_arrive(barrier);", "barrier_arrive(barrier);"),
    ),
    "class GatherPipeline": (
        ("empty_ + 8 * s, consumer_warps)", "empty_ + 8 * s, 32 * consumer_warps)"),
        ("if (threadIdx.x % 32 == 0) barrier_arrive(empty_", "barrier_arrive(empty_"),
    ),
}


def _every_lane_arrives(text: str) -> str:
    for ring, edits in EVERY_LANE.items():
        for old, new in edits if ring in text else ():
            if text.count(old) != 1:
                raise ValueError(f"a kernel with {ring} should hold once: {old}")
            text = text.replace(old, new)
    return text


def run_part(name: str, *, every_lane: bool) -> None:
    import cupy as cp

    if every_lane:
        plain = loader.source
        loader.source = lambda stem: _every_lane_arrives(plain(stem))
    cp.cuda.set_allocator(None)  # each array in its own allocation: the tools see its ends
    PARTS[name]()
    cp.cuda.Device().synchronize()
    print("ran", name, flush=True)


@dataclass(frozen=True)
class Outcome:
    """What a tool said of a part."""

    errors: int | None  # None: the part did not finish
    reports: dict[str, int]  # of those that were printed: what and in which kernel, how often


def reports(text: str) -> dict[str, int]:
    """The tool's reports by kind and kernel."""
    access = re.findall(r"^=+ +(\S.*?)(?: of size \d+ bytes)?\n=+ +at ([\w:]+)", text, re.MULTILINE)
    races = re.findall(r"^=+ +\w+: (Race reported) between .* at ([\w:]+)", text, re.MULTILINE)
    return dict(Counter(f"{what} in {kernel}" for what, kernel in (*access, *races)))


def launch(part: str, tool: str | None, log: Path | None) -> Outcome:
    """Run a part in a process of its own, under a tool or not.

    If the part does not finish, the end of what it said is printed.
    """
    command = [sys.executable, __file__, "--run", part]
    if tool == "racecheck":
        command.append("--every-lane")
    if tool is not None:
        options = ["--racecheck-report", "analysis"] if tool == "racecheck" else []
        command = [_program(), "--tool", tool, "--print-limit", "200", *options, *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if log is not None:
        (log / f"{tool}-{part.replace(', ', '-').replace(' ', '-')}.log").write_text(
            done.stdout + done.stderr
        )
    summary = re.search(r"SUMMARY: (\d+) (?:errors?|hazards?)", done.stdout)
    if f"ran {part}" not in done.stdout or (tool is not None and summary is None):
        print(f"{tool}, {part}, did not finish: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        return Outcome(None, reports(done.stdout))
    found = reports(done.stdout)
    foreign = sum(count for what, count in found.items() if " in cupy_" in what)
    return Outcome(int(summary[1]) - foreign if summary else 0, found)


def _program() -> str:
    return shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


def _version() -> str:
    told = subprocess.run([_program(), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"Version (\S+)", told.stdout)
    return found[1] if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--out", type=Path, help="by default the folder of the GPU's records")
    parser.add_argument("--logs", type=Path, help="folder for the tools' own reports")
    parser.add_argument("--run", choices=PARTS, help="only run this part, unwatched")
    parser.add_argument("--every-lane", action="store_true", help="as racecheck needs it")
    arguments = parser.parse_args()
    if arguments.run:
        run_part(arguments.run, every_lane=arguments.every_lane)
        return
    header = _evidence.header()
    out = arguments.out or _evidence.folder(DATA, header.get("gpu"))
    _evidence.refuse_other_gpu(out / "sanitizer.json", header.get("gpu"))
    for folder in (out, arguments.logs):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(lambda part: launch(part, None, None), PARTS))  # compile once
        jobs = {
            (tool, part): pool.submit(launch, part, tool, arguments.logs)
            for tool in arguments.tools
            for part in PARTS
        }
    errors: dict[str, dict[str, int | None]] = {tool: {} for tool in arguments.tools}
    found: dict[str, dict[str, dict[str, int]]] = {tool: {} for tool in arguments.tools}
    for (tool, part), job in jobs.items():
        outcome = job.result()
        errors[tool][part] = outcome.errors
        if outcome.reports:
            found[tool][part] = outcome.reports
            print(tool, part, outcome.errors, outcome.reports)
    record = {
        "header": header,
        "compute-sanitizer": _version(),
        "errors": errors,
        "reports": found,
        "stems": {stem: loader.digest(stem) for stem in targets.stems()},
    }
    _evidence.write_json(out / "sanitizer.json", record)


if __name__ == "__main__":
    main()
