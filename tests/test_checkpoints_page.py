"""The hooks on the page of checkpoints collect what ``convert --calibration`` takes."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from cli_cases import run

import sparse24 as s24

torch = pytest.importorskip("torch")

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how_to" / "checkpoints.rst"
HOOKS = r"code-block:: python\n\n( +inputs = [^\n]*\n(?: +[^\n]*\n|\n)+)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_collected_inputs_calibrate(dtype, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(HOOKS, PAGE.read_text())
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 32))
    model.to(dtype)
    batches = [torch.rand(2, 5, 64, dtype=dtype) for _ in range(3)]
    names = {"torch": torch, "numpy": np, "model": model, "batches": batches}
    exec(compile(textwrap.dedent(block), PAGE.name, "exec"), names)
    assert not model[0]._forward_pre_hooks

    s24.save_safetensors("model.safetensors", dict(model.state_dict()))
    command = ("convert", "model.safetensors", "out.safetensors", "--method", "wanda")
    run(capsys, *command, "--calibration", "inputs.npz")
    seen = np.concatenate([x.float().reshape(-1, 64) for x in batches])
    wanted = s24.prune(model[0].weight, method="wanda", calibration=seen)
    got = s24.convert.to_torch(s24.load_safetensors("out.safetensors")["0.weight"].toarray())
    assert torch.equal(got, wanted)


def test_experts_without_inputs_are_pruned_by_a_second_conversion(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0).standard_normal
    weights = {f"experts.{i}.weight": draw((64, 96)).astype("f4") for i in range(2)}
    s24.save_safetensors("model.safetensors", weights)
    inputs = draw((50, 96)).astype("f4")
    np.savez("inputs.npz", **{"experts.0.weight": inputs})
    command = ("convert", "model.safetensors", "pruned.safetensors", "--method", "sparsegpt")
    more = ("--calibration", "inputs.npz", "--dense")
    assert "experts.1.weight: the calibration has no" in run(capsys, *command, *more, code=1)
    run(capsys, *command, *more, "--exclude", r"experts\.1\.")
    run(capsys, "convert", "pruned.safetensors", "out.safetensors")
    got = s24.load_safetensors("out.safetensors")
    first, second = weights.values()
    calibrated = s24.prune(first, method="sparsegpt", calibration=inputs)
    np.testing.assert_array_equal(got["experts.0.weight"].toarray(), calibrated)
    np.testing.assert_array_equal(got["experts.1.weight"].toarray(), s24.prune(second))
