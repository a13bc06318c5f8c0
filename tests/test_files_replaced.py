"""Files that other ones replace while they are read, and files that may not be read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import safetensors
from cli_cases import run, saved, small_checkpoint
from shard_cases import HOMES, SHARDS, sharded

import sparse24 as s24
from sparse24 import _convert_checkpoint, _dtypes, _raw_files, _raw_writers

BFLOAT16 = _dtypes.TABLE["bfloat16"].logical
REPLACED = "was replaced or changed while it was read; load it again"


def written(path, number):
    """A file of one array, or of two, that hold this number."""
    arrays = {"a": np.full((4, 8), number, BFLOAT16), "b": np.full((4, 8), number, np.int16)}
    if path.suffix == ".npy":
        arrays = {path.stem: np.full((4, 8), number)}
    _raw_writers.write(path, arrays, None)
    return path


@pytest.fixture(params=_raw_files.SUFFIXES)
def path(request, tmp_path):
    return written(tmp_path / f"a{request.param}", 1)


def test_an_array_of_another_file_is_not_given(path):
    file = _raw_files.open_arrays(path)
    before = file["a"]
    np.testing.assert_array_equal(before.astype(int), 1)
    written(path, 2)  # of the same names, shapes and sizes
    for name in file:
        with pytest.raises(s24.FormatError, match=REPLACED):
            file[name]
    np.testing.assert_array_equal(before.astype(int), 1)
    for array in _raw_files.open_arrays(path).values():
        np.testing.assert_array_equal(array.astype(int), 2)


def test_a_shard_of_another_checkpoint_is_not_given(tmp_path, rng):
    sharded(tmp_path, rng)
    file = _raw_files.open_arrays(tmp_path)
    os.replace(written(tmp_path / "new.safetensors", 2), tmp_path / SHARDS[2])
    for name, shard in HOMES.items():
        if shard == SHARDS[2]:
            with pytest.raises(s24.FormatError, match=f"{shard} {REPLACED}"):
                file[name]
        else:
            assert file[name].shape == file.specs[name][0]


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_is_replaced_while_it_is_opened_is_opened_once_more(
    times, tmp_path, monkeypatch
):
    path, safe_open = written(tmp_path / "a.safetensors", 1), safetensors.safe_open
    left = [2, 3][:times]

    def late(*args, **options):
        if left:
            _raw_writers.write(path, {"a": np.full(40, left.pop(0))}, {"version": 1})
        return safe_open(*args, **options)

    monkeypatch.setattr(safetensors, "safe_open", late)
    if times == 2:
        with pytest.raises(s24.FormatError, match=REPLACED):
            _raw_files.open_arrays(path)
    else:
        file = _raw_files.open_arrays(path)
        np.testing.assert_array_equal(file["a"], np.full(40, 2))
        assert (set(file), file.header) == ({"a"}, {"version": 1})


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
@pytest.mark.parametrize("new", [np.ones((8, 4), np.int16), np.ones((4, 8), np.float16)])
def test_an_array_that_is_written_over_in_place_is_not_given_as_another(suffix, new, tmp_path):
    path = tmp_path / f"a{suffix}"
    _raw_writers.write(path, {"a": np.zeros((4, 8), np.int16)}, None)
    file = _raw_files.open_arrays(path)
    _raw_writers.write(path, {"a": new}, None)
    file._first = None  # as where the clock of the file system is too coarse to tell
    with pytest.raises(s24.FormatError, match="'a' is no longer what it was when the file"):
        file["a"]


def test_a_file_that_may_not_be_read_is_not_missing(path, monkeypatch):
    def refuse(self, *args, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)  # the administrator may read all files
    with pytest.raises(PermissionError, match="Permission denied"):
        _raw_files.open_arrays(path)


def overwrite_late(monkeypatch, path):
    """Let a conversion find other bytes in a file once its arrays are given, but not copied."""
    check = _convert_checkpoint._Job.check

    def late(job):
        check(job)
        half = path.stat().st_size // 2
        with path.open("rb+") as file:  # a program that does not replace the file as a whole
            file.seek(half)
            file.write(bytes(half))

    monkeypatch.setattr(_convert_checkpoint._Job, "check", late)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("options", [(), ("--dense",)])
def test_no_mixture_is_made_of_a_file_that_changes_while_its_arrays_are_written(
    suffix, options, rng, tmp_path, monkeypatch, capsys
):
    source, out = saved(small_checkpoint(rng), tmp_path), tmp_path / f"out{suffix}"
    overwrite_late(monkeypatch, source)
    assert REPLACED in run(capsys, "convert", source, out, *options, code=1)
    assert list(tmp_path.iterdir()) == [source]


def test_no_mixture_is_made_of_shards_that_change_while_others_are_written(
    rng, tmp_path, monkeypatch, capsys
):
    source, out = tmp_path / "in", tmp_path / "out"
    sharded(source, rng)
    overwrite_late(monkeypatch, source / SHARDS[0])
    assert f"{SHARDS[0]} {REPLACED}" in run(capsys, "convert", source, out, code=1)
    assert not out.exists()


def test_no_mixture_is_made_of_a_packed_file_that_changes(rng, tmp_path, monkeypatch, capsys):
    a = s24.random((4, 8), rng=0)
    values, bits = s24.convert.to_bitmask(a)
    packed = {"compressed": values, "bitmask": bits, "shape": np.array([[4], [8]])}
    arrays = {f"layer.{part}": x for part, x in packed.items()}
    source = saved({**small_checkpoint(rng), **arrays}, tmp_path)
    overwrite_late(monkeypatch, source)
    assert REPLACED in run(capsys, "convert", source, tmp_path / "out.npz", code=1)
    assert list(tmp_path.iterdir()) == [source]
