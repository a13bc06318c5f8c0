"""The header of a file has a checksum of its own, which the first files lack."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from file_cases import FORMATS

import sparse24 as s24
from sparse24 import _raw_writers
from sparse24.formats import stored


@pytest.mark.parametrize(
    ("seal", "message"),
    [("crc32", "a header that does not match its checksum"), ("crc33", "a header with 'crc33'")],
)
def test_a_header_that_was_edited_is_refused(suffix, seal, message, tmp_path):
    """Without its checksum another axis would load the transpose of a square matrix."""
    raw, header = stored.pack(s24.random((8, 8), rng=0))
    header["arrays"]["array"]["axis"] = -2
    header[seal] = header.pop("crc32")
    _raw_writers.write(tmp_path / f"a.{suffix}", raw, header)
    with pytest.raises(s24.FormatError, match=message):
        FORMATS[suffix][1](tmp_path / f"a.{suffix}")


def test_files_whose_header_has_no_checksum_are_read(suffix, tmp_path):
    a = s24.random((8, 8), rng=0)
    raw, header = stored.pack(a)
    del header["crc32"]
    _raw_writers.write(tmp_path / f"a.{suffix}", raw, header)
    loaded = FORMATS[suffix][1](tmp_path / f"a.{suffix}")
    np.testing.assert_array_equal(loaded.toarray(), a.toarray())


def test_types_without_products_are_copied(tmp_path):
    kinds = (ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz)
    arrays = {np.dtype(kind).name: np.arange(1, 9).astype(np.uint8).view(kind) for kind in kinds}
    s24.save_safetensors(tmp_path / "scales.safetensors", arrays)
    loaded = s24.load_safetensors(tmp_path / "scales.safetensors")
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name].view(np.uint8), array.view(np.uint8))


def test_a_type_that_is_not_known_is_no_damage(tmp_path):
    header = b'{"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}'
    path = tmp_path / "new.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(s24.FormatError, match="has type F4, which sparse24 does not know"):
        s24.load_safetensors(path)
