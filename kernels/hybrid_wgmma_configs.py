"""Specialisations of ``cuda/hybrid_wgmma.cu``."""

from __future__ import annotations

from dataclasses import dataclass

from sparse24.kernels.chip import H200
from sparse24.kernels.hybrid_strips import BLOCK as BLOCK_K


@dataclass(frozen=True, slots=True)
class Config:
    """One specialisation.

    Attributes
    ----------
    block_m, block_n : int
        Rows of a tile, which are those of a strip, and columns.
    parts : int
        Blocks of a cluster that share every tile along k.
    rate : float
        Speed relative to that of the first config for such strips, waves being full and all rows
        having elements.
    skips : bool
        Whether 64 rows without elements are passed by.
    in_stage : bool
        Whether results are staged in the last stage of their tile, which leaves room for one more.
    most_columns : int, optional
        Of *b*, for which it is offered.
    """

    block_m: int
    block_n: int
    parts: int = 1
    rate: float = 1.0
    skips: bool = False
    in_stage: bool = False
    most_columns: int | None = None

    @property
    def name(self) -> str:
        name = f"{self.block_m}x{self.block_n}" + (f"k{self.parts}" if self.parts > 1 else "")
        return name + ("s" if self.skips else "") + ("i" if self.in_stage else "")

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply; those that pass by rows have 64 each, if registers allow it."""
        return self.block_m // 64 if self.skips and self.block_n <= 128 else 2

    @property
    def threads(self) -> int:
        """Threads of a block: the warpgroups that multiply, and one that fetches."""
        return 128 * (self.consumers + 1)

    @property
    def band(self) -> int:
        """Tiles along m that are walked together; see `sparse_wgmma_plan.band`.

        A quarter of an H200's multiprocessors, where each strip gathers rows of b in an order of
        its own: docs/benchmarks/log_hybrid.rst.
        """
        if self.block_m == 256:
            return 33
        return 22 if self.block_n == 256 else 15

    @property
    def cuts(self) -> bool:
        """Whether tiles may be cut along k to fill the last wave.

        Not where most rows of b are neighbours: blocks that are at the same k share them in L2.
        """
        return self.block_m == 256 and self.parts == 1 and (self.block_n == 192 or not self.skips)

    @property
    def staging(self) -> int:
        """Output buffers of a warpgroup."""
        return 2 if self.parts == 1 and (self.in_stage or not self.skips) else 1

    def _bytes(self, stages: int) -> int:
        stage = self.block_m * BLOCK_K + 2 * self.block_n * BLOCK_K
        metadata = (stages // 2 + 1 if self.skips else -(-stages // 2)) * 16 * self.block_m
        words = 16 * -(-stages // 4) + stages * 4 * BLOCK_K  # which rows have elements; sources
        buffers = 0 if self.in_stage else self.consumers * self.staging * 8192
        return stages * (stage + 16) + metadata + words + buffers + 8

    @property
    def stages(self) -> int:
        """Stages of the ring: as many as fit."""
        return max(s for s in range(1, 9) if self._bytes(s) <= H200.most_shared)

    @property
    def shared_memory(self) -> int:
        return self._bytes(self.stages)


# By rows of a strip.  One more stage (`in_stage`) lets blocks drift apart; with many columns that
# costs as much as it gains.
TABLES = {
    128: (
        Config(128, 256), Config(128, 256, rate=1.015, in_stage=True, most_columns=512),
        Config(128, 128, rate=0.7), Config(128, 256, 2), Config(128, 128, 2, 0.7),
    ),
    256: (
        Config(256, 192, skips=True, in_stage=True), Config(256, 128, rate=0.915),
        Config(256, 128, 2, 0.9),
    ),
}  # fmt: skip
# For strips of 256 rows in which few stages have elements in all four blocks of rows.
SKIPPING = (
    Config(256, 192, rate=1.02, skips=True, in_stage=True), Config(256, 128, rate=0.88, skips=True),
    Config(256, 128, 2, 0.865, skips=True),
)  # fmt: skip
SPECIALISATIONS = tuple({c.name: c for t in (*TABLES.values(), SKIPPING) for c in t}.values())


def offered(table: tuple[Config, ...], n: int) -> list[Config]:
    """The configurations of a table for products with that many columns."""
    return [c for c in table if c.most_columns is None or n <= c.most_columns]
