"""Archives of npz files that other programs wrote, damaged at every byte."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _raw_files

METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflate": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}
ARRAYS = {"a": np.arange(40.0), "b": np.arange(30)}


def archive(method):
    """The bytes of an npz file whose members are packed by a method."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as members:
        for name, array in ARRAYS.items():
            with members.open(f"{name}.npy", "w") as member:
                np.save(member, array)
    return file.getvalue()


@pytest.mark.parametrize("method", METHODS)
def test_damage_never_passes_for_other_arrays(method, tmp_path):
    path, whole = tmp_path / "a.npz", archive(METHODS[method])
    refused = 0
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :])
        try:
            found = dict(_raw_files.open_arrays(path))
        except s24.FormatError:
            refused += 1
            continue
        # A date or a version, which nothing reads; never a name or an array.
        assert found.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found[name], array)
    assert refused > len(whole) // 2


def test_a_member_whose_name_was_damaged_is_not_passed_over(tmp_path):
    """The list of members has names of its own, by which arrays are told from other members."""
    path, whole = tmp_path / "a.npz", archive(zipfile.ZIP_STORED)
    place = whole.rindex(b"b.npy")
    path.write_bytes(whole[:place] + b"b.npx" + whole[place + 5 :])
    with pytest.raises(s24.FormatError, match=r"'b\.npx' and header b'b\.npy' differ"):
        _raw_files.open_arrays(path)


def test_a_member_that_is_no_array_a_comment_and_what_follows_are_let_be(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(archive(zipfile.ZIP_STORED))
    with zipfile.ZipFile(path, "a") as members:
        members.writestr("README.txt", "of what the arrays are")
        members.mkdir("more")
        members.comment = b"made by hand"
    path.write_bytes(b"before" + path.read_bytes() + b"after")
    assert list(_raw_files.open_arrays(path)) == list(ARRAYS)


@pytest.mark.parametrize("name", ["b.npy", "sparse24.json"])
def test_two_members_of_one_name_are_refused(name, tmp_path):
    """As where one was appended to the archive in place of another, which is still there."""
    path = tmp_path / "a.npz"
    s24.save_npz(path, {**ARRAYS, "c": s24.random((8, 8), rng=0)})
    with zipfile.ZipFile(path, "a") as members:
        again = members.read(name)
        with pytest.warns(UserWarning, match="Duplicate name"):
            members.writestr(name, again)
    for read in (_raw_files.open_arrays, s24.load_npz):
        with pytest.raises(s24.FormatError, match=f"it has 2 members '{name}'"):
            read(path)
