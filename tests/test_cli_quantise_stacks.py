"""``convert --stacks --quantise``: the stacked weights of experts as integers times scales."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from cli_cases import BFLOAT16, run, saved
from file_cases import FORMATS
from quantised_cases import assert_same
from shard_cases import SHARDS, write_index

import sparse24 as s24
from sparse24 import _raw_files, _raw_writers

E, M, K = 3, 36, 160


@pytest.fixture
def experts(rng):
    """A matrix and two stacks of one shape, (e, m, k)."""
    stack = rng.standard_normal((E, M, K)).astype(np.float32)
    return {"up": stack, "down": -stack.astype(BFLOAT16), "proj.weight": stack[0]}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("axis", [-1, -2])
def test_stacks_are_quantised_as_matrices_are(bits, axis, suffix, experts, tmp_path, capsys):
    out, told = tmp_path / f"out.{suffix}", tmp_path / "report.json"
    how = "--stacks", "--quantise", bits, "--axis", axis, "--report", told
    text = run(capsys, "convert", saved(experts, tmp_path), out, *how)
    assert "left dense" not in text
    loaded, rows = FORMATS[suffix][1](out), json.loads(told.read_text())["layers"]
    for name, dense in experts.items():
        pruned = s24.compress(dense, axis=axis, on_excess="prune")
        assert_same(loaded[name], s24.quantise(pruned, bits=bits))
        exact = pruned.toarray().astype(np.float64)
        lost = np.linalg.norm(loaded[name].dequantise("float64").toarray() - exact)
        (row,) = (row for row in rows if row["name"] == name)
        assert row["rounding_error"] == pytest.approx(lost / np.linalg.norm(exact), abs=1e-6)
        assert row["shape"] == list(dense.shape)


def test_what_is_written_serves_experts(experts, tmp_path, capsys, rng):
    out = tmp_path / "out.safetensors"
    run(capsys, "convert", saved(experts, tmp_path), out, "--stacks", "--quantise", 8)
    up, x = s24.load_safetensors(out)["up"], rng.standard_normal((5, K)).astype(np.float32)
    y = s24.grouped_linear(x, up, offsets=[0, 2, 2, 5])
    want = x[2:] @ s24.prune(experts["up"])[2].T
    assert np.linalg.norm(y[2:] - want) < 0.02 * np.linalg.norm(want)


def test_a_quantised_stack_is_inspected_and_made_dense(experts, tmp_path, capsys):
    source = saved(experts, tmp_path)
    four, back, dense = (tmp_path / f"{x}.safetensors" for x in ("four", "back", "dense"))
    how = "--stacks", "--quantise", 4
    run(capsys, "convert", source, four, *how)
    (line,) = (x for x in run(capsys, "inspect", four).splitlines() if x.startswith("up"))
    assert re.search(rf"  2:4, 4 bits  {E}×{M}×{K} +float32 ", line)
    run(capsys, "convert", four, back, "--dense")
    run(capsys, "convert", source, dense, *how, "--dense")
    written = _raw_files.open_arrays(back)
    for name, array in s24.load_safetensors(four).items():
        np.testing.assert_array_equal(written[name], array.toarray())
    assert dense.read_bytes() == back.read_bytes()


def test_inputs_of_a_stack_are_those_of_each_expert(experts, tmp_path, capsys, rng):
    inputs = {name: rng.standard_normal((200, K)) for name in experts}
    np.savez(tmp_path / "inputs.npz", **inputs)
    out = tmp_path / "out.npz"
    known = "--method", "wanda", "--calibration", tmp_path / "inputs.npz"
    run(capsys, "convert", saved(experts, tmp_path), out, "--stacks", "--quantise", 4, *known)
    loaded = s24.load_npz(out)
    for name, dense in experts.items():
        seen = inputs[name] if dense.ndim == 2 else [inputs[name]] * E
        pruned = s24.prune(dense, method="wanda", calibration=inputs[name])
        assert_same(loaded[name], s24.quantise(pruned, method="gptq", calibration=seen))


def test_without_pruning_only_stacks_that_obey_are_quantised(experts, tmp_path, capsys):
    experts["down"] = s24.prune(experts["down"])
    out, how = tmp_path / "out.npz", ("--stacks", "--no-prune", "--quantise", 4)
    text = run(capsys, "convert", saved(experts, tmp_path), out, *how)
    assert "2 eligible matrices left dense" in text
    assert_same(s24.load_npz(out)["down"], s24.quantise(experts["down"]))


def test_shards_with_stacks_stay_shards(experts, tmp_path, capsys):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    homes = dict(zip(experts, SHARDS, strict=True))
    for name, shard in homes.items():
        _raw_writers.write_safetensors(folder / shard, {name: experts[name]}, None)
    write_index(folder, weight_map=homes)
    run(capsys, "convert", folder, out, "--stacks", "--quantise", 4)
    loaded = s24.load_safetensors(out)
    for name, dense in experts.items():
        assert_same(loaded[name], s24.quantise(s24.prune(dense)))


def test_stacks_that_stay_dense_are_said_to(experts, tmp_path, capsys):
    text = run(capsys, "convert", saved(experts, tmp_path), tmp_path / "o.npz", "--quantise", 4)
    told = "2 arrays of three axes left dense; if these are weights (e, m, k) of experts, --stacks"
    assert text.splitlines()[-1].startswith(told)


def test_a_stack_that_cannot_be_rounded_is_named(experts, tmp_path, capsys):
    experts["up"][1, 3, 5] = np.inf
    out, how = tmp_path / "out.npz", ("--stacks", "--quantise", 4)
    error = run(capsys, "convert", saved(experts, tmp_path), out, *how, code=1)
    assert "error: up: matrix [1] of the stack: A has elements that are infinite" in error
    assert not out.exists()
