"""Lines of the hybrid cost model: two GPUs that were measured, and all others by their facts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from planner_cases import H100, RTX_4090

from sparse24 import _chip_facts, _tuning_cache
from sparse24._dtypes import lookup
from sparse24._hybrid import choice as hybrid_choice
from sparse24._hybrid import fit as hybrid_fit
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid import many_columns
from sparse24._hybrid.cublas import dense_time
from sparse24._hybrid.lines import H100_LINES, H200_LINES
from sparse24._tuning_cache import SCALES
from sparse24.kernels import chip, hybrid_wgmma_plan
from sparse24.kernels.hybrid_wgmma_plan import Work

H100_NAME, H200_NAME = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


def facts(attributes) -> dict[str, float]:
    return {
        "sms": attributes["MultiProcessorCount"], "clock_hz": 1e3 * attributes["ClockRate"],
        "bandwidth": _chip_facts.copy_bandwidth(attributes),
    }  # fmt: skip


def test_every_path_and_class_has_a_line_on_every_gpu():
    names = {f"{path}/{n}" for path, sizes in hybrid_lines.COLUMN_CLASSES.items() for n in sizes}
    assert H200_LINES.keys() == H100_LINES.keys() == names
    assert hybrid_lines.LIMITS.keys() == hybrid_lines.COLUMN_CLASSES.keys()
    numbers = [x for line in H100_LINES.values() for x in (line.fixed, line.element, line.byte)]
    assert min(numbers) == 0.0
    assert max(numbers) < 1e-4


def test_lines_are_chosen_by_name():
    for name, lines in ((H200_NAME, H200_LINES), (H100_NAME, H100_LINES)):
        assert hybrid_lines.shipped(name, facts(RTX_4090), "89") is lines
    others = ("NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090")
    for name in others:
        found = hybrid_lines.shipped(name, facts(RTX_4090), "89")
        assert found == hybrid_lines.scaled(facts(RTX_4090), "89")


def test_an_h200_by_its_facts_is_an_h200():
    assert hybrid_lines.scaled(_chip_facts.H200, "90") == H200_LINES


def test_other_gpus_take_longer_by_what_their_products_wait_for():
    found = hybrid_lines.scaled(facts(RTX_4090), "89")
    memory = 4.2e12 / facts(RTX_4090)["bandwidth"]
    clock, chip_ = 1.98 / 2.52, 132 * 1.98 / (128 * 2.52)
    for name, part, factor in (
        ("gather/1", "byte", memory), ("cublas/64", "byte", memory), ("copy/512", "byte", memory),
        ("scatter/8", "element", clock), ("stream/8", "element", chip_),
        ("panel/512", "byte", chip_), ("dense/512", "element", 4 * chip_),
    ):  # fmt: skip
        want = factor * getattr(H200_LINES[name], part)
        assert getattr(found[name], part) == pytest.approx(want, rel=1e-6, abs=0), name
        assert found[name].fixed == H200_LINES[name].fixed
    assert hybrid_lines.scaled(facts(H100), "90")["dense/512"] == H200_LINES["dense/512"]


def test_scaled_lines_of_an_h100_are_near_the_measured_ones():
    """Products that wait for memory, of a 4096 x 4096 matrix with 90 % zeros or a dense one."""
    found = hybrid_lines.scaled(facts(H100), "90")
    for name, nbytes in (("gather/1", 6.7e6), ("rows/1", 6.7e6), ("cublas/64", 33.5e6)):
        seconds = found[name].seconds(0, nbytes)
        assert seconds == pytest.approx(H100_LINES[name].seconds(0, nbytes), rel=0.15)
        assert seconds > 1.15 * H200_LINES[name].seconds(0, nbytes)


@pytest.mark.parametrize("name", ["short/512", "int8/512", "tiles/512", "copy/512"])
def test_what_an_h100_was_not_timed_for_waits_for_its_memory(name):
    scaled = hybrid_lines.scaled(facts(H100), "90")[name]
    assert H100_LINES[name].byte == pytest.approx(scaled.byte, rel=0.05, abs=0)


def test_the_shipped_lines_of_a_device_are_those_of_its_name_and_facts(monkeypatch, untuned):
    monkeypatch.setattr(hybrid_fit, "_known", {})
    monkeypatch.setattr(_chip_facts, "attributes", lambda device: RTX_4090)
    monkeypatch.setattr(chip, "chip", lambda device: chip.Chip(128, 99 << 10, "89"))
    monkeypatch.setattr(_tuning_cache, "gpu_name", lambda device: "NVIDIA GeForce RTX 4090")
    monkeypatch.setattr(hybrid_fit, "_key", dict)
    assert hybrid_fit.lines(0) == hybrid_lines.scaled(facts(RTX_4090), "89")
    assert hybrid_fit.shipped(0) == hybrid_fit.lines(0)
    monkeypatch.setattr(_tuning_cache, "gpu_name", lambda device: H100_NAME)
    assert hybrid_fit.shipped(0) is H100_LINES


def times(lines, shape, zeros: float, n: int, **known) -> dict[str, float]:
    """Seconds of cuBLAS and the paths for many columns, for a float16 matrix."""
    h = SimpleNamespace(
        _dtype=lookup("float16"), size=shape[0] * shape[1], shape=shape,
        density=1 - zeros,
        prepared=lambda name, make: SimpleNamespace(value=known[name.replace(" ", "_")]),
    )  # fmt: skip
    dense = dense_time(shape, h._dtype, n, lines, chip.H200, h.density)
    return {"cublas": dense} | many_columns.two_four_times(h, n, lines, chip.H200)


A100 = chip.Chip(108, 163 << 10, "80"), {"sms": 108, "clock_hz": 1.41e9, "bandwidth": 1.4e12}
ADA = chip.Chip(128, 99 << 10, "89"), {"sms": 128, "clock_hz": 2.52e9, "bandwidth": 0.9e12}
B200 = chip.Chip(148, 227 << 10, "100"), {"sms": 148, "clock_hz": 1.965e9, "bandwidth": 6.9e12}


@pytest.mark.parametrize(("of", "gains"), [(A100, False), (ADA, True), (B200, False)])
def test_two_four_gains_only_where_its_instructions_are_faster_than_cublas(monkeypatch, of, gains):
    device, facts = of
    monkeypatch.setattr(_chip_facts, "facts", lambda number: facts)
    monkeypatch.setattr(_tuning_cache, "scale", lambda number, name: SCALES.get(name, 1.0))
    known = {"excess": 15888.0, "row lengths": np.array([481])}
    h = SimpleNamespace(
        _dtype=lookup("float16"), device="cuda:0", size=4096**2, shape=(4096, 4096), density=0.1,
        prepared=lambda name, make: SimpleNamespace(value=known[name]),
    )  # fmt: skip
    lines = hybrid_lines.scaled(facts, device.compute_capability)
    for n in (128, 1024, 4096):
        dense = dense_time(h.shape, h._dtype, n, lines, device, 0.1)
        found = many_columns.two_four_times(h, n, lines, device)
        assert found.keys() == {"two_four"}
        assert found["two_four"] > dense / 1.4
        assert (found["two_four"] < dense) == (gains and n > 128)


def strips(*lengths: tuple[int, int], gathered: int, rows: int = 128) -> Work:
    """Strips by (stages, how many)."""
    stages, counts = np.array(sorted(lengths, reverse=True)).T
    return Work(np.repeat(stages, counts), gathered, rows)


# Strips as they were counted, zeros at random, and by columns the fastest path of each GPU.  On the
# H100 4096 x 4096 at 90 % by 512 takes 25.1 us by cuBLAS and 28.1 by slots, on the H200 25.2 and
# 22.8; 14336 x 4096 by 192 takes 49.6 us by cuBLAS and 36.9 by slots on the H100.
SQUARE = {
    "strips_work_slots": strips((72, 28), (70, 4), gathered=248),
    "strips_work_regrouped": strips((66, 4), (64, 12), gathered=1032, rows=256),
    "excess": 15888.0, "row_lengths": np.array([481]),
}  # fmt: skip
TALL = {
    "strips_work_slots": strips((72, 91), (70, 21), gathered=854),
    "strips_work_regrouped": strips((66, 11), (64, 45), gathered=3606, rows=256),
    "excess": 56194.0, "row_lengths": np.array([498]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "known", "n", "fastest"),
    [
        ((4096, 4096), SQUARE, 512, ("cublas", "slots")),
        ((14336, 4096), TALL, 192, ("slots", "cublas")),
        ((14336, 4096), TALL, 512, ("slots", "slots")),
    ],
)
def test_each_gpu_gets_the_path_that_is_fastest_on_it(monkeypatch, shape, known, n, fastest):
    monkeypatch.setattr(hybrid_wgmma_plan, "multiprocessors", lambda: 132)
    found = [times(lines, shape, 0.9, n, **known) for lines in (H100_LINES, H200_LINES)]
    assert tuple(hybrid_choice._best(seconds)[0] for seconds in found) == fastest


@pytest.mark.parametrize(("n", "gain"), [(512, 1.0), (1024, 1.5)])
def test_small_two_four_products_gain_nothing_over_dense_ones(monkeypatch, n, gain):
    monkeypatch.setattr(hybrid_wgmma_plan, "multiprocessors", lambda: 132)
    known = SQUARE | {"excess": 0.0, "row_lengths": np.array([60])}
    found = times(H200_LINES, (4096, 4096), 0.99, n, **known)
    rest = H200_LINES["overflow/512"].seconds(0, 4 * 4096 * n)
    assert found["two_four"] == pytest.approx(found["cublas"] / gain + rest)
