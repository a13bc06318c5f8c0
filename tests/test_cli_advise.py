"""The command ``advise``: which matrices it takes, and what it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cli_cases import run

import sparse24 as s24
from sparse24 import _arrays, _cli


def test_advise_predicts_for_every_eligible_matrix(tmp_path, capsys):
    file = tmp_path / "model.npz"
    np.savez(file, up=np.zeros((256, 128), np.float32), bias=np.zeros(128, np.float32))
    told = run(capsys, "advise", file, "--tokens", 1, 4096)
    assert "256×128" in told
    assert "bias" not in told
    np.savez(file, bias=np.zeros(128, np.float32))
    assert _cli.main(["advise", str(file)]) == 1
    assert "no matrix" in capsys.readouterr().err


def test_advise_says_that_it_leaves_experts_out(tmp_path, capsys):
    file, experts = tmp_path / "model.npz", np.zeros((4, 256, 128), np.float32)
    np.savez(file, up=np.zeros((256, 128), np.float32), experts=experts, bias=np.zeros((4, 2, 2)))
    words = "1 array of three axes not predicted; if these are weights (e, m, k) of experts, "
    assert words in run(capsys, "advise", file).splitlines()[-1]
    np.savez(file, experts=experts)
    assert _cli.main(["advise", str(file)]) == 1
    assert f"has no matrix that 2:4 would suit; {words}" in capsys.readouterr().err


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


@pytest.mark.skipif(_arrays.cuda_available(), reason="the page has the model of an H200")
def test_the_page_shows_what_advise_prints(tmp_path, capsys):
    page = (Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.rst").read_text()
    _, command, block = page.partition("   $ python -m sparse24 advise model.safetensors ")
    options, *lines = block.partition("\n\n``")[0].split("\n")
    header, at = {}, 0
    for name, m, k in re.findall(r"(layers\S+) +2 +(\d+)×(\d+)", "\n".join(lines)):
        for layer in "01":  # no elements, which advise does not read
            end = at + 2 * int(m) * int(k)
            header[name.replace("*", layer)] = {
                "dtype": "BF16", "shape": [int(m), int(k)], "data_offsets": [at, end],
            }  # fmt: skip
            at = end
    raw = json.dumps(header).encode()
    with open(file := tmp_path / "model.safetensors", "wb") as whole:
        whole.write(len(raw).to_bytes(8, "little") + raw)
        whole.truncate(8 + len(raw) + at)
    told = run(capsys, "advise", file, *options.split())
    assert command
    assert told.split("\n")[: len(lines)] == [line[3:] for line in lines]


def test_advise_takes_the_matrices_that_convert_takes(checkpoint, tmp_path, capsys):
    for options, count in (
        ((), 2),
        (("--include", "layer.1"), 1),
        (("--min-size", 40), 1),
        (("--exclude", ""), 3),
        (("--axis", -2), 2),
    ):
        text = run(capsys, "advise", checkpoint, "--tokens", 16, *options)
        assert re.search(rf"^all, one after another +{count} ", text, re.M)
        out = tmp_path / "out.npz"
        run(capsys, "convert", checkpoint, out, "--quiet", *options)
        taken = [x for x in s24.load_npz(out).values() if isinstance(x, s24.Sparse24Array)]
        assert len(taken) == count
    line = run(capsys, "advise", checkpoint, "--include", "none", code=1)
    assert "has no matrix that 2:4 would suit; inspect lists what it holds; see --include" in line


def test_advise_predicts_weights_of_x_times_w_as_their_transposes(tmp_path, capsys):
    file = tmp_path / "model.npz"
    np.savez(file, up=np.zeros((4096, 14336), np.float16), experts=np.zeros((2, 64, 96)))
    text = run(capsys, "advise", file, "--tokens", 1, 64, "--axis", -2)
    (up,) = (line.split() for line in text.splitlines() if line.startswith("up"))
    assert up == ["up", "1", "4096×14336", *s24.advise((14336, 4096), (1, 64)).ratios]
    assert up[3:] != list(s24.advise((4096, 14336), (1, 64)).ratios)
    assert "weights (e, k, m) of experts" in text


def test_advise_takes_numbers_in_names_of_any_length(tmp_path, capsys):
    long = "9" * 5000  # Python makes no number of it
    names = [f"layer{x}.up" for x in ("2", "10", "007", long)]
    np.savez(tmp_path / "model.npz", **dict.fromkeys(names, np.zeros((64, 64), np.float32)))
    text = run(capsys, "advise", tmp_path / "model.npz", "--tokens", 1)
    found = [line.split()[0] for line in text.splitlines() if line.startswith("layer")][1:]
    assert found == ["layer2.up", "layer007.up", "layer10.up", f"layer{long}.up"]
