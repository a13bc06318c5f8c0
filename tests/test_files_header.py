"""The header of a file has a checksum of its own, which the first files lack."""

from __future__ import annotations

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
