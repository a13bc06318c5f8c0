"""``convert --quantise``: what is rounded, what keeps its own integers, and what is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from cli_cases import run, saved
from file_cases import FORMATS
from marlin_cases import packed, quantised, weight
from quantised_cases import assert_same
from shard_cases import INDEX, SHARDS, sharded, write_index

import sparse24 as s24
from sparse24 import _checkpoint, _cli, _raw_files, _raw_writers

NAMES = ("layer.0.weight", "layer.1.weight")
PARTS = ("weight_packed", "scale_packed", "meta")


def marlin(layer, integers, scales, bits):
    """The parts of a matrix by name, as those of marlin-24."""
    parts = packed(integers, scales, bits)
    return {f"{layer}.{part}": x for part, x in zip(PARTS, parts, strict=True)}


@pytest.mark.parametrize("bits", [4, 8])
def test_what_pruning_leaves_is_quantised(bits, suffix, checkpoint, arrays, tmp_path, capsys):
    out, told = tmp_path / f"out.{suffix}", tmp_path / "report.json"
    text = run(capsys, "convert", checkpoint, out, "--quantise", bits, "--report", told)
    loaded = FORMATS[suffix][1](out)
    assert set(loaded) == set(arrays)
    for name, before in arrays.items():
        if name in NAMES:
            pruned = s24.compress(before, on_excess="prune")
            assert loaded[name].dtype == before.dtype
            assert_same(loaded[name], s24.quantise(pruned, bits=bits))
        else:
            np.testing.assert_array_equal(loaded[name], before)
    report = json.loads(told.read_text())
    assert report["bits"] == bits
    for row, name in zip(report["layers"], NAMES, strict=True):
        exact = s24.prune(arrays[name]).astype(np.float64)
        lost = loaded[name].dequantise("float64").toarray() - exact
        want = np.linalg.norm(lost) / np.linalg.norm(exact)
        assert row["rounding_error"] == pytest.approx(want, abs=1e-6)
        assert f"{want:.1%}" in text
        assert 0.7 < row["kept_energy"] < 1
        m, k = arrays[name].shape  # of the file, without the room behind the ends in memory
        assert row["bytes_after"] == m * (k // 2 * bits // 8 + -(-k // 8) + -(-k // 128) * 4)
    assert "rounding error" in text


def test_without_it_nothing_is_said_of_rounding(checkpoint, tmp_path, capsys):
    told = tmp_path / "report.json"
    assert "rounding" not in run(
        capsys, "convert", checkpoint, tmp_path / "o.npz", "--report", told
    )
    report = json.loads(told.read_text())
    assert report["bits"] is None
    assert all("rounding_error" not in row for row in report["layers"])


def test_a_quantised_file_is_inspected_and_made_dense(checkpoint, arrays, tmp_path, capsys):
    four, eight, back = (tmp_path / f"{x}.safetensors" for x in ("four", "eight", "back"))
    run(capsys, "convert", checkpoint, four, "--quantise", 4)
    run(capsys, "convert", checkpoint, eight, "--quantise", 8, "--axis", -2)
    first, *_ = (x for x in run(capsys, "inspect", four).splitlines() if x.startswith(NAMES[0]))
    assert re.search(r"  2:4, 4 bits  +48×36 +float32 +864 B$", first)
    first, *_ = (x for x in run(capsys, "inspect", eight).splitlines() if x.startswith(NAMES[0]))
    assert "2:4, 8 bits, axis -2  48×36" in first
    assert run(capsys, "convert", four, back, "--dense").strip().startswith("2 matrices: ")
    written = _raw_files.open_arrays(back)
    for name, array in s24.load_safetensors(four).items():
        dense = array.toarray() if name in NAMES else array
        assert written[name].dtype == arrays[name].dtype
        np.testing.assert_array_equal(written[name], dense)


def test_the_rounded_elements_are_written_densely_on_request(checkpoint, tmp_path, capsys):
    dense, four, back = (tmp_path / f"{x}.safetensors" for x in ("dense", "four", "back"))
    text = run(capsys, "convert", checkpoint, dense, "--quantise", 4, "--dense")
    assert "rounding error" in text
    assert "2 matrices: 11.8 KiB -> 11.8 KiB" in text
    run(capsys, "convert", checkpoint, four, "--quantise", 4)
    run(capsys, "convert", four, back, "--dense")
    assert dense.read_bytes() == back.read_bytes()


def test_a_damaged_file_is_found_by_inspect(checkpoint, tmp_path, capsys):
    out = tmp_path / "o.safetensors"
    run(capsys, "convert", checkpoint, out, "--quantise", 4)
    place = _raw_files.open_arrays(out)._offsets["layer.0.weight.integers"]
    with out.open("r+b") as target:
        target.seek(place)
        target.write(b"\x55\xaa\x55")
    error = run(capsys, "inspect", out, code=1)
    assert "'layer.0.weight': its integers do not match the checksum" in error


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
def test_every_method_prunes_for_it(method, checkpoint, arrays, tmp_path, capsys, rng):
    plain, out = tmp_path / "plain.npz", tmp_path / "out.npz"
    inputs = {name: rng.standard_normal((90, arrays[name].shape[1])) for name in NAMES}
    np.savez(tmp_path / "inputs.npz", **inputs)
    how = "--method", method, "--calibration", tmp_path / "inputs.npz"
    run(capsys, "convert", checkpoint, plain, *([] if method == "magnitude" else how))
    run(capsys, "convert", checkpoint, out, *how, "--quantise", 8)
    compressed, loaded = s24.load_npz(plain), s24.load_npz(out)
    for name in NAMES:
        known = {"method": "gptq", "calibration": inputs[name]}
        assert_same(loaded[name], s24.quantise(compressed[name], bits=8, **known))


def test_without_pruning_only_what_obeys_is_quantised(arrays, tmp_path, capsys):
    arrays["layer.1.weight"] = s24.prune(arrays["layer.1.weight"])
    out = tmp_path / "out.npz"
    text = run(capsys, "convert", saved(arrays, tmp_path), out, "--no-prune", "--quantise", 4)
    assert "1 eligible matrix left dense" in text
    loaded = s24.load_npz(out)
    assert_same(loaded["layer.1.weight"], s24.quantise(arrays["layer.1.weight"]))
    np.testing.assert_array_equal(loaded["layer.0.weight"], arrays["layer.0.weight"])


def test_what_was_pruned_before_is_rounded_by_inputs(arrays, tmp_path, capsys, rng):
    arrays["layer.1.weight"] = s24.prune(arrays["layer.1.weight"])
    source, out = saved(arrays, tmp_path), tmp_path / "out.npz"
    x = rng.standard_normal((90, arrays["layer.1.weight"].shape[1]))
    how = "--no-prune", "--quantise", 4, "--calibration", tmp_path / "inputs.npz"
    np.savez(tmp_path / "inputs.npz", other=x)
    error = run(capsys, "convert", source, out, *how, code=1)
    assert "layer.1.weight: the calibration has no inputs of this name, but other" in error
    np.savez(tmp_path / "inputs.npz")
    error = run(capsys, "convert", source, out, *how[1:], code=1)
    assert "the calibration has no inputs of this name, but none" in error
    np.savez(tmp_path / "inputs.npz", **{"layer.1.weight": x})  # the other one stays dense
    run(capsys, "convert", source, out, *how)
    want = s24.quantise(arrays["layer.1.weight"], method="gptq", calibration=x)
    assert_same(s24.load_npz(out)["layer.1.weight"], want)


def test_shards_stay_shards(rng, tmp_path, capsys):
    arrays = sharded(tmp_path / "in", rng)
    run(capsys, "convert", tmp_path / "in", tmp_path / "out", "--quantise", 4)
    loaded = s24.load_safetensors(tmp_path / "out")
    assert set(loaded) == set(arrays)
    for name in NAMES:
        assert_same(loaded[name], s24.quantise(s24.prune(arrays[name])))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("bits", "groups"), [(4, 1), (4, 4), (8, 1), (8, 4)])
def test_matrices_of_marlin_keep_their_integers(bits, groups, dtype, arrays, tmp_path, capsys):
    integers, scales = quantised(128, 512, bits, groups, dtype)
    source = saved({**marlin("up", integers, scales, bits), **arrays}, tmp_path)
    out, told = tmp_path / "out.safetensors", tmp_path / "report.json"
    run(capsys, "convert", source, out, "--quantise", bits, "--report", told)
    loaded = s24.load_safetensors(out)
    assert set(loaded) == {"up.weight", *arrays}
    parts = packed(integers, scales, bits)
    assert_same(loaded["up.weight"], s24.convert.from_marlin24(*parts, quantised=True))
    assert_same(loaded[NAMES[0]], s24.quantise(s24.prune(arrays[NAMES[0]]), bits=bits))
    rows = {row["name"]: row for row in json.loads(told.read_text())["layers"]}
    assert (rows["up.weight"]["kept_energy"], rows["up.weight"]["rounding_error"]) == (1, 0)
    assert rows["up.weight"]["bytes_before"] == 128 * 512 * 2
    assert rows[NAMES[0]]["rounding_error"] > 0


def test_matrices_of_marlin_need_no_inputs(arrays, tmp_path, capsys, rng):
    integers, scales = quantised(64, 128, 4, 1)
    source = saved({**marlin("up", integers, scales, 4), **arrays}, tmp_path)
    inputs = {name: rng.standard_normal((90, arrays[name].shape[1])) for name in NAMES}
    np.savez(tmp_path / "inputs.npz", **inputs)
    known = "--method", "sparsegpt", "--calibration", tmp_path / "inputs.npz"
    out = tmp_path / "out.npz"
    error = run(capsys, "convert", source, out, *known, code=1)
    assert "up.weight: the calibration has no inputs of this name" in error
    run(capsys, "convert", source, out, *known, "--quantise", 4)
    np.testing.assert_array_equal(
        s24.load_npz(out)["up.weight"].toarray(), weight(integers, scales)
    )


def test_parts_of_marlin_may_lie_in_several_shards(tmp_path, capsys):
    integers, scales = quantised(64, 256, 8, 2)
    arrays = marlin("up", integers, scales, 8)
    homes = dict(zip(arrays, SHARDS, strict=True))
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name, shard in homes.items():
        _raw_writers.write_safetensors(folder / shard, {name: arrays[name]}, None)
    write_index(folder, weight_map=homes)
    run(capsys, "convert", folder, out, "--quantise", 8)
    q = s24.load_safetensors(out / INDEX)["up.weight"]
    assert_same(q, s24.convert.from_marlin24(*arrays.values(), quantised=True))


def test_matrices_packed_by_masks_are_quantised(tmp_path, capsys):
    a = s24.random((64, 128), dtype="bfloat16", rng=0)
    values, bits = s24.convert.to_bitmask(a)
    parts = {"up.compressed": values, "up.bitmask": bits, "up.shape": np.array([64, 128])}
    out = tmp_path / "out.npz"
    run(capsys, "convert", saved(parts, tmp_path), out, "--no-prune", "--quantise", 8)
    assert_same(s24.load_npz(out)["up.weight"], s24.quantise(a, bits=8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pattern", "4:8"], "--quantise writes 2:4 matrices, got --pattern 4:8; drop one of"),
        (["--stacks", "--exclude", "eighth"], "experts holds int8, and --quantise takes float16, "),
        ([], "eighth holds int8, and --quantise takes float16, .*; leave it out with --include"),
        (["--exclude", "eighth"], "up.weight is quantised to 8 bits already, got --quantise 4; "
         "name --quantise 8, or leave it out with"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_found_before_the_work(
    options, message, arrays, tmp_path, capsys, monkeypatch
):
    arrays["experts"] = np.ones((2, 64, 64), np.int8)
    arrays["eighth"] = np.ones((64, 64), np.int8)
    source = saved({**arrays, **marlin("up", *quantised(64, 128, 8, 1), 8)}, tmp_path)
    monkeypatch.setattr(_checkpoint, "compress_layer", None)
    monkeypatch.setattr(_checkpoint, "kept_layer", None)
    out = tmp_path / "out.npz"
    error = run(capsys, "convert", source, out, "--quantise", 4, *options, code=1)
    assert re.search(message, error)
    assert not out.exists()


def test_what_is_quantised_along_rows_is_not_pruned_along_columns(tmp_path, capsys):
    source = saved(marlin("up", *quantised(64, 128, 8, 1), 8), tmp_path)
    out = tmp_path / "out.npz"
    error = run(capsys, "convert", source, out, "--quantise", 8, "--axis", -2, code=1)
    assert "up.weight is quantised along its rows already, got --axis -2; drop it" in error
    assert not out.exists()


def test_a_matrix_that_cannot_be_rounded_is_named(arrays, tmp_path, capsys):
    arrays["layer.0.weight"][3, 5] = np.inf
    out = tmp_path / "out.npz"
    error = run(capsys, "convert", saved(arrays, tmp_path), out, "--quantise", 4, code=1)
    assert "error: layer.0.weight: A has elements that are infinite, NaN or beyond" in error
    assert not out.exists()


def test_damaged_factors_of_marlin_are_named(tmp_path, capsys):
    integers, scales = quantised(64, 128, 8, 1)
    scales[0, 7] = np.nan
    source, out = saved(marlin("up", integers, scales, 8), tmp_path), tmp_path / "out.npz"
    error = run(capsys, "convert", source, out, "--quantise", 8, code=1)
    assert f"{source}: up: marlin-24: scales[7, 0] is nan, no finite number" in error
    assert not out.exists()


@pytest.mark.parametrize("part", ["integers", "metadata", "scales"])
def test_two_arrays_of_one_stored_name_are_found_before_the_work(
    part, arrays, tmp_path, capsys, monkeypatch
):
    path = saved({**arrays, f"layer.0.weight.{part}": np.ones(3)}, tmp_path)
    monkeypatch.setattr(_checkpoint, "compress_layer", None)
    error = run(capsys, "convert", path, tmp_path / "o.npz", "--quantise", 4, code=1)
    assert f"two arrays would be saved as 'layer.0.weight.{part}'; rename one" in error


def test_a_file_that_is_compressed_already_is_only_made_dense(checkpoint, tmp_path, capsys):
    packed_file, out = tmp_path / "a.npz", tmp_path / "b.npz"
    run(capsys, "convert", checkpoint, packed_file)
    error = run(capsys, "convert", packed_file, out, "--quantise", 4, code=1)
    assert "is compressed already; name the dense file that it was made from" in error
    error = run(capsys, "convert", packed_file, out, "--quantise", 4, "--dense", code=1)
    assert "makes all of it dense again without pruning; drop --quantise" in error


@pytest.mark.parametrize("bits", ["3", "four", "16"])
def test_other_numbers_of_bits_are_no_choice(bits, checkpoint, tmp_path, capsys):
    with pytest.raises(SystemExit):
        _cli.main(["convert", str(checkpoint), str(tmp_path / "o.npz"), "--quantise", bits])
    assert "argument --quantise: invalid" in capsys.readouterr().err
