"""Checkpoints in shards: what of them is read, and what is refused."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from shard_cases import HOMES, INDEX, SHARDS, sharded, write_index

import sparse24 as s24
from sparse24 import _raw_files, _raw_writers


@pytest.fixture
def folder(tmp_path, rng):
    sharded(tmp_path / "model", rng)
    return tmp_path / "model"


def converted(folder):
    """Files of sparse24 in the place of the shards: a matrix, an array of its own in each."""
    arrays = {}
    for i, shard in enumerate(SHARDS):
        arrays |= {f"w{i}": s24.random((8, 16), rng=i), f"b{i}": np.full(3, i)}
        s24.save_safetensors(folder / shard, {name: arrays[name] for name in (f"w{i}", f"b{i}")})
    names = {shard: [f"w{i}.values", f"w{i}.metadata", f"b{i}"] for i, shard in enumerate(SHARDS)}
    weight_map = {name: shard for shard in SHARDS for name in names[shard]}
    write_index(folder, weight_map=weight_map)
    return arrays, weight_map


def linked(folder, target):
    """The links of a cache: names that lead to files elsewhere, without a suffix."""
    (target / "blobs").mkdir(parents=True)
    (target / "main").mkdir()
    for i, name in enumerate((*SHARDS, INDEX)):
        os.replace(folder / name, target / "blobs" / str(i))
        (target / "main" / name).symlink_to(f"../blobs/{i}")
    return target / "main"


def test_a_checkpoint_in_shards_is_one_of_all_their_arrays(folder, rng):
    arrays = sharded(folder, np.random.default_rng(3))
    for path in (folder, folder / INDEX):
        file = _raw_files.open_arrays(path)
        assert set(file) == set(arrays) == set(file.specs)
        for name, array in arrays.items():
            np.testing.assert_array_equal(file[name], array)
        assert [x.path.name for x in file.files] == list(SHARDS)


def test_only_the_array_that_is_asked_for_is_read(folder, monkeypatch):
    read = []
    monkeypatch.setattr(
        _raw_files.SafetensorsFile, "_read", lambda self, *spec: read.append(self.path.name)
    )
    file = _raw_files.open_arrays(folder)
    assert len(file.specs) == len(HOMES)
    assert read == []
    assert file["layer.1.bias"] is None
    assert read == [SHARDS[2]]


def test_loading_gives_the_arrays_of_all_shards(folder):
    arrays, _ = converted(folder)
    for path in (folder, str(folder / INDEX)):
        loaded = s24.load_safetensors(path)
        assert loaded.keys() == arrays.keys()
        for i in range(3):
            np.testing.assert_array_equal(loaded[f"w{i}"].toarray(), arrays[f"w{i}"].toarray())
            np.testing.assert_array_equal(loaded[f"b{i}"], i)


def test_links_to_files_elsewhere_are_shards(folder, tmp_path):
    arrays, _ = converted(folder)
    assert s24.load_safetensors(linked(folder, tmp_path / "cache")).keys() == arrays.keys()


def test_a_folder_may_have_one_file_or_one_index(tmp_path, folder):
    a = s24.random((4, 8), rng=0)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.json").write_text("{}")
    s24.save_safetensors(tmp_path / "one" / "model.safetensors", a)
    np.testing.assert_array_equal(s24.load_safetensors(tmp_path / "one").toarray(), a.toarray())
    s24.save_safetensors(tmp_path / "one" / "other.safetensors", a)
    with pytest.raises(s24.ArgumentError, match=r"2 files model\.safetensors, other.*no index.*na"):
        s24.load_safetensors(tmp_path / "one")
    os.replace(tmp_path / "one" / "model.safetensors", folder / "consolidated.safetensors")
    assert len(_raw_files.open_arrays(folder).files) == 3  # the index says which files count
    (folder / "model.safetensors.index.fp16.json").write_bytes((folder / INDEX).read_bytes())
    with pytest.raises(s24.ArgumentError, match=r"a folder with 2 files .*fp16.json.*; name one"):
        _raw_files.open_arrays(folder)
    assert len(_raw_files.open_arrays(folder / "model.safetensors.index.fp16.json").files) == 3
    (tmp_path / "none").mkdir()
    with pytest.raises(s24.ArgumentError, match=r"without model\.safetensors\.index\.json or a"):
        _raw_files.open_arrays(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        _raw_files.open_arrays(tmp_path / "Llama-3.1-8B")
    with pytest.raises(FileNotFoundError):
        s24.load_safetensors(tmp_path / "none" / INDEX)


def test_a_folder_that_may_not_be_read_is_not_one_without_files(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)  # the administrator may read all folders
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        _raw_files.open_arrays(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin.index.json", "pytorch_model.bin", "m.pt"])
def test_pickles_are_refused_with_a_way_out(name, tmp_path):
    weight_map = {"a": "pytorch_model-00001-of-00001.bin"}
    (tmp_path / name).write_text(json.dumps({"weight_map": weight_map}))
    paths = [tmp_path, *([tmp_path / name] if name.endswith("json") else [])]
    for path in paths:
        with pytest.raises(s24.FormatError, match=r"of pickles.*never reads.*safe_serialization"):
            _raw_files.open_arrays(path)
    write_index(tmp_path, weight_map=weight_map)
    with pytest.raises(s24.FormatError, match=r"00001\.bin is a checkpoint of pickles"):
        s24.load_safetensors(tmp_path / INDEX)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not JSON"),
        ('{"weight_map": ', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        (b"\xff\xfe{}", "it is not JSON"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "it has 'a' twice"),
        ("[]", "not an index of shards, which has a weight_map"),
        ('{"architectures": []}', "not an index of shards, which has a weight_map"),
        ('{"weight_map": ["a"]}', "not an index of shards, which has a weight_map"),
        ('{"weight_map": {}}', "its weight_map is empty"),
        ('{"weight_map": {"a": "x.safetensors"}, "metadata": 3}', "its metadata is not a JSON obj"),
    ],
)
def test_a_broken_index_is_refused(text, message, folder):
    (folder / INDEX).write_bytes(text if isinstance(text, bytes) else text.encode())
    for load in (s24.load_safetensors, _raw_files.open_arrays):
        with pytest.raises(s24.FormatError, match=rf"index\.json cannot be read: .*{message}"):
            load(folder)


@pytest.mark.parametrize(
    "shard",
    ["../x.safetensors", "/x.safetensors", "sub/x.safetensors", "..\\x.safetensors", "", ".", "..",
     "C:x.safetensors", "x.safetensors/", 3, None, ["x.safetensors"]],
    ids=repr,
)  # fmt: skip
def test_a_shard_is_a_plain_name(shard, folder):
    (folder.parent / "x.safetensors").write_bytes((folder / SHARDS[0]).read_bytes())
    write_index(folder, weight_map={"layer.0.weight": shard})
    with pytest.raises(s24.FormatError, match=r"'layer.0.weight' in .*the plain name of a file"):
        _raw_files.open_arrays(folder)


def test_an_absolute_path_is_refused(folder):
    write_index(folder, weight_map={"layer.0.weight": str(folder / SHARDS[0])})
    with pytest.raises(s24.FormatError, match="the plain name of a file beside the index"):
        _raw_files.open_arrays(folder)


@pytest.mark.parametrize(
    "shard",
    ["none.safetensors", "a\0.safetensors", "\udc80.safetensors", f"{'a' * 300}.safetensors"],
)
def test_a_shard_that_is_not_there_is_named(shard, folder):
    write_index(folder, weight_map={**HOMES, "x": shard})
    with pytest.raises(s24.FormatError, match="no such file is beside it; fetch all shards"):
        _raw_files.open_arrays(folder)
    write_index(folder, weight_map={"x": "notes.txt"})
    with pytest.raises(s24.FormatError, match=r"'notes\.txt', which is not a safetensors file"):
        _raw_files.open_arrays(folder)


def test_an_index_and_its_shards_must_fit(folder):
    write_index(folder, weight_map={**HOMES, "more": SHARDS[1]})
    with pytest.raises(s24.FormatError, match=rf"array 'more' is not in its shard, {SHARDS[1]}"):
        _raw_files.open_arrays(folder)
    write_index(folder, weight_map={name: HOMES[name] for name in HOMES if name != "ids"})
    with pytest.raises(s24.FormatError, match=f"not list the array 'ids' of the shard {SHARDS[1]}"):
        _raw_files.open_arrays(folder)
    twice = {name: np.ones(3) for name in ("layer.2.weight", "ids", "layer.1.bias")}
    _raw_writers.write_safetensors(folder / SHARDS[1], twice, None)
    write_index(folder, weight_map=HOMES)
    with pytest.raises(s24.FormatError, match=rf"'layer\.1\.bias' is in two shards, {SHARDS[2]} a"):
        _raw_files.open_arrays(folder)


def test_a_damaged_shard_is_named(folder):
    (folder / SHARDS[1]).write_bytes((folder / SHARDS[1]).read_bytes()[:-5])
    with pytest.raises(s24.FormatError, match=rf"{SHARDS[1]} cannot be read"):
        _raw_files.open_arrays(folder)


def test_shards_of_others_and_of_one_array_are_refused(folder):
    with pytest.raises(s24.FormatError, match=rf"{SHARDS[0]} was not written by sparse24"):
        s24.load_safetensors(folder)
    _, weight_map = converted(folder)
    _raw_writers.write_safetensors(folder / SHARDS[2], {"b": np.ones(3)}, None)
    kept = {name: shard for name, shard in weight_map.items() if shard != SHARDS[2]}
    write_index(folder, weight_map={**kept, "b": SHARDS[2]})
    with pytest.raises(s24.FormatError, match=rf"{SHARDS[2]} was not written by sparse24"):
        s24.load_safetensors(folder)
    s24.save_safetensors(folder / SHARDS[2], s24.random((4, 8), rng=0))
    alone = dict.fromkeys(("array.values", "array.metadata"), SHARDS[2])
    write_index(folder, weight_map={**kept, **alone})
    with pytest.raises(s24.FormatError, match=r"saved alone, .*; load it by itself"):
        s24.load_safetensors(folder)


def test_an_array_is_in_one_shard_whatever_its_form(folder):
    _, weight_map = converted(folder)
    s24.save_safetensors(folder / SHARDS[2], {"w0": np.ones(3)})
    kept = {name: shard for name, shard in weight_map.items() if shard != SHARDS[2]}
    write_index(folder, weight_map={**kept, "w0": SHARDS[2]})
    with pytest.raises(s24.FormatError, match="array 'w0': another shard holds it, too"):
        s24.load_safetensors(folder)
