"""What the conversion of checkpoints refuses, before the work and without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from cli_cases import run, saved
from shard_cases import sharded

import sparse24 as s24
from sparse24 import _checkpoint, _cli, _raw_files


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.npz", None, "No such file"),
        ("empty.safetensors", b"", "cannot be read"),
        ("text.npz", b"hello", "cannot be read"),
        ("text.npy", b"hello", "cannot be read"),
        ("model.bin", b"hello", "must end in .safetensors, .npz, .npy"),
        ("model.pt", b"hello", "pickles, which may run any program, are never read; save its"),
    ],
)
def test_bad_input_is_an_error_and_writes_nothing(name, content, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"precious")
    assert message in run(capsys, "convert", tmp_path / name, out, code=1)
    assert out.read_bytes() == b"precious"
    given = {name} if content is not None else set()
    assert set(os.listdir(tmp_path)) == given | {out.name}


def test_a_truncated_checkpoint_is_an_error(checkpoint, tmp_path, capsys):
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    assert "cannot be read" in run(capsys, "convert", checkpoint, tmp_path / "o.npz", code=1)
    np.savez(tmp_path / "a.npz", b=np.ones(3, np.float32), w=np.ones((64, 64), np.float32))
    error = run(capsys, "convert", tmp_path / "a.npz", tmp_path / "o.npz", "--include", "x", code=1)
    assert "'w' of shape (64, 64): not included" in error
    assert not (tmp_path / "o.npz").exists()


def test_why_nothing_is_eligible_is_said_of_the_largest_matrix(tmp_path, capsys):
    sizes = {"a": (8, 8), "b": (64, 96), "c": (64, 64), "d": (1 << 14,)}
    np.savez(tmp_path / "a.npz", **{name: np.ones(size) for name, size in sizes.items()})
    error = run(capsys, "convert", tmp_path / "a.npz", tmp_path / "o.npz", "--include", "x", code=1)
    assert "'b' of shape (64, 96): not included" in error


def test_nothing_eligible_says_why(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", b=np.ones(3, np.float32))
    error = run(capsys, "convert", tmp_path / "a.npz", tmp_path / "o.npz", code=1)
    assert "no eligible matrix among its 1 array:" in error
    assert "shape (3,): 1 axis, not two" in error
    assert not (tmp_path / "o.npz").exists()


def test_what_the_target_cannot_hold_is_found_before_the_work(tmp_path, capsys, monkeypatch):
    np.savez(tmp_path / "a.npz", w=np.ones((64, 64)), phase=np.ones(3, complex))
    monkeypatch.setattr(_checkpoint, "compress_layer", None)
    message = run(capsys, "convert", tmp_path / "a.npz", tmp_path / "b.safetensors", code=1)
    assert "phase has dtype complex128, which a safetensors file cannot hold" in message


def test_the_source_is_never_the_target(checkpoint, tmp_path, capsys):
    before = checkpoint.read_bytes()
    assert "must not be IN" in run(capsys, "convert", checkpoint, checkpoint, code=1)
    error = run(capsys, "convert", checkpoint, tmp_path / "o.npy", code=1)
    assert "must end in .safetensors or .npz" in error
    assert checkpoint.read_bytes() == before


def test_a_report_replaces_no_other_file_of_the_job(checkpoint, tmp_path, capsys):
    before, out = checkpoint.read_bytes(), tmp_path / "o.npz"
    for report in (checkpoint, out):
        error = run(capsys, "convert", checkpoint, out, "--report", report, code=1)
        assert f"the report must not replace '{report}'" in error
    error = run(capsys, "convert", checkpoint, out, "--report", tmp_path / "none" / "r", code=1)
    assert "a folder that does not exist" in error
    assert checkpoint.read_bytes() == before
    assert os.listdir(tmp_path) == [checkpoint.name]


def test_a_layer_with_unfit_calibration_is_named(checkpoint, tmp_path, capsys, rng):
    inputs = {"layer.0.weight": np.ones((50, 35)), "layer.1.weight": np.ones((50, 64))}
    np.savez(tmp_path / "inputs.npz", **inputs)
    error = run(capsys, "convert", checkpoint, tmp_path / "o.npz", "--method", "wanda",
                "--calibration", tmp_path / "inputs.npz", code=1)  # fmt: skip
    assert "error: layer.0.weight: " in error
    np.savez(tmp_path / "inputs.npz", **{"layer.0": np.ones((50, 36), np.float32)})
    error = run(capsys, "convert", checkpoint, tmp_path / "o.npz", "--method", "wanda",
                "--calibration", tmp_path / "inputs.npz", code=1)  # fmt: skip
    assert "no inputs of this name, but layer.0; name inputs after their weights" in error


def test_inputs_that_are_missing_are_found_before_the_work(
    checkpoint, tmp_path, capsys, monkeypatch
):
    np.savez(tmp_path / "inputs.npz", **{"layer.0.weight": np.ones((50, 36))})
    monkeypatch.setattr(_checkpoint, "compress_layer", None)
    error = run(capsys, "convert", checkpoint, tmp_path / "o.npz", "--method", "wanda",
                "--calibration", tmp_path / "inputs.npz", code=1)  # fmt: skip
    assert "layer.1.weight: the calibration has no inputs of this name" in error


def test_a_name_too_long_for_its_parts_is_found_before_the_work(
    arrays, tmp_path, capsys, monkeypatch
):
    path = saved({"x" * 65525: arrays["layer.0.weight"]}, tmp_path)
    monkeypatch.setattr(_checkpoint, "compress_layer", None)
    error = run(capsys, "convert", path, tmp_path / "o.npz", code=1)
    assert "names in an npz file must have at most 65531 bytes, got 65534" in error
    assert not (tmp_path / "o.npz").exists()


def test_two_arrays_of_one_stored_name_are_found_before_the_work(
    arrays, tmp_path, capsys, monkeypatch
):
    path = saved({**arrays, "layer.0.weight.values": np.ones(3)}, tmp_path)
    monkeypatch.setattr(_checkpoint, "compress_layer", None)
    error = run(capsys, "convert", path, tmp_path / "o.npz", code=1)
    assert "two arrays would be saved as 'layer.0.weight.values'; rename one" in error
    assert not (tmp_path / "o.npz").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
def test_an_interrupted_conversion_keeps_the_old_target(
    error, checkpoint, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "out.npz"
    out.write_bytes(b"precious")

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    code = 130 if error is KeyboardInterrupt else 1
    told = run(capsys, "convert", checkpoint, out, "--quiet", code=code)
    words = "no file is left unfinished" if error is KeyboardInterrupt else "error: disk full"
    assert words in told
    assert out.read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "out.npz"]


STOPPED = """
import os, runpy, signal, sys
import safetensors.numpy
write, number = safetensors.numpy.save_file, getattr(signal, sys.argv.pop(1))
def stop(*arguments, **options):
    write(*arguments, **options)
    os.kill(os.getpid(), number)
safetensors.numpy.save_file = stop
runpy.run_module("sparse24", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("shards", [False, True])
def test_a_conversion_that_is_told_to_end_leaves_no_unfinished_file(
    name, shards, checkpoint, tmp_path, rng
):
    source, out = checkpoint, tmp_path / "out.safetensors"
    if shards:
        source, out = tmp_path / "in", tmp_path / "out"
        sharded(source, rng)
    before = sorted(tmp_path.rglob("*"))
    words = [sys.executable, "-P", "-c", STOPPED, name, "convert", str(source), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + getattr(signal, name), "")
    assert sorted(tmp_path.rglob("*")) == before


LOST = """
import ctypes, runpy, signal, sys, time
from sparse24 import _commands
number = getattr(signal, sys.argv.pop(1))
def info(options):
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(number))()
    ctypes.CFUNCTYPE(None)(lambda: time.sleep(0.5))()  # loses the repetition, too
    time.sleep(20)
    return 0
_commands.info = info
runpy.run_module("sparse24", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_that_comes_while_a_callback_runs_is_not_lost(name, code):
    """LLVM calls back while kernels are loaded, and no exception passes through it."""
    words = [sys.executable, "-P", "-c", LOST, name, "info"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=50)
    said = "interrupted; no file is left unfinished\n" if name == "SIGINT" else ""
    assert (done.returncode, done.stderr) == (code, said)


LOST_ERROR = """
import ctypes, runpy
from sparse24 import _commands
def info(options):
    ctypes.CFUNCTYPE(None)(lambda: 1 / 0)()
    return 0
_commands.info = info
runpy.run_module("sparse24", run_name="__main__", alter_sys=True)
"""


def test_another_error_of_a_callback_is_shown():
    words = [sys.executable, "-P", "-c", LOST_ERROR, "info"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "ZeroDivisionError" in done.stderr


def test_a_signal_that_the_caller_ignores_stays_ignored(checkpoint, tmp_path):
    out = tmp_path / "out.safetensors"
    words = [sys.executable, "-P", "-c", STOPPED, "SIGHUP", "convert", checkpoint, out]
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        subprocess.run(list(map(str, words)), capture_output=True, check=True)
    finally:
        signal.signal(signal.SIGHUP, kept)
    assert len(s24.load_safetensors(out)) == len(_raw_files.open_arrays(checkpoint))


@pytest.mark.parametrize("pattern", ["2", "2:", "a:b", "2/4"])
def test_a_pattern_is_written_with_a_colon(pattern, checkpoint, tmp_path, capsys):
    with pytest.raises(SystemExit):
        _cli.main(["convert", str(checkpoint), str(tmp_path / "o.npz"), "--pattern", pattern])
    assert "must be written N:M" in capsys.readouterr().err


@pytest.mark.parametrize("expression", ["(", f"a{{{10**20}}}", "(" * 5000 + ")" * 5000])
@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_bad_expression_is_named(option, expression, checkpoint, tmp_path, capsys):
    words = ("convert", checkpoint, tmp_path / "o.npz", f"--{option}", expression)
    error = run(capsys, *words, code=1)
    assert f"{option} must be a regular expression, got '{expression[:50]}" in error
    assert len(error) < 300
