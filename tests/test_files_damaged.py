"""Files that are damaged, of another kind, or say what cannot be: each is refused and named."""

from __future__ import annotations

import contextlib
import re
import zipfile

import numpy as np
import pytest
from file_cases import FORMATS, after_flips, assert_same

import sparse24 as s24
from sparse24 import _dtypes, _raw_files, _raw_writers
from sparse24.formats import stored
from sparse24.formats.parts import Parts


def test_places_that_do_not_rise_are_refused():
    values, places = np.zeros((1, 4), np.float32), np.array([[0, 0, 1, 2]], np.uint8)
    row = _dtypes.TABLE["float32"]
    with pytest.raises(s24.FormatError, match="must rise and stay below 4"):
        Parts(values, places, (1, 8), row, layout="places").check("layer")


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


@pytest.mark.parametrize("name", ["a.npy", "a.dat", "a.safetensors"])
def test_files_of_numpy_are_no_safetensors_files(name, tmp_path):
    path = tmp_path / name
    with path.open("wb") as file:
        np.save(file, np.ones((2, 2)))
    with pytest.raises(s24.FormatError, match=r"is an npy file, not .*; load it with numpy\.load"):
        s24.load_safetensors(path)
    with path.open("wb") as file:
        np.savez(file, w=np.ones((2, 2)))
    with pytest.raises(s24.FormatError, match=r"is an npz file, not .*; rename it, .*load_npz"):
        s24.load_safetensors(path)
    pickled = path.rename(tmp_path / "a.pt")  # torch's checkpoints are zip archives, too
    with pytest.raises(s24.FormatError, match=r"a\.pt cannot be read: .*; pickles"):
        s24.load_safetensors(pickled)


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


@pytest.mark.parametrize(
    ("array", "kind"),
    [("array.values", []), ("array.values", "bfloat16"), ("array.of_none", "bfloat16")],
)
def test_bits_of_another_type_or_of_none_are_refused(array, kind, tmp_path):
    raw, header = stored.pack(s24.random((4, 8), dtype="float32", rng=0))
    _raw_writers.write_npz(tmp_path / "a.npz", raw, {**header, "bits": {array: kind}})
    message = re.escape(f"array {array!r} does not hold the bits of {kind!r}")
    with pytest.raises(s24.FormatError, match=message):
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
