"""The command that converts checkpoints: what it prunes, writes and leaves alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cli_cases import run
from file_cases import FORMATS

import sparse24 as s24
from sparse24 import _checkpoint, _cli, _raw_files, _raw_writers


def test_convert_prunes_what_is_eligible_and_copies_the_rest(
    suffix, checkpoint, arrays, tmp_path, capsys
):
    out = tmp_path / f"out.{suffix}"
    text = run(capsys, "convert", checkpoint, out, "--report", tmp_path / "report.json")
    loaded = FORMATS[suffix][1](out)
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


def test_arrays_that_are_no_numbers_go_with_the_others(arrays, tmp_path, capsys):
    words = np.array(["first", "second"])
    np.savez(tmp_path / "a.npz", words=words, w=arrays["layer.0.weight"])
    assert "str192" in run(capsys, "inspect", tmp_path / "a.npz")
    assert "layer" in run(capsys, "advise", tmp_path / "a.npz")
    run(capsys, "convert", tmp_path / "a.npz", tmp_path / "o.npz", "--quiet")
    loaded = s24.load_npz(tmp_path / "o.npz")
    np.testing.assert_array_equal(loaded["words"], words)
    assert isinstance(loaded["w"], s24.Sparse24Array)
    run(capsys, "inspect", tmp_path / "o.npz")
    out = tmp_path / "o.safetensors"
    assert _cli.main(["convert", str(tmp_path / "a.npz"), str(out)]) == 1
    assert "words has dtype <U6, which a safetensors file cannot hold" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_the_byte_order_of_another_machine_is_read(suffix, arrays, tmp_path, capsys):
    weight, source = arrays["layer.0.weight"], tmp_path / f"w.{suffix}"
    swapped = weight.astype(weight.dtype.newbyteorder(">"))
    if suffix == "npz":
        np.savez(source, w=swapped, b=np.arange(3, dtype=">i8"))
    else:
        np.save(source, swapped)
    assert "dense, eligible" in run(capsys, "inspect", source)
    for out in (tmp_path / "o.npz", tmp_path / "o.safetensors"):
        run(capsys, "convert", source, out, "--quiet")
        loaded = (s24.load_npz if out.suffix == ".npz" else s24.load_safetensors)(out)
        np.testing.assert_array_equal(loaded["w"].toarray(), s24.prune(weight))
        if suffix == "npz":
            np.testing.assert_array_equal(loaded["b"], np.arange(3))
            assert loaded["b"].dtype.isnative


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


@pytest.mark.parametrize("method", ["magnitude", "sparsegpt"])
def test_pruned_matrices_are_written_densely_on_request(
    method, suffix, checkpoint, arrays, tmp_path, capsys, rng
):
    how = ["--method", method]
    if method == "sparsegpt":
        inputs = {x: rng.standard_normal((90, arrays[x].shape[1])) for x in arrays if ".w" in x}
        np.savez(tmp_path / "inputs.npz", **inputs)
        how += ["--calibration", tmp_path / "inputs.npz"]
    plain, again, once = (tmp_path / f"{name}.{suffix}" for name in ("plain", "again", "once"))
    text = run(capsys, "convert", checkpoint, plain, *how, "--dense")
    assert "2 matrices: 11.8 KiB -> 11.8 KiB" in text
    written = _raw_files.open_arrays(plain)
    assert written.specs == _raw_files.open_arrays(checkpoint).specs
    assert "arrays" not in written.header
    run(capsys, "convert", plain, again, "--quiet")
    run(capsys, "convert", checkpoint, once, *how, "--quiet")
    _, load = FORMATS[suffix]
    compressed_later = load(again)
    for name, array in load(once).items():
        later = compressed_later[name]
        assert type(later) is type(array)
        if isinstance(array, s24.Sparse24Array):
            array, later = array.toarray(), later.toarray()
        np.testing.assert_array_equal(written[name], array)
        np.testing.assert_array_equal(later, array)


def test_stacks_of_experts_are_pruned_on_request(arrays, rng, tmp_path, capsys):
    arrays["experts.up"] = rng.standard_normal((3, 36, 40)).astype(np.float32)
    arrays["convolution"] = rng.standard_normal((64, 40, 3)).astype(np.float32)
    arrays["image"] = rng.standard_normal((2, 2, 40, 40)).astype(np.float32)
    source, out = tmp_path / "experts.safetensors", tmp_path / "out.safetensors"
    _raw_writers.write_safetensors(source, arrays, None)
    told = "1 array of three axes left dense; if these are weights (e, m, k) of experts, --stacks "
    assert told in run(capsys, "convert", source, out).splitlines()[-1]
    assert isinstance(s24.load_safetensors(out)["experts.up"], np.ndarray)
    text = run(capsys, "convert", source, out, "--stacks")
    assert "3×36×40" in text
    assert "left dense" not in text
    loaded = s24.load_safetensors(out)
    pruned = s24.prune(arrays["experts.up"])
    np.testing.assert_array_equal(loaded["experts.up"].toarray(), pruned)
    assert all(isinstance(loaded[name], np.ndarray) for name in ("convolution", "image"))
    tokens = rng.standard_normal((5, 40)).astype(np.float32)
    y = s24.grouped_linear(tokens, loaded["experts.up"], offsets=[0, 2, 2, 5])
    np.testing.assert_allclose(y[2:], tokens[2:] @ pruned[2].T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.mlp.down_proj.weight_scale", "layers.0.mlp.down_proj.weight_scale_inv",
        "layers.0.mlp.up_proj.scales", "layers.0.mlp.up_proj.weight_zero_point",
        "layers.0.mlp.experts.gate_up_proj_bias", "layers.0.mlp.router.weight",
        "layers.0.mlp.gate.weight", "layers.0.block_sparse_moe.gate.weight",
        "vocab_projector.weight", "qa_outputs.weight", "score.weight",
        "shared.weight", "emb.weight", "head.weight", "heads.head.weight", "fc.weight",
        "output.weight", "transformer.output_layer.weight", "cls.predictions.decoder.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "backbone.layers.1.mixer.gate.weight", "layers.3.ffn.gate.weight",
        "model.layers.2.feed_forward.gate.weight", "model.layers.0.mlp.gate.wg.weight",
        "pred_layer.proj.weight", "lm_loss.weight", "image_encoder.blocks.7.attn.rel_pos_h",
        "blocks.0.att.time_faaaa", "blocks.0.att.time_decay", "layers.0.mixer.A_log",
        "_orig_mod.output.weight", "module.fc.weight", "module._orig_mod.fc.weight",
        "_orig_mod._fsdp_wrapped_module.output.weight",
    ],
)  # fmt: skip
def test_what_is_beside_weights_is_not_pruned(name, rng):
    assert _checkpoint.Selection().refuses(name, (64, 64), np.dtype("f4")) == "excluded by name"


@pytest.mark.parametrize(
    "name",
    [
        "mlp.gate_proj.weight", "mlp.experts.3.gate.weight", "upscale.0.weight", "w1",
        "encoder.layer.0.output.dense.weight", "layers.0.attention.output.weight",
        "blocks.0.mlp.fc.weight", "mlp.shared_expert.up_proj.weight", "mixer.gate_proj.weight",
        "_orig_mod.layers.0.output.weight", "blocks.0.module.fc.weight",
    ],
)  # fmt: skip
def test_weights_with_names_like_these_are_eligible(name):
    assert _checkpoint.Selection().refuses(name, (64, 64), np.dtype("f4")) is None


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
