"""Saving and loading: every type, bit for bit, and damaged files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile

import numpy as np
import pytest
from file_cases import FORMATS, after_flips, bits

import sparse24 as s24
from sparse24 import _dtypes, _raw_files, _raw_writers, _whole_files
from sparse24.formats import stored
from sparse24.formats.parts import Parts

SHAPES = [(4, 8), (3, 10), (2, 3, 7), (1, 1), (0, 8), (5, 0), (64, 128)]


@pytest.fixture(params=FORMATS)
def suffix(request):
    return request.param


def assert_same(a, b):
    assert (a.shape, a.dtype, a.axis, a.transposable) == (b.shape, b.dtype, b.axis, b.transposable)
    np.testing.assert_array_equal(bits(a.values), bits(b.values))
    np.testing.assert_array_equal(a.metadata, b.metadata)


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
    for name, loaded in load(tmp_path / f"a.{suffix}").items():
        array = arrays[name]
        assert (loaded.pattern, loaded.axis, loaded.shape) == (pattern, array.axis, array.shape)
        np.testing.assert_array_equal(bits(loaded.values), bits(array.values))
        np.testing.assert_array_equal(loaded.indices, array.indices)


def test_places_that_do_not_rise_are_refused():
    values, places = np.zeros((1, 4), np.float32), np.array([[0, 0, 1, 2]], np.uint8)
    row = _dtypes.TABLE["float32"]
    with pytest.raises(s24.FormatError, match="must rise and stay below 4"):
        Parts(values, places, (1, 8), row, layout="places").check("layer")


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


@pytest.mark.parametrize("cut", [0, 1, 7, 60, -200, -1])
def test_truncated_files_are_refused(suffix, cut, tmp_path):
    save, load = FORMATS[suffix]
    path = tmp_path / f"a.{suffix}"
    save(path, s24.random((16, 32), rng=0))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(s24.FormatError, match="cannot be read"):
        load(path)


def test_every_flipped_byte_is_noticed(suffix, tmp_path):
    save, load = FORMATS[suffix]
    path = tmp_path / f"a.{suffix}"
    a = s24.random((4, 16), rng=0)
    save(path, a)
    unnoticed = 0
    for loaded in after_flips(path, load):
        if not isinstance(loaded, dict):  # a flip in the header made it another mapping
            assert_same(loaded, a)  # a flip in padding, dates or the like
            unnoticed += 1
    assert unnoticed < path.stat().st_size / 2


def test_an_illegal_code_is_named():
    values, metadata = np.zeros((1, 4), np.float32), np.array([[0x47]], np.uint8)
    with pytest.raises(s24.FormatError, match=r"layer: metadata\[0, 0\] is 0x47.*illegal code"):
        Parts(values, metadata, (1, 8), _dtypes.TABLE["float32"]).check("layer")


def test_a_value_past_the_edge_is_refused():
    values, metadata = np.ones((1, 2), np.float32), np.array([[0x4E]], np.uint8)
    with pytest.raises(s24.FormatError, match="beyond the last of 3 columns"):
        Parts(values, metadata, (1, 3), _dtypes.TABLE["float32"]).check("layer")


def test_a_spare_code_must_be_empty():
    values, metadata = np.zeros((1, 2), np.float32), np.array([[0xE4]], np.uint8)
    with pytest.raises(s24.FormatError, match="spare code"):
        Parts(values, metadata, (1, 4), _dtypes.TABLE["float32"]).check("layer")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [4, 9]}, "must have shape"),
        ({"shape": [4, -8]}, "two or more sizes"),
        ({"shape": "4x8"}, "two or more sizes"),
        ({"dtype": "float16"}, "values must be float16"),
        ({"dtype": "object"}, "must be one of sparse24's"),
        ({"dtype": ["float32"]}, "must be one of sparse24's"),
        ({"pattern": [4, 2]}, "pattern must be a pair"),
        ({"axis": 7}, "axis must be"),
        ({"axis": -2.0}, "axis must be"),
        ({"layout": "rows"}, "has the layout 'rows'"),
        ({"pattern": [1, 4]}, "has the layout 'codes'"),
        ({"crc32": {"values": 1}}, "do not match the checksum"),
        ({"transposable": True}, r"claims to be transposable: its transpose\[\d, 0:4\] has"),
    ],
)
def test_a_header_that_lies_is_refused(change, message, tmp_path):
    raw, header = stored.pack(s24.random((4, 8), rng=0))
    header["arrays"]["array"].update(change)
    _raw_writers.write_safetensors(tmp_path / "a.safetensors", raw, stored.sealed(header))
    with pytest.raises(s24.FormatError, match=message):
        s24.load_safetensors(tmp_path / "a.safetensors")


def test_a_newer_version_and_a_foreign_file_are_refused(tmp_path):
    raw, header = stored.pack(s24.random((4, 8), rng=0))
    _raw_writers.write_npz(tmp_path / "new.npz", raw, {**header, "version": 99})
    np.savez(tmp_path / "foreign.npz", x=np.ones(3))
    with pytest.raises(s24.FormatError, match=r"version 99.*install a newer one"):
        s24.load_npz(tmp_path / "new.npz")
    with pytest.raises(s24.FormatError, match="not written by sparse24"):
        s24.load_npz(tmp_path / "foreign.npz")


def test_a_missing_part_is_named(tmp_path):
    raw, header = stored.pack(s24.random((4, 8), rng=0))
    del raw["array.metadata"]
    _raw_writers.write_npz(tmp_path / "a.npz", raw, header)
    with pytest.raises(s24.FormatError, match="its metadata are missing"):
        s24.load_npz(tmp_path / "a.npz")


def test_pickles_are_never_read(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(s24.FormatError, match="not numbers, text or times"):
        _raw_files.open_arrays(tmp_path / "a.npy")


def test_a_claim_larger_than_the_file_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((2, 2)))
    path.write_bytes(path.read_bytes().replace(b"(2, 2)", b"(9, 9)"))
    with pytest.raises(s24.FormatError, match="does not fill it"):
        _raw_files.open_arrays(path)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_an_npy_file_is_no_npz_file(name, tmp_path):
    with (tmp_path / name).open("wb") as file:
        np.save(file, np.ones((2, 2)))
    with pytest.raises(s24.FormatError, match=r"is an npy file, not npz; load it with numpy\.load"):
        s24.load_npz(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("west0479.mtx", "read it in Python, with sparse24.families.read_mtx"),
        ("west0479.mtx.gz", "read it in Python, with sparse24.families.read_mtx"),
        ("w.smtx", "read it in Python, with sparse24.families.read_smtx"),
        ("model.pt", "pickles, which may run any program, are never read"),
        ("w.dat", "fetch or save the file again"),
        ("w.mtx.dat", "fetch or save the file again"),
    ],
)
def test_a_file_of_another_kind_names_who_reads_it(suffix, name, words, tmp_path):
    (tmp_path / name).write_text("%%MatrixMarket matrix coordinate real general\n")
    with pytest.raises(s24.FormatError, match=f"cannot be read: .*; {re.escape(words)}"):
        FORMATS[suffix][1](tmp_path / name)


@pytest.mark.filterwarnings("ignore:Reading .* required additional header parsing")
def test_every_byte_of_an_npy_header_may_be_damaged(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3, dtype=np.float32))
    whole = path.read_bytes()
    for place in range(whole.index(b"\n")):
        for byte in b"\x00\t\n #'(),-0:9L[{\xff":
            path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            with contextlib.suppress(s24.FormatError):
                assert _raw_files.open_arrays(path)["a"].nbytes == 12


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        "(-2, -3)", "(True, 6)", f"({2**70}, 0)", f"({2**40}, {2**40}, 0)", str((6, *[1] * 67)),
        "[" * 99, "(0, 01)",
    ],
)  # fmt: skip
def test_shapes_that_no_array_has_are_refused(shape, wrapped, tmp_path):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    data = b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text
    data += bytes(0 if shape.endswith(" 0)") else 24)
    path = tmp_path / ("a.npz" if wrapped else "a.npy")
    path.write_bytes(data)
    if wrapped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", data)
    with pytest.raises(s24.FormatError, match=r"array 'a'.*fetch or save the file again"):
        _raw_files.open_arrays(path)["a"]


def test_a_header_that_nests_too_deep_is_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.ones(2)}, tmp_path / "a.safetensors", metadata={"sparse24": "[" * 100_000})
    with pytest.raises(s24.FormatError, match="its header is not JSON"):
        s24.load_safetensors(tmp_path / "a.safetensors")


def test_bits_of_a_type_without_a_name_are_refused(tmp_path):
    raw, header = stored.pack(s24.random((4, 8), rng=0))
    _raw_writers.write_npz(tmp_path / "a.npz", raw, {**header, "bits": {"array.values": []}})
    with pytest.raises(s24.FormatError, match=r"does not hold the bits of \[\]"):
        s24.load_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("shape", "message"),
    [([2**38, 2**38], "kinds of the hybrid matrix must have"), ([2**70, 0], "must be two sizes")],
)
def test_a_hybrid_matrix_of_more_tiles_than_can_be_counted_is_refused(shape, message, tmp_path):
    raw, header = stored.pack(s24.hybrid(np.zeros((0, 0), np.float32)))
    header["arrays"]["array"]["shape"] = shape
    _raw_writers.write_npz(tmp_path / "a.npz", raw, stored.sealed(header))
    with pytest.raises(s24.FormatError, match=message):
        s24.load_npz(tmp_path / "a.npz")


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
