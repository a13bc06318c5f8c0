"""The command that lists what a file holds, and checks it."""

from __future__ import annotations

import numpy as np
import pytest
from cli_cases import run
from shard_cases import write_index

import sparse24 as s24
from sparse24 import _raw_files, _raw_writers
from sparse24.formats import stored


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
    out = tmp_path / "o.safetensors"  # a format without checksums of its own
    run(capsys, "convert", checkpoint, out)
    run(capsys, "inspect", out)
    file = _raw_files.open_arrays(out)
    name = next(iter(file.header["dense"]))
    with out.open("r+b") as target:
        target.seek(file._offsets[name])
        target.write(b"\x55")
    for error in (run(capsys, "inspect", out, code=1), _refusal(out)):
        assert f"{name!r}: it does not match the shape, type and checksum" in error


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"single": True}, "claims a single array, but holds ['a', 'b']"),
        ({"arrays": {"a": {"transposable": True}}}, "array 'a' claims to be transposable: its"),
    ],
)
def test_inspect_refuses_claims_that_loading_refuses(claim, words, tmp_path, capsys):
    path, array = tmp_path / "a.safetensors", s24.random((64, 64), rng=0)
    raw, header = stored.pack({"a": array, "b": np.ones(3)})
    entries = {"a": {**header["arrays"]["a"], **claim.get("arrays", {}).get("a", {})}}
    header = stored.sealed({**header, **claim, "arrays": entries})
    _raw_writers.write_safetensors(path, raw, header)
    for error in (run(capsys, "inspect", path, code=1), _refusal(path)):
        assert words in error


def test_inspect_refuses_shards_that_loading_refuses(tmp_path, capsys):
    array, weight = s24.random((64, 64), rng=0), np.ones((64, 64), np.float32)
    s24.save_safetensors(tmp_path / "a.safetensors", {"a": array})
    s24.save_safetensors(tmp_path / "b.safetensors", {"a": weight})
    homes = {"a.values": "a.safetensors", "a.metadata": "a.safetensors", "a": "b.safetensors"}
    write_index(tmp_path, weight_map=homes)
    for error in (run(capsys, "inspect", tmp_path, code=1), _refusal(tmp_path)):
        assert "b.safetensors, array 'a': another shard holds it, too" in error
    # As where only some files of a converted checkpoint were copied over those of the dense one.
    _raw_writers.write_safetensors(tmp_path / "b.safetensors", {"a": weight}, None)
    for error in (run(capsys, "inspect", tmp_path, code=1), _refusal(tmp_path)):
        assert "b.safetensors was not written by sparse24" in error


def _refusal(path) -> str:
    with pytest.raises(s24.FormatError) as caught:
        s24.load_safetensors(path)
    return str(caught.value)


def test_the_name_of_a_file_steers_no_terminal(tmp_path, capsys):
    error = run(capsys, "inspect", tmp_path / "a\nb\x1b[2J.npz", code=1)
    assert error == rf"error: No such file or directory: {tmp_path}/a\nb\x1b[2J.npz" + "\n"
