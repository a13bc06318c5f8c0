"""compress.cu against the reference, bit for bit; the packed order against golden words."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from packing_cases import (
    EMPTY_SHAPES,
    FEW_SHAPES,
    KINDS,
    LAYOUTS,
    SHAPES,
    assert_same_bits,
    matrix,
    place,
    poison,
)

from sparse24 import _dtypes, _excess, _spec
from sparse24.kernels import compress, loader, reference


def pattern_codes(rows: int, columns: int) -> np.ndarray:
    """Codes of the fixed test pattern, pair ((73 m + 151 c + 37 m c) >> 2) % 6."""
    m, c = np.indices((rows, columns))
    return np.array(_spec.LEGAL_CODES, np.uint8)[(73 * m + 151 * c + 37 * m * c >> 2) % 6]


def crc(x: np.ndarray) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(x).tobytes()):08x}"


@pytest.mark.parametrize(
    ("places", "first", "digest"),
    [
        (_spec.ATOM_NIBBLES_16BIT, "84e9ec899c8eec89ed98ec8984e9ec89", "838021e6"),
        (_spec.ATOM_NIBBLES_8BIT, "84e9c84d9c8ed9c4ed984edc84e9c84d", "bc599975"),
    ],
    ids=["16-bit", "8-bit"],
)
def test_golden_atom(places, first, digest):
    atom = reference.pack_codes(pattern_codes(64, 32), places)
    assert atom.reshape(-1)[:16].tobytes().hex() == first
    assert crc(atom) == digest


def test_golden_four_atoms():
    packed = reference.pack_codes(pattern_codes(128, 64), _spec.ATOM_NIBBLES_16BIT)
    assert packed.shape == (2, 2, 1024)
    assert crc(packed) == "46c62e78"


def test_golden_words_of_a_small_matrix():
    m, k = np.indices((16, 32))
    x = ((7 * m + 5 * k + m * k) % 11 - 5).astype(np.float32)
    values, metadata = reference.compress(reference.prune(x))
    assert values[0].tolist() == [-5, 5, 4, 3, -4, -5, 5, 4, 3, -3, -4, -5, 5, 4, 3, -4]
    assert crc(values) == "3ee95dad"
    assert crc(reference.metadata_to_codes(metadata, 32)) == "0fc56ed7"
    words = reference.pack_metadata(metadata, 32, 2).reshape(-1).view(np.uint32)
    # Lane (g, h) of a k32 instruction reads word 4 g + 32 h.
    assert [hex(words[4 * g + 32 * h]) for g in range(2) for h in range(2)] == [
        "0xce44dd88", "0xce94c889", "0xc444c889", "0xeecc88dd",
    ]  # fmt: skip


def test_groups_of_none_and_one_have_the_documented_code():
    rows = np.array([[0, 0, 0, 0], [5, 0, 0, 0], [0, 5, 0, 0], [0, 0, 5, 0], [0, 0, 0, 5]])
    values, metadata = reference.compress(rows.astype(np.int8))
    assert (metadata & 15).ravel().tolist() == [0x4, 0xC, 0xD, 0xE, 0xC]
    assert values.tolist() == [[0, 0], [5, 0], [5, 0], [5, 0], [0, 5]]


@pytest.mark.parametrize(("macros", "arch", "_"), compress.COMPILE_CHECKS[:2])
@pytest.mark.usefixtures("nvrtc")
def test_compiles_without_a_gpu(macros, arch, _):
    assert loader.compile_cubin("compress", macros, arch)


def operands(rng, shape, row, kind, layout, rule):
    x = matrix(rng, shape, row, kind)
    if rule == "magnitude":
        return x, {}, reference.compress(reference.prune(x))
    if rule == "check":
        return x, {}, reference.compress(x)
    if rule == "mask":
        mask = rng.random(shape) < 0.5
        return x, {"mask": place(mask, layout)}, reference.compress(x, mask)
    scores = rng.integers(-3, 4, shape).astype(np.float32)
    scores[rng.random(shape) < 0.1] = np.nan
    scores[rng.random(shape) < 0.1] = -0.0
    want = reference.compress(reference.prune(x, scores))
    return x, {"scores": place(scores, layout)}, want


def check_status(status, x, mask=None):
    bad = reference.excess_groups(x if mask is None else mask).ravel()
    first = int(np.argmax(bad)) if bad.any() else -1
    assert _excess.found(status) == (first, int(bad.sum()))


@pytest.mark.gpu
@pytest.mark.stem("compress")
@pytest.mark.parametrize("rule", compress.RULES)
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_matches_reference(rng, name, rule):
    row = _dtypes.TABLE[name]
    for shape in SHAPES if name in ("bfloat16", "int8") else FEW_SHAPES:
        for layout in LAYOUTS:
            for kind in KINDS:
                x, chosen, want = operands(rng, shape, row, kind, layout, rule)
                poison()
                got, status = compress.launch(
                    place(x, layout), row, rule=rule, want_metadata=True, **chosen
                )
                assert_same_bits(got.values, want[0])
                assert_same_bits(got.metadata, want[1])
                assert_same_bits(
                    got.packed, reference.pack_metadata(want[1], shape[-1], row.itemsize)
                )
                assert got.values.strides[-2] % 16 == 0
                if rule in ("mask", "check"):
                    check_status(status, x, *(mask.get() for mask in chosen.values()))
                else:
                    assert status is None


@pytest.mark.gpu
@pytest.mark.stem("compress")
def test_empty():
    row = _dtypes.TABLE["float16"]
    for shape in EMPTY_SHAPES:
        x = np.zeros(shape, np.float16)
        got, _ = compress.launch(place(x), row, rule="magnitude", want_metadata=True)
        values, metadata = reference.compress(x)
        assert got.values.shape == values.shape
        assert got.metadata.shape == metadata.shape
        assert got.packed.shape == (*shape[:-2], *_spec.packed_shape(*shape[-2:]))


@pytest.mark.gpu
@pytest.mark.stem("compress")
@pytest.mark.parametrize("scores", ["float16", "float64", "int8", "int64"])
def test_scores_of_other_types(rng, scores):
    x = rng.standard_normal((33, 65)).astype(np.float32)
    rank = rng.integers(-100, 100, x.shape).astype(scores)
    got, _ = compress.launch(
        place(x), _dtypes.TABLE["float32"], rule="scores", scores=_to_gpu(rank), want_metadata=True
    )
    values, metadata = reference.compress(reference.prune(x, rank))
    assert_same_bits(got.values, values)
    assert_same_bits(got.metadata, metadata)


def _to_gpu(x):
    import cupy as cp

    return cp.asarray(x)


@pytest.mark.gpu
@pytest.mark.stem("compress")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_check_alone(rng, layout):
    row = _dtypes.TABLE["bfloat16"]
    x = reference.prune(matrix(rng, (300, 515), row))
    assert _excess.found(compress.check(place(x, layout), row)) == (-1, 0)
    x[123, 400:404] = 1
    x[299, 512:515] = 1
    check_status(compress.check(place(x, layout), row), x)


@pytest.mark.gpu
@pytest.mark.stem("compress")
def test_many_bad_groups_are_counted(rng):
    row = _dtypes.TABLE["bfloat16"]
    x = np.ones((1000, 4096), row.logical)
    x[0, :4] = 0
    assert _excess.found(compress.check(place(x), row)) == (1, 1000 * 1024 - 1)
