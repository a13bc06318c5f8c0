"""How stored elements of a row are spread over their columns, as LLVM vector code.

AVX-512 has an instruction for it, AVX2 a permutation whose order a table gives for each byte of
the mask, of float64 for each half of a byte.

Where *half* of each four or eight columns is stored, as in 2:4, the next vector begins where the
last one ends, and its elements fit in half a vector.  AVX2 then spreads them byte by byte, which
puts zeros beside them and widens narrow types in the same instruction.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from sparse24.kernels._llvm import I32, I64, Emit
from sparse24.kernels._simd import VECTOR_BYTES

_I1, _I8 = ir.IntType(1), ir.IntType(8)


def _places_by_byte() -> bytes:
    """For each mask of 8 columns, the stored elements that they take, and for none minus 1.

    They are 32 bits wide, as the permutation reads them: to widen bytes takes longer than the rest
    of a step, and a pattern such as 2:4 meets few of the lines, 36 of 256.
    """
    places = np.full((256, 8), -1, "<i4")
    for mask, lanes in enumerate(places):
        held = [lane for lane in range(8) if mask >> lane & 1]
        lanes[held] = range(len(held))
    return places.tobytes()


def _places_by_nibble() -> bytes:
    """For each mask of 4 columns of float64, the halves of the stored elements that they take."""
    places = np.full((16, 4, 2), -1, "<i4")
    for mask, lanes in enumerate(places):
        held = [lane for lane in range(4) if mask >> lane & 1]
        lanes[held] = np.arange(2 * len(held)).reshape(-1, 2)
    return places.tobytes()


def _bytes_by_mask(size: int) -> bytes:
    """For each mask of 8 columns, where the bytes of their elements are among those stored.

    Elements narrower than 32 bits become the highest bytes of their lanes.  Of float64, of which
    half a vector stores the elements of four columns, they are counted from the first of them.
    """
    wide = max(4, size)
    order = np.full((256, 8, wide), 0x80, np.uint8)  # 0x80 gives zero
    for mask, lanes in enumerate(order):
        held = [lane for lane in range(8) if mask >> lane & 1]
        for number, lane in enumerate(held):
            before = sum(other < 4 for other in held) if size == 8 and lane >= 4 else 0
            first = (number - before) * size % 16
            lanes[lane, wide - size :] = range(first, first + size)
    return order.tobytes()


class _Table:
    """Lines of constant bytes: one for each mask of 8 columns, or of 4 if there are 16 `lines`.

    Numba is given them once for a loop and as words: it takes longer to read text than to compile.
    """

    def __init__(self, emit: Emit, name: str, content: bytes, lines: int = 256):
        words = np.frombuffer(content, "<i8")
        kind = ir.ArrayType(I64, words.size)
        constant = ir.Constant(kind, words.tolist())
        table = cgutils.global_constant(emit.builder, name, constant)
        self._emit, self._width = emit, len(content) // lines
        self._first = emit.builder.bitcast(table, _I8.as_pointer())

    def line(self, bits):
        """The bytes of a mask."""
        emit, builder = self._emit, self._emit.builder
        at = emit.at(self._first, builder.mul(builder.zext(bits, I64), I64(self._width)))
        kind = ir.VectorType(_I8, self._width)
        return builder.load(builder.bitcast(at, kind.as_pointer()), align=1)


class _SpreadHalf:
    """`Spread` where half of each four or eight columns is stored; other lanes hold zeros."""

    def __init__(self, emit: Emit, kind: types.Type):
        self.result = emit.vector
        # Bytes become integers of 32 bits, also where these are to be floats.
        whole = kind == types.int8
        self.emit = Emit(emit.context, emit.builder, I32, emit.lanes) if whole else emit
        self.kind = kind
        # Halves are widened before they are spread: AVX2 has no shift that would do it.
        self.size = 4 if kind == types.int16 else kind.bitwidth // 8
        self.orders = _Table(emit, f"bytes_by_mask_{self.size}", _bytes_by_mask(self.size))

    def __call__(self, values, masks, t):
        emit, builder = self.emit, self.emit.builder
        bits = builder.load(emit.at(masks, t))
        order = self.orders.line(bits)
        stored, parts = self._twice(values), []
        for first in range(0, order.type.count, 32):
            chosen = self._mixed(order, range(first, first + 32))
            name = "llvm.x86.avx2.pshuf.b"
            parts.append(emit.intrinsic(name, chosen.type, stored[first // 32], chosen))
        moved = parts[0] if len(parts) == 1 else self._mixed(*parts, range(64))
        vector = builder.bitcast(moved, emit.vector)
        if self.kind == types.int8:
            vector = builder.ashr(vector, ir.Constant(emit.vector, [24] * emit.lanes))
        signs = ir.VectorType(ir.IntType(8 * emit.bytes), emit.lanes)
        flags = builder.icmp_signed(">=", builder.bitcast(order, signs), ir.Constant(signs, None))
        if vector.type != self.result:
            vector = builder.sitofp(vector, self.result)
        return vector, flags, I64(emit.lanes // 2)

    def _twice(self, values) -> list:
        """The stored elements in both halves of a vector; of float64 two by two, in two vectors."""
        emit, builder = self.emit, self.emit.builder
        narrow = Emit(emit.context, builder, emit.element, emit.lanes // 2)
        if self.kind in (types.int8, types.uint16):
            word = ir.IntType(4 * self.kind.bitwidth)
            bits = builder.load(builder.bitcast(values, word.as_pointer()), align=1)
            vectors = [Emit(emit.context, builder, word, 256 // word.width).splat(bits)]
        else:
            stored = narrow.load_narrow(values, self.kind)
            pairs = [range(4)] if emit.bytes == 4 else [range(2), range(2, 4)]
            vectors = [self._mixed(stored, [*pair, *pair]) for pair in pairs]
        kind = ir.VectorType(_I8, 32)
        return [builder.bitcast(vector, kind) for vector in vectors]

    def _mixed(self, *arguments):
        *vectors, order = arguments
        other = vectors[1] if len(vectors) > 1 else ir.Constant(vectors[0].type, ir.Undefined)
        index = ir.VectorType(I32, len(order))
        return self.emit.builder.shuffle_vector(vectors[0], other, ir.Constant(index, list(order)))


class Spread:
    """One step of a row: load stored elements, spread them, and say how many there were.

    Lanes without an element hold zeros, or with AVX2 anything if `zeros` is false.
    """

    @classmethod
    def of(cls, emit: Emit, kind: types.Type, *, zeros: bool, half: bool):
        """The quickest way to do so, with `half` if `is_half`."""
        return _SpreadHalf(emit, kind) if half else cls(emit, kind, zeros=zeros)

    def __init__(self, emit: Emit, kind: types.Type, *, zeros: bool):
        self.emit, self.kind, self.zeros = emit, kind, zeros
        if VECTOR_BYTES == 32 and emit.bytes == 8:
            self.places = _Table(emit, "places_by_nibble", _places_by_nibble(), 16)
        elif VECTOR_BYTES == 32:
            self.places = _Table(emit, "places_by_byte", _places_by_byte())

    def __call__(self, values, masks, t):
        """The vector of a step, which lanes hold an element, and their number."""
        emit, builder = self.emit, self.emit.builder
        at = emit.at(masks, builder.mul(t, I64(emit.lanes // 8)))
        word = builder.bitcast(at, ir.IntType(emit.lanes).as_pointer())
        bits = builder.load(word, align=1)
        vector, flags = self._spread(values, bits)
        return vector, flags, builder.zext(builder.ctpop(bits), I64)

    def _spread(self, values, bits):
        if self.emit.bytes == 2:
            return self._of_bytes(values, bits)
        if self.emit.bytes == 8 and VECTOR_BYTES == 32:
            return self._of_fours(values, bits)
        return self._of_vectors(values, bits)

    def _of_bytes(self, values, bits):
        emit, builder = self.emit, self.emit.builder
        kind, flags = ir.VectorType(_I8, emit.lanes), self._flags(bits)
        stored = builder.load(builder.bitcast(values, kind.as_pointer()), align=1)
        name = f"llvm.x86.avx512.mask.expand.v{emit.lanes}i8"
        wide = emit.intrinsic(name, kind, stored, ir.Constant(kind, None), flags)
        return builder.sext(wide, emit.vector), flags

    def _of_vectors(self, values, bits):
        emit = self.emit
        stored = emit.load_narrow(values, self.kind)
        is_integer = isinstance(emit.element, ir.IntType)
        if VECTOR_BYTES == 64:
            flags, letter = self._flags(bits), "i" if is_integer else "f"
            name = f"llvm.x86.avx512.mask.expand.v{emit.lanes}{letter}{8 * emit.bytes}"
            zeros = ir.Constant(emit.vector, None)
            return emit.intrinsic(name, emit.vector, stored, zeros, flags), flags
        name, order = f"llvm.x86.avx2.perm{'d' if is_integer else 'ps'}", self._order(bits)
        moved = emit.intrinsic(name, emit.vector, stored, order)  # by three bits of each lane
        flags = emit.builder.icmp_signed(">=", order, ir.Constant(order.type, [0] * emit.lanes))
        if self.zeros:
            moved = emit.builder.select(flags, moved, ir.Constant(emit.vector, None))
        return moved, flags

    def _of_fours(self, values, bits):
        """Spread float64 four columns at a time: AVX2 permutes eight words, two an element."""
        emit, builder = self.emit, self.emit.builder
        four = Emit(emit.context, builder, emit.element, 4)
        words, wholes = ir.VectorType(ir.FloatType(), 8), ir.VectorType(I64, 4)
        low, high = builder.and_(bits, _I8(15)), builder.lshr(bits, _I8(4))
        moved, orders = [], []
        for mask, first in ((low, I64(0)), (high, builder.zext(builder.ctpop(low), I64))):
            loaded = four.load_narrow(emit.at(values, first), self.kind)
            stored = builder.bitcast(loaded, words)
            order = builder.bitcast(self.places.line(mask), ir.VectorType(I32, 8))
            part = emit.intrinsic("llvm.x86.avx2.permps", words, stored, order)
            moved.append(builder.bitcast(part, four.vector))
            orders.append(builder.bitcast(order, wholes))
        both = ir.Constant(ir.VectorType(I32, 8), list(range(8)))
        vector, order = (builder.shuffle_vector(*parts, both) for parts in (moved, orders))
        flags = builder.icmp_signed(">=", order, ir.Constant(order.type, [0] * 8))
        if self.zeros:
            vector = builder.select(flags, vector, ir.Constant(emit.vector, None))
        return vector, flags

    def _flags(self, bits):
        return self.emit.builder.bitcast(bits, ir.VectorType(_I1, self.emit.lanes))

    def _order(self, bits):
        lanes = ir.VectorType(I32, self.emit.lanes)
        return self.emit.builder.bitcast(self.places.line(bits), lanes)
