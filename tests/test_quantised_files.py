"""Files of quantised matrices: integers, codes and scales bit for bit; damage is refused."""

from __future__ import annotations

import numpy as np
import pytest
from file_cases import FORMATS, after_flips

import sparse24 as s24
from sparse24 import _raw_writers
from sparse24._arrays import to_numpy
from sparse24.formats import stored

# Whole and partial bricks, groups of four and pairs of codes; and nothing.
SHAPES = [(16, 128), (33, 260), (5, 3), (1, 1), (2, 5), (64, 0), (0, 128), (0, 0)]
PARTS = ("integers", "metadata", "scales")


def quantised(shape, *, bits, dtype="float16", rng=0):
    """A quantised matrix; `quantise` needs rows."""
    if not shape[0]:
        nothing = s24.random(shape, dtype="int8", rng=rng)
        scales = np.ones((0, 1), np.float32)
        parts = (nothing.values, nothing.metadata, scales, shape)
        return s24.convert.from_quantised(*parts, bits=bits, dtype=dtype)
    return s24.quantise(s24.random(shape, dtype=dtype, rng=rng), bits=bits)


def assert_same(a, b):
    assert type(a) is type(b) is s24.Quantised24Array
    assert (a.shape, a.dtype, a.bits, a.axis) == (b.shape, b.dtype, b.bits, b.axis)
    for part in PARTS:
        np.testing.assert_array_equal(*(to_numpy(getattr(x, part)) for x in (a, b)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip_is_bit_exact(suffix, shape, bits, dtype, tmp_path):
    save, load = FORMATS[suffix]
    q = quantised(shape, bits=bits, dtype=dtype)
    for array in (q, q.T):
        save(tmp_path / f"a.{suffix}", array)
        assert_same(load(tmp_path / f"a.{suffix}"), array)


def test_extreme_integers_and_scales_come_back(suffix, tmp_path):
    save, load = FORMATS[suffix]
    codes = s24.random((2, 32), dtype="int8", rng=0).metadata
    scales = np.array([[-0.0], [3e38]], np.float32)
    for bits in (4, 8):
        half = 1 << bits - 1
        integers = np.resize(np.arange(-half, half), (2, 16)).astype(np.int8)
        given = (integers, codes, scales, (2, 32))
        q = s24.convert.from_quantised(*given, bits=bits)
        save(tmp_path / f"a.{suffix}", q)
        loaded = load(tmp_path / f"a.{suffix}")
        np.testing.assert_array_equal(loaded.integers, integers)
        np.testing.assert_array_equal(loaded.scales.view(np.uint32), scales.view(np.uint32))


def test_they_lie_beside_arrays_of_other_formats(suffix, tmp_path, rng):
    save, load = FORMATS[suffix]
    arrays = {
        "four": quantised((48, 160), bits=4, dtype="bfloat16"),
        "turned": quantised((48, 160), bits=8).T,
        "sparse": s24.random((48, 160), dtype="bfloat16", rng=1),
        "bias": rng.standard_normal(48).astype(np.float32),
    }
    save(tmp_path / f"a.{suffix}", arrays)
    loaded = load(tmp_path / f"a.{suffix}")
    assert list(loaded) == list(arrays)
    assert_same(loaded["four"], arrays["four"])
    assert_same(loaded["turned"], arrays["turned"])
    np.testing.assert_array_equal(loaded["sparse"].toarray(), arrays["sparse"].toarray())
    np.testing.assert_array_equal(loaded["bias"], arrays["bias"])


def test_a_state_of_torch_may_hold_them(suffix, tmp_path):
    torch = pytest.importorskip("torch")
    save, load = FORMATS[suffix]
    q = quantised((48, 160), bits=4)
    save(tmp_path / f"a.{suffix}", {"w": q, **torch.nn.Linear(3, 2).state_dict()})
    loaded = load(tmp_path / f"a.{suffix}")
    assert_same(loaded["w"], q)
    assert loaded["weight"].shape == (2, 3)


@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_written(bits, tmp_path):
    from safetensors.numpy import load_file

    q = quantised((6, 20), bits=bits).T
    raw, header = stored.pack({"w": q})
    crc32 = header["arrays"]["w"].pop("crc32")
    assert set(crc32) == set(PARTS)
    assert header["arrays"]["w"] == {
        "shape": [6, 20], "dtype": "float16", "bits": bits, "axis": -2, "layout": "quantised"
    }  # fmt: skip
    s24.save_safetensors(tmp_path / "a.safetensors", {"w": q})
    read = load_file(tmp_path / "a.safetensors")
    assert {name: (x.dtype, x.shape) for name, x in read.items()} == {
        "w.integers": (np.uint8, (6, 5)) if bits == 4 else (np.int8, (6, 10)),
        "w.metadata": (np.uint8, (6, 3)),
        "w.scales": (np.float32, (6, 1)),
    }
    for name, x in read.items():
        np.testing.assert_array_equal(x, raw[name])
    held = read["w.integers"]
    if bits == 4:
        held = np.stack([held & 15, held >> 4], axis=-1).reshape(6, 10).astype(np.int8)
        held = np.where(held > 7, held - 16, held)
    np.testing.assert_array_equal(held, q.integers)


def test_every_flipped_byte_is_noticed(suffix, tmp_path):
    save, load = FORMATS[suffix]
    path = tmp_path / f"a.{suffix}"
    q = quantised((4, 16), bits=4)
    save(path, q)
    unnoticed = 0
    for loaded in after_flips(path, load):
        if not isinstance(loaded, dict):  # a flip in the header made it another mapping
            assert_same(loaded, q)
            unnoticed += 1
    assert unnoticed < path.stat().st_size / 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [4, 9]}, r"integers must be uint8 of shape \(4, 3\), got uint8 of shape \(4, 2"),
        ({"shape": [5, 8]}, r"integers must be uint8 of shape \(5, 2\)"),
        ({"shape": [1, 4, 8]}, r"integers must be uint8 of shape \(1, 4, 2\), got .* \(4, 2\)"),
        ({"shape": [4]}, "the shape must be two or more sizes"),
        ({"shape": [4, -8]}, "the shape must be two or more sizes"),
        ({"dtype": "int8"}, "the dtype must be one of .*'float64'.*, got 'int8'"),
        ({"dtype": ["float16"]}, "the dtype must be one of"),
        ({"bits": 8}, r"integers must be int8 of shape \(4, 4\), got uint8 of shape \(4, 2\)"),
        ({"bits": 2}, "bits must be 4 or 8, got 2"),
        ({"bits": 4.0}, "bits must be 4 or 8, got 4.0"),
        ({"bits": None}, "bits must be 4 or 8, got None"),
        ({"axis": 7}, "axis must be -1 or -2, got 7"),
        ({"axis": None}, "axis must be -1 or -2, got None"),
        ({"layout": "codes"}, "pattern must be a pair|its values are missing"),
        ({"crc32": {"scales": 1}}, "its scales do not match the checksum"),
        ({"crc32": {"integers": 1}}, "its integers do not match the checksum"),
    ],
)
def test_a_header_that_lies_is_refused(change, message, tmp_path):
    raw, header = stored.pack(quantised((4, 8), bits=4))
    header["arrays"]["array"].update(change)
    path = tmp_path / "a.safetensors"
    _raw_writers.write_safetensors(path, raw, stored.sealed(header))
    with pytest.raises(s24.FormatError, match=f"array 'array': .*({message})"):
        s24.load_safetensors(path)


DAMAGE = {
    "integers": [
        (r"must be int8 of shape \(3, 16\), got int8 of shape \(3, 15", lambda x: x[:, 1:]),
        ("must be int8 of shape", lambda x: x.view(np.uint8)),
        ("a value lies beyond the last of 30 columns", lambda x: x | 1),
    ],
    "metadata": [
        (r"must be uint8 of shape \(3, 4\), got uint8 of shape \(2, 4\)", lambda x: x[:2]),
        (r"metadata\[0, 0\] is 0x00, which holds an illegal code", np.zeros_like),
    ],
    "scales": [
        (r"must be float32 of shape \(3, 1\), got float64", lambda x: x.astype(np.float64)),
        (r"must be float32 of shape \(3, 1\), got float32 of sh", lambda x: x.repeat(2, 1)),
        (r"scales\[0, 0\] is nan, no finite number", lambda x: x * np.float32(np.nan)),
        (r"scales\[0, 0\] is -?inf, no finite number", lambda x: x * np.float32(np.inf)),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rule", "change"),
    [(name, *case) for name, cases in DAMAGE.items() for case in cases],
)
def test_damaged_parts_are_refused(name, rule, change, tmp_path):
    raw, header = stored.pack(
        s24.quantise(np.tile(np.float32([0, 1, 0, 2]), (3, 8))[:, :30], bits=8)
    )
    raw[f"array.{name}"] = np.ascontiguousarray(change(raw[f"array.{name}"]))
    del header["arrays"]["array"]["crc32"]
    _raw_writers.write_npz(tmp_path / "a.npz", raw, stored.sealed(header))
    with pytest.raises(s24.FormatError, match=f"array 'array': .*{rule}"):
        s24.load_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_part_is_named(part, tmp_path):
    raw, header = stored.pack(quantised((4, 8), bits=4))
    del raw[f"array.{part}"]
    _raw_writers.write_npz(tmp_path / "a.npz", raw, header)
    with pytest.raises(s24.FormatError, match=f"its {part} are missing"):
        s24.load_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "shape",
    [(0, 1 << 40), (1 << 40, 0), (1 << 40, 0, 8), (1 << 30, 1 << 30, 0, 8), (0, 1 << 40, 4, 8)],
)
def test_sizes_that_no_matrix_has_are_refused(shape, tmp_path):
    *rows, k = shape
    raw, header = stored.pack(quantised((0, 0), bits=8))
    raw = {
        "array.integers": np.empty((*rows, k // 2), np.int8),
        "array.metadata": np.empty((*rows, k // 8), np.uint8),
        "array.scales": np.empty((*rows, -(-k // 128)), np.float32),
    }
    header["arrays"]["array"]["shape"] = list(shape)
    _raw_writers.write_npz(tmp_path / "a.npz", raw, stored.sealed(header))
    with pytest.raises(s24.FormatError, match="up to 2147483392 rows and columns, and as many"):
        s24.load_npz(tmp_path / "a.npz")


def test_names_of_parts_may_not_collide(suffix, tmp_path):
    q = quantised((4, 8), bits=4)
    with pytest.raises(s24.ArgumentError, match=r"saved as 'w\.scales'; rename one"):
        FORMATS[suffix][0](tmp_path / f"a.{suffix}", {"w": q, "w.scales": np.ones(1)})


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 8])
def test_arrays_come_from_and_go_to_the_gpu(suffix, bits, tmp_path):
    save, load = FORMATS[suffix]
    for dtype in ("float16", "bfloat16", "float32"):
        q = quantised((40, 300), bits=bits, dtype=dtype)
        for array in (q, q.T):
            save(tmp_path / f"a.{suffix}", array.to_device("cuda"))
            assert_same(load(tmp_path / f"a.{suffix}"), array)
            on_gpu = load(tmp_path / f"a.{suffix}", device="cuda")
            assert on_gpu.device.startswith("cuda")
            assert_same(on_gpu, array)
