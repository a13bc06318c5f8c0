"""Targets that a file must not replace, such as pipes, or cannot: folders and disks that refuse."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_cases import run, saved, small_checkpoint
from file_cases import FORMATS
from shard_cases import INDEX, SHARDS, sharded, write_index

import sparse24 as s24
from sparse24 import _checkpoint, _raw_writers

REFUSED = "is a device, a pipe or a socket, which a file would replace; name a regular file"


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    yield path
    assert stat.S_ISFIFO(path.lstat().st_mode)


def test_a_pipe_is_not_replaced(suffix, pipe, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(s24.ArgumentError, match=REFUSED):
            FORMATS[suffix][0](path, s24.random((4, 8), rng=0))
    assert sorted(os.listdir(tmp_path)) == ["link", pipe.name]


def test_what_a_resolved_path_does_not_show_is_not_replaced(tmp_path):
    reading, writing = os.pipe()
    try:
        with pytest.raises(s24.ArgumentError, match=REFUSED):
            s24.save_npz(f"/dev/fd/{writing}", s24.random((4, 8), rng=0))
    finally:
        os.close(reading)
        os.close(writing)


def test_convert_replaces_no_pipe(pipe, tmp_path, rng, capsys):
    source, out = saved(small_checkpoint(rng), tmp_path), tmp_path / "out.npz"
    link = tmp_path / "link.npz"
    link.symlink_to(pipe)
    assert REFUSED in run(capsys, "convert", source, link, code=1)
    assert REFUSED in run(capsys, "convert", source, out, "--report", pipe, code=1)
    assert not out.exists()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/stderr", "log.txt"])
def test_a_report_does_not_replace_what_was_printed(name, tmp_path, rng):
    source, log = saved(small_checkpoint(rng), tmp_path), tmp_path / "log.txt"
    log.write_text("before\n")
    words = [sys.executable, "-P", "-m", "sparse24", "convert", str(source), "out.npz"]
    words += ["--report", name]
    with log.open("a") as file:
        done = subprocess.run(words, cwd=tmp_path, stdout=file, stderr=file, check=False)
    assert done.returncode == 1
    said = f"error: {name!r} is the file that this process prints to, which another would replace"
    assert log.read_text().startswith(f"before\n{said}")
    assert not (tmp_path / "out.npz").exists()


def test_shards_replace_no_pipe(tmp_path, rng, capsys):
    sharded(tmp_path / "model", rng)
    out = tmp_path / "out"
    out.mkdir()
    os.mkfifo(out / SHARDS[1])
    assert REFUSED in run(capsys, "convert", tmp_path / "model", out, code=1)
    assert os.listdir(out) == [SHARDS[1]]
    assert stat.S_ISFIFO((out / SHARDS[1]).stat().st_mode)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def inputs(rng):
    widths = {"layer.0.weight": 36, "layer.1.weight": 64}
    return {name: rng.standard_normal((50, k)).astype(np.float32) for name, k in widths.items()}


def test_convert_does_not_replace_its_calibration(tmp_path, rng, capsys):
    source, known = saved(small_checkpoint(rng), tmp_path), tmp_path / "inputs.npz"
    np.savez(known, **inputs(rng))
    link = tmp_path / "link.npz"
    link.symlink_to(known)
    before = contents(tmp_path)
    for given, out in ((known, known), (link, known), (known, link)):
        error = run(capsys, "convert", source, out, "--method", "wanda", "--calibration", given,
                    code=1)  # fmt: skip
        assert f"OUT must not replace a file of the calibration, '{given}', got '{out}'" in error
    assert contents(tmp_path) == before


def test_shards_do_not_replace_those_of_a_calibration(tmp_path, rng, capsys):
    source, known = tmp_path / "model", tmp_path / "inputs"
    sharded(source, rng)
    known.mkdir()
    _raw_writers.write_safetensors(known / SHARDS[0], inputs(rng), None)
    write_index(known, weight_map=dict.fromkeys(inputs(rng), SHARDS[0]))
    before = contents(tmp_path)
    options = ("--method", "wanda", "--calibration", known)
    error = run(capsys, "convert", source, known, *options, code=1)
    assert f"OUT must not replace a file of the calibration, '{known / SHARDS[0]}'" in error
    for path in (known / SHARDS[0], known / INDEX):
        error = run(capsys, "convert", source, tmp_path / "o", *options, "--report", path, code=1)
        assert f"the report must not replace '{path}'" in error
    assert contents(tmp_path) == before


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """A folder that this process may not write to; even the administrator, who may all."""
    folder, access = tmp_path / "read only", os.access
    folder.mkdir()
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != folder and access(path, mode)
    )
    return folder


def test_a_folder_without_permission_is_refused_before_the_work(
    read_only, tmp_path, rng, capsys, monkeypatch
):
    sharded(tmp_path / "model", rng)
    source, there = saved(small_checkpoint(rng), tmp_path), read_only / "old.safetensors"
    there.write_bytes(source.read_bytes())
    monkeypatch.setattr(_checkpoint, "compress_layer", None)  # there is no work
    refused = "no permission to write to the folder; name another one: "
    for given in (
        (source, there),
        (source, read_only / "new.npz"),
        (source, tmp_path / "out.npz", "--report", read_only / "report.json"),
        (tmp_path / "model", read_only),
        (tmp_path / "model", read_only / "new"),
    ):
        assert refused + str(given[-1]) in run(capsys, "convert", *given, code=1)
    assert os.listdir(read_only) == [there.name]


def test_a_folder_without_permission_is_named_by_python(suffix, read_only):
    path = read_only / f"a{suffix}"
    with pytest.raises(PermissionError, match="no permission to write to the folder") as error:
        FORMATS[suffix][0](path, s24.random((4, 8), rng=0))
    assert error.value.filename == str(path)


@contextlib.contextmanager
def no_room():
    """No file may grow beyond 4 KiB, as on a disk that is nearly full."""
    resource = pytest.importorskip("resource")  # Windows has none
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_without_room(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    with pytest.raises(OSError, match="too large") as error, no_room():
        FORMATS[suffix][0](path, s24.random((200, 200), rng=0))
    assert error.value.filename == str(path)
    assert not os.listdir(tmp_path)


def test_a_shard_without_room_is_named(tmp_path, rng, capsys):
    sharded(tmp_path / "model", rng)
    with no_room():
        error = run(capsys, "convert", tmp_path / "model", tmp_path / "out", code=1)
    assert error == f"error: File too large: {tmp_path / 'out' / SHARDS[0]}\n"
    assert os.listdir(tmp_path) == ["model"]
