"""What the kernels of grouped products refuse, and the tiles that they choose, without a GPU."""

from __future__ import annotations

import dataclasses
import re

import pytest

from sparse24._records import PLAIN, Problem
from sparse24.kernels import (
    grouped,
    grouped_mma,
    grouped_wgmma,
    grouped_wgmma_configs,
    rings,
    sparse_tile,
)

TWO_BYTES = Problem(
    256, 64, 128, 8, "bfloat16", "bfloat16", "bfloat16", "column", "column", a_batched=True,
    compute_capability=80,
)  # fmt: skip


def problem(**changes) -> Problem:
    return dataclasses.replace(TWO_BYTES, **changes)


@pytest.mark.parametrize("capability", [80, 86, 87, 89, 90, 100, 103, 120])
def test_every_chip_since_ampere_has_a_kernel(capability):
    assert grouped_mma.refuses(problem(compute_capability=capability)) is None
    refusal = grouped_wgmma.refuses(problem(compute_capability=capability))
    assert (refusal is None) == (capability == 90)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compute_capability": 75}, "needs compute capability 8.0, the device has 75"),
        ({"dtype": "float8_e4m3fn", "b_dtype": "float8_e5m2"}, "float8 mma.sp needs compute"),
        ({"dtype": "float32", "b_dtype": "float32"}, "multiplies float16, .*, not float32"),
        ({"b_dtype": "float16"}, "bfloat16 and float16 cannot be multiplied by one instruction"),
        ({"out_dtype": "float16"}, "bfloat16 results are stored as bfloat16, float32, not float16"),
        ({"n": 0}, "an empty product needs no kernel"),
        ({"batch": 1025}, "there are 1025 groups; the kernel's table has room for 1024"),
        ({"b_order": "row"}, "must be contiguous, on 16-byte boundaries; copy them"),
        ({"aligned": False}, "must be contiguous, on 16-byte boundaries; copy them"),
    ],
)
def test_refusals_say_why(changes, words):
    assert re.search(words, grouped_mma.refuses(problem(**changes)))


def test_gates_have_whole_blocks_of_metadata():
    for rows, by_wgmma, by_mma in ((64, True, True), (80, False, True), (72, False, False)):
        given = problem(m=rows, compute_capability=90)
        assert (grouped_wgmma.refuses(given, gated=True) is None) == by_wgmma
        assert (grouped_mma.refuses(given, gated=True) is None) == by_mma
        assert grouped_mma.refuses(given) is None
    assert "a multiple of 16 rows, not 72" in grouped_mma.refuses(problem(m=72), gated=True)


@pytest.mark.parametrize("capability", sorted({*sparse_tile.SHARED_MEMORY, 120}))
@pytest.mark.parametrize("itemsize", [1, 2])
def test_tiles_fit_and_grow_with_the_columns_of_a_group(capability, itemsize):
    room = sparse_tile.SHARED_MEMORY.get(capability, 99) << 10
    for groups in (8, 1024):
        counts = [share * groups for share in (1 / 8, 1, 8, 25, 5000)]
        chosen = [grouped_mma.choose(groups, columns, itemsize, room) for columns in counts]
        for tile in chosen:
            used = tile.shared_memory(itemsize, groups) + rings.RESERVED
            assert tile.blocks * used <= room + rings.RESERVED
    widths = [tile.n for tile in chosen]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_hopper_tiles_follow_the_work():
    """The fastest of four, as raced on an H100: few experts fill large tiles with fewer tokens."""
    of = grouped.types_of(
        "bfloat16", "bfloat16", "bfloat16", "int32", PLAIN, gated=False, fast_accumulation=True
    )
    few, some, many, most = grouped_wgmma_configs.COSTS
    choose = lambda *sizes: grouped_wgmma_configs.choose(*sizes, of, 132)  # noqa: E731
    for groups, rows, chosen in (
        (8, 4096, {64: few, 2048: many, 8192: most}),
        (2, 11008, {4: few, 256: many, 1024: many, 16384: most}),
        (128, 768, {64: few, 512: few, 4096: some, 32768: many}),
    ):
        assert {n: choose(groups, rows, n) for n in chosen} == chosen
    promoted = of._replace(dtype="float8_e4m3fn", fast_accumulation=False)
    assert grouped_wgmma_configs.choose(8, 4096, 64, promoted, 132) != few


def test_a_specialisation_serves_a_kind_of_epilogue():
    of = grouped.types_of(
        "bfloat16", "bfloat16", "float32", "int64", PLAIN, gated=True, fast_accumulation=True
    )
    macros = dict(grouped_mma.defines(grouped_mma.FEW, of))
    assert (macros["OFFSET"], macros["GATED"], macros["OUTPUT"]) == ("long", 1, "float32")
    assert (of.halves, of.promotes) == (2, False)
