"""The commands with checkpoints in shards: one model, converted shard by shard."""

from __future__ import annotations

import json
import os
import tracemalloc

import numpy as np
import pytest
from cli_cases import run, saved
from shard_cases import HOMES, INDEX, SHARDS, read_index, sharded, write_index

import sparse24 as s24
from sparse24 import _checkpoint, _convert_checkpoint, _raw_files, _raw_writers

PRUNED = ("layer.0.weight", "layer.1.weight")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "model"


@pytest.fixture
def arrays(folder, rng):
    return sharded(folder, rng)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("by_index", [False, True])
def test_convert_writes_the_same_shards_and_an_index(by_index, arrays, folder, tmp_path, capsys):
    before, out = files_of(folder), tmp_path / "out"
    text = run(capsys, "convert", folder / INDEX if by_index else folder, out,
               "--report", tmp_path / "report.json")  # fmt: skip
    assert "2 matrices" in text
    assert sorted(os.listdir(out)) == sorted((*SHARDS, INDEX))
    assert files_of(folder) == before
    loaded = s24.load_safetensors(out)
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        wanted = s24.prune(array) if name in PRUNED else array
        after = loaded[name].toarray() if name in PRUNED else loaded[name]
        np.testing.assert_array_equal(after, wanted)
        assert name in s24.load_safetensors(out / HOMES[name])
    report = json.loads((tmp_path / "report.json").read_text())
    assert [row["name"] for row in report["layers"]] == list(PRUNED)
    assert set(report["unchanged"]) == arrays.keys() - set(PRUNED)
    for total, place in (("file_before", folder), ("file_after", out)):
        assert report["totals"][total] == sum(len(x) for x in files_of(place).values())


def test_the_new_index_says_where_all_parts_are(arrays, folder, tmp_path, capsys):
    out = tmp_path / "out"
    run(capsys, "convert", folder, out, "--quiet")
    index = read_index(out)
    files = {shard: _raw_files.SafetensorsFile(out / shard) for shard in SHARDS}
    stored = {name: shard for shard, file in files.items() for name in file}
    assert index["weight_map"] == stored
    assert stored["layer.0.weight.metadata"] == HOMES["layer.0.weight"]
    total = sum(file[name].nbytes for file in files.values() for name in file)
    assert index["metadata"] == {"total_size": total, "total_parameters": 8}
    assert index["note"] == "mine"
    assert total < read_index(folder)["metadata"]["total_size"]
    assert all(file.texts == {"format": "pt"} for file in files.values())


def test_pruned_shards_may_be_dense(arrays, folder, tmp_path, capsys):
    out = tmp_path / "out"
    run(capsys, "convert", folder, out, "--dense", "--quiet")
    assert read_index(out) == read_index(folder)
    for name, shard in HOMES.items():
        file = _raw_files.SafetensorsFile(out / shard)
        assert file.texts == {"format": "pt"}
        wanted = s24.prune(arrays[name]) if name in PRUNED else arrays[name]
        np.testing.assert_array_equal(file[name], wanted)


def test_options_mean_the_same_as_for_one_file(arrays, folder, tmp_path, capsys, rng):
    one, inputs = saved(arrays, tmp_path), tmp_path / "inputs.npz"
    np.savez(inputs, **{name: rng.standard_normal((90, arrays[name].shape[1])) for name in PRUNED})
    for options in (
        ("--include", r"layer\.1"),
        ("--exclude", r"layer\.1", "--min-size", 40),
        ("--pattern", "4:8"),
        ("--method", "sparsegpt", "--calibration", inputs),
    ):
        whole, out = tmp_path / "one.safetensors", tmp_path / "out"
        run(capsys, "convert", folder, out, "--quiet", *options)
        run(capsys, "convert", one, whole, "--quiet", *options)
        loaded, wanted = s24.load_safetensors(out), s24.load_safetensors(whole)
        assert loaded.keys() == wanted.keys()
        for name, array in wanted.items():
            assert type(loaded[name]) is type(array)
            as_dense = lambda x: x if isinstance(x, np.ndarray) else x.toarray()  # noqa: E731
            np.testing.assert_array_equal(as_dense(loaded[name]), as_dense(array))


def test_advise_and_inspect_take_all_shards_as_one_model(arrays, folder, tmp_path, capsys):
    one = saved(arrays, tmp_path)
    for path in (folder, folder / INDEX):
        for command in (("advise", path, "--tokens", 1, 64), ("inspect", path)):
            wanted = run(capsys, command[0], one, *command[2:])
            # One file lists its arrays in the order of its own.
            assert sorted(run(capsys, *command).split("\n")) == sorted(wanted.split("\n"))
    assert "2:4" not in run(capsys, "inspect", folder)
    run(capsys, "convert", folder, tmp_path / "out", "--quiet")
    told = run(capsys, "inspect", tmp_path / "out")
    assert told.count("2:4") == 2
    assert len(told.splitlines()) == 2 + len(arrays)
    for command in (("advise",), ("convert",)):
        more = [tmp_path / "again"] if command == ("convert",) else []
        error = run(capsys, *command, tmp_path / "out", *more, code=1)
        assert "is compressed already" in error


def test_a_folder_with_one_file_is_that_file(arrays, tmp_path, capsys):
    (tmp_path / "one").mkdir()
    saved(arrays, tmp_path / "one")
    run(capsys, "advise", tmp_path / "one")
    run(capsys, "convert", tmp_path / "one", tmp_path / "out.npz", "--quiet")
    assert s24.load_npz(tmp_path / "out.npz").keys() == arrays.keys()
    error = run(capsys, "convert", tmp_path / "one", tmp_path / "one" / "model.safetensors", code=1)
    assert "OUT must not be IN" in error
    error = run(capsys, "convert", tmp_path / "one", tmp_path / "two", code=1)
    assert "OUT must end in .safetensors or .npz, as IN is one file, " in error
    assert repr(str(tmp_path / "one" / "model.safetensors")) in error


def test_the_demo_takes_shards(arrays, folder, capsys):
    text = run(capsys, "demo", "--checkpoint", folder, "--device", "cpu", "--tokens", 4)
    assert "0 wrong" in text


def large(folder, shards):
    """A checkpoint of as many shards, each with one large matrix and one large array."""
    folder.mkdir()
    weight_map = {}
    for i in range(shards):
        mine = {f"w{i}": np.ones((512, 512), np.float32), f"bias{i}": np.ones(1 << 18, np.float32)}
        weight_map |= dict.fromkeys(mine, f"s{i}.safetensors")
        _raw_writers.write_safetensors(folder / f"s{i}.safetensors", mine, None)
    write_index(folder, weight_map=weight_map)
    return folder


def test_one_shard_at_a_time_is_in_memory(tmp_path):
    peaks = []
    _convert_checkpoint.convert(large(tmp_path / "first", 1), tmp_path / "warm")
    for shards in (1, 8):
        source = large(tmp_path / str(shards), shards)
        tracemalloc.start()
        _convert_checkpoint.convert(source, tmp_path / f"out{shards}", progress=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_the_energy_of_large_matrices_is_summed_in_blocks(monkeypatch, rng):
    x = rng.standard_normal((30, 41)).astype(np.float32)
    monkeypatch.setattr(_checkpoint, "_BLOCK", 100)
    assert _checkpoint._energy(x) == pytest.approx(float((x.astype(np.float64) ** 2).sum()))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
@pytest.mark.parametrize("there", [False, True])
def test_an_interrupted_conversion_leaves_all_as_it_was(
    error, there, arrays, folder, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "out"
    if there:
        run(capsys, "convert", folder, out, "--quiet", "--pattern", "1:4")
        (out / "config.json").write_text("{}")
    before = files_of(out) if there else None
    write, written = _raw_writers.write_safetensors, []

    def fail(path, *args):
        written.append(path)
        if len(written) == 3:
            raise error
        write(path, *args)

    monkeypatch.setattr(_raw_writers, "write_safetensors", fail)
    code = 130 if error is KeyboardInterrupt else 1
    run(capsys, "convert", folder, out, "--quiet", code=code)
    assert len(written) == 3
    assert not out.exists() if not there else files_of(out) == before


@pytest.mark.parametrize("step", range(9))
def test_a_switch_that_fails_is_undone(step, arrays, folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    run(capsys, "convert", folder, out, "--quiet", "--pattern", "1:4")
    (out / SHARDS[1]).unlink()  # one is new
    before, replace, steps = files_of(out), os.replace, []

    def fail(source, target):
        if not str(target).endswith(".tmp"):  # of the switch
            steps.append(target)
            if len(steps) == step + 1:
                raise OSError("no more")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    code = 1 if step < 7 else 0  # three old files go, four new ones come
    run(capsys, "convert", folder, out, "--quiet", code=code)
    monkeypatch.undo()
    assert (files_of(out) == before) == (step < 7)
    assert set(files_of(out)) - set(before) == (set() if step < 7 else {SHARDS[1]})


def test_the_index_goes_first_and_comes_last(arrays, folder, tmp_path, capsys, monkeypatch):
    out, order, replace = tmp_path / "out", [], os.replace
    run(capsys, "convert", folder, out, "--quiet")
    monkeypatch.setattr(
        os, "replace", lambda a, b: (order.append((str(a), str(b))), replace(a, b))[1]
    )
    run(capsys, "convert", folder, out, "--quiet", "--pattern", "1:4")
    ends = [pair for pair in order if str(out / INDEX) in pair]
    switch = order[order.index(ends[0]) :]
    assert switch[0] == ends[0] == (str(out / INDEX), ends[0][1])
    assert switch[-1] == ends[1] == (ends[1][0], str(out / INDEX))


def test_what_out_may_not_be(arrays, folder, tmp_path, capsys):
    before = files_of(folder)
    (tmp_path / "file").write_text("precious")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "other.safetensors.index.json").write_text("{}")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / SHARDS[0]).symlink_to(folder / SHARDS[0])
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / SHARDS[0]).symlink_to(tmp_path / "twice" / SHARDS[1])
    (tmp_path / "link").symlink_to(folder)
    for out, words in (
        (folder, "OUT must not be the folder of IN"),
        (tmp_path / "link", "OUT must not be the folder of IN"),
        (tmp_path / "linked", "nor lead to files in it: pruning cannot be undone"),
        (tmp_path / "twice", "has links to one file under two names; name a new folder"),
        (tmp_path / "other", "must not hold another checkpoint, got"),
        (tmp_path / "o.safetensors", "OUT must be a folder, as IN has 3 shards, got"),
        (tmp_path / "o" / INDEX, "OUT must be a folder, as IN has 3 shards, got"),
        (tmp_path / "file", "file' is not a folder; name a folder, or a new one"),
        (tmp_path / "none" / "out", "is in a folder that does not exist; name a folder"),
    ):
        assert words in run(capsys, "convert", folder, out, code=1)
    assert files_of(folder) == before
    assert not (tmp_path / "o.safetensors").exists()
    assert (tmp_path / "file").read_text() == "precious"


def test_a_report_replaces_no_shard(arrays, folder, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    for place in (folder, tmp_path / "out"):
        for name in (INDEX, SHARDS[1]):
            error = run(capsys, "convert", folder, tmp_path / "out", "--report", place / name,
                        code=1)  # fmt: skip
            assert f"the report must not replace '{place / name}'" in error
    assert os.listdir(tmp_path / "out") == []


def test_what_is_wrong_in_any_shard_is_found_before_the_work(
    arrays, folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(_checkpoint, "compress_layer", None)
    np.savez(tmp_path / "inputs.npz", **{"layer.0.weight": np.ones((50, 36))})
    error = run(capsys, "convert", folder, tmp_path / "out", "--method", "wanda",
                "--calibration", tmp_path / "inputs.npz", code=1)  # fmt: skip
    assert "layer.1.weight: the calibration has no inputs of this name" in error
    mine = {"layer.2.weight": np.ones((8, 8)), "layer.0.weight.values": np.ones(3)}
    _raw_writers.write_safetensors(folder / SHARDS[1], mine, None)
    kept = {name: shard for name, shard in HOMES.items() if shard != SHARDS[1]}
    write_index(folder, weight_map={**kept, **dict.fromkeys(mine, SHARDS[1])})
    error = run(capsys, "convert", folder, tmp_path / "out", code=1)
    assert "two arrays would be saved as 'layer.0.weight.values'" in error
    error = run(capsys, "convert", folder, tmp_path / "out", "--include", "none", code=1)
    assert "no eligible matrix among its 6 arrays: for example" in error
    assert not (tmp_path / "out").exists()


def test_the_output_takes_the_permissions_of_new_files_or_of_the_old_ones(
    arrays, folder, tmp_path, capsys
):
    out, plain = tmp_path / "out", tmp_path / "plain"
    plain.touch()
    run(capsys, "convert", folder, out, "--quiet")
    assert {path.stat().st_mode for path in out.iterdir()} == {plain.stat().st_mode}
    (out / SHARDS[0]).chmod(0o640)
    run(capsys, "convert", folder, out, "--quiet")
    assert (out / SHARDS[0]).stat().st_mode & 0o777 == 0o640
    assert (out / INDEX).stat().st_mode == plain.stat().st_mode
