"""The two inner loops of the CPU products, as LLVM vector code.

Numba cannot be told to keep a tile of sums in registers, so these two loops are written with
LLVM's vector types; the code around them is ordinary Numba.  The vectors may be wider than
the machine's: LLVM splits them.

`tile` serves many columns.  It holds ROWS x WIDTH sums in registers.  Stored element t of a
row is broadcast and multiplied by row ``indices[row, t]`` of a panel of b, which is WIDTH wide.

`dots` serves few columns.  Lane l of a vector is stored element l of a row.  Its partner in a
column of b is fetched by one permutation of two vectors: the group of lane l starts at
4 * (l // 2), and the two bits 2 l of the metadata, read as one word, are its place there.
Source of the metadata order: `_spec`.
"""

from __future__ import annotations

import platform

import llvmlite.binding
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from sparse24.kernels._llvm import I32, I64, Emit


def _features() -> frozenset[str]:
    """Instruction sets that Numba compiles for."""
    if config.CPU_FEATURES is not None:
        named = config.CPU_FEATURES.split(",")
        return frozenset(name[1:] for name in named if name.startswith("+"))
    if config.CPU_NAME is not None:
        return frozenset()
    host = llvmlite.binding.get_host_cpu_features()
    return frozenset(name for name, present in host.items() if present)


FEATURES = _features()
HALVES = "f16c" in FEATURES  # LLVM's other way to widen float16 is a call of a library
VECTOR_BYTES = 64 if "avx512f" in FEATURES else 32 if "avx2" in FEATURES else 16
# Rows of a tile by its width in machine vectors.  The sums fill at most 24 of 32 registers,
# or 12 of 16, and are at least 8 chains of dependent additions, to hide their latency.  Wide
# tiles share the load of a stored element, and of its place, among more loads of b.
_REGISTERS = 32 if VECTOR_BYTES == 64 or platform.machine() in ("aarch64", "arm64") else 16
ROWS_OF_TILE = {8: 3, 4: 6, 2: 6, 1: 8} if _REGISTERS == 32 else {8: 1, 4: 3, 2: 4, 1: 8}
# Rows of `dots` by the columns: with AVX-512 one column is a stream of A at memory speed, and four
# streams at once were measured slower; with more columns, and with AVX2, whose sums of one row
# would wait for each other, the rows share what is read of b.
ROWS_OF_DOTS = {1: 4 if VECTOR_BYTES == 32 else 1, 2: 4, 3: 4, 4: 4}
_FLOATS = 8  # of 32 bits in a vector of AVX2


@intrinsic
def tile(
    typingctx, values, first_value, value_pitch, places, first_place, place_pitch, count,
    panel, panel_start, held, held_row, add, out, row, last, column, shape,
):  # fmt: skip
    """Multiply some rows of A by a panel of b.

    ``out[row + i, column:] = held[held_row + i, :] + sum(values[..] * panel[places[..], :])`` over
    `count` elements from ``first_value + value_pitch * i`` and ``first_place + place_pitch * i``
    on, for i below the rows of a tile.  Rows beyond `last` of `out` are stored over it, so they
    must equal it.

    Parameters
    ----------
    values, places : arrays, flat, C order; places of an unsigned type
        Float values with int32 sums are exact as long as sums of `count` products are.
    first_value, value_pitch, first_place, place_pitch, count : int
    panel : array, flat, C order; place 0 begins at its element `panel_start`
    held : array (rows, width), C order
    held_row : int
    add : bool
        Add `held`, or leave it out.
    out : array (m, n) of the type of `held`, C order; may be `held`
    row, last, column : int
    shape : tuple (tuple of zeros, tuple of zeros)
        Their lengths are the rows and the width of the tile.
    """
    signature = types.void(
        values, first_value, value_pitch, places, first_place, place_pitch, count,
        panel, panel_start, held, held_row, add, out, row, last, column, shape,
    )  # fmt: skip
    rows, width = len(shape[0]), len(shape[1])

    def codegen(context, builder, signature, arguments):
        (
            values, first_value, value_pitch, places, first_place, place_pitch, count,
            panel, panel_start, held, held_row, add, out, row, last, column, _,
        ) = arguments  # fmt: skip
        emit = Emit(context, builder, context.get_value_type(signature.args[0].dtype), width)
        b = emit.at(emit.data(signature.args[7], panel), panel_start)
        v, p = emit.data(signature.args[0], values), emit.data(signature.args[3], places)
        v_rows = [emit.at(v, first_value, builder.mul(value_pitch, I64(i))) for i in range(rows)]
        p_rows = [emit.at(p, first_place, builder.mul(place_pitch, I64(i))) for i in range(rows)]

        def step(t, sums):
            new = []
            for i in range(rows):
                place = builder.zext(builder.load(emit.at(p_rows[i], t)), I64)
                partner = emit.pinned(emit.at(b, builder.mul(place, I64(width))))
                value = emit.splat(builder.load(emit.at(v_rows[i], t)))
                new.append(emit.multiply_add(value, emit.load(partner), sums[i]))
            return new

        sums = emit.sum_loop(count, rows, step)
        if signature.args[9].dtype != signature.args[0].dtype:
            emit = Emit(context, builder, context.get_value_type(signature.args[9].dtype), width)
            sums = [builder.fptosi(value, emit.vector) for value in sums]
        old = emit.line(signature.args[9], held, held_row)
        for i, here in enumerate(emit.clamped(row, rows, last)):
            target = emit.at(emit.line(signature.args[12], out, here), column)
            with builder.if_else(builder.trunc(add, ir.IntType(1))) as (then, otherwise):
                with then:
                    emit.store(emit.add(emit.load(emit.at(old, I64(i * width))), sums[i]), target)
                with otherwise:
                    emit.store(sums[i], target)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def prefetch(typingctx, array, place):
    """Bring the cache line of an element of a flat array, or beyond it, into the L2 cache."""
    signature = types.void(array, place)

    def codegen(context, builder, signature, arguments):
        emit = Emit(context, builder, context.get_value_type(signature.args[0].dtype), 1)
        emit.prefetch(emit.at(emit.data(signature.args[0], arguments[0]), arguments[1]))
        return context.get_dummy_value()

    return signature, codegen


def lanes_of_dots(itemsize: int) -> int:
    """Stored elements that one step of `dots` takes from a row."""
    return VECTOR_BYTES // itemsize if VECTOR_BYTES >= 32 else 32 // itemsize


def _places(emit: Emit, metadata, t):
    """What `_partners` takes for the t-th vector of stored elements of a row."""
    builder, lanes = emit.builder, emit.lanes
    if VECTOR_BYTES != 32:
        return emit.places(metadata, t)
    word = ir.IntType(2 * lanes)
    at = emit.at(metadata, builder.mul(t, I64(lanes // 4)))
    bits = builder.load(builder.bitcast(at, word.as_pointer()), align=1)
    index = ir.VectorType(I32, _FLOATS)
    if emit.bytes == 4:  # the word twice in each lane, where its upper copy does not count
        twice = Emit(emit.context, builder, word, 2 * _FLOATS).splat(bits)
        shifts = [2 * lane for lane in range(_FLOATS)]
        return builder.lshr(builder.bitcast(twice, index), ir.Constant(index, shifts))
    wide = Emit(emit.context, builder, I32, _FLOATS).splat(builder.zext(bits, I32))
    shifts = [lane // 2 * 2 for lane in range(_FLOATS)]
    twofold = builder.shl(wide, ir.Constant(index, [1] * _FLOATS))
    fields = builder.lshr(twofold, ir.Constant(index, shifts))
    even = builder.and_(fields, ir.Constant(index, [6] * _FLOATS))
    return builder.or_(even, ir.Constant(index, [0, 1] * (_FLOATS // 2)))


def _partners_by_halves(emit: Emit, b, places):
    """`_partners` with AVX2, which permutes one vector at a time: two permutations and a blend.

    Elements of 32 bits are looked up within halves of a vector, one group of b in each, in less
    time than across them.  So the halves of b are put where the lanes of their elements are.  A
    group of float64 is a whole vector, and its elements are pairs of lanes.
    """
    builder, index = emit.builder, ir.VectorType(I32, _FLOATS)
    floats = ir.VectorType(ir.FloatType(), _FLOATS)
    parts = [builder.bitcast(emit.load(emit.at(b, I64(i))), floats) for i in (0, emit.lanes)]
    name, order = "llvm.x86.avx2.permps", [0, 1, 2, 3, 12, 13, 14, 15]
    if emit.bytes == 4:
        name, order = "llvm.x86.avx.vpermilvar.ps.256", [0, 1, 10, 11, 4, 5, 14, 15]
        first, second = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
        parts = [builder.shuffle_vector(*parts, ir.Constant(index, x)) for x in (first, second)]
    found = [emit.intrinsic(name, floats, part, places) for part in parts]
    mixed = builder.shuffle_vector(*found, ir.Constant(index, order))
    return builder.bitcast(mixed, emit.vector)


def _partners(emit: Emit, b, places):
    """The elements of ``b[: 2 * lanes]`` at `places`, one a lane."""
    builder, lanes, bits = emit.builder, emit.lanes, 8 * emit.bytes
    is_integer = isinstance(emit.element, ir.IntType)
    if VECTOR_BYTES == 64:
        low, high = emit.load(b), emit.load(emit.at(b, I64(lanes)))
        kind = "d" if is_integer else "ps" if bits == 32 else "pd"
        name = f"llvm.x86.avx512.vpermi2var.{kind}.512"
        return emit.intrinsic(name, emit.vector, low, places, high)
    if VECTOR_BYTES == 32:
        return _partners_by_halves(emit, b, places)
    found = ir.Constant(emit.vector, ir.Undefined)
    for lane in range(lanes):
        place = builder.zext(builder.extract_element(places, I32(lane)), I64)
        found = builder.insert_element(found, builder.load(emit.at(b, place)), I32(lane))
    return found


@intrinsic
def dots(typingctx, values, metadata, row, last, count, b, column, sums, shape):
    """Multiply some rows of A by a few columns of b, over the first `count` vectors of each row.

    ``sums[i, j]`` becomes the product of row ``row + i`` with row ``column + j`` of b, which
    holds the columns; rows beyond `last` repeat it.

    Parameters
    ----------
    values : array (m, stored), C order
        Of the type of `b`, or narrow as in `Emit.load_narrow`.
    metadata : array of uint8 (m, bytes), C order
    row, last, count, column : int
    b : array (n, k), C order
    sums : array (rows, columns), C order
    shape : tuple (tuple of zeros, tuple of zeros)
        Their lengths are the numbers of rows and of columns.
    """
    signature = types.void(values, metadata, row, last, count, b, column, sums, shape)
    rows, columns = len(shape[0]), len(shape[1])

    def codegen(context, builder, signature, arguments):
        values, metadata, row, last, count, b, column, sums, _ = arguments
        element = context.get_value_type(signature.args[5].dtype)
        lanes = lanes_of_dots(context.get_abi_sizeof(element))
        emit = Emit(context, builder, element, lanes)
        here = emit.clamped(row, rows, last)
        v_rows = [emit.line(signature.args[0], values, i) for i in here]
        m_rows = [emit.line(signature.args[1], metadata, i) for i in here]
        b_rows = [
            emit.line(signature.args[5], b, builder.add(column, I64(j))) for j in range(columns)
        ]

        def step(t, held):
            new = []
            b_here = [emit.at(b, builder.mul(t, I64(2 * lanes))) for b in b_rows]
            for i in range(rows):
                places = _places(emit, m_rows[i], t)
                at = emit.at(v_rows[i], builder.mul(t, I64(lanes)))
                value = emit.load_narrow(at, signature.args[0].dtype)
                for j in range(columns):
                    partner = _partners(emit, b_here[j], places)
                    new.append(emit.multiply_add(value, partner, held[i * columns + j]))
            return new

        held = emit.sum_loop(count, rows * columns, step)
        c = emit.data(signature.args[7], sums)
        for slot, vector in enumerate(held):
            builder.store(emit.total(vector), emit.at(c, I64(slot)))
        return context.get_dummy_value()

    return signature, codegen
