"""Short names for the LLVM vector code that the inner loops of `_simd` are written in."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

I32, I64 = ir.IntType(32), ir.IntType(64)


class Emit:
    """Short names for the few kinds of IR that the loops need."""

    def __init__(self, context, builder, element: ir.Type, lanes: int):
        self.context, self.builder = context, builder
        self.element, self.lanes = element, lanes
        self.vector = ir.VectorType(element, lanes)
        self.bytes = context.get_abi_sizeof(element)

    def data(self, kind, array):
        return self.context.make_array(kind)(self.context, self.builder, array).data

    def at(self, pointer, *terms):
        for term in terms:
            pointer = self.builder.gep(pointer, [term])
        return pointer

    def load(self, pointer):
        pointer = self.builder.bitcast(pointer, self.vector.as_pointer())
        return self.builder.load(pointer, align=self.bytes)

    def prefetch(self, pointer):
        """Bring the cache line of an element, which need not exist, into the L2 cache."""
        byte = self.builder.bitcast(pointer, ir.IntType(8).as_pointer())
        read, level, data = I32(0), I32(2), I32(1)
        self.intrinsic("llvm.prefetch.p0", ir.VoidType(), byte, read, level, data)

    def load_narrow(self, pointer, kind: types.Type):
        """Load and widen narrow types: int8, halves carried as int16, bfloat16 as uint16."""
        if kind not in (types.int8, types.int16, types.uint16):
            return self.load(pointer)
        builder, bits = self.builder, ir.VectorType(ir.IntType(kind.bitwidth), self.lanes)
        narrow = builder.load(builder.bitcast(pointer, bits.as_pointer()), align=kind.bitwidth // 8)
        if kind == types.int8:
            is_integer = isinstance(self.element, ir.IntType)
            return (builder.sext if is_integer else builder.sitofp)(narrow, self.vector)
        if kind == types.int16:
            halves = builder.bitcast(narrow, ir.VectorType(ir.HalfType(), self.lanes))
            return builder.fpext(halves, self.vector)
        words = ir.VectorType(I32, self.lanes)
        shift = ir.Constant(words, [16] * self.lanes)
        return builder.bitcast(builder.shl(builder.zext(narrow, words), shift), self.vector)

    def store(self, value, pointer):
        pointer = self.builder.bitcast(pointer, self.vector.as_pointer())
        self.builder.store(value, pointer, align=self.bytes)

    def splat(self, scalar):
        kind = ir.VectorType(scalar.type, self.lanes)
        blank = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(blank, scalar, I32(0))
        order = ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count)
        return self.builder.shuffle_vector(one, blank, order)

    def intrinsic(self, name: str, result: ir.Type, *arguments):
        kind = ir.FunctionType(result, [x.type for x in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)

    def pinned(self, pointer):
        """The pointer, held in a register.

        LLVM would add its terms anew in the address of each load, which then takes two slots of
        a cycle instead of one.
        """
        kind = ir.FunctionType(pointer.type, [pointer.type])
        return self.builder.asm(kind, "", "=r,0", [pointer], side_effect=False)

    def clamped(self, row, count: int, last):
        """The numbers row, row + 1, ..., none above `last`."""
        rows = [self.builder.add(row, I64(i)) for i in range(count)]
        below = [self.builder.icmp_signed("<", here, last) for here in rows]
        return [
            self.builder.select(fits, here, last) for fits, here in zip(below, rows, strict=True)
        ]

    def line(self, kind, array, row):
        """Pointer to a row of a matrix in C order."""
        view = self.context.make_array(kind)(self.context, self.builder, array)
        pitch = self.builder.extract_value(view.shape, 1)
        return self.at(view.data, self.builder.mul(row, pitch))

    def place(self, kind, array, row, column):
        """Pointer to an element of a matrix of any strides."""
        view = self.context.make_array(kind)(self.context, self.builder, array)
        pitches = (self.builder.extract_value(view.strides, axis) for axis in (0, 1))
        steps = (self.builder.mul(i, p) for i, p in zip((row, column), pitches, strict=True))
        byte = self.builder.bitcast(view.data, ir.IntType(8).as_pointer())
        return self.builder.bitcast(self.at(byte, *steps), self.element.as_pointer())

    def transposed(self, lines: list):
        """Rows of a square matrix, one a vector, as its columns: blocks of 8, 4, 2 and 1 swap."""
        lines, size = list(lines), len(lines)
        block = size // 2
        while block:
            first = [i + size - block if i & block else i for i in range(size)]
            second = [i + size if i & block else i + block for i in range(size)]
            for i in range(size):
                if not i & block:
                    pair = lines[i], lines[i + block]
                    lines[i], lines[i + block] = (self._mixed(*pair, x) for x in (first, second))
            block //= 2
        return lines

    def _mixed(self, x, y, order: list[int]):
        kind = ir.VectorType(I32, len(order))
        return self.builder.shuffle_vector(x, y, ir.Constant(kind, order))

    def places(self, metadata, t):
        """Places, among 2 * lanes columns, of the t-th run of `lanes` stored elements of a row.

        They are a vector of integers of the elements' width.
        """
        builder = self.builder
        index = ir.VectorType(ir.IntType(8 * self.bytes), self.lanes)
        word = ir.IntType(2 * self.lanes)
        at = self.at(metadata, builder.mul(t, I64(self.lanes // 4)))
        bits = builder.load(builder.bitcast(at, word.as_pointer()), align=1)
        if word.width != index.element.width:
            bits = builder.zext(bits, index.element)
        shifts = ir.Constant(index, [2 * lane for lane in range(self.lanes)])
        groups = ir.Constant(index, [4 * (lane // 2) for lane in range(self.lanes)])
        fields = builder.lshr(self.splat(bits), shifts)
        return builder.or_(builder.and_(fields, ir.Constant(index, [3] * self.lanes)), groups)

    def multiply_add(self, x, y, z):
        """x * y + z, fused where the machine can; elsewhere ``fma`` is a call for each lane."""
        if isinstance(self.element, ir.IntType):
            return self.builder.add(self.builder.mul(x, y), z)
        suffix = f"v{self.lanes}f{8 * self.bytes}"
        return self.intrinsic(f"llvm.fmuladd.{suffix}", self.vector, x, y, z)

    def add(self, x, y):
        is_integer = isinstance(self.element, ir.IntType)
        return self.builder.add(x, y) if is_integer else self.builder.fadd(x, y)

    def total(self, vector):
        """Sum of the lanes, in a fixed order: halves onto halves."""
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            order = [(i + lanes) % (2 * lanes) for i in range(self.lanes)]
            order = ir.Constant(ir.VectorType(I32, self.lanes), order)
            vector = self.add(vector, self.builder.shuffle_vector(vector, vector, order))
        return self.builder.extract_element(vector, I32(0))

    def sum_loop(self, count, sums: int, step):
        """Run ``step(t, sums) -> sums`` for t in range(count), from vectors of zeros."""
        return self.loop(count, [ir.Constant(self.vector, None)] * sums, step)

    def loop(self, count, held: list, step):
        """Run ``step(t, held) -> held`` for t in range(count)."""
        builder = self.builder
        before = builder.basic_block
        head = builder.append_basic_block("sum.head")
        body = builder.append_basic_block("sum.body")
        after = builder.append_basic_block("sum.after")
        builder.branch(head)
        builder.position_at_end(head)
        t = builder.phi(I64)
        old = [builder.phi(value.type) for value in held]
        builder.cbranch(builder.icmp_signed("<", t, count), body, after)
        builder.position_at_end(body)
        new = step(t, old)
        t.add_incoming(I64(0), before)
        t.add_incoming(builder.add(t, I64(1)), builder.basic_block)
        for phi, first, value in zip(old, held, new, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(value, builder.basic_block)
        builder.branch(head)
        builder.position_at_end(after)
        return old
