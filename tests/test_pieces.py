"""float32 numbers as bfloat16 pieces, and how long an array keeps its own."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_cases import prepared, split_product

import sparse24 as s24
from sparse24 import _batch_axes, _storage
from sparse24._arrays import to_numpy
from sparse24._records import Compressed24, Operand24
from sparse24.kernels import pieces, reference

gpu = pytest.mark.gpu
on_gpu = pytest.mark.stem("sparse_split")

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(floats, min_size=1, max_size=32))
def test_pieces_sum_to_the_number(numbers):
    x = np.array(numbers, np.float32)
    found = reference.split_bfloat16(x)
    exact = np.abs(x) >= 2.0**-110
    total = sum(piece.astype(np.float64) for piece in found)
    np.testing.assert_array_equal(total[exact], x[exact])
    assert (np.abs(total - x) < 2.0**-133).all()
    for piece in found:
        assert not (piece.view(np.uint32) & 0xFFFF).any()  # bfloat16 holds it
    for piece in found[:2]:
        assert ((piece == 0) | (np.sign(piece) == np.sign(x))).all()


@given(st.lists(floats, min_size=1, max_size=8), st.lists(floats, min_size=1, max_size=8))
def test_sections_make_the_product_but_for_its_last_bit(left, right):
    x, y = (np.array(side, np.float32)[: min(len(left), len(right))] for side in (left, right))
    keep = (np.abs(x) >= 2.0**-110) & (np.abs(y) >= 2.0**-110)
    exact = x.astype(np.float64) * y
    sections = zip(
        reference.split_sections(x, dense=False),
        reference.split_sections(y, dense=True),
        strict=True,
    )
    got = sum(p.astype(np.float64) * q for p, q in sections)
    assert (np.abs(got - exact) <= 2.0**-22 * np.abs(exact))[keep].all()


def test_what_is_not_finite_meets_no_zero_piece():
    infinity, nan = np.float32(np.inf), np.float32(np.nan)
    x = np.array([infinity, -infinity, nan, 1.5, -1.5, 2.0**-100], np.float32)
    left, right = (reference.split_sections(x, dense=dense) for dense in (False, True))
    with np.errstate(invalid="ignore"):
        got = sum(np.multiply.outer(p, q) for p, q in zip(left, right, strict=True))
        np.testing.assert_array_equal(got, np.multiply.outer(x, x))


def test_batch_axes_that_are_only_viewed_share_what_is_derived():
    x = np.zeros((2, 3, 8, 16), np.float32)
    operand = s24.compress(x)._operand
    for batch, shape in (((2, 3), (6, 8, 16)), ((4, 2, 3), (24, 8, 16))):
        flat = _batch_axes.operand(operand, batch).rows
        assert flat.shape == shape
        assert (flat.derived is operand.rows.derived) == (batch == (2, 3))


@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 3)])
def test_codes_that_pieces_share_with_an_array_are_counted_once(batch):
    m, k = 8, 256
    a = s24.compress(np.zeros((*batch, m, k), np.float32))._operand.rows
    packed = reference.pack_metadata(a.metadata, k, a.dtype.itemsize)
    record = Compressed24(a.values, None, packed, a.shape, a.dtype)
    operand = Operand24(record, None, None, a.shape, a.dtype)
    flat = _batch_axes.operand(operand, batch).rows if batch else record
    codes = {pieces.PIECES: flat.packed, pieces.SECTIONS: np.zeros(7, np.uint8)}
    for sections in codes:
        values = np.zeros((*flat.shape[:-1], sections * k // 2), np.uint16)
        made = Compressed24(values, None, codes[sections], flat.shape, flat.dtype)
        flat.derived[pieces._key(sections)] = SimpleNamespace(record=made)
    of_pieces = 2 * (pieces.PIECES + pieces.SECTIONS) * a.values.size
    counted = sum(x.nbytes for x in _storage.arrays(record) if x is not None)
    assert counted == a.values.nbytes + packed.nbytes + of_pieces + 7


def test_sections_hold_whole_atoms_of_metadata():
    assert [pieces.padded(k) for k in (1, 128, 129)] == [128, 128, 256]


# --- on a GPU ---------------------------------------------------------------------------------


@gpu
@on_gpu
@pytest.mark.parametrize("sections", [pieces.PIECES, pieces.SECTIONS])
@pytest.mark.parametrize("layout", ["row", "column", "strided", "odd"])
def test_pieces_of_b_are_those_of_the_reference(rng, layout, sections):
    import cupy

    k, n = 201, 37
    x = rng.standard_normal((k, n)).astype(np.float32)
    x *= np.exp2(rng.integers(-120, 120, (k, n))).astype(np.float32)
    x[3, 5], x[7, 9], x[8, 9], x[9, 9], x[10, 9] = np.nan, np.inf, -np.inf, -0.0, 2.0**-140
    b = {
        "row": lambda: cupy.asarray(x),
        "column": lambda: cupy.asarray(x.T.copy()).T,
        "strided": lambda: cupy.asarray(np.repeat(x, 3, 0).repeat(2, 1))[::3, ::2],
        "odd": lambda: cupy.asarray(np.pad(x, 1))[1:-1, 1:-1],
    }[layout]()
    got = pieces.of_dense(b, sections, by_columns=layout == "column").get()
    split = reference.split_bfloat16(x)
    wanted = split if sections == pieces.PIECES else reference.split_sections(x, dense=True)
    for want, section in zip(wanted, np.split(got, sections), strict=True):
        bits = (want.view(np.uint32) >> 16).astype(np.uint16)
        nan = np.isnan(want)
        np.testing.assert_array_equal(section[:k][~nan], bits[~nan])
        assert (section[:k][nan] & 0x7FFF > 0x7F80).all()
        assert not section[k:].any()


@gpu
@on_gpu
def test_two_streams_and_a_captured_graph(rng):
    import cupy

    a = prepared(rng, 256, 512, integers=True)
    x = rng.integers(-4, 5, (512, 96)).astype(np.float32)
    want = to_numpy(a.toarray()) @ x
    b, outs = cupy.asarray(x), [cupy.zeros((256, 96), np.float32) for _ in range(4)]
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for i, out in enumerate(outs):
        with streams[i % 2]:
            split_product("sparse_split", a, b, out)
    cupy.cuda.Device().synchronize()
    for out in outs:
        np.testing.assert_array_equal(out.get(), want)
    for stream in (streams[0], cupy.cuda.Stream(non_blocking=True)):
        with stream:
            outs[0].fill(0)
            stream.begin_capture()
            split_product("sparse_split", a, b, outs[0])
            graph = stream.end_capture()
            others = [cupy.full((3 * 512, 96), 9, np.uint16) for _ in range(4)]
            for _ in range(2):
                graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(outs[0].get(), want)
        assert all((other == 9).all() for other in others)


@gpu
@on_gpu
def test_parts_of_a_stack_whose_pieces_take_the_same_memory(rng):
    import cupy

    w, x = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((4, 128, 256), (256, 40)))
    a = s24.compress(w, on_excess="prune").to_device("cuda")
    b, want = cupy.asarray(x), reference.matmul(to_numpy(a.toarray()), x)
    for part in (np.s_[::2], np.s_[:2]) * 3:
        got = split_product("sparse_split", a[part], b).get()
        np.testing.assert_array_equal(got, want[part])


@gpu
@on_gpu
@pytest.mark.parametrize("kernel", ["sparse_split", "split_mma"])
def test_an_array_that_a_graph_makes_anew_has_no_old_pieces(rng, kernel):
    import cupy

    dense, made, out = cupy.zeros((128, 256), np.float32), [], cupy.empty((128, 40), np.float32)
    weights = [cupy.asarray(s24.prune(rng.integers(-4, 5, (128, 256)).astype(np.float32)))
               for _ in range(2)]  # fmt: skip
    b = cupy.asarray(rng.integers(-4, 5, (256, 40)).astype(np.float32))
    split_product(kernel, s24.compress(weights[0]), b)  # compiles
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        s24.compress(dense, on_excess="prune")
        stream.begin_capture()
        made.append(s24.compress(dense, on_excess="prune"))
        split_product(kernel, made[0], b, out)
        graph = stream.end_capture()
        for weight in weights:
            dense[...] = weight
            graph.launch(stream)
            assert (out == weight @ b).all()
            assert (split_product(kernel, made[0], b) == weight @ b).all()
    assert not pieces.kept(made[0]._operand.rows)


@gpu
@on_gpu
def test_the_pieces_of_an_array_live_and_die_with_it(rng):
    import cupy

    a = prepared(rng, 256, 512)
    before = a.nbytes
    b = cupy.ones((512, 64), np.float32)
    split_product("sparse_split", a, b)
    record = a._operand.rows
    (made,) = pieces.kept(record)
    split_product("sparse_split", a, b)
    assert pieces.kept(record)[0] is made
    packed = record.packed.size
    assert a.nbytes == before + 6 * a.values.size
    split_product("split_mma", a, b)
    assert a.nbytes == before + (6 + 12) * a.values.size + 6 * packed
    assert a.copy().nbytes == before
    storage = weakref.ref(made)
    del a, record, made
    gc.collect()
    assert storage() is None
