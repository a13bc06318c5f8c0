"""float32 products on bfloat16 pieces: what they sum to, and how far they are from float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from split_cases import KERNELS, columns_of, prepared, split_product

import sparse24 as s24
from sparse24 import _memory_order, _planner
from sparse24._arrays import to_numpy
from sparse24._records import PLAIN, Fused, Problem
from sparse24.kernels import pieces, reference, sparse_split, targets

CHIP = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}


def make_problem(m=256, n=256, k=512, **changes):
    default = Problem(m, n, k, 1, "float32", "float32", "float32", "column", "row")
    return dataclasses.replace(default, **changes)


# --- choices, on any machine --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compute_capability": 80}, "needs compute capability 9.0"),
        ({"dtype": "bfloat16", "b_dtype": "bfloat16"}, "splits float32"),
        ({"out_dtype": "bfloat16"}, "float32 to bfloat16"),
        ({"tensor_float": True}, "splits float32"),
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
    assert 0.95 * sparse_split.MOST_BYTES < 6 * 4096 * part <= sparse_split.MOST_BYTES
    assert sparse_split.columns_at_a_time(make_problem(n=1 << 20, k=1 << 20)) == sparse_split.STEP


@pytest.mark.parametrize(
    ("m", "k", "n", "milliseconds"),  # measured on an H200
    [
        (4096, 4096, 32, 0.0193),
        (4096, 4096, 128, 0.0304),
        (4096, 4096, 512, 0.096),
        (4096, 4096, 4096, 0.736),
        (11008, 4096, 1024, 0.506),
        (8192, 8192, 4096, 2.70),
    ],
)
def test_predictions_are_near_what_was_measured(m, k, n, milliseconds):
    problem = make_problem(m, n, k)
    best = sparse_split.configs(problem)[0]
    assert 0.75 < 1e3 * sparse_split.predict(problem, best, CHIP) / milliseconds < 1.33


def test_many_columns_of_float32_are_split():
    scale = lambda kernel: 1.0  # noqa: E731
    for n, dense, kernel in (
        (1, False, "sparse_matvec"), (16, False, "split_skinny"), (128, False, "sparse_split"),
        (512, True, "sparse_split"),
        (4096, True, "sparse_split"),
    ):  # fmt: skip
        ranked = _planner.rank(make_problem(4096, n, 4096), CHIP, dense=dense, scale=scale)
        assert ranked[0].kernel == kernel
    batched = make_problem(4096, 512, 4096, batch=3, a_batched=True, b_batched=True)
    assert _planner.rank(batched, CHIP, dense=False, scale=scale)[0].kernel == "sparse_split"


@pytest.mark.usefixtures("disassembler")
@pytest.mark.parametrize("size", sorted({(c.block_m, c.block_n) for c in sparse_split.TABLE}))
def test_kernels_of_pieces_keep_their_registers(size):
    tile = next(c for c in sparse_split.TABLE if (c.block_m, c.block_n) == size)
    wide = sparse_split.widened(make_problem())
    macros = sparse_split.defines(wide, tile, PLAIN, bulk=True)
    code, found = targets.inspect(targets.Target("sparse_wgmma", macros, "sm_90a", "HGMMA.SP"))
    assert code.count(f"HGMMA.SP.64x{tile.block_n}x32.F32.BF16") >= 6 * tile.spans * 2
    assert not targets.overwritten(code)
    used = found["sparse_wgmma"]
    assert used.local == used.stack == 0


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.fixture(params=KERNELS)
def kernel(request):
    return request.param


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("size", [(1, 4, 1), (64, 128, 64), (71, 201, 133), (513, 2500, 777)])
def test_small_integers_are_exact(kernel, rng, size, order):
    import cupy

    m, k, n = size
    n = columns_of(kernel, n)
    a = prepared(rng, m, k, integers=True)
    x = rng.integers(-300, 301, (k, n)).astype(np.float32)
    out = cupy.full((m, n), np.nan, np.float32, order=order)
    split_product(kernel, a, cupy.asarray(x, order=order), out)
    np.testing.assert_array_equal(out.get(), reference.matmul(to_numpy(a.toarray()), x))


@pytest.mark.parametrize("k", [512, 4096, 14336])
@pytest.mark.parametrize("kind", ["normal", "positive", "ill_scaled"])
def test_errs_at_most_twice_as_much_as_cublas(kernel, k, kind):
    import cupy

    m, n = 1024, columns_of(kernel, 768)
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
    for algorithm in (kernel, "dense"):
        apart = s24.matmul(a, b, algorithm=algorithm).astype(np.float64) - exact
        norm = cupy.linalg.norm
        errors[algorithm] = float(norm(apart) / norm(exact)), float((abs(apart) / size).max())
    for ours, theirs in zip(errors[kernel], errors["dense"], strict=True):
        assert ours <= 2 * theirs


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [20, 120, 456])
def test_the_likeliest_configs_are_exact_on_small_integers(kernel, rng, n, order):
    import cupy

    n = columns_of(kernel, n)
    a = prepared(rng, 300, 2048, integers=True)
    x = rng.integers(-4, 5, (2048, n)).astype(np.float32)
    b = cupy.asarray(x, order=order)
    want = reference.matmul(to_numpy(a.toarray()), x)
    names = [c.name for c in s24.explain(a, b).candidates if c.kernel == kernel]
    for name in names[:6]:
        out = cupy.full((300, n), np.nan, np.float32)
        s24.matmul(a, b, out, algorithm=name)
        np.testing.assert_array_equal(out.get(), want)


def test_special_values_arrive_as_in_float32(kernel, rng):
    import cupy

    a = prepared(rng, 128, 256, integers=True)
    dense = to_numpy(a.toarray())
    x = rng.standard_normal((256, 64)).astype(np.float32)
    x[3, 5], x[7, 9], x[8, 11], x[9, 11] = np.nan, np.inf, np.inf, 1.0
    got = split_product(kernel, a, cupy.asarray(x)).get()
    plain = np.delete(got, [5, 9, 11], axis=1)
    assert np.isfinite(plain).all()
    assert np.isnan(got[dense[:, 3] != 0, 5]).all()
    for row, column in ((7, 9), (8, 11)):
        stored = dense[:, row] != 0
        np.testing.assert_array_equal(got[stored, column], np.inf * dense[stored, row])


def test_infinite_weights_meet_only_leading_pieces(kernel):
    import cupy

    w = np.zeros((64, 128), np.float32)
    w[0, 0], w[1, 4], w[2, 8] = np.inf, -np.inf, np.nan
    a = s24.compress(w).to_device("cuda")
    got = split_product(kernel, a, cupy.ones((128, 32), np.float32)).get()
    np.testing.assert_array_equal(got[0], np.inf)
    np.testing.assert_array_equal(got[1], -np.inf)
    assert np.isnan(got[2]).all()
    np.testing.assert_array_equal(got[3:], 0)


def test_products_too_large_for_float32_are_not_finite(kernel):
    import cupy

    w = np.zeros((64, 128), np.float32)
    w[:, 0] = 1.2345678e30
    a = s24.compress(w).to_device("cuda")
    got = split_product(kernel, a, cupy.full((128, 32), 7.6543e30, np.float32)).get()
    assert not np.isfinite(got).any()


@pytest.mark.parametrize("out_order", ["C", "F"])
def test_epilogue_and_c(kernel, rng, out_order):
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
    split_product(kernel, a, on(x), out, c=out, alpha=0.5, beta=-2.0, epilogue=epilogue)
    host = Fused(alpha=0.5, beta=-2.0, c=c, column_bias=bias, row_scale=scale, activation="gelu")
    exact = reference.matmul(to_numpy(a.toarray()), x)
    want, want_aux = reference.apply_epilogue(exact, host, "float32")
    np.testing.assert_allclose(out.get(), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(stored.get(), want_aux, rtol=1e-4, atol=1e-4)


def test_sparse_on_the_right_and_strided_results(kernel, rng):
    import cupy

    a = prepared(rng, 130, 260, integers=True)
    dense = to_numpy(a.toarray())
    x = rng.integers(-5, 6, (2, 90, 260)).astype(np.float32)
    on = cupy.asarray(x)
    np.testing.assert_array_equal(split_product(kernel, on[0], a.T).get(), x[0] @ dense.T)
    room = cupy.full((130 * 2 + 1, 90 * 3), -7, np.float32)
    split_product(kernel, a, on[1].T, room[1::2, ::3])
    want = np.full(room.shape, -7, np.float32)
    want[1::2, ::3] = dense @ x[1].T
    np.testing.assert_array_equal(room.get(), want)


@pytest.mark.parametrize(("a_batch", "b_batch"), [((3,), (3,)), ((), (3,)), ((3,), ()), ((1,), ())])
def test_batches_and_broadcasting(kernel, rng, a_batch, b_batch):
    import cupy

    m, k, n = 130, 260, 90
    w = rng.integers(-4, 5, (*a_batch, m, k)).astype(np.float32)
    a = s24.compress(w, on_excess="prune").to_device("cuda")
    x = rng.integers(-5, 6, (*b_batch, k, n)).astype(np.float32)
    want = reference.matmul(to_numpy(a.toarray()), x)
    b = cupy.asarray(x)
    np.testing.assert_array_equal(split_product(kernel, a, b).get(), want)
    made = pieces.kept(a._operand.rows)
    assert (not made) == (kernel == "split_skinny")
    np.testing.assert_array_equal(split_product(kernel, a, b).get(), want)
    assert all(x is y for x, y in zip(made, pieces.kept(a._operand.rows), strict=True))


@pytest.mark.parametrize("memory", ["C", "F"])
@pytest.mark.parametrize("kernel", KERNELS[:2])
def test_many_columns_are_multiplied_in_parts(kernel, rng, monkeypatch, memory):
    import cupy

    monkeypatch.setattr(sparse_split, "MOST_BYTES", 12 * 256 * sparse_split.STEP)
    m, k, n = 130, 200, 2 * sparse_split.STEP + 8
    a = prepared(rng, m, k, integers=True)
    x, c = (rng.integers(-4, 5, s).astype(np.float32) for s in ((k, n), (m, n)))
    bias = rng.integers(-4, 5, n).astype(np.float32)
    b, out = (cupy.asarray(y, order=memory) for y in (x, c))
    epilogue = Fused(beta=2.0, c=out, column_bias=cupy.asarray(bias))
    problem = make_problem(m, n, k, plain=False, **_memory_order.facts(b, out))
    module = _planner.kernel_module(kernel)
    launch = module.prepare(problem, module.configs(problem)[0], epilogue)
    launch(a._operand.rows, b, out, epilogue)
    want = reference.matmul(to_numpy(a.toarray()), x) + 2 * c + bias
    np.testing.assert_array_equal(out.get(), want)
