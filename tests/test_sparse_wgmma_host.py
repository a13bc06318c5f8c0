"""The Hopper kernel on any machine: what it refuses and chooses, and what it launches with."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from wgmma_cases import DEFAULT, make_problem

from sparse24 import _arrays, _dtypes
from sparse24._records import PLAIN, Compressed24, Fused
from sparse24.kernels import (
    launch,
    sparse_wgmma,
    sparse_wgmma_configs,
    sparse_wgmma_plan,
    targets,
    tensor_map,
)

CHIP = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}


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
    plan = sparse_wgmma_configs.layout(config, itemsize, out_itemsize)
    dtype = {1: "int8", 2: "bfloat16"}[itemsize]
    out = {1: "int8", 2: "bfloat16", 4: "int32" if itemsize == 1 else "float32"}[out_itemsize]
    problem = make_problem(4096, 4096, 4096, dtype, b_dtype=dtype, out_dtype=out)
    assert plan.stages >= 3 or config not in sparse_wgmma.configs(problem)
    assert plan.shared_memory <= sparse_wgmma_configs.SHARED_MEMORY[config.blocks]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn"])
def test_every_block_gets_a_part_of_k(dtype):
    """One without would wait for stages that never come; of bytes a wide stage has two atoms."""
    for k in [*range(8, 600, 40), *range(600, 9000, 376)]:
        problem = make_problem(264, 72, k, dtype)
        configs = sparse_wgmma.configs(problem)
        assert configs
        for config in configs:
            of_stage = config.spans if dtype != "bfloat16" else 1
            assert -(-sparse_wgmma_plan.atoms_k(problem) // of_stage) >= config.parts


def test_config_names_are_unique():
    names = [config.name for config in sparse_wgmma_configs.TABLE]
    assert len(set(names)) == len(names)


def test_prediction_orders_sizes_and_picks_small_tiles_for_few_columns():
    small, large = make_problem(4096, 4096, 4096), make_problem(8192, 8192, 8192)
    times = [sparse_wgmma.predict(p, DEFAULT, CHIP) for p in (small, large)]
    assert 5 < times[1] / times[0] < 10
    assert sparse_wgmma.configs(large)[0].block_n >= 192
    few = sparse_wgmma.configs(make_problem(4096, 512, 4096))
    assert few[0].name in ("128x128x128", "128x128x128k2", "128x256x64k2")


@pytest.mark.parametrize(
    ("m", "n", "cluster", "order", "tails"),
    [
        (512, 512, 1, "column", (128, 256)), (513, 264, 1, "column", (8, 8)),
        (130, 1, 1, "column", (8, 8)), (7, 500, 2, "column", (8, 256)),
        (100, 300, 2, "column", (104, 48)), (100, 300, 1, "row", (104, 64)),
    ],
)  # fmt: skip
def test_boxes_of_the_last_tiles_end_where_the_matrix_does(launched, m, n, cluster, order, tails):
    wide = (c for c in sparse_wgmma_configs.TABLE if c.block_n == 256)
    config = next(c for c in wide if c.cluster == cluster)
    launcher = sparse_wgmma.prepare(make_problem(m, n, b_order=order), config, PLAIN)
    assert (launcher._a_tail(), launcher._b_tail()) == tails


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


@pytest.mark.usefixtures("disassembler")
def test_metadata_registers_survive_the_instructions_that_read_them():
    """Two sets of registers take turns, and no instruction is waited for alone."""
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


@pytest.mark.parametrize("epilogue", [PLAIN, Fused(alpha=2.0)], ids=["plain", "alpha"])
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
