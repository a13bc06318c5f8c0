"""Run every kernel on small, ragged shapes under compute-sanitizer; records ``sanitizer.json``.

    python tests/sanitize.py [--tools memcheck racecheck initcheck synccheck] [--parts PART ...]
        [--out FOLDER]

Needs a GPU and NVIDIA's compute-sanitizer.  The record says for each tool and part how many
errors were reported in our kernels (null: it did not finish), what was reported in which kernel,
CuPy's own included, and for each kernel the digest of what ran.  A run of some tools or parts
replaces these in a record of the same kernels.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sanitize_parts import PARTS

from sparse24 import _evidence
from sparse24.kernels import loader, targets

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
DATA = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "data"
PROCESSES = 14  # on each GPU

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
    "inline unsigned nothing(": (  # zero in lane 0 only, which else gives a stage back alone
        (': "+r"(bits) : "r"(w.lane)', ': "+r"(bits) : "r"(0)'),
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


def gpus() -> list[str]:
    """The GPUs of this machine, as ``CUDA_VISIBLE_DEVICES`` names them."""
    import cupy as cp

    every = map(str, range(cp.cuda.runtime.getDeviceCount()))
    return os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(every)).split(",")


def launch(part: str, tool: str | None, log: Path | None, gpu: str) -> Outcome:
    """Run a part in a process of its own on one GPU, under a tool or not.

    If the part does not finish, some of what it said is printed.
    """
    command = [sys.executable, __file__, "--run", part]
    if tool == "racecheck":
        command.append("--every-lane")
    if tool is not None:
        options = ["--racecheck-report", "analysis"] if tool == "racecheck" else []
        command = [_program(), "--tool", tool, "--print-limit", "200", *options, *command]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if log is not None:
        (log / f"{tool}-{part.replace(', ', '-').replace(' ', '-')}.log").write_text(
            done.stdout + done.stderr
        )
    summary = re.search(r"SUMMARY: (\d+) (?:errors?|hazards?)", done.stdout)
    if f"ran {part}" not in done.stdout or (tool is not None and summary is None):
        print(f"{tool}, {part}, did not finish: {done.stdout[-1000:]}{done.stderr[:2000]}")
        return Outcome(None, reports(done.stdout))
    found = reports(done.stdout)
    foreign = sum(count for what, count in found.items() if " in cupy_" in what)
    return Outcome(int(summary[1]) - foreign if summary else 0, found)


def every_outcome(
    tools: list[str], parts: list[str], logs: Path | None
) -> dict[tuple[str, str], Outcome]:
    """What each tool said of each part; the parts take turns on the GPUs."""
    everywhere = gpus()
    turn = itertools.cycle(everywhere)
    with ThreadPoolExecutor(PROCESSES * len(everywhere)) as pool:
        list(pool.map(lambda part, gpu: launch(part, None, None, gpu), parts, turn))  # compile once
        jobs = {
            (tool, part): pool.submit(launch, part, tool, logs, next(turn))
            for tool in tools
            for part in parts
        }
    return {key: job.result() for key, job in jobs.items()}


def _program() -> str:
    return shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


def _version() -> str:
    told = subprocess.run([_program(), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"Version (\S+)", told.stdout)
    return found[1] if found else ""


def write_record(path: Path, header: dict, outcomes: dict[tuple[str, str], Outcome]) -> None:
    """Beside what a record of the same kernels says of other tools and parts."""
    stems = {stem: loader.digest(stem) for stem in targets.stems()}
    known = json.loads(path.read_text()) if path.exists() else {}
    if known.get("stems") != stems:
        known = {}
    errors, found = known.get("errors", {}), known.get("reports", {})
    for (tool, part), outcome in outcomes.items():
        errors.setdefault(tool, {})[part] = outcome.errors
        found.setdefault(tool, {}).pop(part, None)
        if outcome.reports:
            found[tool][part] = outcome.reports
            print(tool, part, outcome.errors, outcome.reports)
    record = {
        "header": header,
        "compute-sanitizer": _version(),
        "errors": errors,
        "reports": found,
        "stems": stems,
    }
    _evidence.write_json(path, record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--out", type=Path, help="by default the folder of the GPU's records")
    parser.add_argument("--logs", type=Path, help="folder for the tools' own reports")
    parser.add_argument(
        "--run", choices=PARTS, metavar="PART", help="only run this part, unwatched"
    )
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
    outcomes = every_outcome(arguments.tools, arguments.parts, arguments.logs)
    write_record(out / "sanitizer.json", header, outcomes)


if __name__ == "__main__":
    main()
