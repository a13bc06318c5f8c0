"""Where CuPy is installed, but broken, or cannot make the folder of its kernels."""

from __future__ import annotations

import sys

import pytest
from cli_cases import run

import sparse24 as s24


@pytest.fixture
def without_folder(monkeypatch, tmp_path):
    """CuPy as it is where it cannot make the folder of its kernels, as in many containers."""
    (tmp_path / "cupy.py").write_text("raise PermissionError(13, 'Permission denied', '/.cupy')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)


@pytest.mark.usefixtures("without_folder")
def test_without_a_folder_for_cupy_the_cpu_works_and_info_says_why_there_is_no_gpu(capsys):
    assert "error" in run(capsys, "bench", "--shape", "64,64,4", "--device", "cuda", code=1)
    assert "on the CPU" in run(capsys, "bench", "--shape", "64,64,4")
    shown = run(capsys, "info")
    assert "CuPy cannot be imported ([Errno 13] Permission denied: '/.cupy')" in shown
    assert "name a folder for its kernels by CUPY_CACHE_DIR" in shown


@pytest.mark.usefixtures("without_folder")
@pytest.mark.parametrize(
    "ask",
    [
        lambda: s24.random((4, 8), device="cuda"),
        lambda: s24.random((4, 8)).to_device("cuda:0"),
        lambda: s24.backend("cuda").__enter__(),
        lambda: s24.autotune().__enter__(),
        s24.tuning.path,
    ],
)
def test_who_asks_for_a_gpu_without_a_folder_for_cupy_learns_to_name_one(ask):
    with pytest.raises(s24.DeviceError, match=r"'/\.cupy'.*CUPY_CACHE_DIR"):
        ask()


def test_a_broken_cupy_is_not_said_to_be_missing(capsys, monkeypatch, tmp_path):
    lines = ["try: import _no_such_core", "except ImportError as e: raise ImportError('=') from e"]
    (tmp_path / "cupy.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    why = "CuPy cannot be imported (No module named '_no_such_core'); install it anew, for one"
    assert why in run(capsys, "info")
    assert why in run(capsys, "bench", "--shape", "64,64,4", "--device", "cuda", code=1)
    with pytest.raises(s24.DeviceError) as caught:
        s24.random((4, 8), device="cuda")
    assert why in str(caught.value)
