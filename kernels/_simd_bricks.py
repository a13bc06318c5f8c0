"""The inner loop of products of quantised 2:4 matrices with few columns, as vector code.

What AVX-512 and AVX2 do otherwise is in `_simd_brick_readers`.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from sparse24.kernels import bricks as layout
from sparse24.kernels._llvm import I64
from sparse24.kernels._simd import VECTOR_BYTES
from sparse24.kernels._simd_brick_readers import RUNS, Narrow, Wide

AVAILABLE = VECTOR_BYTES >= 32
HALF_ROWS = layout.ROWS // 2  # a word of 32 bits has codes of a row and of the one so far below
_Reader = Wide if VECTOR_BYTES == 64 else Narrow


@intrinsic
def brick_dots(typingctx, bricks, block, row, b, kind, sums, shape):
    """Multiply some rows of a row block of bricks, and those 8 below, by a few columns of b.

    ``sums[16 * block + row + i + 8 * half, j]`` becomes the product of that row of A with row j of
    b, which holds the columns.

    Parameters
    ----------
    bricks : array of uint8 (row blocks, K atoms, bytes), C order
    block, row : int
    b : array of float32 (columns, 128 * K atoms), C order
    kind : array
        Its type carries that to which elements are rounded: float32, int16 for float16 or uint16
        for bfloat16.
    sums : array of float32 (rows, columns), C order
    shape : tuple (tuple of zeros, tuple of zeros, tuple of zeros)
        Their lengths are the bits, the values of i and of j.
    """
    signature = types.void(bricks, block, row, b, kind, sums, shape)
    bits, rows, columns = (len(part) for part in shape)

    def codegen(context, builder, signature, arguments):
        bricks, block, row, b, _, sums, _ = arguments
        emit = _Reader(context, builder, bits, signature.args[4].dtype)
        view = context.make_array(signature.args[0])(context, builder, bricks)
        atoms = builder.extract_value(view.shape, 1)
        size = I64(layout.size(bits))
        first = emit.at(view.data, builder.mul(builder.mul(block, atoms), size))
        lines = [emit.line(signature.args[3], b, I64(j)) for j in range(columns)]
        here = [builder.add(row, I64(i)) for i in range(rows)]

        def multiply(atom, held):
            brick = emit.at(first, builder.mul(atom, size))
            starts = [emit.at(line, builder.mul(atom, I64(layout.COLUMNS))) for line in lines]
            both = [(i, builder.add(i, I64(HALF_ROWS))) for i in here]
            elements = [[emit.elements(brick, i) for i in pair] for pair in both]
            held = list(held)
            for run in range(RUNS):
                parts = [emit.columns(b, run) for b in starts]
                for i in range(rows):
                    codes = emit.codes(brick, here[i], run)
                    for half in range(2):
                        value, places = elements[i][half](run), emit.places(codes, half)
                        for j, columns_of_run in enumerate(parts):
                            partner = emit.partners(columns_of_run, places)
                            at = (2 * i + half) * columns + j
                            held[at] = emit.multiply_add(value, partner, held[at])
            return held

        held = emit.sum_loop(atoms, 2 * rows * columns, multiply)
        top = builder.add(builder.mul(block, I64(layout.ROWS)), row)
        for i in range(rows):
            for half in range(2):
                line = emit.line(
                    signature.args[5], sums, builder.add(top, I64(i + half * HALF_ROWS))
                )
                for j in range(columns):
                    total = emit.total(held[(2 * i + half) * columns + j])
                    builder.store(total, emit.at(line, I64(j)))
        return context.get_dummy_value()

    return signature, codegen
