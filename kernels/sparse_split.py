"""float32 products at 2:4 on the bfloat16 tensor cores of Hopper, as accurate as FP32.

Both operands become three sections of bfloat16 pieces (`kernels.pieces`), of which
``cuda/sparse_wgmma.cu`` fetches all three into each stage and multiplies them crosswise: six
products for one of float32.  Tensor cores truncate their sums instead of rounding them, so a
long sum drifts towards zero: the kernel adds the sums of each stage up in float32.

Sources: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype
For Higher-Precision Computations" (2019); Ootomo and Yokota, "Recovering single precision
accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance" (2022).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from sparse24 import _arrays
from sparse24._records import Compressed24, Fused, Problem
from sparse24._views import View
from sparse24.kernels import loader, pieces, sparse_wgmma
from sparse24.kernels import sparse_wgmma_plan as plan
from sparse24.kernels.launch import Launch
from sparse24.kernels.sparse_wgmma_configs import Config

NAME = "sparse_split"
COMPILE_CHECKS = pieces.COMPILE_CHECKS
BYTES = 2  # of an element of a piece
MOST_BYTES = 2 << 30  # of the pieces of b at a time
STEP = 768  # columns: whole tiles of 128, 192 and 256
MOST_TURNED = 32  # columns of a b by rows whose pieces are stored by columns
PIECES_SHARE = 0.75  # of copy speed, at which they are made; measured


def refuses(problem: Problem) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can."""
    p = problem
    if {p.dtype, p.b_dtype, p.out_dtype} != {"float32"} or p.tensor_float:
        return f"the kernel splits float32, not {p.dtype} and {p.b_dtype} to {p.out_dtype}"
    return sparse_wgmma.refuses(widened(p))


def widened_bytes(p: Problem, sections: int = pieces.PIECES) -> int:
    """Bytes of the pieces of b."""
    return BYTES * sections * pieces.padded(p.k) * p.n * (p.batch if p.b_batched else 1)


def widened(problem: Problem) -> Problem:
    """The bfloat16 problem of one section, several of which the tensor cores see."""
    by_rows = problem.b_order == "row" and problem.n > MOST_TURNED
    pitch = _arrays.row_pitch(problem.n, BYTES)
    return replace(
        problem,
        k=pieces.padded(problem.k),
        dtype="bfloat16",
        b_dtype="bfloat16",
        b_order="row" if by_rows else "column",
        b_in_lines=not by_rows or pitch % _arrays.LINE == 0,
        aligned=True,
    )


def columns_at_a_time(problem: Problem, sections: int = pieces.PIECES) -> int:
    """Columns of b whose pieces are there at the same time, whole tiles of them if not all."""
    fit = MOST_BYTES * problem.n // max(1, widened_bytes(problem, sections))
    return problem.n if fit >= problem.n else max(STEP, fit // STEP * STEP)


# (rows, columns) of a tile, and the numbers of blocks that may share it along k.
TILES = {
    (64, 32): (1, 2, 3, 4, 6),
    (128, 32): (1, 2, 3, 4, 6, 8),
    (128, 64): (1, 2, 3, 4, 6, 8),
    (128, 128): (1, 2, 3, 4),
    (128, 192): (1, 2),
}
TABLE = tuple(
    Config(m, n, 1 if m == 64 else 2, staging=1, parts=parts, blocks=2 if m == 64 else 1)
    for (m, n), several in TILES.items()
    for parts in several
)


# Fitted to 3400 timings on an H200, as its defaults are: docs/benchmarks/log_gemm.rst, "Pieces side
# by side".
MODEL = plan.Model(
    pieces.PIECES, 6, launch=1.28e-6, instruction_clocks=13.4, stage_seconds=123e-9,
    latency=1.16e-6, into_sm=1.73e11, l2_per_sm=1.11e11, reading=1.4, store=98.5e-12,
    tile=0.586e-6, of_part=0.317e-6, shared_sum=137e-12, power=192e-15, half_line=0.369,
    whole_b=1.3, rows_of_b=1.03,
)  # fmt: skip


def configs(problem: Problem) -> list[Config]:
    """Tiles of the Hopper kernel, best guess first."""
    wide = widened(problem)
    suits = [config for config in TABLE if plan.suits(wide, config, pieces.PIECES)]
    return sorted(suits, key=lambda config: predict(problem, config, plan.CHIP))


def predict(
    problem: Problem, config: Config, chip: dict[str, float], model: plan.Model = MODEL
) -> float:
    """Seconds: the pieces of b, and the product."""
    p = problem
    moved = 4 * p.k * p.n * (p.batch if p.b_batched else 1) + widened_bytes(p)
    split = model.launch + moved / (PIECES_SHARE * chip["bandwidth"])
    return split + plan.predict(widened(p), config, chip, model)


def defines(problem: Problem, config: Config, epilogue: Fused, *, bulk: bool) -> loader.Defines:
    """The macros of ``sparse_wgmma.cu`` for a widened problem."""
    return sparse_wgmma.defines(problem, config, epilogue, bulk=bulk, pieces=pieces.PIECES)


class _OfPieces(sparse_wgmma._Launcher):
    """The Hopper kernel compiled for pieces."""

    pieces = pieces.PIECES


def prepare(problem: Problem, config: Config, epilogue: Fused) -> InPieces:
    """Compile `config` for `problem`; what is returned enqueues on CuPy's current stream."""
    return InPieces(problem, config, epilogue)


class InTurn(NamedTuple):
    """Launches that follow one another."""

    launches: tuple[Launch, ...]


class InPieces:
    """A prepared product, called with ``(a, b, out, epilogue)``.

    The first product of a record makes its pieces, 1.5 times the bytes of its values, which
    stay with it; those of b are made at each product.
    """

    def __init__(self, problem: Problem, config: Config, epilogue: Fused):
        wide, self._step, self._n = widened(problem), columns_at_a_time(problem), problem.n
        self._by_columns = wide.b_order == "column"
        starts = range(0, problem.n, self._step)
        self._parts = [slice(start, start + self._step) for start in starts]
        widths = {min(self._step, problem.n - start) for start in starts}
        self._products = {  # for pieces that are settled, and not: launchers know them by address
            (n, settled): _OfPieces(replace(wide, n=n), config, epilogue)
            for n in widths
            for settled in (False, True)
        }

    def __call__(self, a: Compressed24, b, out, epilogue: Fused) -> None:
        capturing = _arrays.cupy_module().cuda.get_current_stream().is_capturing()
        pieces_of_a = pieces.of_sparse(a)
        for part in self._parts:
            pieces_of_b = pieces.of_dense(b[..., part], by_columns=self._by_columns)
            if capturing:
                pieces.keep_for_graph(a, pieces_of_b)
            product = self._products[pieces_of_b.shape[-1], pieces_of_a.settled]
            product(pieces_of_a, pieces_of_b, out[..., part], _columns(epilogue, part))
            del pieces_of_b  # before the next ones are made

    @property
    def is_whole(self) -> bool:
        """Whether all columns of b are multiplied at once, as `bind` does."""
        return len(self._parts) == 1

    def scratch_bytes(self, b) -> int:
        """Bytes of scratch memory in which `bind` is to put the pieces of all of b."""
        return pieces.scratch_bytes(pieces.dense_layout(b, by_columns=self._by_columns))

    def bind(self, a: Compressed24, b: View, out: View, stream: int, scratch: int) -> InTurn:
        """The launches for settled pieces of A, with a plain epilogue as the last argument."""
        to = pieces.dense_layout(b, by_columns=self._by_columns).at(scratch)
        split = pieces.split_dense(b, to, by_columns=self._by_columns)
        return InTurn((split, self._products[self._n, True].bind(a, to, out, stream)))


def _columns(epilogue: Fused, part: slice) -> Fused:
    """The epilogue of these columns of the result."""
    e = epilogue
    if all(x is None for x in (e.c, e.aux, e.column_scale, e.column_bias)):
        return e
    cut = lambda x: None if x is None else x[..., part]  # noqa: E731
    return replace(
        e, c=cut(e.c), aux=cut(e.aux), column_scale=cut(e.column_scale),
        column_bias=cut(e.column_bias),
    )  # fmt: skip
