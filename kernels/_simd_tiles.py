"""Two steps of transposable masks, as LLVM vector code, one 4x4 tile a lane."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sparse24.kernels._llvm import I32, I64, Emit

RUN = 16  # tiles that are read together
JUDGED = 32  # tiles that pass the masks together: enough to hide how long additions take
_SIDE = 4
NAN = np.float32(np.finfo(np.float32).max / np.float32(16))  # as a magnitude


@intrinsic
def take_run(typingctx, x, row, column, size, t):
    """Write the magnitudes of the tiles of 64 columns to ``size[row, column, t : t + 16]``.

    `x` is a matrix of float32 in C order; its rows from `row` and columns from `column` on are
    taken.  `size` (4, 4, tiles) is in C order, too.
    """
    signature = types.void(x, row, column, size, t)

    def codegen(context, builder, signature, arguments):
        x, row, column, size, t = arguments
        emit = Emit(context, builder, ir.FloatType(), RUN)
        pitch = builder.extract_value(
            context.make_array(signature.args[3])(context, builder, size).shape, 2
        )
        target = emit.at(emit.data(signature.args[3], size), t)
        for i in range(_SIDE):
            line = emit.at(emit.line(signature.args[0], x, builder.add(row, I64(i))), column)
            parts = [emit.load(emit.at(line, I64(RUN * part))) for part in range(_SIDE)]
            for j, values in enumerate(_columns(emit, parts)):
                place = builder.mul(pitch, I64(_SIDE * i + j))
                emit.store(_magnitude(emit, values), emit.at(target, place))
        return context.get_dummy_value()

    return signature, codegen


def _split(emit: Emit, x, y):
    """Elements of even and of odd number of two vectors, one after the other."""
    kind = ir.VectorType(I32, RUN)
    orders = (ir.Constant(kind, list(range(first, 2 * RUN, 2))) for first in (0, 1))
    return [emit.builder.shuffle_vector(x, y, order) for order in orders]


def _columns(emit: Emit, parts: list):
    """For each j, a vector of the elements 4 i + j of four vectors."""
    (even, odd), (later_even, later_odd) = _split(emit, *parts[:2]), _split(emit, *parts[2:])
    (first, third), (second, fourth) = _split(emit, even, later_even), _split(emit, odd, later_odd)
    return first, second, third, fourth


def _magnitude(emit: Emit, values):
    size = emit.intrinsic(f"llvm.fabs.v{RUN}f32", emit.vector, values)
    known = emit.builder.fcmp_ordered("ord", size, size)
    return emit.builder.select(known, size, ir.Constant(emit.vector, [float(NAN)] * RUN))


@intrinsic
def best_masks(typingctx, half, t, choices, masks):
    """Write the masks of the largest sums of 32 tiles to ``masks[t : t + 32]``.

    Parameters
    ----------
    half : array of float32 (halves, tiles), C order
        Sums of all halves of the tiles.
    t : int
    choices : array of int32 (masks, 3), C order
        Of every mask, ascending: its halves, and itself.  Of equal sums the first one wins.
    masks : array of int32, flat
    """
    signature = types.void(half, t, choices, masks)

    def codegen(context, builder, signature, arguments):
        half, t, choices, masks = arguments
        emit = Emit(context, builder, ir.FloatType(), JUDGED)
        words = Emit(context, builder, I32, JUDGED)
        table = context.make_array(signature.args[2])(context, builder, choices)

        def step(number, held):
            best, mask = held
            line = words.at(table.data, builder.mul(number, I64(3)))
            *places, word = (builder.load(words.at(line, I64(i))) for i in range(3))
            upper, lower = (
                emit.load(emit.at(emit.line(signature.args[0], half, builder.zext(p, I64)), t))
                for p in places
            )
            total = builder.fadd(upper, lower)
            better = builder.fcmp_ordered(">", total, best)
            return [
                builder.select(better, total, best),
                builder.select(better, words.splat(word), mask),
            ]

        count = builder.extract_value(table.shape, 0)
        nothing = ir.Constant(emit.vector, [-1.0] * JUDGED)
        _, mask = emit.loop(count, [nothing, ir.Constant(words.vector, None)], step)
        words.store(mask, words.at(words.data(signature.args[3], masks), t))
        return context.get_dummy_value()

    return signature, codegen
