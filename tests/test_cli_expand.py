"""``convert --dense`` of what is compressed already: the arrays as they were, with their zeros."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from cli_cases import BFLOAT16, run, saved, small_checkpoint
from file_cases import FORMATS
from safetensors import safe_open
from shard_cases import INDEX, SHARDS, read_index, sharded

import sparse24 as s24
from sparse24 import _raw_files, _raw_writers
from sparse24.formats import stored


def compressed(rng):
    """Arrays of every format by name, and one that is dense."""
    w = rng.standard_normal((64, 64)).astype(np.float32)
    return {
        "columns": s24.compress(w, axis=-2, on_excess="prune"),
        "both": s24.compress(w.astype(BFLOAT16), transposable=True, on_excess="prune"),
        "experts": s24.compress(np.stack([w, -w]), on_excess="prune"),
        "eighths": s24.compress(w, pattern=(6, 8), on_excess="prune"),
        "hybrid": s24.hybrid(np.where(w > 1, w, 0)),
        "fp8": s24.random((16, 32), dtype="float8_e4m3fn", rng=rng),
        "bias": np.arange(5),
    }


def test_every_format_becomes_dense(suffix, rng, tmp_path, capsys):
    arrays, source = compressed(rng), tmp_path / f"a.{suffix}"
    FORMATS[suffix][0](source, arrays)
    text = run(capsys, "convert", source, tmp_path / "b.npz", "--dense")
    assert text.startswith("6 matrices: ")
    assert "1 array unchanged" in text
    written = _raw_files.open_arrays(tmp_path / "b.npz")
    assert written.keys() == arrays.keys()
    for name, array in arrays.items():
        dense = array if name == "bias" else array.toarray()
        assert written[name].dtype == dense.dtype
        np.testing.assert_array_equal(written[name], dense)


def test_it_is_the_inverse_of_a_conversion(rng, tmp_path, capsys):
    source = saved(small_checkpoint(rng), tmp_path)
    pruned, packed, back, again = (tmp_path / f"{x}.safetensors" for x in "abcd")
    run(capsys, "convert", source, pruned, "--dense", "--quiet")
    run(capsys, "convert", source, packed, "--quiet")
    assert run(capsys, "convert", packed, back, "--dense", "--quiet") == ""
    assert back.read_bytes() == pruned.read_bytes()
    run(capsys, "convert", back, again, "--no-prune", "--quiet")
    assert again.read_bytes() == packed.read_bytes()


def test_an_array_that_was_saved_alone(tmp_path, capsys):
    a = s24.random((8, 16), rng=0)
    s24.save_npz(tmp_path / "a.npz", a)
    run(capsys, "convert", tmp_path / "a.npz", tmp_path / "b.npz", "--dense")
    with np.load(tmp_path / "b.npz") as file:
        np.testing.assert_array_equal(file["array"], a.toarray())


def test_shards_stay_shards(rng, tmp_path, capsys):
    sharded(tmp_path / "in", rng)
    run(capsys, "convert", tmp_path / "in", tmp_path / "pruned", "--dense")
    run(capsys, "convert", tmp_path / "in", tmp_path / "packed")
    text = run(capsys, "convert", tmp_path / "packed", tmp_path / "back", "--dense")
    assert text.startswith("2 matrices: ")
    assert read_index(tmp_path / "back") == read_index(tmp_path / "pruned")
    for name in SHARDS:
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "pruned" / name).read_bytes()


def test_entries_of_other_programs_stay(rng, tmp_path, capsys):
    raw, header = stored.pack({"w": s24.random((8, 16), rng=rng)})
    source, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    _raw_writers.write_safetensors(source, raw, header, {"format": "pt"})
    run(capsys, "convert", source, out, "--dense")
    with safe_open(out, framework="np") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize(
    "option",
    [
        "--pattern 1:4", "--axis -2", "--method random", "--calibration c.npz", "--report r.json",
        "--include layer", "--exclude x", "--min-size 8", "--stacks",
    ],
)  # fmt: skip
def test_options_of_pruning_are_refused(option, tmp_path, capsys):
    source, out = tmp_path / "a.npz", tmp_path / "b.npz"
    s24.save_npz(source, {"w": s24.random((8, 16), rng=0)})
    error = run(capsys, "convert", source, out, "--dense", *option.split(), code=1)
    assert f"makes all of it dense again without pruning; drop {option.split()[0]}" in error
    assert not out.exists()


def test_the_error_of_a_second_conversion_leads_here(tmp_path, capsys):
    source = tmp_path / "a.npz"
    s24.save_npz(source, {"w": s24.random((64, 64), rng=0)})
    error = run(capsys, "convert", source, tmp_path / "b.npz", code=1)
    assert "is compressed already" in error
    assert "python -m sparse24 convert IN OUT --dense" in error


def test_a_damaged_source_or_an_out_that_holds_less_leaves_nothing(tmp_path, capsys):
    source, out = tmp_path / "a.npz", tmp_path / "b.safetensors"
    s24.save_npz(source, {"w": s24.random((8, 16), rng=0), "words": np.array(["one", "two"])})
    assert "words has dtype <U3" in run(capsys, "convert", source, out, "--dense", code=1)
    assert "OUT must not be IN" in run(capsys, "convert", source, source, "--dense", code=1)
    raw, header = stored.pack({"w": s24.random((8, 16), rng=0)})
    raw["w.values"] = raw["w.values"] + 1
    _raw_writers.write(source, raw, header)
    error = run(capsys, "convert", source, out, "--dense", code=1)
    assert "its values do not match the checksum" in error
    assert os.listdir(tmp_path) == ["a.npz"]


def test_an_array_that_two_shards_hold_is_refused(rng, tmp_path, capsys):
    sharded(tmp_path / "in", rng)
    folder, out = tmp_path / "packed", tmp_path / "out"
    run(capsys, "convert", tmp_path / "in", folder)
    second = SHARDS[1]
    dense = {**s24.load_safetensors(folder / second), "layer.0.weight": np.ones((4, 4))}
    raw, header = stored.pack(dense)
    _raw_writers.write_safetensors(folder / second, raw, header)
    index = read_index(folder)
    index["weight_map"]["layer.0.weight"] = second
    (folder / INDEX).write_text(json.dumps(index))
    error = run(capsys, "convert", folder, out, "--dense", code=1)
    assert "array 'layer.0.weight': another shard holds it, too" in error
    assert not out.exists()
