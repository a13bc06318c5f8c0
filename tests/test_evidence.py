"""No kernel is newer than its last recorded GPU run, unless it is listed with a reason."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RIVALS = ("cublas", "cusparselt")


def load(path: Path):
    """A module of the docs, which are not installed."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


recorded = load(ROOT / "docs" / "_extensions" / "recorded.py")


@pytest.mark.parametrize("stem", recorded.STEMS)
def test_a_kernel_was_run_on_a_gpu_as_it_is(stem):
    problem, reason = recorded.complaint(stem), recorded.unverified().get(stem)
    if problem is not None:
        assert reason, (
            f"{stem}: {problem}; run its gpu tests with --record-gpu (see CONTRIBUTING.md), or "
            "list it in docs/benchmarks/data/UNVERIFIED.md (python docs/list_unverified.py)"
        )
    else:
        assert reason is None, f"{stem} is verified; run python docs/list_unverified.py"


def test_only_kernels_that_exist_are_listed():
    assert set(recorded.unverified()) <= set(recorded.STEMS)
    assert set(recorded.gpu_tests()) <= set(recorded.STEMS)


def test_the_figures_in_the_readme_are_those_recorded():
    pages = load(ROOT / "docs" / "update_readme.py")
    text = (ROOT / "README.md").read_text()
    assert pages.updated(text) == text, "run python docs/update_readme.py"


def unstructured_rows() -> list[list[str]]:
    """The rows of the changelog's table: zeros, columns, path, time, cuBLAS, cuSPARSE."""
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    return [line.strip(" |").split(" | ") for line in lines if re.match(r"  \| \d+ % \|", line)]


def rounded(us: float) -> str:
    return f"{us:#.3g} µs".replace(". ", " ")


def test_the_table_in_the_changelog_is_as_recorded():
    cases = {case["name"]: case for case in recorded.suites()["hybrid"]["cases"]}
    assert unstructured_rows()
    for zeros, columns, path, *times in unstructured_rows():
        case = cases[f"iid-4096x4096x{columns}-{int(zeros.removesuffix(' %')) / 100:g}"]
        assert path == f"`{case['ours_kernel']}`"
        rivals = (case["rivals"].get(name) for name in ("cublas", "cusparse"))
        found = [case["ours_us"], *rivals]
        assert times == ["–" if us is None else rounded(us) for us in found]


def test_the_hopper_times_in_the_changelog_are_as_recorded():
    cases = {case["name"]: case for case in recorded.suites()["gemm"]["cases"]}
    case = cases["bfloat16 8192x8192x8192"]
    ours, dense, rival = (
        f"{us / 1e3:.2f} ms" for us in (case["ours_us"], *map(case["rivals"].get, RIVALS))
    )
    words = f"bfloat16 {ours} (cuBLAS dense {dense}, cuSPARSELt {rival})"
    assert words in " ".join((ROOT / "CHANGELOG.md").read_text().split())
