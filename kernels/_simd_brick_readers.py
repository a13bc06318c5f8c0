"""How vector code of AVX-512 and of AVX2 reads bricks, and looks up the partners of their elements.

A vector holds stored elements of a row, a *run*: with AVX-512 the 16 of 32 columns, a step of a
brick (`bricks`), with AVX2 the 8 of 16 columns, one half of a step.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types

from sparse24.kernels import bricks as layout
from sparse24.kernels._llvm import I32, I64, Emit
from sparse24.kernels._simd import VECTOR_BYTES

LANES = VECTOR_BYTES // 4
RUNS = layout.STORED // LANES  # of a row of a brick
_CHUNK = 16 * layout.ROWS  # bytes
_WORDS, _FLOATS = (ir.VectorType(kind, LANES) for kind in (I32, ir.FloatType()))


class _Reader(Emit):
    """Reads bricks of so many bits, with elements rounded to the type that `kind` carries."""

    def __init__(self, context, builder, bits: int, kind: types.Type):
        super().__init__(context, builder, ir.FloatType(), LANES)
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
            halves = ir.VectorType(ir.HalfType(), LANES)
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

    def chunk(self, brick, row, number: int, kind: ir.Type):
        """The 16 bytes of a row of a chunk, as a vector."""
        place = self.builder.add(self.builder.mul(row, I64(16)), I64(_CHUNK * number))
        at = self.builder.bitcast(self.at(brick, place), kind.as_pointer())
        return self.builder.load(at, align=1)

    def code_word(self, brick, row, step: int, second: int):
        """The word of the codes of 16 columns of a step, of a row in its low half, of the one 8
        rows below in the other; `second` is 1 for the second 16 columns.
        """
        place = self.codes_at + 4 * step + _CHUNK // 2 * second
        at = self.builder.add(self.builder.mul(row, I64(16)), I64(place))
        return self.splat(self.scalar(brick, at, I32))


class Wide(_Reader):
    """With AVX-512."""

    def elements(self, brick, row) -> Callable:
        """A function that gives the vector of a run of the row's elements."""
        factor = self.factor(brick, row)
        made = (self._of_4_bits if self.bits == 4 else self._of_8_bits)(brick, row, factor)
        return made.__getitem__

    def _of_4_bits(self, brick, row, factor):
        """Looked up in a table of all 16 integers times the factor of the row."""
        builder = self.builder
        integers = ir.Constant(_FLOATS, [float(i - 16 * (i > 7)) for i in range(16)])
        table = self.rounded(builder.fmul(integers, factor))
        found = []
        for number in range(2):
            words = self.chunk(brick, row, number, ir.VectorType(ir.IntType(16), 8))
            twice = builder.shuffle_vector(words, words, self.constant([*range(8)] * 2))
            wide = builder.zext(twice, _WORDS)
            for step in range(2):
                shifts = self.constant(4 * (2 * step + lane // 8) for lane in range(LANES))
                places = builder.lshr(wide, shifts)  # of which the last four bits count
                name = "llvm.x86.avx512.permvar.sf.512"
                found.append(self.intrinsic(name, _FLOATS, table, places))
        return found

    def _of_8_bits(self, brick, row, factor):
        builder, kind = self.builder, ir.VectorType(ir.IntType(8), LANES)
        order = self.constant(4 * (x % 8 // 2) + 2 * (x // 8) + x % 2 for x in range(LANES))
        found = []
        for step in range(RUNS):
            integers = self.chunk(brick, row, step, kind)
            integers = builder.shuffle_vector(integers, integers, order)
            value = builder.sitofp(builder.sext(integers, _WORDS), _FLOATS)
            found.append(self.rounded(builder.fmul(value, factor)))
        return found

    def codes(self, brick, row, run: int):
        """Words of the codes of a run: of the first 16 columns in the first eight lanes."""
        low, high = (self.code_word(brick, row, run, x) for x in range(2))
        lanes = self.constant(lane + LANES * (lane // 8) for lane in range(LANES))
        return self.builder.shuffle_vector(low, high, lanes)

    def places(self, codes, half: int):
        """Places of the elements among 32 columns, of the row or of the one below."""
        shifts = self.constant(16 * half + 2 * (lane % 8) for lane in range(LANES))
        groups = self.constant(4 * (lane // 2) for lane in range(LANES))
        fields = self.builder.and_(self.builder.lshr(codes, shifts), self.splat(I32(3)))
        return self.builder.or_(fields, groups)

    def columns(self, b, run: int):
        """What `partners` looks up in: the columns of a run."""
        return [self.load(self.at(b, I64(2 * LANES * run + at))) for at in (0, LANES)]

    def partners(self, columns, places):
        low, high = columns
        return self.intrinsic("llvm.x86.avx512.vpermi2var.ps.512", _FLOATS, low, places, high)


class Narrow(_Reader):
    """With AVX2: as `Wide`, but elements are made as they are multiplied, to need few registers."""

    def elements(self, brick, row) -> Callable:
        factor = self.factor(brick, row)
        of_run = self._of_4_bits if self.bits == 4 else self._of_8_bits
        return lambda run: self.rounded(self.builder.fmul(of_run(brick, row, run), factor))

    def _of_4_bits(self, brick, row, run: int):
        builder = self.builder
        words = self.chunk(brick, row, run // 4, ir.VectorType(ir.IntType(16), LANES))
        top = builder.shl(builder.zext(words, _WORDS), self.splat(I32(28 - 4 * (run % 4))))
        return builder.sitofp(builder.ashr(top, self.splat(I32(28))), _FLOATS)

    def _of_8_bits(self, brick, row, run: int):
        builder = self.builder
        pairs = self.chunk(brick, row, run // 2, ir.VectorType(ir.IntType(8), 16))
        order = [4 * (x // 2) + 2 * (run % 2) + x % 2 for x in range(LANES)]
        integers = builder.shuffle_vector(pairs, pairs, self.constant(order))
        return builder.sitofp(builder.sext(integers, _WORDS), _FLOATS)

    def codes(self, brick, row, run: int):
        return self.code_word(brick, row, run // 2, run % 2)

    def places(self, codes, half: int):
        """As of `Wide`, but within groups; above the two bits that count are others."""
        shifts = self.constant(16 * half + 2 * lane for lane in range(LANES))
        return self.builder.lshr(codes, shifts)

    def columns(self, b, run: int):
        """The first and third group of a run, and the second and fourth: see `partners`."""
        parts = [self.load(self.at(b, I64(2 * LANES * run + at))) for at in (0, LANES)]
        orders = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
        return [self.builder.shuffle_vector(*parts, self.constant(x)) for x in orders]

    def partners(self, columns, places):
        """Looked up within halves of a vector, a group in each; then lanes take theirs."""
        name = "llvm.x86.avx.vpermilvar.ps.256"
        found = [self.intrinsic(name, _FLOATS, part, places) for part in columns]
        return self.builder.shuffle_vector(*found, self.constant([0, 1, 10, 11, 4, 5, 14, 15]))
