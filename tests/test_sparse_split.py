"""float32 products on bfloat16 pieces: what they sum to, and how far they are from float64."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparse24 as s24
from sparse24 import _dispatch, _planner
from sparse24._arrays import to_numpy
from sparse24._errors import CompileError
from sparse24._records import PLAIN, Epilogue, Problem
from sparse24.kernels import pieces, reference, sparse_split, sparse_wgmma_configs, targets

CHIP = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}
gpu = pytest.mark.gpu
on_gpu = pytest.mark.stem("sparse_split")


def make_problem(m=256, n=256, k=512, **changes):
    default = Problem(m, n, k, 1, "float32", "float32", "float32", "column", "row")
    return dataclasses.replace(default, **changes)


# --- the pieces -------------------------------------------------------------------------------

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


def test_what_is_not_finite_stands_in_the_last_section():
    x = np.array([np.inf, -np.inf, np.nan, 1.5], np.float32)
    for dense in (False, True):
        *others, last = reference.split_sections(x, dense=dense)
        assert all((section[:3] == 0).all() for section in others)
        np.testing.assert_array_equal(last, x)


# --- choices, on any machine --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compute_capability": 80}, "needs compute capability 9.0"),
        ({"dtype": "bfloat16", "b_dtype": "bfloat16"}, "splits float32"),
        ({"out_dtype": "bfloat16"}, "float32 to bfloat16"),
        ({"tensor_float": True}, "splits float32"),
        ({"batch": 1 << 17, "b_batched": True}, "at most 65535"),
        ({"n": 0}, "an empty product needs no kernel"),
    ],
)
def test_refuses_with_a_sentence(changes, words):
    assert words in sparse_split.refuses(make_problem(**changes))


@pytest.mark.parametrize("order", ["row", "column", "strided"])
def test_takes_b_of_any_layout(order):
    for n in (1, 7, 64, 4096):
        problem = make_problem(n=n, b_order=order, aligned=False)
        assert sparse_split.refuses(problem) is None
        names = [config.name for config in sparse_split.configs(problem)]
        assert names
        assert len(set(names)) == len(names)


def test_the_pieces_of_b_have_a_limit():
    assert sparse_split.columns_at_a_time(make_problem(n=4096, k=4096)) == 4096
    part = sparse_split.columns_at_a_time(make_problem(n=1 << 20, k=4096))
    assert part % sparse_split.STEP == 0
    assert 0.95 * sparse_split.MOST_BYTES < 12 * 4096 * part <= sparse_split.MOST_BYTES
    assert sparse_split.columns_at_a_time(make_problem(n=1 << 20, k=1 << 20)) == sparse_split.STEP


@pytest.mark.parametrize(
    ("m", "k", "n", "milliseconds"),  # measured on an H200
    [
        (4096, 4096, 32, 0.037),
        (4096, 4096, 128, 0.046),
        (4096, 4096, 512, 0.121),
        (4096, 4096, 4096, 0.989),
        (14336, 4096, 1024, 0.812),
        (8192, 8192, 8192, 6.94),
    ],
)
def test_predictions_are_near_what_was_measured(m, k, n, milliseconds):
    problem = make_problem(m, n, k)
    best = sparse_split.configs(problem)[0]
    assert 0.75 < 1e3 * sparse_split.predict(problem, best, CHIP) / milliseconds < 1.33


def test_many_columns_of_float32_are_split():
    scale = lambda kernel: 1.0  # noqa: E731
    for n, dense, kernel in (
        (4, False, "sparse_matvec"), (64, False, "sparse_split"), (512, True, "sparse_split"),
        (4096, True, "sparse_split"),
    ):  # fmt: skip
        ranked = _planner.rank(make_problem(4096, n, 4096), CHIP, dense=dense, scale=scale)
        assert ranked[0].kernel == kernel
    batched = make_problem(4096, 512, 4096, batch=3, a_batched=True, b_batched=True)
    assert _planner.rank(batched, CHIP, dense=False, scale=scale)[0].kernel == "sparse_split"


def test_promoted_kernels_keep_their_registers():
    pytest.importorskip("cupy", reason="NVRTC is reached through CuPy")
    try:
        targets._tool("nvdisasm")
    except CompileError as error:
        pytest.skip(str(error))
    tiles = {tile.name: tile for tile in sparse_wgmma_configs.TABLE}
    for name in ("128x192x64", "128x128x64", "64x32x64k3d"):
        assert sparse_split.promotable(tiles[name])
        wide = sparse_split.widened(make_problem())
        macros = sparse_split.defines(wide, tiles[name], PLAIN, bulk=True)
        code, found = targets.inspect(targets.Target("sparse_wgmma", macros, "sm_90a", "HGMMA.SP"))
        assert f"HGMMA.SP.64x{tiles[name].block_n}x32.F32.BF16" in code
        assert not targets.overwritten(code)
        used = found["sparse_wgmma"]
        assert used.local == used.stack == 0
    assert not sparse_split.promotable(tiles["128x256x64"])


def test_batch_axes_that_are_only_viewed_share_what_is_derived():
    x = np.zeros((2, 3, 8, 16), np.float32)
    operand = s24.compress(x)._operand
    for batch, shape in (((2, 3), (6, 8, 16)), ((4, 2, 3), (24, 8, 16))):
        flat = _dispatch._batch_of(operand, batch).rows
        assert flat.shape == shape
        assert (flat.derived is operand.rows.derived) == (batch == (2, 3))


# --- on a GPU ---------------------------------------------------------------------------------


def prepared(rng, m, k, *, integers=False):
    x = rng.integers(-4, 5, (m, k)) if integers else rng.standard_normal((m, k))
    return s24.compress(x.astype(np.float32), on_excess="prune").to_device("cuda")


def split_product(a, b, out=None, **more):
    return s24.matmul(a, b, out, algorithm="sparse_split", **more)


def test_sections_hold_whole_atoms_of_metadata():
    assert [pieces.padded(k) for k in (1, 128, 129)] == [128, 128, 256]


@gpu
@on_gpu
@pytest.mark.parametrize("layout", ["row", "column", "strided", "odd"])
def test_pieces_of_b_are_those_of_the_reference(rng, layout):
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
    by_columns = layout == "column"
    got = pieces.of_dense(b, by_columns=by_columns).get()
    for want, section in zip(
        reference.split_sections(x, dense=True), np.split(got, 6), strict=True
    ):
        bits = (want.view(np.uint32) >> 16).astype(np.uint16)
        nan = np.isnan(want)
        np.testing.assert_array_equal(section[:k][~nan], bits[~nan])
        assert (section[:k][nan] & 0x7FFF > 0x7F80).all()
        assert not section[k:].any()


@gpu
@on_gpu
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("size", [(1, 4, 1), (64, 128, 64), (71, 201, 133), (513, 2500, 777)])
def test_small_integers_are_exact(rng, size, order):
    import cupy

    m, k, n = size
    a = prepared(rng, m, k, integers=True)
    x = rng.integers(-300, 301, (k, n)).astype(np.float32)
    out = cupy.full((m, n), np.nan, np.float32, order=order)
    split_product(a, cupy.asarray(x, order=order), out)
    np.testing.assert_array_equal(out.get(), reference.matmul(to_numpy(a.toarray()), x))


@gpu
@on_gpu
@pytest.mark.parametrize("k", [512, 4096, 14336])
@pytest.mark.parametrize("kind", ["normal", "positive", "ill_scaled"])
def test_errs_at_most_twice_as_much_as_cublas(k, kind):
    import cupy

    m, n = 1024, 768
    draws = cupy.random.RandomState(0)
    draw = draws.random_sample if kind == "positive" else draws.standard_normal
    w, x = draw((m, k)).astype(np.float32), draw((k, n)).astype(np.float32)
    if kind == "ill_scaled":
        w *= cupy.exp2(draws.randint(-30, 30, (m, 1))).astype(np.float32)
        x *= cupy.exp2(draws.randint(-20, 20, (k, 1))).astype(np.float32)
    a = s24.compress(w, on_excess="prune", keep_dense=True)
    b = cupy.asfortranarray(x)
    exact = a.toarray().astype(np.float64) @ b.astype(np.float64)
    size = abs(a.toarray()).astype(np.float64) @ abs(b).astype(np.float64)
    errors = {}
    for algorithm in ("sparse_split", "dense"):
        apart = s24.matmul(a, b, algorithm=algorithm).astype(np.float64) - exact
        norm = cupy.linalg.norm
        errors[algorithm] = float(norm(apart) / norm(exact)), float((abs(apart) / size).max())
    for ours, theirs in zip(errors["sparse_split"], errors["dense"], strict=True):
        assert ours <= 2 * theirs


@gpu
@on_gpu
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [20, 120, 456])
def test_the_likeliest_configs_are_exact_on_small_integers(rng, n, order):
    import cupy

    a = prepared(rng, 300, 2048, integers=True)
    x = rng.integers(-4, 5, (2048, n)).astype(np.float32)
    b = cupy.asarray(x, order=order)
    want = reference.matmul(to_numpy(a.toarray()), x)
    names = [c.name for c in s24.explain(a, b).candidates if c.kernel == "sparse_split"]
    for name in names[:4]:
        out = cupy.full((300, n), np.nan, np.float32)
        s24.matmul(a, b, out, algorithm=name)
        np.testing.assert_array_equal(out.get(), want)


@gpu
@on_gpu
def test_special_values_arrive_as_in_float32(rng):
    import cupy

    a = prepared(rng, 128, 256, integers=True)
    dense = to_numpy(a.toarray())
    x = rng.standard_normal((256, 64)).astype(np.float32)
    x[3, 5], x[7, 9], x[8, 11], x[9, 11] = np.nan, np.inf, np.inf, 1.0
    got = split_product(a, cupy.asarray(x)).get()
    plain = np.delete(got, [5, 9, 11], axis=1)
    assert np.isfinite(plain).all()
    assert np.isnan(got[dense[:, 3] != 0, 5]).all()
    for row, column in ((7, 9), (8, 11)):
        stored = dense[:, row] != 0
        np.testing.assert_array_equal(got[stored, column], np.inf * dense[stored, row])


@gpu
@on_gpu
def test_infinite_weights_meet_only_leading_pieces():
    import cupy

    w = np.zeros((64, 128), np.float32)
    w[0, 0], w[1, 4], w[2, 8] = np.inf, -np.inf, np.nan
    a = s24.compress(w).to_device("cuda")
    got = split_product(a, cupy.ones((128, 32), np.float32)).get()
    np.testing.assert_array_equal(got[0], np.inf)
    np.testing.assert_array_equal(got[1], -np.inf)
    assert np.isnan(got[2]).all()
    np.testing.assert_array_equal(got[3:], 0)


@gpu
@on_gpu
def test_products_too_large_for_float32_are_not_finite():
    import cupy

    w = np.zeros((64, 128), np.float32)
    w[:, 0] = 1.2345678e30
    a = s24.compress(w).to_device("cuda")
    got = split_product(a, cupy.full((128, 32), 7.6543e30, np.float32)).get()
    assert not np.isfinite(got).any()


@gpu
@on_gpu
@pytest.mark.parametrize("out_order", ["C", "F"])
def test_epilogue_and_c(rng, out_order):
    import cupy

    m, k, n = 201, 392, 140
    a = prepared(rng, m, k)
    x, c, aux = (rng.standard_normal(s).astype(np.float32) for s in ((k, n), (m, n), (m, n)))
    bias, scale = rng.standard_normal(n).astype(np.float32), rng.random(m).astype(np.float32)
    on = cupy.asarray
    stored = on(aux, order=out_order)
    epilogue = s24.Epilogue(
        bias=on(bias), activation="gelu", alpha_vector=on(scale)[:, None], aux=stored
    )
    out = on(c, order=out_order)
    split_product(a, on(x), out, c=out, alpha=0.5, beta=-2.0, epilogue=epilogue)
    host = Epilogue(alpha=0.5, beta=-2.0, c=c, column_bias=bias, row_scale=scale, activation="gelu")
    exact = reference.matmul(to_numpy(a.toarray()), x)
    want, want_aux = reference.apply_epilogue(exact, host, "float32")
    np.testing.assert_allclose(out.get(), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(stored.get(), want_aux, rtol=1e-4, atol=1e-4)


@gpu
@on_gpu
def test_sparse_on_the_right_and_strided_results(rng):
    import cupy

    a = prepared(rng, 130, 260, integers=True)
    dense = to_numpy(a.toarray())
    x = rng.integers(-5, 6, (2, 90, 260)).astype(np.float32)
    on = cupy.asarray(x)
    np.testing.assert_array_equal(split_product(on[0], a.T).get(), x[0] @ dense.T)
    room = cupy.full((130 * 2 + 1, 90 * 3), -7, np.float32)
    split_product(a, on[1].T, room[1::2, ::3])
    want = np.full(room.shape, -7, np.float32)
    want[1::2, ::3] = dense @ x[1].T
    np.testing.assert_array_equal(room.get(), want)


@gpu
@on_gpu
@pytest.mark.parametrize(("a_batch", "b_batch"), [((3,), (3,)), ((), (3,)), ((3,), ()), ((1,), ())])
def test_batches_and_broadcasting(rng, a_batch, b_batch):
    import cupy

    m, k, n = 130, 260, 90
    w = rng.integers(-4, 5, (*a_batch, m, k)).astype(np.float32)
    a = s24.compress(w, on_excess="prune").to_device("cuda")
    x = rng.integers(-5, 6, (*b_batch, k, n)).astype(np.float32)
    want = reference.matmul(to_numpy(a.toarray()), x)
    b = cupy.asarray(x)
    np.testing.assert_array_equal(split_product(a, b).get(), want)
    made = a._operand.rows.derived[pieces.STEM]
    np.testing.assert_array_equal(split_product(a, b).get(), want)
    assert a._operand.rows.derived[pieces.STEM] is made


@gpu
@on_gpu
@pytest.mark.parametrize(("order", "memory"), [("row", "C"), ("column", "F")])
def test_many_columns_are_multiplied_in_parts(rng, monkeypatch, order, memory):
    import cupy

    monkeypatch.setattr(sparse_split, "MOST_BYTES", 12 * 256 * sparse_split.STEP)
    m, k, n = 130, 200, 2 * sparse_split.STEP + 8
    a = prepared(rng, m, k, integers=True)
    x, c = (rng.integers(-4, 5, s).astype(np.float32) for s in ((k, n), (m, n)))
    bias = rng.integers(-4, 5, n).astype(np.float32)
    b, out = (cupy.asarray(y, order=memory) for y in (x, c))
    epilogue = Epilogue(beta=2.0, c=out, column_bias=cupy.asarray(bias))
    problem = make_problem(m, n, k, b_order=order, out_order=order, plain=False)
    config = sparse_split.configs(problem)[0]
    launch = sparse_split.prepare(problem, config, epilogue)
    launch(a._operand.rows, b, out, epilogue)
    want = reference.matmul(to_numpy(a.toarray()), x) + 2 * c + bias
    np.testing.assert_array_equal(out.get(), want)


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
            split_product(a, b, out)
    cupy.cuda.Device().synchronize()
    for out in outs:
        np.testing.assert_array_equal(out.get(), want)
    for stream in (streams[0], cupy.cuda.Stream(non_blocking=True)):
        with stream:
            outs[0].fill(0)
            stream.begin_capture()
            split_product(a, b, outs[0])
            graph = stream.end_capture()
            others = [cupy.full((6 * 512, 96), 9, np.uint16) for _ in range(4)]
            for _ in range(2):
                graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(outs[0].get(), want)
        assert all((other == 9).all() for other in others)


@gpu
@on_gpu
def test_the_pieces_of_an_array_live_and_die_with_it(rng):
    import cupy

    a = prepared(rng, 256, 512)
    before = a.nbytes
    b = cupy.ones((512, 64), np.float32)
    split_product(a, b)
    record = a._operand.rows
    made = record.derived[pieces.STEM]
    split_product(a, b)
    assert record.derived[pieces.STEM] is made
    added = 12 * a.values.size + 6 * a.packed.size
    assert a.nbytes == before + added
    assert a.copy().nbytes == before
    storage = weakref.ref(made.record.values)
    del a, record, made
    gc.collect()
    assert storage() is None
