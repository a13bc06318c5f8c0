"""Where compiled CPU kernels are kept, and that none being kept is no error."""

from __future__ import annotations

import errno

import numba
import pytest

from sparse24._errors import UnsupportedError
from sparse24.kernels import _numba, _numba_cache


def double(x):
    return 2 * x


def test_kernels_are_cached_outside_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    assert _numba_cache.cache_folder() == tmp_path / "numba"
    assert _numba.njit(double)(4) == 8
    assert list((tmp_path / "numba").rglob("*double*.nbc"))


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", ["empty", "cut", "zeros", "a wrong call"])
def test_damaged_files_of_the_cache_are_made_anew(tmp_path, monkeypatch, kind, damage):
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    assert _numba.njit(double)(4) == 8
    (file,) = tmp_path.rglob(f"*.{kind}")
    whole = file.read_bytes()
    left = {"empty": b"", "cut": whole[: len(whole) // 2], "zeros": bytes(len(whole))}
    left["a wrong call"] = b"cbuiltins\nlen\n(I1\ntR."  # unpickled by len(1), which raises
    file.write_bytes(left[damage])
    assert _numba.njit(double)(4) == 8
    loaded = _numba.njit(double)
    assert loaded(4) == 8
    assert sum(loaded.stats.cache_hits.values()) == 1


def test_kernels_run_where_a_full_disk_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    kernel = _numba.njit(double)

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_numba_cache.Files, "_save_index", full)
    assert kernel(4) == 8


def test_a_relative_cache_folder_does_not_move(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARSE24_CACHE_DIR", "cache")
    kernel = _numba.njit(double)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert kernel(4) == 8
    assert list((tmp_path / "cache").rglob("*.nbc"))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_an_empty_name_of_the_cache_folder_is_none(monkeypatch):
    monkeypatch.setenv("SPARSE24_CACHE_DIR", "")
    named = _numba_cache.cache_folder()
    monkeypatch.delenv("SPARSE24_CACHE_DIR")
    assert named == _numba_cache.cache_folder()


def test_an_unwritable_cache_folder_is_no_error(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(blocked))
    assert _numba.njit(lambda x: x + 1)(1) == 2


def test_numba_without_its_compiler_is_named(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with pytest.raises(UnsupportedError, match="unset NUMBA_DISABLE_JIT"):
        _numba.njit(double)
