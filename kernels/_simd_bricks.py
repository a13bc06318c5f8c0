"""The inner loop of products of quantised 2:4 matrices with few columns, as vector code of AVX-512.

A vector holds the 16 stored elements of 32 columns of a row, a step of a brick (`bricks`).  With
integers of 4 bits elements are looked up: a row of a brick has a table of all 16 integers times its
factor.  Integers of 8 bits are widened and multiplied.  Partners in b are looked up as in
`_simd.dots`.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sparse24.kernels import bricks as layout
from sparse24.kernels._llvm import I32, I64, Emit
from sparse24.kernels._simd import VECTOR_BYTES

AVAILABLE = VECTOR_BYTES == 64
_LANES, _STEPS = 16, 4  # of a vector; of a brick
HALF_ROWS = layout.ROWS // 2  # a word of 32 bits has codes of a row and of the one so far below
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_WORDS = ir.VectorType(I32, _LANES)


class _Reader(Emit):
    """Reads bricks of so many bits, with elements rounded to the type that `kind` carries."""

    def __init__(self, context, builder, bits: int, kind: types.Type):
        super().__init__(context, builder, ir.FloatType(), _LANES)
        self.bits, self.kind = bits, kind
        self.codes_at = layout.element_bytes(bits)
        self.factors_at = self.codes_at + layout.CODES

    def scalar(self, brick, place, kind: ir.Type):
        at = self.builder.bitcast(self.at(brick, place), kind.as_pointer())
        return self.builder.load(at, align=1)

    def constant(self, numbers, kind=_WORDS):
        return ir.Constant(kind, list(numbers))

    def rounded(self, x):
        """float32 that a narrower type holds, halves carried as int16, bfloat16 as uint16."""
        builder = self.builder
        if self.kind == types.int16:
            halves = ir.VectorType(ir.HalfType(), _LANES)
            return builder.fpext(builder.fptrunc(x, halves), _FLOATS)
        if self.kind != types.uint16:
            return x
        word = builder.bitcast(x, _WORDS)
        odd = builder.and_(builder.lshr(word, self.splat(I32(16))), self.splat(I32(1)))
        word = builder.add(builder.add(word, self.splat(I32(0x7FFF))), odd)
        return builder.bitcast(builder.and_(word, self.splat(I32(-0x10000))), _FLOATS)

    def factor(self, brick, row):
        place = self.builder.add(self.builder.mul(row, I64(4)), I64(self.factors_at))
        return self.splat(self.scalar(brick, place, ir.FloatType()))

    def elements(self, brick, row):
        """The vectors of elements of a row, step by step."""
        factor = self.factor(brick, row)
        return (self._of_4_bits if self.bits == 4 else self._of_8_bits)(brick, row, factor)

    def _chunk(self, brick, row, number: int, kind: ir.Type):
        place = self.builder.add(self.builder.mul(row, I64(16)), I64(256 * number))
        at = self.builder.bitcast(self.at(brick, place), kind.as_pointer())
        return self.builder.load(at, align=1)

    def _of_4_bits(self, brick, row, factor):
        builder = self.builder
        integers = ir.Constant(_FLOATS, [float(i - 16 * (i > 7)) for i in range(16)])
        table = self.rounded(builder.fmul(integers, factor))
        found = []
        for number in range(2):
            words = self._chunk(brick, row, number, ir.VectorType(ir.IntType(16), 8))
            twice = builder.shuffle_vector(words, words, self.constant([*range(8)] * 2))
            wide = builder.zext(twice, _WORDS)
            for step in range(2):
                shifts = self.constant(4 * (2 * step + lane // 8) for lane in range(_LANES))
                places = builder.lshr(wide, shifts)  # of which the last four bits count
                name = "llvm.x86.avx512.permvar.sf.512"
                found.append(self.intrinsic(name, _FLOATS, table, places))
        return found

    def _of_8_bits(self, brick, row, factor):
        builder, kind = self.builder, ir.VectorType(ir.IntType(8), _LANES)
        lanes = range(_LANES)
        order = self.constant(4 * (x % 8 // 2) + 2 * (x // 8) + x % 2 for x in lanes)
        found = []
        for step in range(_STEPS):
            integers = self._chunk(brick, row, step, kind)
            integers = builder.shuffle_vector(integers, integers, order)
            value = builder.sitofp(builder.sext(integers, _WORDS), _FLOATS)
            found.append(self.rounded(builder.fmul(value, factor)))
        return found

    def codes(self, brick, row, step: int):
        """Words of the codes of a step, of `row` in their low halves, of the row below in others.

        The first eight lanes have those of the first 16 columns.
        """
        place = self.builder.add(self.builder.mul(row, I64(16)), I64(self.codes_at + 4 * step))
        low = self.splat(self.scalar(brick, place, I32))
        high = self.splat(self.scalar(brick, self.builder.add(place, I64(128)), I32))
        lanes = self.constant(lane + _LANES * (lane // 8) for lane in range(_LANES))
        return self.builder.shuffle_vector(low, high, lanes)

    def places(self, codes, half: int):
        """Places of the elements among 32 columns, of the row or of the one below."""
        shifts = self.constant(16 * half + 2 * (lane % 8) for lane in range(_LANES))
        groups = self.constant(4 * (lane // 2) for lane in range(_LANES))
        fields = self.builder.and_(self.builder.lshr(codes, shifts), self.splat(I32(3)))
        return self.builder.or_(fields, groups)


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
            for step in range(_STEPS):
                parts = [
                    [emit.load(emit.at(b, I64(32 * step + at))) for at in (0, _LANES)]
                    for b in starts
                ]
                for i in range(rows):
                    codes = emit.codes(brick, here[i], step)
                    for half in range(2):
                        places = emit.places(codes, half)
                        for j, (low, high) in enumerate(parts):
                            name = "llvm.x86.avx512.vpermi2var.ps.512"
                            partner = emit.intrinsic(name, _FLOATS, low, places, high)
                            at = (2 * i + half) * columns + j
                            value = elements[i][half][step]
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
