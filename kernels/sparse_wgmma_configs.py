"""The table of tiles of the Hopper kernel, and the shared memory that each takes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from sparse24 import _spec
from sparse24.kernels.chip import H200

# Bytes for one block a multiprocessor, or two; 1 KB of a block's share is not for it (sm_90).
SHARED_MEMORY = {1: H200.most_shared, 2: (H200.most_shared - 1024) // 2}
MOST_STAGES = 12


@dataclass(frozen=True, slots=True)
class Config:
    """One specialisation of the kernel.

    Attributes
    ----------
    block_m, block_n : int
        Tile of the result.
    consumers : int
        Warpgroups that multiply; each owns ``block_m / consumers`` rows, with `pingpong` all.
    spans : int
        128-byte columns of b in a stage: 1 is 64 elements of 16 bits along k, or 128 of 8.
    cluster : int
        Blocks along m that share what they load of b.
    staging : int
        Output buffers of a warpgroup.
    pingpong : bool
        Warpgroups take tiles in turn instead of sharing them.
    in_flight : bool
        Keep a group of instructions running from one slice of k (``sparse_wgmma.cu``) to the next.
    parts : int
        Blocks of a cluster that share every tile along k: for few tiles.
    blocks : int
        Blocks that a multiprocessor runs at a time.
    """

    block_m: int
    block_n: int
    consumers: int = 2
    spans: int = 1
    cluster: int = 1
    staging: int = 2
    pingpong: bool = False
    in_flight: bool = True
    parts: int = 1
    blocks: int = 1

    @property
    def name(self) -> str:
        tail = f"c{self.cluster}" if self.cluster > 1 else ""
        tail += "p" * self.pingpong
        tail += (f"k{self.parts}" if self.parts > 1 else "") + ("d" if self.blocks > 1 else "")
        return f"{self.block_m}x{self.block_n}x{64 * self.spans}{tail}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Stages and bytes of shared memory of a config for given element sizes."""

    stages: int
    shared_memory: int


@functools.cache
def layout(config: Config, itemsize: int, out_itemsize: int, pieces: int = 1) -> Layout:
    """As many stages as fit; none, if that is so."""
    stage = (64 * config.block_m + 128 * config.block_n) * config.spans * pieces
    of_atom = (_spec.ATOM_K_TF32 if itemsize == 4 else _spec.ATOM_K) * itemsize
    parts, atoms = max(1, of_atom // (128 * config.spans)), max(1, 128 * config.spans // of_atom)
    slot = atoms * config.block_m // _spec.ATOM_M * _spec.ATOM_BYTES
    staging = config.consumers * config.staging * (4096 if out_itemsize == 1 else 8192)

    def total(stages: int) -> int:
        barriers = 16 * stages + 8 * (config.parts > 1 or config.pingpong)
        return stages * stage + -(-stages // parts) * slot + staging + barriers

    stages = max(s for s in range(MOST_STAGES + 1) if total(s) <= SHARED_MEMORY[config.blocks])
    return Layout(stages, total(stages))


LARGE = (
    Config(128, 256),
    Config(256, 192, in_flight=False),
    Config(256, 128),
    Config(128, 192),
    Config(192, 192, consumers=3, staging=1),
    Config(128, 128),
    Config(128, 256, staging=1, cluster=2),
    Config(128, 192, pingpong=True),
)

# For few tiles, where it matters how many blocks read at a time: (rows, columns) of a tile, and the
# numbers of blocks that may share it along k.
FEW = {
    (64, 32): (1, 2, 3, 4, 6),
    (64, 64): (1, 2, 3, 4),
    (128, 32): (1, 2, 3, 4),
    (128, 64): (1, 2, 3, 4, 6, 8),
    (128, 128): (1, 2, 3, 4, 5, 6, 8),
    (128, 192): (1, 2, 3, 4),
    (128, 256): (2, 3, 4),
    (256, 32): (1,),
    (256, 64): (1, 2, 3, 4),
    (256, 128): (1, 2, 3, 4),
}
MOST_OF_A_WIDE_STAGE = 65536  # bytes of A and b: LEAST_STAGES fit
LEAST_STAGES = 3


def _few() -> Iterator[Config]:
    """With wide stages, which bring whole lines of A: 2 to 17 % faster than half lines."""
    for (block_m, block_n), several in FEW.items():
        spans = 2 if 128 * block_m + 256 * block_n <= MOST_OF_A_WIDE_STAGE else 1
        consumers, blocks = (1, 2) if block_m == 64 else (2, 1)
        for parts in several:
            yield Config(
                block_m, block_n, consumers, spans, staging=1, parts=parts, blocks=blocks
            )  # fmt: skip


TABLE = (*LARGE, *_few())
