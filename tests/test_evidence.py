"""No kernel is newer than its last recorded GPU run, unless it is listed with a reason."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import conftest
import pytest

from sparse24 import _arrays, _evidence
from sparse24._errors import FormatError

ROOT = Path(__file__).resolve().parents[1]


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


def test_kernels_are_read_alike_in_every_locale():
    """Also where files are not UTF-8 unless they are said to be, as in some of Windows."""
    script = "from sparse24.kernels import loader\n" + (
        f"print(*map(loader.digest, {recorded.STEMS!r}))"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True, text=True, env=os.environ | ascii_only,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [recorded.loader.digest(stem) for stem in recorded.STEMS]


@pytest.mark.parametrize(
    ("fields", "stale"),
    [
        ({"ours_kernel": "sparse_wgmma/128x256x64"}, False),
        ({"ours_kernel": "sparse_wgmma/128x256x64", "untuned_kernel": "sparse_mma/64x32"}, True),
        ({"ours_kernel": "sparse_mma/64x32x256"}, True),
        ({"ours_kernel": "tuned"}, True),
        ({}, True),
    ],
)
def test_a_case_is_of_the_kernels_that_it_ran(fields, stale):
    digests = {"sparse_wgmma": recorded.loader.digest("sparse_wgmma"), "sparse_mma": "old"}
    assert recorded.is_stale(fields | {"digests": digests}) == stale
    assert recorded.is_stale(fields | {"digests": digests | {"sparse_wgmma": "old"}})


@pytest.mark.parametrize(
    ("name", "dtype", "stale"),
    [
        ("int8 8192x8192x8192, b by row, result by row", "int8", {"transpose"}),
        ("int8 8192x8192x8192, b by column, result by row", "int8", set()),
        ("bfloat16 8192x8192x8192, b by row, result by row", "bfloat16", set()),
        ("float32 4096x4096x64", "float32", {"sparse_matvec", "sparse_split"}),
    ],
)
def test_a_case_is_not_of_kernels_that_cannot_run_in_it(name, dtype, stale):
    for stem in ("transpose", "sparse_matvec", "sparse_split"):
        case = {"name": name, "dtype": dtype, "ours_kernel": "planned", "digests": {stem: "old"}}
        assert recorded.is_stale(case) == (stem in stale)


def test_only_kernels_that_exist_are_listed():
    assert set(recorded.unverified()) <= set(recorded.STEMS)
    for gpu in ("", *recorded.others()):
        assert set(recorded.gpu_tests(gpu)) <= set(recorded.STEMS)


def test_the_figures_in_the_readme_are_those_recorded():
    pages = load(ROOT / "docs" / "update_readme.py")
    text = (ROOT / "README.md").read_text()
    assert pages.updated(text) == text, "run python docs/update_readme.py"


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        (H100, "h100"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA A100-SXM4-80GB", "a100-sxm4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA GH200 480GB", "gh200"),
    ],
)  # fmt: skip
def test_every_other_gpu_has_a_folder_of_its_name(gpu, name, tmp_path):
    assert _evidence.folder(tmp_path, gpu) == tmp_path / name
    assert _evidence.folder(tmp_path, _evidence.FIRST_GPU) == tmp_path
    assert _evidence.folder(tmp_path, None) == tmp_path


def test_every_record_lies_in_the_folder_of_its_gpu():
    paths = list(recorded.DATA.rglob("*.json"))
    assert len(paths) > 10
    for path in paths:
        record = json.loads(path.read_text())
        assert path.parent == _evidence.folder(recorded.DATA, record["header"].get("gpu")), path
        _evidence.refuse_other_gpu(path, record["header"].get("gpu"))


def write(path: Path, record: dict) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    "record",
    [
        {"header": {"gpu": _evidence.FIRST_GPU}, "stems": {}},
        {"header": {"gpu": H100}, "stems": {"cast": {"gpu": _evidence.FIRST_GPU}}},
    ],
)
def test_results_of_two_gpus_are_not_merged(record, tmp_path, monkeypatch):
    file = tmp_path / "gpu_tests.json"
    write(file, record)
    monkeypatch.setattr(_evidence, "header", lambda: {"gpu": H100, "date": "2026-11-25"})
    words = r"gpu_tests.json holds records of NVIDIA H200, but .*H100.* 'h100'"
    with pytest.raises(FormatError, match=words):
        _evidence.merge_gpu_tests(file, {"cast": {"passed": 1}}, {"cast": []})
    assert json.loads(file.read_text()) == record
    monkeypatch.setattr(_evidence, "header", dict)
    with pytest.raises(FormatError, match="has no GPU"):
        _evidence.merge_gpu_tests(file, {"cast": {"passed": 1}}, {"cast": []})


def test_results_are_merged_into_a_file_of_their_gpu(tmp_path, monkeypatch):
    file = tmp_path / "h100" / "gpu_tests.json"
    monkeypatch.setattr(_evidence, "header", lambda: {"gpu": H100, "date": "2026-11-25"})
    for stem in ("cast", "compress"):
        _evidence.merge_gpu_tests(file, {stem: {"passed": 2}}, {stem: ["test_b.py", "test_a.py"]})
    stems = json.loads(file.read_text())["stems"]
    assert {stem: row["gpu"] for stem, row in stems.items()} == {"cast": H100, "compress": H100}
    assert stems["cast"]["files"] == ["test_a.py", "test_b.py"]


def test_a_run_for_a_file_of_another_gpu_does_not_begin(tmp_path, monkeypatch):
    file = tmp_path / "gpu_tests.json"
    write(file, {"header": {"gpu": _evidence.FIRST_GPU}, "stems": {}})
    monkeypatch.setattr(_arrays, "cuda_available", lambda: True)
    taken = []
    plugins = SimpleNamespace(register=lambda *plugin: taken.append(plugin))
    config = SimpleNamespace(getoption=lambda *_, **__: str(file), pluginmanager=plugins)
    monkeypatch.setattr(_evidence, "header", lambda: {"gpu": H100})
    with pytest.raises(pytest.UsageError, match=r"--record-gpu: .* holds records of NVIDIA H200"):
        conftest.pytest_configure(config)
    assert not taken
    monkeypatch.setattr(_evidence, "header", lambda: {"gpu": _evidence.FIRST_GPU})
    conftest.pytest_configure(config)
    assert len(taken) == 1


def test_a_clean_run_on_any_gpu_verifies_a_kernel(tmp_path, monkeypatch):
    digest = recorded.loader.digest("cast")
    clean = {"digest": digest, "passed": 3, "failed": 0, "skipped": 0, "date": "2026-11-25"}
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    assert "no GPU run" in recorded.complaint("cast")
    write(tmp_path / "gpu_tests.json", {"header": {}, "stems": {"cast": clean | {"digest": "old"}}})
    assert "changed after" in recorded.complaint("cast")
    write(tmp_path / "h100" / "gpu_tests.json", {"header": {}, "stems": {"cast": clean}})
    assert recorded.complaint("cast") is None
    unclean = {"cast": clean | {"failed": 1}}
    write(tmp_path / "h100" / "gpu_tests.json", {"header": {}, "stems": unclean})
    assert "changed after" in recorded.complaint("cast")
    write(tmp_path / "gpu_tests.json", {"header": {}, "stems": {}})
    assert "not clean" in recorded.complaint("cast")


def test_a_run_of_some_files_alone_does_not_verify_a_kernel(tmp_path, monkeypatch):
    files = recorded.files_of_stems()["hybrid_scatter"]
    assert files == {"test_hybrid_scatter.py", "test_hybrid_scatter_products.py"}
    clean = {"digest": recorded.loader.digest("hybrid_scatter"), "passed": 3, "failed": 0}
    clean |= {"skipped": 0, "date": "2026-11-29", "files": sorted(files)}
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    file = tmp_path / "gpu_tests.json"
    write(file, {"header": {}, "stems": {"hybrid_scatter": clean}})
    assert recorded.complaint("hybrid_scatter") is None
    clean["files"].remove("test_hybrid_scatter_products.py")
    write(file, {"header": {}, "stems": {"hybrid_scatter": clean}})
    assert "left out test_hybrid_scatter_products.py" in recorded.complaint("hybrid_scatter")


def case(name: str, us: float, rival: float) -> dict:
    shape = {"m": 4096, "k": 4096, "n": 1, "dtype": "bfloat16"}
    return shape | {"name": name, "ours_us": us, "ours_kernel": "x", "rivals": {"cublas": rival}}


def test_the_readme_compares_another_gpu_where_it_has_all_cases(tmp_path, monkeypatch):
    pages = load(ROOT / "docs" / "update_readme.py")
    monkeypatch.setattr(pages.recorded, "DATA", tmp_path)
    monkeypatch.setattr(pages.recorded, "UNVERIFIED", tmp_path / "UNVERIFIED.md")
    here, there = ({"gpu": gpu, "date": date} for gpu, date in (("H200", "1"), (H100, "2")))
    cases = [case("bfloat16 a", 1.0, 2.0), case("bfloat16 b", 1.0, 8.0)]
    write(tmp_path / "few_tokens.json", {"header": here, "cases": cases})
    first = "| 1 to 32 tokens, bfloat16 | cuBLAS, dense | **4x** | 2 – 8 | 2 |"
    assert first in pages.figures().splitlines()
    other = [case("bfloat16 a", 1.0, 3.0)]
    write(tmp_path / "h100" / "few_tokens.json", {"header": there, "cases": other})
    assert first in pages.figures().splitlines(), "no column for a part of the cases"
    assert H100 not in pages.figures()
    other.append(case("bfloat16 b", 2.0, 24.0))
    write(tmp_path / "h100" / "few_tokens.json", {"header": there, "cases": other})
    write(tmp_path / "gemm.json", {"header": here, "cases": [case("TF32", 1.0, 2.0)]})
    text = pages.figures()
    assert f"{first} 6x |" in text.splitlines()
    assert "| cases | H100 |" in text
    assert "| float32 at 1:2 in TF32 | cuBLAS, dense | **2x** | 2 – 2 | 1 | – |" in text
    assert text.endswith(f"Machines: H200, 1; {H100}, 2.")


def test_the_readme_shows_what_another_gpu_alone_has_recorded(tmp_path, monkeypatch):
    pages = load(ROOT / "docs" / "update_readme.py")
    monkeypatch.setattr(pages.recorded, "DATA", tmp_path)
    monkeypatch.setattr(pages.recorded, "UNVERIFIED", tmp_path / "UNVERIFIED.md")
    header = {"gpu": H100, "date": "2"}
    experts = [case(f"bfloat16 {us}", us, 8.0) | {"n": 8} for us in (1.0, 4.0)]
    write(tmp_path / "h100" / "grouped.json", {"header": header, "cases": experts})
    row = "| mixture of experts, 8 and 64 tokens, bfloat16 | the best rival | – | – | – |"
    assert f"{row} **4x** (2 – 8, 2 cases) |" in pages.figures().splitlines()
    assert "4 times as fast as the best of torch and" in pages.headlines.in_short()
    assert "64 tokens, on an H100." in pages.headlines.in_short()


def test_the_front_page_shows_what_is_recorded(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    load(ROOT / "docs" / "update_readme.py")  # whose folder of extensions has the others
    page = load(ROOT / "docs" / "_extensions" / "glance.py")
    monkeypatch.setattr(page.recorded, "DATA", tmp_path)
    monkeypatch.setattr(page.recorded, "UNVERIFIED", tmp_path / "UNVERIFIED.md")
    page.write(tmp_path)
    assert "No run" in (tmp_path / "glance.txt").read_text()
    header = {"gpu": H100, "date": "2"}
    cases = [case("bfloat16 a", 1.0, 2.0), case("bfloat16 b", 1.0, 8.0)]
    write(tmp_path / "h100" / "few_tokens.json", {"header": header, "cases": cases})
    (bar,) = page.bars()
    assert (bar.title, bar.label) == ("1 to 32 tokens, bfloat16", "4x cuBLAS, H100")
    page.write(tmp_path)
    assert (tmp_path / "glance.png").stat().st_size
