"""Converting checkpoints whose weights were pruned elsewhere, or are stored as (k, m)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cli_cases import run, saved, small_checkpoint
from file_cases import FORMATS
from shard_cases import HOMES, SHARDS, sharded

import sparse24 as s24
from sparse24 import _raw_writers


@pytest.fixture
def arrays(rng):
    made = small_checkpoint(rng)
    made["layer.1.weight"] = s24.prune(made["layer.1.weight"])
    return made


def test_without_pruning_only_what_obeys_is_compressed(
    suffix, checkpoint, arrays, tmp_path, capsys
):
    out, told = tmp_path / f"out.{suffix}", tmp_path / "report.json"
    text = run(capsys, "convert", checkpoint, out, "--no-prune", "--report", told)
    loaded = FORMATS[suffix][1](out)
    assert [name for name, x in loaded.items() if isinstance(x, s24.Sparse24Array)] == [
        "layer.1.weight"
    ]
    for name, before in arrays.items():
        after = loaded[name].toarray() if name == "layer.1.weight" else loaded[name]
        np.testing.assert_array_equal(after, before)
    report = json.loads(told.read_text())
    assert report["unfit"] == ["layer.0.weight"]
    assert report["method"] is None  # nothing was pruned
    assert "layer.0.weight" in report["unchanged"]
    assert [row["kept_energy"] for row in report["layers"]] == [1.0]
    assert "1 eligible matrix left dense, as more than 2 of 4 elements are non-zero" in text


def test_without_pruning_other_patterns_are_checked_too(tmp_path, capsys, rng):
    x = rng.standard_normal((64, 64)).astype(np.float32)
    arrays = {"a": s24.prune(x, pattern=(6, 8)), "b": s24.prune(x.T, pattern=(6, 8)).T.copy()}
    source = saved(arrays, tmp_path)
    for axis, fits in ((-1, "a"), (-2, "b")):
        out = tmp_path / f"{fits}.npz"
        run(capsys, "convert", source, out, "--no-prune", "--pattern", "6:8", "--axis", axis)
        loaded = s24.load_npz(out)
        assert [name for name in arrays if isinstance(loaded[name], s24.NMArray)] == [fits]
        np.testing.assert_array_equal(loaded[fits].toarray(), arrays[fits])


def test_without_pruning_and_nothing_that_obeys_is_an_error(checkpoint, tmp_path, capsys):
    out = tmp_path / "out.npz"
    line = run(capsys, "convert", checkpoint, out, "--no-prune", "--pattern", "1:4", code=1)
    assert "none of the 2 eligible matrices of" in line
    assert "obeys 1:4 along axis -1; name another --pattern or --axis, or prune them" in line
    assert not out.exists()


@pytest.mark.parametrize("others", [["--dense"], ["--method", "random"]])
def test_what_would_prune_is_refused_without_pruning(others, checkpoint, tmp_path, capsys):
    line = run(capsys, "convert", checkpoint, tmp_path / "o.npz", "--no-prune", *others, code=1)
    assert "it takes neither --method nor --dense; drop one of them" in line


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
def test_weights_of_x_times_w_are_pruned_along_their_rows(
    method, checkpoint, arrays, tmp_path, capsys, rng
):
    names = ("layer.0.weight", "layer.1.weight")
    inputs = {name: rng.standard_normal((99, len(arrays[name]))) for name in names}
    np.savez(tmp_path / "inputs.npz", **inputs)
    known = [] if method == "magnitude" else ["--calibration", tmp_path / "inputs.npz"]
    out = tmp_path / "out.safetensors"
    run(capsys, "convert", checkpoint, out, "--axis", -2, "--method", method, *known)
    loaded = s24.load_safetensors(out)
    for name, x in inputs.items():
        given = {} if method == "magnitude" else {"calibration": x}
        pruned = s24.prune(arrays[name], axis=-2, method=method, **given)
        assert loaded[name].axis == -2
        np.testing.assert_array_equal(loaded[name].toarray(), pruned)


def test_inspect_shows_arrays_as_they_load(checkpoint, tmp_path, capsys):
    out = tmp_path / "out.npz"
    run(capsys, "convert", checkpoint, out, "--axis", -2)
    lines = run(capsys, "inspect", out).splitlines()
    (row,) = (line for line in lines if line.startswith("layer.0.weight"))
    assert "  2:4, axis -2  48×36  " in row


def test_stacks_stored_as_k_by_m_serve_experts(tmp_path, capsys, rng):
    source, out = tmp_path / "experts.safetensors", tmp_path / "out.safetensors"
    stack = rng.standard_normal((2, 40, 36)).astype(np.float32)
    _raw_writers.write_safetensors(source, {"up": stack}, None)
    run(capsys, "convert", source, out, "--stacks", "--axis", -2)
    up, x = s24.load_safetensors(out)["up"], rng.standard_normal((3, 40)).astype(np.float32)
    y = s24.grouped_linear(x, up.mT, offsets=[0, 1, 3])
    pruned = s24.prune(stack, axis=-2)
    np.testing.assert_allclose(y[1:], x[1:] @ pruned[1], rtol=1e-5, atol=1e-5)


def test_without_pruning_each_matrix_is_compressed_once(checkpoint, tmp_path, capsys, monkeypatch):
    compress, shapes = s24.compress, []

    def counted(x, **options):
        shapes.append(x.shape)
        return compress(x, **options)

    monkeypatch.setattr(s24, "compress", counted)
    run(capsys, "convert", checkpoint, tmp_path / "out.npz", "--no-prune")
    assert sorted(shapes) == [(40, 64), (48, 36)]


def test_a_name_that_a_compressed_part_needs_is_found_where_the_matrix_obeys(
    checkpoint, arrays, tmp_path, capsys
):
    parts = {f"layer.{i}.weight.values": np.ones(3, np.float32) for i in (0, 1)}
    out = tmp_path / "out.npz"
    for name, part in parts.items():
        source = saved({**arrays, name: part}, tmp_path)
        if name == "layer.0.weight.values":  # of the matrix that stays dense
            run(capsys, "convert", source, out, "--no-prune")
            out.unlink()
        else:
            line = run(capsys, "convert", source, out, "--no-prune", code=1)
            assert f"two arrays would be saved as {name!r}" in line
            assert not out.exists()


def test_without_pruning_shards_appear_only_if_some_matrix_obeys(tmp_path, capsys, rng):
    folder, out = tmp_path / "model", tmp_path / "out"
    arrays = sharded(folder, rng)
    line = run(capsys, "convert", folder, out, "--no-prune", code=1)
    assert "none of the 2 eligible matrices of" in line
    assert not out.exists()
    pruned = s24.prune(arrays["layer.0.weight"])
    first = {name: x for name, x in arrays.items() if HOMES[name] == SHARDS[0]}
    first["layer.0.weight"] = pruned
    _raw_writers.write_safetensors(folder / SHARDS[0], first, None)
    text = run(capsys, "convert", folder, out, "--no-prune")
    assert "1 eligible matrix left dense" in text
    loaded = s24.load_safetensors(out)
    np.testing.assert_array_equal(loaded["layer.0.weight"].toarray(), pruned)
    np.testing.assert_array_equal(loaded["layer.1.weight"], arrays["layer.1.weight"])
