"""The Hopper kernel on a GPU: what it computes."""

from __future__ import annotations

import numpy as np
import pytest
from wgmma_cases import (
    DEFAULT,
    assert_as_good_as_dense,
    compressed,
    device_matrix,
    make_problem,
    poisoned,
    random_matrix,
    run,
)

from sparse24 import _dtypes
from sparse24._records import PLAIN, Fused
from sparse24.kernels import reference, sparse_wgmma, sparse_wgmma_configs

gpu = pytest.mark.gpu
on_gpu = pytest.mark.stem("sparse_wgmma")
SHAPES = [(1, 1, 4), (64, 64, 128), (71, 133, 201), (328, 200, 1032), (513, 777, 2500)]


@gpu
@on_gpu
@pytest.mark.parametrize("b_order", ["row", "column"])
@pytest.mark.parametrize("out_order", ["row", "column"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_product_in_every_order(rng, dtype, b_order, out_order):
    for m, n, k in SHAPES:
        a = reference.prune(random_matrix(rng, (m, k), dtype))
        b = random_matrix(rng, (k, n), dtype)
        problem = make_problem(m, n, k, dtype, b_order=b_order, out_order=out_order)
        assert_as_good_as_dense(run(problem, DEFAULT, a, b), a, b)


@gpu
@on_gpu
@pytest.mark.parametrize("config", sparse_wgmma_configs.TABLE, ids=lambda c: c.name)
@pytest.mark.parametrize("order", ["row", "column"])
def test_every_config_is_exact_on_small_integers(rng, config, order):
    for m, n, k in [(300, 456, 2048), (600, 120, 520), (300, 20, 2048)]:
        a = reference.prune(random_matrix(rng, (m, k), "float16", integers=True))
        b = random_matrix(rng, (k, n), "float16", integers=True)
        problem = make_problem(
            m, n, k, "float16", out_dtype="float32", b_order=order, out_order=order
        )
        if config not in sparse_wgmma.configs(problem):
            continue
        np.testing.assert_array_equal(run(problem, config, a, b), reference.matmul(a, b))


@gpu
@on_gpu
@pytest.mark.parametrize("out_order", ["row", "column"])
@pytest.mark.parametrize(
    ("dtype", "b_dtype", "out_dtype"),
    [
        ("int8", "int8", "int32"),
        ("int8", "int8", "int8"),
        ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"),
        ("float8_e4m3fn", "float8_e5m2", "float32"),
        ("float8_e5m2", "float8_e4m3fn", "float16"),
        ("float8_e5m2", "float8_e5m2", "float8_e4m3fn"),
        ("float16", "float16", "float32"),
    ],
)
def test_other_types(rng, dtype, b_dtype, out_dtype, out_order):
    for m, n, k in SHAPES:
        a = reference.prune(random_matrix(rng, (m, k), dtype))
        b = random_matrix(rng, (k, n), b_dtype)
        problem = make_problem(
            m, n, k, dtype, b_dtype=b_dtype, out_dtype=out_dtype, out_order=out_order
        )
        # Tensor cores, dense or sparse, cut their sums to float32, and for fp8 to about 13 bits.
        slack = 2e-3 if dtype.startswith("float8") else 4e-6
        got = run(problem, DEFAULT, a, b)
        if out_dtype == "float8_e4m3fn":
            want = reference.to_dtype(reference.matmul(a, b), got.dtype).astype(np.float64)
            close = np.abs(got.astype(np.float64) - want) <= 0.13 * np.abs(want) + 2.0**-6
            assert close.mean() > 0.999
        else:
            assert_as_good_as_dense(got, a, b, slack=slack)


@gpu
@on_gpu
@pytest.mark.parametrize("shape", [(520, 776, 2056), (1000, 136, 4096), (3000, 2600, 1160)])
@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize(
    "name",
    ["128x64x128k4", "128x128x128k5", "128x256x64k2", "128x192x128k3", "256x128x128k4"],
)
def test_shared_tiles_are_exact_and_the_same_again(rng, name, shape, dtype):
    m, n, k = shape
    shared = next(config for config in sparse_wgmma_configs.TABLE if config.name == name)
    a = reference.prune(random_matrix(rng, (m, k), dtype, integers=True))
    b = random_matrix(rng, (k, n), dtype, integers=True)
    out_dtype = "float32" if dtype == "float16" else "int32"
    problem = make_problem(m, n, k, dtype, out_dtype=out_dtype)
    for _ in range(3):
        np.testing.assert_array_equal(run(problem, shared, a, b), reference.matmul(a, b))


@gpu
@on_gpu
@pytest.mark.parametrize("shape", [(520, 776, 2056), (40, 200, 1096), (300, 1032, 1160)])
@pytest.mark.parametrize("order", ["column", "row"])
@pytest.mark.parametrize("name", ["64x64x128k3d", "128x64x128k6", "128x128x128k8", "256x128x128k2"])
def test_wide_stages_are_exact_in_both_orders(rng, name, order, shape):
    m, n, k = shape
    config = next(config for config in sparse_wgmma_configs.TABLE if config.name == name)
    a = reference.prune(random_matrix(rng, (m, k), "float16", integers=True))
    b = random_matrix(rng, (k, n), "float16", integers=True)
    problem = make_problem(m, n, k, "float16", b_order=order, out_dtype="float32")
    for _ in range(3):
        np.testing.assert_array_equal(run(problem, config, a, b), reference.matmul(a, b))


@gpu
@on_gpu
@pytest.mark.parametrize("shape", [(129, 264), (300, 1032), (520, 300), (40, 200), (7, 9)])
@pytest.mark.parametrize(
    "name",
    ["128x256x64", "256x192x64", "128x256x64c2", "128x64x128", "128x64x128k2", "256x128x128"],
)
def test_what_lies_outside_is_not_fetched(rng, name, shape):
    """Tails of all lengths along m and n, over memory that other products have filled."""
    (m, n), k, dtype = shape, 520, "float16"
    config = next(config for config in sparse_wgmma_configs.TABLE if config.name == name)
    for order in ["column", "row"] * 2:
        problem = make_problem(m, n, k, dtype, b_order=order, out_dtype="float32")
        a = reference.prune(random_matrix(rng, (m, k), dtype, integers=True))
        b = random_matrix(rng, (k, n), dtype, integers=True)
        np.testing.assert_array_equal(run(problem, config, a, b), reference.matmul(a, b))


@gpu
@on_gpu
def test_promoted_sums_are_nearer(rng):
    m, n, k, dtype = 200, 260, 8192, "float8_e4m3fn"
    a = reference.prune(random_matrix(rng, (m, k), dtype))
    b = random_matrix(rng, (k, n), dtype)
    exact = reference.matmul(a, b)
    errors = {}
    for fast in (True, False):
        problem = make_problem(m, n, k, dtype, out_dtype="float32", fast_accumulation=fast)
        got = run(problem, sparse_wgmma.configs(problem)[0], a, b)
        errors[fast] = np.linalg.norm(got - exact) / np.linalg.norm(exact)
    assert errors[False] < 2e-4
    assert errors[False] < errors[True]


@gpu
@on_gpu
@pytest.mark.parametrize("order", ["row", "column"])
def test_out_that_the_copy_engine_cannot_address(rng, order):
    import cupy

    a = reference.prune(random_matrix(rng, (130, 136), "bfloat16"))
    b = random_matrix(rng, (136, 77), "bfloat16")
    problem = make_problem(130, 77, 136, out_order=order)
    shape = (130, 77) if order == "row" else (77, 130)
    room = cupy.full((shape[0] + 2, shape[1] + 3), -5, _dtypes.numpy_dtype("bfloat16"))
    view = room[1:-1, 1:-2]
    got = run(problem, DEFAULT, a, b, out=view if order == "row" else view.T)
    assert_as_good_as_dense(got, a, b)
    border = room.get().astype(np.float32)
    border[1:-1, 1:-2] = -5
    assert (border == -5).all()


@gpu
@on_gpu
@pytest.mark.parametrize(("a_batch", "b_batch"), [((3,), (3,)), ((), (3,)), ((3,), ())])
def test_batches_and_broadcasting(rng, a_batch, b_batch):
    m, n, k = 200, 136, 264
    a = reference.prune(random_matrix(rng, (*a_batch, m, k), "bfloat16"))
    b = random_matrix(rng, (*b_batch, k, n), "bfloat16")
    problem = make_problem(m, n, k, batch=3, a_batched=bool(a_batch), b_batched=bool(b_batch))
    out = poisoned((3, m, n), "bfloat16", "row")
    assert_as_good_as_dense(run(problem, DEFAULT, a, b, out=out), a, b)


EPILOGUES = {
    "bias_gelu": {"row_bias": "m", "activation": "gelu"},
    "scales": {"alpha": 0.5, "row_scale": "m", "column_scale": "n", "out_scale": 2.0},
    "c_and_column_bias": {"c": "mn", "beta": -0.5, "column_bias": "n"},
    "clipped_relu_with_aux": {"activation": "relu", "lower": 0.25, "upper": 3.0, "aux": "mn"},
    "silu": {"activation": "silu", "alpha": 0.125},
}


@gpu
@on_gpu
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("out_order", ["row", "column"])
def test_epilogues(rng, name, out_order):
    import cupy

    m, n, k, dtype = 201, 140, 392, "float16"
    a = reference.prune(random_matrix(rng, (m, k), dtype))
    b = random_matrix(rng, (k, n), dtype)
    lengths = {"m": (m,), "n": (n,)}
    host, device = dict(EPILOGUES[name]), dict(EPILOGUES[name])
    for key, value in EPILOGUES[name].items():
        if value in ("m", "n"):
            host[key] = rng.standard_normal(lengths[value]).astype(np.float32)
            device[key] = cupy.asarray(host[key])
        elif value == "mn":
            host[key] = rng.standard_normal((m, n)).astype(np.float16)
            device[key] = cupy.asarray(host[key])
    epilogue = Fused(**device)
    problem = make_problem(
        m, n, k, dtype, out_order=out_order, plain=False, activation=epilogue.activation
    )
    got = run(problem, DEFAULT, a, b, epilogue=epilogue)
    want, aux = reference.apply_epilogue(reference.matmul(a, b), Fused(**host), dtype)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)
    if epilogue.aux is not None:
        np.testing.assert_allclose(epilogue.aux.get(), aux, rtol=2e-3, atol=2e-2)


@gpu
@on_gpu
def test_nan_and_infinity_stay_in_their_columns(rng):
    a = reference.prune(random_matrix(rng, (128, 256), "float16"))
    b = random_matrix(rng, (256, 64), "float16")
    b[3, 5], b[7, 9] = np.nan, np.inf
    got = run(make_problem(128, 64, 256, "float16"), DEFAULT, a, b)
    clean = [j for j in range(64) if j not in (5, 9)]
    assert_as_good_as_dense(got[:, clean], a, b[:, clean])
    assert np.isnan(got[a[:, 3] != 0, 5]).all()


@gpu
@on_gpu
def test_same_bits_again_and_on_other_streams(rng):
    import cupy

    a = reference.prune(random_matrix(rng, (512, 1024), "bfloat16"))
    b = random_matrix(rng, (1024, 512), "bfloat16")
    problem = make_problem(512, 512, 1024)
    launch = sparse_wgmma.prepare(problem, DEFAULT, PLAIN)
    sparse, dense = compressed(a, "bfloat16"), device_matrix(b, "bfloat16", "column")
    outs = [poisoned((512, 512), "bfloat16", "row") for _ in range(4)]
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for i, out in enumerate(outs):
        with streams[i % 2]:
            launch(sparse, dense, out, PLAIN)
    cupy.cuda.Device().synchronize()
    for out in outs[1:]:
        np.testing.assert_array_equal(out.get().view(np.uint16), outs[0].get().view(np.uint16))
