"""Commands on checkpoints of compressed-tensors, whose matrices are packed.

Most are packed by bit masks; those of marlin-24 take the same way, but for their parts.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from cli_cases import run, saved
from marlin_cases import packed as packed_in_tiles
from marlin_cases import quantised, weight
from shard_cases import INDEX, SHARDS, read_index, write_index

import sparse24 as s24
from sparse24 import _raw_writers
from sparse24._checkpoint import DEFAULT_EXCLUDE


def packed(layer, a):
    """The parts of a matrix by name, as compressed-tensors saves them: the shape is a column."""
    values, bits = s24.convert.to_bitmask(a)
    parts = {"compressed": values, "bitmask": bits, "shape": np.array(a.shape)[:, None]}
    return {f"{layer}.{part}": x for part, x in parts.items()}


def marlin(layer, integers, scales, bits):
    """The parts of a matrix by name, as those of marlin-24."""
    parts = packed_in_tiles(integers, scales, bits)
    names = ("weight_packed", "scale_packed", "meta")
    return {f"{layer}.{part}": x for part, x in zip(names, parts, strict=True)}


@pytest.fixture
def a():
    return s24.random((64, 128), dtype="bfloat16", rng=0)


@pytest.fixture
def others(rng):
    return {
        "up.weight_scale": rng.standard_normal((64, 1)).astype(np.float32),
        "norm.weight": np.ones(64, np.float32),
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("layer", ["model.up", "model.up.weight"])
def test_a_packed_matrix_is_converted_bit_for_bit(layer, dtype, others, tmp_path, capsys):
    a = s24.random((64, 128), dtype=dtype, rng=0)
    source, out = saved({**packed(layer, a), **others}, tmp_path), tmp_path / "out.safetensors"
    run(capsys, "convert", source, out, "--no-prune", "--report", tmp_path / "report.json")
    loaded = s24.load_safetensors(out)
    assert set(loaded) == {"model.up.weight", *others}
    assert isinstance(loaded["model.up.weight"], s24.Sparse24Array)
    assert loaded["model.up.weight"].dtype == a.dtype
    np.testing.assert_array_equal(loaded["model.up.weight"].toarray(), a.toarray())
    for name, x in others.items():
        np.testing.assert_array_equal(loaded[name], x)
    (row,) = json.loads((tmp_path / "report.json").read_text())["layers"]
    assert row["kept_energy"] == 1
    assert row["bytes_before"] == a.toarray().nbytes


def test_other_programs_get_the_dense_matrix(a, others, tmp_path, capsys):
    source, out = saved({**packed("up", a), **others}, tmp_path), tmp_path / "out.safetensors"
    run(capsys, "convert", source, out, "--dense")
    rows = run(capsys, "inspect", out).splitlines()[2:]
    assert {row.split()[0] for row in rows} == {"up.weight", *others}
    (row,) = (row for row in rows if row.startswith("up.weight "))
    assert "dense, eligible  64×128" in row


def test_parts_may_lie_in_several_shards(a, others, tmp_path, capsys):
    parts = packed("up", a)
    homes = {
        "up.shape": SHARDS[0], "up.weight_scale": SHARDS[0], "up.compressed": SHARDS[1],
        "up.bitmask": SHARDS[2], "norm.weight": SHARDS[2],
    }  # fmt: skip
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for shard in SHARDS:
        mine = {name: x for name, x in {**parts, **others}.items() if homes[name] == shard}
        _raw_writers.write_safetensors(folder / shard, mine, None)
    write_index(folder, weight_map=homes)
    run(capsys, "convert", folder, out)
    assert set(read_index(out)["weight_map"].values()) == set(SHARDS)
    loaded = s24.load_safetensors(out / INDEX)
    assert set(loaded) == {"up.weight", *others}
    np.testing.assert_array_equal(loaded["up.weight"].toarray(), a.toarray())
    assert "up.weight" in s24.load_safetensors(out / SHARDS[1])


def test_commands_see_the_matrices(a, others, tmp_path, capsys):
    source = saved({**packed("up", a), **others}, tmp_path)
    rows = run(capsys, "inspect", source).splitlines()[2:]
    assert {row.split()[0] for row in rows} == {"up.weight", *others}
    assert "64×128" in run(capsys, "advise", source, "--tokens", 1)
    told = run(capsys, "demo", "--checkpoint", source, "--device", "cpu", "--tokens", 2)
    assert "1, all products checked against float64: 0 wrong" in told


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("shape", np.array([64, 128, 1]), "up.shape must hold two whole numbers, got int64 of"),
        ("shape", np.array([64.0, 128.0]), "up.shape must hold two whole numbers, got float64"),
        ("shape", np.array([64, 120]), "up: bitmask must be uint8 of shape (64, 15)"),
        ("bitmask", np.zeros((64, 16), np.uint8), "up: bitmask has 0 bits set for 4096 values"),
        ("bitmask", np.tile([[255, 0]], (64, 8)).astype(np.uint8), "up: mask[0, 0:4] keeps"),
    ],
)
def test_damaged_parts_are_named(part, value, message, a, tmp_path, capsys):
    source, out = saved({**packed("up", a), f"up.{part}": value}, tmp_path), tmp_path / "out.npz"
    line = run(capsys, "convert", source, out, code=1)
    assert f"{source}: {message}" in line
    assert not out.exists()


@pytest.mark.parametrize("shape", [(64, -128), (1 << 62, 128), (64, 1280)])
@pytest.mark.parametrize("command", ["inspect", "advise"])
def test_a_shape_that_the_parts_do_not_have_is_not_shown(shape, command, a, tmp_path, capsys):
    source = saved({**packed("up", a), "up.shape": np.array(shape)}, tmp_path)
    m, k = shape
    words = f"{source}: up: bitmask must be uint8 of shape {(m, -(-k // 8))} for a matrix of shape"
    assert words in run(capsys, command, source, code=1)


@pytest.mark.parametrize("kind", ["a vector of elements", "no shape", "the weight beside"])
def test_what_only_looks_packed_is_left_alone(kind, a, rng, tmp_path, capsys):
    arrays = packed("up", a)
    arrays["w"] = rng.standard_normal((64, 64)).astype(np.float32)
    if kind == "a vector of elements":  # as of an unstructured matrix
        arrays["up.compressed"] = arrays["up.compressed"].reshape(-1)
    elif kind == "no shape":
        del arrays["up.shape"]
    else:
        arrays["up.weight"] = a.toarray()
    source, out = saved(arrays, tmp_path), tmp_path / "out.npz"
    run(capsys, "convert", source, out, "--include", "^w$")
    loaded = s24.load_npz(out)
    assert set(loaded) == set(arrays)
    for name in arrays.keys() - {"w"}:
        np.testing.assert_array_equal(loaded[name], arrays[name])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("bits", "groups"), [(4, 1), (4, 4), (8, 1), (8, 4)])
def test_a_matrix_of_marlin_is_converted_bit_for_bit(bits, groups, dtype, others, tmp_path, capsys):
    integers, scales = quantised(128, 512, bits, groups, dtype)
    arrays = {**marlin("model.up", integers, scales, bits), **others}
    source, out = saved(arrays, tmp_path), tmp_path / "out.safetensors"
    run(capsys, "convert", source, out, "--no-prune", "--report", tmp_path / "report.json")
    loaded = s24.load_safetensors(out)
    assert set(loaded) == {"model.up.weight", *others}
    assert isinstance(loaded["model.up.weight"], s24.Sparse24Array)
    assert loaded["model.up.weight"].dtype == scales.dtype
    np.testing.assert_array_equal(loaded["model.up.weight"].toarray(), weight(integers, scales))
    record = json.loads((tmp_path / "report.json").read_text())
    assert [row["kept_energy"] for row in record["layers"]] == [1]
    assert record["unfit"] == []


def test_commands_see_the_matrices_of_marlin(others, tmp_path, capsys):
    integers, scales = quantised(64, 128, 4, 1)
    source = saved({**marlin("up", integers, scales, 4), **others}, tmp_path)
    rows = run(capsys, "inspect", source).splitlines()[2:]
    assert {row.split()[0] for row in rows} == {"up.weight", *others}
    (row,) = (row for row in rows if row.startswith("up.weight "))
    assert "dense, eligible  64×128  float16" in row
    assert "64×128" in run(capsys, "advise", source, "--tokens", 1)
    out = tmp_path / "out.npz"
    run(capsys, "convert", source, out, "--dense")
    np.testing.assert_array_equal(np.load(out)["up.weight"], weight(integers, scales))


def test_parts_of_marlin_may_lie_in_several_shards(a, tmp_path, capsys):
    integers, scales = quantised(64, 256, 8, 2)
    arrays = {**marlin("up", integers, scales, 8), **packed("down", a)}
    homes = {
        "up.scale_packed": SHARDS[0], "up.weight_packed": SHARDS[1], "up.meta": SHARDS[2],
        "down.compressed": SHARDS[0], "down.bitmask": SHARDS[1], "down.shape": SHARDS[2],
    }  # fmt: skip
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for shard in SHARDS:
        mine = {name: x for name, x in arrays.items() if homes[name] == shard}
        _raw_writers.write_safetensors(folder / shard, mine, None)
    write_index(folder, weight_map=homes)
    run(capsys, "convert", folder, out)
    loaded = s24.load_safetensors(out / INDEX)
    assert set(loaded) == {"up.weight", "down.weight"}
    np.testing.assert_array_equal(loaded["up.weight"].toarray(), weight(integers, scales))
    np.testing.assert_array_equal(loaded["down.weight"].toarray(), a.toarray())
    assert "up.weight" in s24.load_safetensors(out / SHARDS[1])


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("scale_packed", lambda x: x[:, :32], "up: scale_packed must have a column for each row"),
        ("meta", lambda x: x.astype(np.int32), "up: meta must be int16 and have two axes, got"),
        ("weight_packed", lambda x: x[:, 1:], "up: weight_packed must have 128 columns for 64"),
        ("meta", np.zeros_like, "up: meta: metadata[0, 0] is 0x00, which holds an illegal code"),
    ],
)
def test_damaged_parts_of_marlin_are_named(part, change, message, tmp_path, capsys):
    arrays = marlin("up", *quantised(64, 128, 4, 1), 4)
    arrays[f"up.{part}"] = change(arrays[f"up.{part}"])
    source, out = saved(arrays, tmp_path), tmp_path / "out.npz"
    assert f"{source}: {message}" in run(capsys, "convert", source, out, code=1)
    assert not out.exists()


@pytest.mark.parametrize("kind", ["no codes", "the weight beside"])
def test_what_only_looks_like_marlin_is_left_alone(kind, rng, tmp_path, capsys):
    integers, scales = quantised(64, 4096, 4, 32)
    arrays = marlin("up", integers, scales, 4)
    arrays["w"] = rng.standard_normal((64, 64)).astype(np.float32)
    if kind == "no codes":  # as in one shard that was named alone
        del arrays["up.meta"]
    else:
        arrays["up.weight"] = weight(integers, scales)
    source, out = saved(arrays, tmp_path), tmp_path / "out.npz"
    run(capsys, "convert", source, out, "--exclude", DEFAULT_EXCLUDE + "|^up.weight")
    loaded = s24.load_npz(out)
    assert set(loaded) == set(arrays)
    for name in arrays.keys() - {"w"}:  # factors are not pruned
        np.testing.assert_array_equal(loaded[name], arrays[name])
