"""float32 products at 2:4 on the bfloat16 tensor cores of Hopper, as accurate as FP32.

Both operands become six sections of bfloat16 pieces (`kernels.pieces`), and the product is
one of bfloat16 along a six times longer k, run by ``cuda/sparse_wgmma.cu``.  Tensor cores
truncate their sums instead of rounding them, so a long sum drifts towards zero: the kernel
is compiled to sum a few instructions at a time and to add these sums in float32.

Sources: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype
For Higher-Precision Computations" (2019); Ootomo and Yokota, "Recovering single precision
accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance" (2022).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparse24 import _arrays
from sparse24._records import Compressed24, Fused, Problem
from sparse24.kernels import loader, pieces, sparse_wgmma
from sparse24.kernels import sparse_wgmma_plan as plan
from sparse24.kernels.sparse_wgmma_configs import Config

NAME = "sparse_split"
COMPILE_CHECKS = pieces.COMPILE_CHECKS
MOST_BYTES = 2 << 30  # of the pieces of b at a time
STEP = 768  # columns: whole tiles of 128, 192 and 256
PIECES_SHARE = 0.75  # of copy speed, at which they are made; measured


def refuses(problem: Problem) -> str | None:
    """Why this kernel cannot run `problem`, as a sentence; None if it can."""
    p = problem
    if {p.dtype, p.b_dtype, p.out_dtype} != {"float32"} or p.tensor_float:
        return f"the kernel splits float32, not {p.dtype} and {p.b_dtype} to {p.out_dtype}"
    if p.batch > pieces.MOST_BATCHES:
        return f"a batch has at most {pieces.MOST_BATCHES} products, this one {p.batch}"
    return sparse_wgmma.refuses(widened(p))


def _widened_bytes(p: Problem) -> int:
    return 2 * pieces.SECTIONS * pieces.padded(p.k) * p.n * (p.batch if p.b_batched else 1)


def widened(problem: Problem) -> Problem:
    """The bfloat16 problem that the tensor cores see."""
    return replace(
        problem,
        k=pieces.SECTIONS * pieces.padded(problem.k),
        dtype="bfloat16",
        b_dtype="bfloat16",
        b_order="row" if problem.b_order == "row" else "column",
        aligned=True,
    )


def columns_at_a_time(problem: Problem) -> int:
    """Columns of b whose pieces are there at the same time, whole tiles of them if not all."""
    fit = MOST_BYTES * problem.n // max(1, _widened_bytes(problem))
    return problem.n if fit >= problem.n else max(STEP, fit // STEP * STEP)


def configs(problem: Problem) -> list[Config]:
    """Tiles of the Hopper kernel whose sums fit into the registers twice, best guess first."""
    return [tile for tile in plan.configs(widened(problem)) if promotable(tile)]


def promotable(tile: Config) -> bool:
    """Whether the registers hold the sums of a tile twice, as PROMOTE needs."""
    sharers = 1 if tile.pingpong else tile.consumers
    return tile.block_m * tile.block_n <= plan.MOST_PROMOTED * sharers and tile.consumers < 3


def predict(problem: Problem, config: Config, chip: dict[str, float]) -> float:
    """Seconds: the pieces of b, and the product."""
    p = problem
    moved = 4 * p.k * p.n * (p.batch if p.b_batched else 1) + _widened_bytes(p)
    split = plan.LAUNCH + moved / (PIECES_SHARE * chip["bandwidth"])
    return split + plan.predict(widened(p), config, chip)


def defines(problem: Problem, config: Config, epilogue: Fused, *, bulk: bool) -> loader.Defines:
    """The macros of ``sparse_wgmma.cu`` for a widened problem, its sums moved to float32."""
    changed = {"PROMOTE": 1, "IN_FLIGHT": 0}
    macros = sparse_wgmma.defines(problem, config, epilogue, bulk=bulk)
    return tuple((name, changed.get(name, value)) for name, value in macros)


class _Promoted(sparse_wgmma._Launcher):
    """The Hopper kernel compiled so."""

    def _kernel(self, *, bulk: bool):
        macros = defines(self.problem, self.config, self.epilogue, bulk=bulk)
        stem = sparse_wgmma.NAME
        return loader.function(stem, stem, macros, shared_memory=self.shared_memory)


def prepare(
    problem: Problem, config: Config, epilogue: Fused
) -> Callable[[Compressed24, Any, Any, Fused], None]:
    """Compile `config` for `problem`; the callable enqueues on CuPy's current stream.

    The first product of a record makes its pieces, 3 times the bytes of its values, which
    stay with it; those of b are made at each product.
    """
    wide, step = widened(problem), columns_at_a_time(problem)
    by_columns = wide.b_order == "column"
    widths = {min(step, problem.n - start) for start in range(0, problem.n, step)}
    products = {n: _Promoted(replace(wide, n=n), config, epilogue) for n in widths}

    def launch(a: Compressed24, b, out, epilogue: Fused) -> None:
        capturing = _arrays.cupy_module().cuda.get_current_stream().is_capturing()
        pieces_of_a = pieces.of_sparse(a)
        for start in range(0, problem.n, step):
            part = slice(start, start + step)
            pieces_of_b = pieces.of_dense(b[..., part], by_columns=by_columns)
            if capturing:
                pieces.keep_for_graph(a, pieces_of_b)
            product, of_part = products[pieces_of_b.shape[-1]], _columns(epilogue, part)
            product(pieces_of_a, pieces_of_b, out[..., part], of_part)

    return launch


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
