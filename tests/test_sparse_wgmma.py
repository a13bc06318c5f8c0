"""The Hopper kernel: what it refuses and chooses on any machine, what it computes on a GPU."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest

from sparse24 import _arrays, _dtypes
from sparse24._errors import CompileError, UnsupportedError
from sparse24._records import PLAIN, Compressed24, Epilogue, Problem
from sparse24.kernels import (
    launch,
    partial_sums,
    reference,
    sparse_wgmma,
    sparse_wgmma_configs,
    targets,
    tensor_map,
)

CHIP = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}
DEFAULT = sparse_wgmma_configs.TABLE[0]
gpu = pytest.mark.gpu
on_gpu = pytest.mark.stem("sparse_wgmma")


def make_problem(m=256, n=256, k=512, dtype="bfloat16", **changes):
    default = Problem(m, n, k, 1, dtype, dtype, _dtypes.TABLE[dtype].result, "column", "row")
    return dataclasses.replace(default, **changes)


def test_accepts_what_it_multiplies():
    for dtype in sparse_wgmma.OUTPUTS:
        problem = make_problem(dtype=dtype, tensor_float=dtype == "float32")
        assert sparse_wgmma.refuses(problem) is None
    assert sparse_wgmma.refuses(make_problem(m=1, n=3, k=5, b_order="row")) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compute_capability": 80}, "needs compute capability 9.0, the device has 80"),
        ({"dtype": "float64", "b_dtype": "float64"}, "not float64"),
        ({"dtype": "float32", "b_dtype": "float32"}, "float32 keeps its precision"),
        ({"b_dtype": "float16"}, "cannot be multiplied by one instruction"),
        ({"out_dtype": "int8"}, "are stored as"),
        ({"n": 0}, "an empty product needs no kernel"),
        ({"b_order": "strided"}, "copy it"),
        ({"aligned": False}, "multiples of 16 bytes"),
        ({"dtype": "int8", "b_dtype": "int8", "out_dtype": "int32", "b_order": "row"}, "transpose"),
    ],
)
def test_refuses_with_a_sentence(changes, words):
    assert words in sparse_wgmma.refuses(make_problem(**changes))


@pytest.mark.parametrize("config", sparse_wgmma_configs.TABLE, ids=lambda c: c.name)
@pytest.mark.parametrize(("itemsize", "out_itemsize"), [(2, 2), (2, 4), (1, 2), (1, 4)])
def test_layout_fits_and_pipelines(config, itemsize, out_itemsize):
    if config.spans * itemsize == 2 and config.spans == 2:
        pytest.skip("a wide stage of bytes would be longer than an atom of metadata")
    plan = sparse_wgmma_configs.layout(config, itemsize, out_itemsize)
    assert plan.stages >= 3
    assert plan.shared_memory <= sparse_wgmma_configs.SHARED_MEMORY[config.blocks]


def test_config_names_are_unique():
    names = [config.name for config in sparse_wgmma_configs.TABLE]
    assert len(set(names)) == len(names)


def test_prediction_orders_sizes_and_picks_small_tiles_for_few_columns():
    small, large = make_problem(4096, 4096, 4096), make_problem(8192, 8192, 8192)
    times = [sparse_wgmma.predict(p, DEFAULT, CHIP) for p in (small, large)]
    assert 5 < times[1] / times[0] < 10
    assert sparse_wgmma.configs(large)[0].block_n >= 192
    few = sparse_wgmma.configs(make_problem(4096, 512, 4096))
    assert few[0].name in ("128x128x64", "128x256x64k2")


def test_a_capture_without_room_for_partial_sums_says_what_to_do():
    with pytest.raises(UnsupportedError, match="run the product once on the stream before"):
        partial_sums._assign(-1, capturing=True)


def test_shared_tiles_fill_the_last_wave():
    split = next(config for config in sparse_wgmma_configs.TABLE if config.split)
    problem = make_problem(5120, 1024, 16384)  # 160 tiles of 128 x 256
    tiling = sparse_wgmma._tiling(problem, split, 132)[0]
    assert tiling["split_tiles"] == 160
    assert tiling["range"] * 132 + tiling["longer"] == 160 * 128
    assert sparse_wgmma.configs(problem)[0] == split
    assert split not in sparse_wgmma.configs(make_problem(5120, 1024, 64))


def test_tensor_map_room_is_aligned():
    for _ in range(4):
        room = tensor_map.empty()
        assert room.nbytes == tensor_map.BYTES
        assert room.ctypes.data % tensor_map.ALIGNMENT == 0


def test_addressable_needs_16_bytes():
    assert tensor_map.addressable(1024, (256, 4096))
    assert not tensor_map.addressable(1032, (256, 4096))
    assert not tensor_map.addressable(1024, (250, 4096))
    assert not tensor_map.addressable(1024, (-256, 4096))


def test_metadata_registers_survive_the_instructions_that_read_them():
    """Two sets of registers take turns, and no instruction is waited for alone."""
    pytest.importorskip("cupy", reason="NVRTC is reached through CuPy")
    try:
        targets._tool("nvdisasm")
    except CompileError as error:
        pytest.skip(str(error))
    macros, arch, instruction = sparse_wgmma.COMPILE_CHECKS[0]
    code, _ = targets.inspect(targets.Target("sparse_wgmma", macros, arch, instruction))
    steps = re.findall(
        r"(LDS\.64) R(\d+)|(HGMMA\.SP)\S* [^;]*?R(\d+), 0x[01]|(WARPGROUP\.DEPBAR)", code
    )
    loads = [int(step[1]) for step in steps if step[0]]
    assert len(set(loads[-2:])) == 2, "both branches of the loop load the same registers"
    current = None
    for load, to, multiply, metadata, _ in steps:
        if load:
            current = int(to)
        elif multiply:
            assert int(metadata) - current in (0, 1)
    waits = sum(bool(step[4]) for step in steps)
    assert waits < sum(bool(step[2]) for step in steps), "the compiler serialised the instructions"


class DeviceMatrix:
    """What the launcher reads of a CuPy array, over NumPy memory."""

    def __init__(self, array):
        self.array, self.data = array, SimpleNamespace(ptr=array.ctypes.data)
        self.shape, self.strides, self.ndim = array.shape, array.strides, array.ndim
        self.itemsize = array.itemsize


@pytest.fixture
def launched(monkeypatch):
    """Arguments of the launches that the driver would get, as bytes; no GPU needed."""
    seen = []

    def driver(configuration, function, addresses, extra):
        sizes = configuration.grid[0], configuration.block[0]
        seen.append((*sizes, [int(address) for address in addresses]))
        return 0

    def function(stem, name, macros, *, shared_memory):
        assert shared_memory <= sparse_wgmma_configs.SHARED_MEMORY[1]
        return SimpleNamespace(kernel=SimpleNamespace(ptr=1))

    device = SimpleNamespace(attributes={"MultiProcessorCount": 132})
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device))
    monkeypatch.setattr(_arrays, "cupy_module", lambda: cupy)
    monkeypatch.setattr(launch, "_driver_launch", lambda: driver)
    monkeypatch.setattr(sparse_wgmma.loader, "function", function)
    monkeypatch.setattr(launch, "current_stream", lambda: 0)
    monkeypatch.setattr(tensor_map, "_encoder", lambda: lambda *arguments: 0)
    tensor_map.tiled.cache_clear()
    return seen


@pytest.mark.parametrize("epilogue", [PLAIN, Epilogue(alpha=2.0)], ids=["plain", "alpha"])
@pytest.mark.parametrize("order", ["row", "column"])
def test_launcher_lays_out_the_arguments(launched, epilogue, order):
    m, n, k = 512, 1024, 256
    record = Compressed24(
        DeviceMatrix(np.zeros((m, k // 2), np.uint16)), None,
        DeviceMatrix(np.zeros((2, 8, 1024), np.uint8)), (m, k), _dtypes.TABLE["bfloat16"],
    )  # fmt: skip
    turned = order == "column"
    b = DeviceMatrix(np.zeros((n, k), np.uint16).T if turned else np.zeros((k, n), np.uint16))
    out = DeviceMatrix(np.zeros((n, m), np.uint16).T if turned else np.zeros((m, n), np.uint16))
    problem = make_problem(m, n, k, b_order=order, out_order=order, plain=epilogue.is_plain)
    run_it = sparse_wgmma.prepare(problem, DEFAULT, epilogue)
    run_it(record, b, out, epilogue)
    run_it(record, b, out, epilogue)
    assert [call[:2] for call in launched] == [(16, 384)] * 2
    assert len(launched[0][2]) == 9


# --- on a GPU ---------------------------------------------------------------------------------


def random_matrix(rng, shape, name, *, integers=False):
    if name == "int8":
        return rng.integers(-100, 101, shape).astype(np.int8)
    x = rng.integers(-4, 5, shape) if integers else rng.standard_normal(shape)
    return x.astype(_dtypes.TABLE[name].logical)


def storage(name):
    return np.dtype(np.uint8) if name.startswith("float8") else _dtypes.numpy_dtype(name)


def compressed(x, name):
    """The record of a pruned NumPy matrix, on the GPU."""
    import cupy

    values, metadata = reference.compress(x)
    on_device = _arrays.empty_rows(cupy, values.shape, storage(name))
    on_device[...] = cupy.asarray(values.view(storage(name)))
    packed = cupy.asarray(reference.pack_metadata(metadata, x.shape[-1], values.itemsize))
    return Compressed24(on_device, None, packed, x.shape, _dtypes.TABLE[name])


def device_matrix(x, name, order):
    """A copy of `x` on the GPU with 16-byte aligned rows (or columns)."""
    import cupy

    turned = x.swapaxes(-1, -2) if order == "column" else x
    y = _arrays.empty_rows(cupy, turned.shape, storage(name))
    y[...] = cupy.asarray(np.ascontiguousarray(turned).view(storage(name)))
    return y.swapaxes(-1, -2) if order == "column" else y


def poisoned(shape, name, order):
    dtype = _dtypes.numpy_dtype(name)
    poison = np.full(shape, -77 if dtype.kind == "i" else np.nan).astype(dtype)
    return device_matrix(poison, name, order)


def run(problem, config, a, b, *, epilogue=PLAIN, out=None):
    """The product of NumPy operands on the GPU, as a NumPy array."""
    shape = (
        (*b.shape[:-2], problem.m, problem.n) if b.ndim >= a.ndim else (*a.shape[:-1], problem.n)
    )
    if out is None:
        out = poisoned(shape, problem.out_dtype, problem.out_order)
    launch = sparse_wgmma.prepare(problem, config, epilogue)
    launch(
        compressed(a, problem.dtype),
        device_matrix(b, problem.b_dtype, problem.b_order),
        out,
        epilogue,
    )
    return out.get().view(_dtypes.numpy_dtype(problem.out_dtype))


def assert_as_good_as_dense(got, a, b, *, slack=1e-6):
    """Error against float64 at most twice that of rounding the exact product once."""
    exact = reference.matmul(a, b)
    if got.dtype.kind == "i":
        np.testing.assert_array_equal(got, reference.to_dtype(exact, got.dtype))
        return
    scale = np.linalg.norm(exact)
    rounded = exact.astype(got.dtype).astype(np.float64)
    error = np.linalg.norm(got.astype(np.float64) - exact)
    assert error <= 2 * np.linalg.norm(rounded - exact) + slack * scale


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
def test_shared_tiles_are_exact_and_the_same_again(rng, shape, dtype):
    m, n, k = shape
    split = next(config for config in sparse_wgmma_configs.TABLE if config.split)
    a = reference.prune(random_matrix(rng, (m, k), dtype, integers=True))
    b = random_matrix(rng, (k, n), dtype, integers=True)
    out_dtype = "float32" if dtype == "float16" else "int32"
    problem = make_problem(m, n, k, dtype, out_dtype=out_dtype)
    for _ in range(3):
        np.testing.assert_array_equal(run(problem, split, a, b), reference.matmul(a, b))


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
    epilogue = Epilogue(**device)
    problem = make_problem(
        m, n, k, dtype, out_order=out_order, plain=False, activation=epilogue.activation
    )
    got = run(problem, DEFAULT, a, b, epilogue=epilogue)
    want, aux = reference.apply_epilogue(reference.matmul(a, b), Epilogue(**host), dtype)
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
