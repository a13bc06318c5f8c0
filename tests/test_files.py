"""Saving and loading: every type, bit for bit; what is written, and where to."""

from __future__ import annotations

import json
import os
import zipfile

import numpy as np
import pytest
from file_cases import FORMATS, assert_same, bits

import sparse24 as s24
from sparse24 import _dtypes, _whole_files

SHAPES = [(4, 8), (3, 10), (2, 3, 7), (1, 1), (0, 8), (5, 0), (64, 128)]


@pytest.mark.parametrize("dtype", _dtypes.NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip_is_bit_exact(suffix, dtype, shape, tmp_path, rng):
    save, load = FORMATS[suffix]
    a = s24.random(shape, dtype=dtype, rng=rng)
    save(tmp_path / f"a.{suffix}", a)
    assert_same(load(tmp_path / f"a.{suffix}"), a)


def test_transposed_and_transposable_arrays_come_back_as_such(suffix, tmp_path, rng):
    save, load = FORMATS[suffix]
    w = rng.standard_normal((12, 20)).astype(np.float32)
    both = s24.compress(w, on_excess="prune", transposable=True)
    arrays = {"turned": s24.random((4, 8), rng=rng).T, "both": both}
    save(tmp_path / f"a.{suffix}", arrays)
    loaded = load(tmp_path / f"a.{suffix}")
    for name, array in arrays.items():
        assert_same(loaded[name], array)
        np.testing.assert_array_equal(loaded[name].toarray(), array.toarray())
    x = rng.standard_normal((3, 12)).astype(np.float32)
    np.testing.assert_allclose(x @ loaded["both"], x @ both.toarray(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(6, 13), (0, 13), (6, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("pattern", [(1, 4), (4, 8), (2, 4), (3, 5)], ids=str)
def test_other_patterns_round_trip(suffix, pattern, shape, tmp_path, rng):
    save, load = FORMATS[suffix]
    x = rng.standard_normal(shape).astype(np.float32).astype(_dtypes.TABLE["bfloat16"].logical)
    make = s24.NMArray.from_dense
    arrays = {
        "a": make(x, pattern=pattern, on_excess="prune"),
        "turned": make(x, pattern=pattern, on_excess="prune").T,
    }
    save(tmp_path / f"a.{suffix}", arrays)
    found = load(tmp_path / f"a.{suffix}")
    assert found.keys() == arrays.keys()
    for name, loaded in found.items():
        array = arrays[name]
        assert (loaded.pattern, loaded.axis, loaded.shape) == (pattern, array.axis, array.shape)
        np.testing.assert_array_equal(bits(loaded.values), bits(array.values))
        np.testing.assert_array_equal(loaded.indices, array.indices)


def test_other_readers_see_the_parts(tmp_path):
    from safetensors.numpy import load_file

    a = s24.random((4, 8), dtype="float16", rng=0)
    s24.save_npz(tmp_path / "a.npz", a)
    s24.save_safetensors(tmp_path / "a.safetensors", a)
    with np.load(tmp_path / "a.npz") as plain:
        np.testing.assert_array_equal(plain["array.values"], a.values)
    np.testing.assert_array_equal(
        load_file(tmp_path / "a.safetensors")["array.metadata"], a.metadata
    )


def test_names_that_a_file_would_not_give_back_are_refused(suffix, tmp_path):
    save, load = FORMATS[suffix]
    path = tmp_path / f"a.{suffix}"
    for name in ("\udc80", {"npz": "layer\0weight", "safetensors": "__metadata__"}[suffix]):
        with pytest.raises(s24.ArgumentError, match=r"can hold no array named '.*'; rename it"):
            save(path, {name: np.ones(3, np.float32)})
    assert not list(tmp_path.iterdir())
    names = ("format", "shape", "data", "", "sparse24.json", "a/b", "é")
    save(path, {name: np.full(2, i) for i, name in enumerate(names)})
    loaded = load(path)
    assert [int(loaded[name][0]) for name in names] == list(range(len(names)))


@pytest.mark.parametrize("letter", "aä")
def test_names_in_npz_are_as_long_as_zip_allows(letter, tmp_path):
    most, path = (65535 - 4) // len(letter.encode()), tmp_path / "a.npz"
    s24.save_npz(path, {letter * most: np.ones(3)})
    assert list(s24.load_npz(path)) == [letter * most]
    for array, part in ((np.ones(3), letter), (s24.random((4, 8), rng=0), "")):
        message = rf"at most 65531 bytes, got 655\d\d, '{letter * 40}'…; shorten it"
        with pytest.raises(s24.ArgumentError, match=message):
            s24.save_npz(tmp_path / "b.npz", {letter * most + part: array})
    assert os.listdir(tmp_path) == ["a.npz"]


def test_text_and_times_are_arrays_of_npz_files_too(tmp_path):
    others = {
        "words": np.array(["a", "long"]), "bytes": np.array(b"x"), "none": np.array([], "U3"),
        "days": np.array(["2026-01-01"], "M8[D]"), "swapped": np.arange(3, dtype=">i4"),
    }  # fmt: skip
    s24.save_npz(tmp_path / "a.npz", {"w": s24.random((4, 8), rng=0), **others})
    loaded = s24.load_npz(tmp_path / "a.npz")
    for name, array in others.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)
    with pytest.raises(s24.DTypeError, match=r"words has dtype <U4, .*; .* or name an npz file"):
        s24.save_safetensors(tmp_path / "a.safetensors", others)


def test_a_failed_write_leaves_the_old_file(suffix, tmp_path):
    save, load = FORMATS[suffix]
    path = tmp_path / f"a.{suffix}"
    a = s24.random((4, 8), rng=0)
    save(path, a)
    with pytest.raises(s24.ArgumentError, match="an array of numbers, got ndarray"):
        save(path, {"w": a, "x": np.array(["text", None])})
    with pytest.raises(s24.DTypeError, match=f"V4, which a {suffix} file cannot hold; convert"):
        save(path, {"w": a, "x": np.zeros(2, "V4")})
    with pytest.raises(s24.ArgumentError, match="names that are strings, got 3"):
        save(path, {3: a})
    with pytest.raises(s24.ArgumentError, match=r"saved as 'w\.values'"):
        save(path, {"w": a, "w.values": np.ones(1)})
    assert_same(load(path), a)
    assert os.listdir(tmp_path) == [path.name]


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def interrupted():
        with _whole_files.replacing(tmp_path / "a.npz") as fresh:
            fresh.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_the_header_is_readable_text(tmp_path):
    s24.save_npz(tmp_path / "a.npz", {"w": s24.random((4, 8), dtype="float8_e5m2", rng=0)})
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        header = json.loads(archive.read("sparse24.json"))
    assert header["version"] == 1
    assert header["bits"] == {"w.values": "float8_e5m2"}
    assert header["arrays"]["w"]["shape"] == [4, 8]
    assert header["dense"] == {}


def test_a_target_that_cannot_be_is_named(suffix, tmp_path):
    save, _ = FORMATS[suffix]
    a = s24.random((4, 8), rng=0)
    with pytest.raises(s24.ArgumentError, match="a folder that does not exist"):
        save(tmp_path / "none" / f"a.{suffix}", a)
    with pytest.raises(s24.ArgumentError, match="is a folder"):
        save(tmp_path, a)


def test_names_may_be_as_long_as_the_system_allows(suffix, tmp_path):
    save, load = FORMATS[suffix]
    path = tmp_path / f"{'ä' * ((254 - len(suffix)) // 2)}.{suffix}"
    save(path, s24.random((4, 8), rng=0))
    assert load(path).shape == (4, 8)


def test_permissions_are_those_of_any_new_file_or_of_the_old_one(suffix, tmp_path):
    save, _ = FORMATS[suffix]
    path, plain = tmp_path / f"a.{suffix}", tmp_path / "plain"
    plain.touch()
    save(path, s24.random((4, 8), rng=0))
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    save(path, s24.random((4, 8), rng=1))
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_device_that_is_not_there_is_refused_whatever_the_file_holds(suffix, tmp_path):
    save, load = FORMATS[suffix]
    for arrays in ({}, {"names": np.array([1, 2])}, {"w": s24.random((4, 8), rng=0)}):
        save(tmp_path / "a", arrays)
        with pytest.raises(s24.ArgumentError, match="device must be 'cpu', 'cuda' or"):
            load(tmp_path / "a", device="gpu")


def test_a_folder_is_no_file(suffix, tmp_path):
    with pytest.raises(s24.ArgumentError, match=r"is a folder.*; name a file in it"):
        FORMATS[suffix][1](tmp_path)


def test_no_suffix_is_appended(suffix, tmp_path):
    save, load = FORMATS[suffix]
    save(tmp_path / "a", s24.random((4, 8), rng=0))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert load(tmp_path / "a").shape == (4, 8)


def test_a_missing_file_is_a_missing_file(suffix, tmp_path):
    with pytest.raises(FileNotFoundError):
        FORMATS[suffix][1](tmp_path / f"none.{suffix}")


@pytest.mark.gpu
def test_arrays_come_from_and_go_to_the_gpu(suffix, tmp_path):
    save, load = FORMATS[suffix]
    for dtype in _dtypes.NAMES:
        a = s24.random((40, 72), dtype=dtype, rng=0)
        save(tmp_path / f"a.{suffix}", a.to_device("cuda"))
        assert_same(load(tmp_path / f"a.{suffix}"), a)
        on_gpu = load(tmp_path / f"a.{suffix}", device="cuda")
        assert on_gpu.device.startswith("cuda")
        assert_same(on_gpu.to_device("cpu"), a)
