"""What the benchmark suites write."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from sparse24 import _arrays, _evidence
from sparse24._errors import FormatError

HARNESS = Path(__file__).parent / "bench" / "harness.py"


@pytest.fixture
def harness(monkeypatch):
    for library in ("cupy", "torch"):
        pytest.importorskip(library)
    monkeypatch.setattr(_evidence, "header", dict)
    spec = importlib.util.spec_from_file_location("bench_harness", HARNESS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cases_keep_the_digests_of_their_kernels_however_often_they_are_written(harness, tmp_path):
    rows = [
        {"name": "two", "ours_kernel": "slots", "used": ("hybrid_evict", "cast")},
        {"name": "none", "ours_kernel": "cublas", "used": ()},
        {"name": "its own", "ours_kernel": "like"},
        {"name": "unknown", "ours_kernel": "other"},
    ]
    stems = ("cast", "hybrid_evict", "like")
    for count in (2, 4, 4):
        file = harness.write_suite("suite", rows[:count], stems=stems, out=tmp_path)
    cases = {case.pop("name"): case for case in json.loads(file.read_text())["cases"]}
    assert {name: set(case["digests"]) for name, case in cases.items()} == {
        "two": {"hybrid_evict", "cast"}, "none": set(), "its own": {"like"}, "unknown": {*stems},
    }  # fmt: skip
    assert not any("used" in case for case in cases.values())


def test_a_suite_of_another_gpu_has_a_folder_of_its_own(harness, tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "DATA", tmp_path)
    row = {"name": "one", "ours_kernel": "cublas", "used": ()}
    files = {}
    for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        monkeypatch.setattr(_evidence, "header", lambda gpu=gpu: {"gpu": gpu})
        files[gpu] = harness.write_suite("suite", [row], stems=())
        assert json.loads(files[gpu].read_text())["header"] == {"gpu": gpu}
    assert [*files.values()] == [tmp_path / "suite.json", tmp_path / "h100" / "suite.json"]
    with pytest.raises(FormatError, match="holds records of NVIDIA H200, but"):
        harness.write_suite("suite", [row], stems=(), out=tmp_path)
    assert json.loads(files["NVIDIA H200"].read_text())["header"] == {"gpu": "NVIDIA H200"}


ON_CPU = ("cpu", "masks", "schedule")
DRIVERS = sorted(path.stem for path in HARNESS.parent.glob("bench_*.py"))


@pytest.mark.parametrize("driver", [name for name in DRIVERS if name[6:] not in ON_CPU])
def test_a_driver_says_that_it_needs_a_gpu(monkeypatch, tmp_path, driver):
    for library in ("cupy", "torch"):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(HARNESS.parent)
    monkeypatch.setattr(_arrays, "cuda_available", lambda: False)
    file = [str(tmp_path / "times.json")] if driver == "bench_tiles" else []
    monkeypatch.setattr(sys, "argv", [driver, *file])
    with pytest.raises(SystemExit, match=r"^this benchmark runs on a GPU: CuPy finds no CUDA"):
        importlib.import_module(driver).main()
