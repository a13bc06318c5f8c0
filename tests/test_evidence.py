"""No kernel is newer than its last recorded GPU run, unless it is listed with a reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sparse24.kernels import loader

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "benchmarks" / "data"
STEMS = sorted(path.stem for path in (ROOT / "kernels" / "cuda").glob("*.cu"))


def unverified() -> dict[str, str]:
    """Stems of UNVERIFIED.md and their reasons; a line is ``- `stem`: reason``."""
    path = DATA / "UNVERIFIED.md"
    if not path.exists():
        return {}
    return dict(re.findall(r"^- `(\w+)`: (.+)$", path.read_text(), re.MULTILINE))


def recorded() -> dict[str, dict]:
    path = DATA / "gpu_tests.json"
    return json.loads(path.read_text())["stems"] if path.exists() else {}


def complaint(stem: str) -> str | None:
    """What is wrong with a stem's record, or None."""
    record = recorded().get(stem)
    if record is None:
        return "no recorded GPU run"
    if record["digest"] != loader.digest(stem):
        return f"changed after the run of {record['date']}"
    if record["passed"] < 1 or record["failed"] or record["skipped"]:
        counts = {name: record[name] for name in ("passed", "failed", "skipped")}
        return f"its last run was not clean: {counts}"
    return None


@pytest.mark.parametrize("stem", STEMS)
def test_a_kernel_was_run_on_a_gpu_as_it_is(stem):
    problem, reason = complaint(stem), unverified().get(stem)
    if problem is not None:
        assert reason, (
            f"{stem}: {problem}; run its gpu tests with --record-gpu "
            "(see CONTRIBUTING.md), or list it in docs/benchmarks/data/UNVERIFIED.md"
        )
    else:
        assert reason is None, f"{stem} is verified; take it off UNVERIFIED.md"


def test_only_kernels_that_exist_are_listed():
    assert set(unverified()) <= set(STEMS)
    assert set(recorded()) <= set(STEMS)
