"""`convert` follows no masks that a checkpoint holds beside weights, and refuses these weights."""

from __future__ import annotations

import numpy as np
import pytest
from cli_cases import run

torch = pytest.importorskip("torch")

from torch.nn.utils import prune  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402


def pruned_by_torch(net):
    prune.random_unstructured(net[0], "weight", 0.5)
    return net


def with_masks(net):
    net = st.sparsify(net, {"*": {"gradient": "24dense"}})
    for layer in st.sparse_layers(net).values():
        layer.set_mask(s24.mask(torch.rand(64, 64)))
    return net


def with_experts(net):
    net[0] = st.SparseExperts(2, 64, 64)
    net[0].set_mask(net[0].current_mask())
    return net


@pytest.mark.parametrize(
    ("made", "name", "mask"),
    [
        (with_masks, "0.weight", "0.mask"),
        (with_experts, "0.weight", "0.mask"),
        (pruned_by_torch, "0.weight_orig", "0.weight_mask"),
    ],
)
def test_a_weight_with_a_mask_beside_it_is_refused(made, name, mask, tmp_path, capsys):
    net = made(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)))
    s24.save_safetensors(tmp_path / "a.safetensors", net.state_dict())
    convert = "convert", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--stacks"
    for more in ((), ("--no-prune",), ("--dense",)):
        error = run(capsys, *convert, *more, code=1)
        assert f"error: {name} has a mask beside it, '{mask}', which convert would not" in error
    assert not (tmp_path / "b.safetensors").exists()
    if made is not with_masks:  # where only the first layer has a mask
        run(capsys, *convert, "--exclude", r"^0\.")
        assert s24.load_safetensors(tmp_path / "b.safetensors")["1.weight"].shape == (64, 64)


def test_the_weights_of_a_model_that_was_trained_sparse(tmp_path, capsys):
    net = with_masks(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)))
    kept = net[0].mask.clone()
    s24.save_safetensors(tmp_path / "a.safetensors", st.desparsify(net).state_dict())
    run(capsys, "convert", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--no-prune")
    A = s24.load_safetensors(tmp_path / "b.safetensors")["0.weight"]
    np.testing.assert_array_equal(A.toarray() != 0, kept.numpy())


def test_names_that_are_no_masks_are_no_obstacle(tmp_path, capsys, rng):
    w = rng.standard_normal((64, 64))
    arrays = {"weight": w, "mask": w[0], "a_orig": w, "b_mask": w}
    np.savez(tmp_path / "a.npz", **arrays)
    run(capsys, "convert", tmp_path / "a.npz", tmp_path / "b.npz")
    assert s24.load_npz(tmp_path / "b.npz")["weight"].shape == (64, 64)


def test_a_mask_of_torch_is_not_pruned_where_its_weight_is_left_out(tmp_path, capsys):
    net = pruned_by_torch(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)))
    state = net.state_dict()
    s24.save_safetensors(tmp_path / "a.safetensors", state)
    convert = "convert", tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    run(capsys, *convert, "--exclude", r"^0\.weight_orig$")
    got = s24.load_safetensors(tmp_path / "b.safetensors")
    np.testing.assert_array_equal(got["0.weight_mask"], state["0.weight_mask"])
    assert isinstance(got["1.weight"], s24.Sparse24Array)
    error = run(capsys, *convert, "--exclude", "weight$|weight_orig$", code=1)
    assert "of shape (64, 64): " in error
    assert ": None;" not in error
