"""The planner's model of the Hopper kernel, fitted to timings."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from sparse24.kernels import sparse_wgmma_plan as plan

SCRIPT = Path(__file__).parent / "bench" / "fit_tiles.py"
SHAPES = [
    (512, 4096, 256), (1024, 8192, 96), (4096, 2048, 64), (384, 16384, 1536), (264, 6144, 520),
    (2048, 2048, 2048), (128, 9216, 72), (4096, 4096, 512), (896, 1024, 896), (8192, 1024, 136),
]  # fmt: skip


@pytest.fixture
def fit_tiles(monkeypatch):
    """The script; the constants that it sets are put back."""
    spec = importlib.util.spec_from_file_location("fit_tiles", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fit_tiles", module)  # dataclasses look it up
    spec.loader.exec_module(module)
    for name in module.FITTED:
        monkeypatch.setattr(plan, name, getattr(plan, name))
    return module


def write(file, fit_tiles) -> None:
    """Timings as the model predicts them."""
    cases = []
    for (m, k, n), order in zip(SHAPES * 2, ["column", "row"] * len(SHAPES), strict=True):
        case = {"m": m, "k": k, "n": n, "dtype": "float16", "b_order": order}
        problem = fit_tiles.problem_of(case)
        us = {c.name: 1e6 * plan.predict(problem, c, plan.CHIP) for c in plan.configs(problem)}
        cases.append({**case, "cublas_us": None, "us": {**us, "no tile of today": 1.0}})
    file.write_text(json.dumps({"header": {}, "cases": cases}))


def test_a_fit_finds_what_a_chip_with_other_rates_takes(fit_tiles, tmp_path, capsys, monkeypatch):
    file = tmp_path / "tiles.json"
    with monkeypatch.context() as other:
        for name, factor in {"LATENCY": 1.3, "INTO_SM": 0.8, "TILE": 2.0, "OF_PART": 0.5}.items():
            other.setattr(plan, name, factor * getattr(plan, name))
        write(file, fit_tiles)
    products = fit_tiles.read([file])
    before = np.abs(fit_tiles.errors(products)).mean()
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(file)])
    fit_tiles.main()
    assert np.abs(fit_tiles.errors(products)).mean() < 0.1 * before
    assert "held back: 5 products" in capsys.readouterr().out


def test_a_case_is_the_problem_that_the_planner_sees(fit_tiles):
    case = {"m": 8, "k": 72, "n": 24, "dtype": "int8", "b_order": "column"}
    problem = fit_tiles.problem_of(case)
    assert (problem.m, problem.k, problem.n) == (8, 72, 24)
    assert (problem.out_dtype, problem.b_in_lines) == ("int32", False)
    rows = fit_tiles.problem_of({**case, "dtype": "float16", "n": 64, "b_order": "row"})
    assert (rows.out_dtype, rows.b_in_lines) == ("float16", True)
