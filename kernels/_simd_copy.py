"""The copies that come before the loops of `_simd`, as LLVM vector code.

They bring operands into the order in which `_simd.tile` reads them, 16 elements at a time.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sparse24.kernels._llvm import I32, I64, Emit

RUN = 16  # elements


@intrinsic
def copy_run(typingctx, source, row, column, target, to):
    """``target[to : to + 16] = source[row, column : column + 16]``.

    `source` is a matrix whose rows are contiguous, each in itself; `target` is flat.
    """
    signature = types.void(source, row, column, target, to)

    def codegen(context, builder, signature, arguments):
        source, row, column, target, to = arguments
        emit = Emit(context, builder, context.get_value_type(signature.args[0].dtype), RUN)
        run = emit.load(emit.place(signature.args[0], source, row, column))
        emit.store(run, emit.at(emit.data(signature.args[3], target), to))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def turn_square(typingctx, source, row, column, target, to, pitch):
    """``target[to + pitch * i + j] = source[row + i, column + j]`` for i, j below 16.

    `source` is a matrix whose columns are contiguous, each in itself; `target` is flat.
    """
    signature = types.void(source, row, column, target, to, pitch)

    def codegen(context, builder, signature, arguments):
        source, row, column, target, to, pitch = arguments
        emit = Emit(context, builder, context.get_value_type(signature.args[0].dtype), RUN)
        columns = [
            emit.load(emit.place(signature.args[0], source, row, builder.add(column, I64(j))))
            for j in range(RUN)
        ]
        first = emit.at(emit.data(signature.args[3], target), to)
        for i, line in enumerate(emit.transposed(columns)):
            emit.store(line, emit.at(first, builder.mul(pitch, I64(i))))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def write_places(typingctx, metadata, row, run, before, places, at):
    """Write the columns of 16 stored elements, the `run`-th such run of a row, to ``places[at:]``.

    They count from the column `before` the first one of the run's groups.  `metadata` is an
    array of uint8 (m, bytes) in C order, `places` a flat one of uint16.
    """
    signature = types.void(metadata, row, run, before, places, at)

    def codegen(context, builder, signature, arguments):
        metadata, row, run, before, places, at = arguments
        emit = Emit(context, builder, I32, RUN)
        found = emit.places(emit.line(signature.args[0], metadata, row), run)
        found = builder.add(found, emit.splat(builder.trunc(before, I32)))
        narrow = Emit(context, builder, ir.IntType(16), RUN)
        target = narrow.at(narrow.data(signature.args[4], places), at)
        narrow.store(builder.trunc(found, narrow.vector), target)
        return context.get_dummy_value()

    return signature, codegen
