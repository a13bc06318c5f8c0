"""The recorded runs in ``docs/benchmarks/data``, and what the docs say of them.

The files of one GPU, and of machines without one, lie in the folder itself, those of each other GPU
in a folder of its name.
"""

from __future__ import annotations

import functools
import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparse24.kernels import loader

DATA = Path(__file__).resolve().parents[1] / "benchmarks" / "data"
# One of which runs.
CANDIDATES = (
    "sparse_mma", "sparse_skinny", "sparse_decode", "sparse_quantised", "sparse_matvec",
    "split_skinny", "sparse_fma",
)  # fmt: skip
UNVERIFIED = DATA / "UNVERIFIED.md"
TESTS = Path(__file__).resolve().parents[2] / "tests"
KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "cuda"
STEMS = sorted(path.stem for path in KERNELS.glob("*.cu"))

TITLES = {
    "gemm": "2:4 products, large and middle sizes",
    "few_tokens": "2:4 products with few columns",
    "grouped": "products of mixture-of-experts layers",
    "pack": "pruning, compressing and packing",
    "hybrid": "unstructured matrices in the block-hybrid format",
    "training": "a training step",
    "reduction": "averages of gradients over GPUs",
    "masks": "masks",
    "schedule": "mask updates",
    "overhead": "the time of a call",
    "cpu": "the CPU kernels",
}


def others() -> list[str]:
    """The folders of other GPUs, such as ``h100``."""
    return sorted({path.parent.name for path in DATA.glob("*/*.json")})


def suites(gpu: str = "") -> dict[str, dict[str, Any]]:
    """Records by suite, in the order of `TITLES`, others after them; `gpu` is one of `others`."""
    found = {}
    for path in sorted((DATA / gpu).glob("*.json")):
        record = _read(path, path.stat().st_mtime_ns)
        if "cases" in record:
            found[path.stem] = record
    order = list(TITLES)
    rank = lambda name: order.index(name) if name in order else len(order)  # noqa: E731
    return dict(sorted(found.items(), key=lambda item: rank(item[0])))


@functools.lru_cache(64)
def _read(path: Path, changed: int) -> dict[str, Any]:
    """A record, which nobody changes; read anew once its file has `changed`."""
    return json.loads(path.read_text())


def name_of(gpu: str) -> str:
    """The name of one of `others` as its driver gives it."""
    first = min((DATA / gpu).glob("*.json"))
    return _read(first, first.stat().st_mtime_ns)["header"]["gpu"]


def is_stale(case: dict[str, Any]) -> bool:
    """True if a kernel of the case changed after it was timed."""
    return any(not _is_current(stem, then) for stem, then in _digests(case).items())


def _digests(case: dict[str, Any]) -> dict[str, str]:
    """Those of the kernels that ran, without others that could have, where the case tells which."""
    able = _able(case)
    digests = {stem: then for stem, then in case.get("digests", {}).items() if able(stem)}
    ran = {case.get(field, "").partition("/")[0] for field in ("ours_kernel", "untuned_kernel")}
    if not ran & digests.keys():
        return digests
    return {stem: then for stem, then in digests.items() if stem in ran or stem not in CANDIDATES}


def _able(case: dict[str, Any]) -> Callable[[str], bool]:
    """Whether a kernel may run in a case, as far as its type and its layout tell."""
    dtype, by_rows = case.get("dtype"), "b by row" in case.get("name", "")
    of_float32 = ("sparse_matvec", "split_skinny", "sparse_split", "split_mma")
    needs = dict.fromkeys(of_float32, dtype in (None, "float32")) | {
        "transpose": by_rows and dtype not in ("float16", "bfloat16"),
    }
    return lambda stem: needs.get(stem, True)


def _is_current(stem: str, digest: str) -> bool:
    try:
        return loader.digest(stem) == digest
    except FileNotFoundError:  # the kernel is gone
        return False


def ratios(cases: list[dict[str, Any]], rival: str) -> list[float]:
    """How many times faster than a rival each case is that has it."""
    times = [(case["rivals"].get(rival), case["ours_us"]) for case in cases]
    return [theirs / ours for theirs, ours in times if theirs and ours]


def rivals(cases: list[dict[str, Any]]) -> list[str]:
    """Names of the rivals that some case timed, in the order of their first case."""
    return list(dict.fromkeys(name for case in cases for name in case.get("rivals", {})))


def machine(header: dict[str, Any]) -> str:
    """One line: where and when a suite ran."""
    where = header.get("gpu") or header.get("cpu", "an unnamed machine")
    if not header.get("gpu") and header.get("vector_bytes") == 64:
        where = where.replace("x86_64", "x86_64 with AVX-512")
    packages = header.get("packages", {})
    if header.get("gpu"):
        versions = [f"CuPy {v}" for k, v in packages.items() if k.startswith("cupy")]
    else:
        shown = {"NumPy": "numpy", "Numba": "numba"}
        versions = [f"{name} {packages[key]}" for name, key in shown.items() if key in packages]
    if header.get("driver"):
        major, minor = divmod(header["driver"] // 10, 100)
        versions.insert(0, f"driver for CUDA {major}.{minor}")
    return ", ".join([where, *versions, header.get("date", "")[:10]])


def machines(headers: list[dict[str, Any]]) -> list[str]:
    """One line for each machine, with the first and the last day on which it ran."""
    days: dict[str, set[str]] = {}
    for line in map(machine, headers):
        where, _, day = line.rpartition(", ")
        days.setdefault(where, set()).add(day)
    spans = {where: dict.fromkeys((min(those), max(those))) for where, those in days.items()}
    return [f"{where}, {' to '.join(span)}" for where, span in spans.items()]


def summary(record: dict[str, Any]) -> list[tuple[str, int, float, float, float]]:
    """(rival, cases, least, geometric mean, most) of the speed-ups of a suite."""
    rows = []
    for rival in rivals(record["cases"]):
        found = ratios(record["cases"], rival)
        if found:
            mean = statistics.geometric_mean(found)
            rows.append((rival, len(found), min(found), mean, max(found)))
    return rows


def number(x: float) -> str:
    """Three significant digits."""
    if not x or not math.isfinite(x):
        return str(x)
    return f"{x:.3g}" if abs(x) < 1000 else f"{x:,.0f}"


def unverified() -> dict[str, str]:
    """Stems of UNVERIFIED.md and their reasons; a line is ``- `stem`: reason``."""
    if not UNVERIFIED.exists():
        return {}
    return dict(re.findall(r"^- `(\w+)`: (.+)$", UNVERIFIED.read_text(), re.MULTILINE))


def unverified_lines() -> list[str]:
    """The entries of UNVERIFIED.md."""
    return [f"- `{stem}`: {reason}" for stem, reason in unverified().items()]


def gpu_tests(gpu: str = "") -> dict[str, dict[str, Any]]:
    """The recorded outcome of the GPU tests, by stem; `gpu` is one of `others`."""
    path = DATA / gpu / "gpu_tests.json"
    return json.loads(path.read_text())["stems"] if path.exists() else {}


def complaint(stem: str) -> str | None:
    """What is wrong with the records of a stem; None if that of any GPU is clean and current."""
    found = [gpu_tests(gpu).get(stem) for gpu in ("", *others())]
    problems = [_complaint(stem, record) for record in found if record is not None]
    if not problems:
        return "no GPU run has been recorded yet"
    return None if None in problems else problems[0]


def _complaint(stem: str, record: dict[str, Any]) -> str | None:
    if record["digest"] != loader.digest(stem):
        return f"changed after its run of {record['date'][:10]}"
    if record["passed"] < 1 or record["failed"] or record["skipped"]:
        counts = {name: record[name] for name in ("passed", "failed", "skipped")}
        return f"its last run was not clean: {counts}"
    all_files = files_of_stems()[stem]
    left_out = all_files - set(record.get("files", all_files))
    return f"its last run left out {', '.join(sorted(left_out))}" if left_out else None


@functools.cache
def files_of_stems() -> dict[str, set[str]]:
    """The files whose GPU tests are all of one stem (records before 2026-11-29 name none)."""
    found: dict[str, set[str]] = {stem: set() for stem in STEMS}
    for path in sorted(TESTS.glob("test_*.py")):
        text = path.read_text()
        mark = re.search(r'^pytestmark = .*pytest\.mark\.stem\("(\w+)"\)', text, re.MULTILINE)
        if mark and "pytest.mark.gpu" in text:
            found[mark[1]].add(path.name)
    return found
