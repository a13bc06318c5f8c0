"""No kernel is newer than its last recorded GPU run, unless it is listed with a reason."""

from __future__ import annotations

import importlib.util
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


def test_the_hopper_times_in_the_changelog_are_as_recorded():
    cases = {case["name"]: case for case in recorded.suites()["gemm"]["cases"]}
    case = cases["bfloat16 8192x8192x8192"]
    ours, dense, rival = (
        f"{us / 1e3:.2f} ms" for us in (case["ours_us"], *map(case["rivals"].get, RIVALS))
    )
    words = f"bfloat16 {ours} (cuBLAS dense {dense}, cuSPARSELt {rival})"
    assert words in " ".join((ROOT / "CHANGELOG.md").read_text().split())
