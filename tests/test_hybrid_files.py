"""Files of the block-hybrid format, sound and damaged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hybrid_cases import DTYPES, KINDS, assert_same_bits, matrix, with_kinds

import sparse24 as s24
from sparse24 import _raw_writers
from sparse24._errors import FormatError
from sparse24.formats import stored
from sparse24.formats.hybrid import HybridArray
from sparse24.kernels import hybrid_kinds

FILES = {
    "npz": (s24.save_npz, s24.load_npz, _raw_writers.write_npz),
    "safetensors": (s24.save_safetensors, s24.load_safetensors, _raw_writers.write_safetensors),
}


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_save_and_load(rng, tmp_path, dtype, suffix):
    save, load, _ = FILES[suffix]
    w = matrix(rng, (100, 130), dtype=dtype)
    h = with_kinds(w, KINDS)
    save(tmp_path / f"h.{suffix}", h)
    again = load(tmp_path / f"h.{suffix}")
    assert_same_bits(again.toarray(), w)
    assert (again.nnz, again.n_hint) == (h.nnz, h.n_hint)
    save(tmp_path / f"h.{suffix}", {"up": h, "bias": np.ones(3, np.float32)})
    loaded = load(tmp_path / f"h.{suffix}")
    assert_same_bits(loaded["up"].toarray(), w)
    assert set(loaded) == {"up", "bias"}


@pytest.mark.parametrize("suffix", FILES)
def test_damaged_files_are_refused(rng, tmp_path, suffix):
    _, load, write = FILES[suffix]
    h = with_kinds(matrix(rng, (100, 130)), KINDS[1:])
    raw, header = stored.pack(h)
    header["arrays"]["array"].pop("crc32")
    parts = {name.removeprefix("array."): piece for name, piece in raw.items()}
    codes = parts["codes"].copy()
    codes[0, 0] = 0

    def broken(parts, **change):
        arrays = {f"array.{name}": piece for name, piece in parts.items()}
        entry = header["arrays"]["array"] | change
        changed = stored.sealed({**header, "arrays": {"array": entry}})
        write(tmp_path / f"x.{suffix}", arrays, changed)
        return tmp_path / f"x.{suffix}"

    for change, words in (
        ({"kinds": parts["kinds"] + np.uint8(9)}, "kinds"),
        ({"starts": parts["starts"] + 1}, "starts"),
        ({"slots": parts["slots"][::-1].copy()}, "slots"),
        ({"codes": codes}, "legal"),
        ({"values": parts["values"][:-1]}, "values"),
        ({"overflow_places": parts["overflow_places"] + np.uint16(4000)}, "overflow_places"),
        ({"overflow_starts": parts["overflow_starts"] - 1}, "overflow_starts"),
        ({"values": parts["values"].astype(float)}, "must be float32"),
    ):
        with pytest.raises(FormatError, match=words):
            load(broken({**parts, **change}))
    for change, words in (
        ({"dtype": "complex64"}, "must be one of"),
        ({"dtype": ["float32"]}, "must be one of"),
        ({"shape": [1.0, 2.0]}, "two sizes"),
        ({"n_hint": "many"}, "n_hint"),
        ({"layout": "codes"}, "metadata are missing"),
        ({"crc32": {"codes": 1}}, "checksum"),
    ):
        with pytest.raises(FormatError, match=words):
            load(broken(parts, **change))
    parts.pop("codes")
    with pytest.raises(FormatError, match="codes are missing"):
        load(broken(parts))


@pytest.mark.parametrize("kind", KINDS)
def test_elements_outside_of_the_matrix_are_refused(rng, kind):
    tiles = with_kinds(matrix(rng, (100, 130)), [kind]).tiles
    HybridArray.from_tiles(tiles)
    for shape in ((100, 129), (99, 130)):
        with pytest.raises(FormatError, match=r"lie within its \d+ rows and \d+ columns"):
            HybridArray.from_tiles(replace(tiles, shape=shape))


def test_two_elements_in_one_place_are_refused():
    w = np.zeros((64, 64), np.float32)
    w[0, :4] = w[1, 4:8] = (1, 2, 3, 4)
    tiles = with_kinds(w, [hybrid_kinds.TWO_FOUR]).tiles
    assert tiles.overflow_places.tolist() == [2, 3, 70, 71]
    for places in ([2, 2, 70, 71], [2, 1, 70, 71], [2, 3, 68, 71]):
        changed = replace(tiles, overflow_places=np.array(places, np.uint16))
        with pytest.raises(FormatError, match=r"overflow_places of .* must hold one element each"):
            HybridArray.from_tiles(changed)
    spill = np.array([0, -0.0, 3, 4], np.float32)
    assert HybridArray.from_tiles(replace(tiles, overflow_values=spill)).nnz == 6


def test_places_of_scattered_tiles_ascend(rng):
    tiles = with_kinds(matrix(rng, (64, 64)), [hybrid_kinds.SCATTERED]).tiles
    HybridArray.from_tiles(tiles)
    places = tiles.overflow_places
    for changed in (places[::-1], np.full_like(places, 7)):
        with pytest.raises(FormatError, match="must ascend in scattered tiles"):
            HybridArray.from_tiles(replace(tiles, overflow_places=changed))
