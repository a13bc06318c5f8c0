"""Files of the block-hybrid format, sound and damaged."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from hybrid_cases import DTYPES, KINDS, assert_same_bits, matrix, with_kinds

import sparse24 as s24
from sparse24 import _raw_writers
from sparse24._errors import DTypeError, FormatError
from sparse24.formats import hybrid_checks, stored
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("kind", [hybrid_kinds.DENSE, hybrid_kinds.TWO_FOUR])
def test_negative_zeros_outside_of_the_matrix_are_refused(kind, dtype):
    """Products would read the operand past its end for each of them."""
    tiles = with_kinds(np.ones((3, 5), s24.hybrid(np.eye(2), dtype=dtype).dtype), [kind]).tiles
    beside, below = (6, 4 * 64) if kind == hybrid_kinds.DENSE else (4, 4 * 32)
    for place in (beside, below):
        values = tiles.values.copy()
        assert values[place] == 0
        values[place] = -0.0
        with pytest.raises(FormatError, match=r"values .* lie within its 3 rows and 5 columns"):
            HybridArray.from_tiles(replace(tiles, values=values))
    inside = tiles.values.copy()
    inside[0] = -0.0
    assert HybridArray.from_tiles(replace(tiles, values=inside)).nnz == 14


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


@pytest.mark.parametrize("wrong", ["tiles", np.eye(4), None, s24.random((8, 8), rng=0)])
def test_what_are_no_tiles_is_named(wrong):
    with pytest.raises(DTypeError, match=r"tiles must be those .* as H\.tiles, got .*\.hybrid"):
        HybridArray.from_tiles(wrong)


def test_places_of_scattered_tiles_ascend(rng):
    tiles = with_kinds(matrix(rng, (64, 64)), [hybrid_kinds.SCATTERED]).tiles
    HybridArray.from_tiles(tiles)
    places = tiles.overflow_places
    for changed in (places[::-1], np.full_like(places, 7)):
        with pytest.raises(FormatError, match="must ascend in scattered tiles"):
            HybridArray.from_tiles(replace(tiles, overflow_places=changed))


@pytest.mark.parametrize(("side", "density"), [(20_000, 0.01), (200_000, 1e-4)])
def test_checks_while_loading_take_little_memory(side, density, tmp_path):
    """Of four million elements, first in tiles, then in rows."""
    w = scipy.sparse.random_array((side, side), density=density, rng=0, dtype=np.float32)
    h = s24.hybrid(w)
    s24.save_npz(tmp_path / "h.npz", h)
    tracemalloc.start()
    loaded = s24.load_npz(tmp_path / "h.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert loaded.nnz == h.nnz
    assert peak < 64 * hybrid_checks.PORTION + 2 * h.nbytes


@pytest.mark.parametrize("place", [0, 700, -2])
def test_elements_at_one_place_are_found_in_every_run(place, monkeypatch):
    monkeypatch.setattr(hybrid_checks, "PORTION", 4096)
    w = scipy.sparse.random_array((900, 1500), density=0.02, rng=0)
    tiles = s24.hybrid(w)._tiles
    hybrid_checks.check(tiles)
    places = tiles.overflow_places.copy()
    places[place] = places[place + 1]
    with pytest.raises(FormatError, match="ascend in scattered tiles"):
        hybrid_checks.check(replace(tiles, overflow_places=places))
    monkeypatch.setattr(hybrid_checks, "PORTION", 100)
    listed = s24.hybrid(scipy.sparse.random_array((90, 15000), density=9e-4, rng=0))._tiles.source
    hybrid_checks.check_rows(listed)
    columns = listed.csr.columns.copy()
    columns[place] = columns[place + 1]
    with pytest.raises(FormatError, match="ascend in each row"):
        hybrid_checks.check_rows(replace(listed, csr=listed.csr._replace(columns=columns)))


@pytest.mark.parametrize("tile", [0, 3, -1])
def test_codes_are_checked_in_every_run(tile, rng, monkeypatch):
    monkeypatch.setattr(hybrid_checks, "PORTION", 4096)
    tiles = with_kinds(matrix(rng, (200, 260)), [hybrid_kinds.TWO_FOUR])._tiles
    hybrid_checks.check(tiles)
    codes = tiles.codes.copy()
    codes[tile, -1] = 0
    with pytest.raises(FormatError, match="hold the six legal 2:4 codes"):
        hybrid_checks.check(replace(tiles, codes=codes))
