"""The two inner loops of the CPU products, as LLVM vector code.

Numba gives no registers to hold a tile of sums in, so these two loops are written with
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
# or 8 of 16, and are at least 8 chains of dependent additions, to hide their latency.
ROWS_OF_TILE = {4: 6, 2: 6, 1: 8} if VECTOR_BYTES != 32 else {4: 2, 2: 4, 1: 8}
# Rows of `dots` by the columns: one column is a stream of A at memory speed, and four streams
# at once were measured slower; with more columns the rows share what is read of b.
ROWS_OF_DOTS = {1: 1, 2: 4, 3: 4, 4: 4}


@intrinsic
def tile(typingctx, values, indices, row, last, start, count, panel, panel_start, sums, add, shape):
    """Multiply some rows of A by a panel of b.

    ``sums[i, :] (+)= values[row + i, start + t] * panel[panel_start + indices[..], :]`` over t
    below `count`, for i below the rows of a tile; rows beyond `last` repeat it.

    Parameters
    ----------
    values, indices : array (m, stored), array of int32 of the same shape, C order
        Float values with int32 sums are exact as long as sums of `count` products are.
    row, last, start, count : int
    panel : array, flat, C order; `panel_start` counts elements
    sums : array (rows, width), C order
    add : bool
        Add to `sums`, or overwrite it.
    shape : tuple (tuple of zeros, tuple of zeros)
        Their lengths are the rows and the width of the tile.
    """
    signature = types.void(
        values, indices, row, last, start, count, panel, panel_start, sums, add, shape
    )
    rows, width = len(shape[0]), len(shape[1])

    def codegen(context, builder, signature, arguments):
        values, indices, row, last, start, count, panel, panel_start, sums, add, _ = arguments
        emit = Emit(context, builder, context.get_value_type(signature.args[0].dtype), width)
        b = emit.at(emit.data(signature.args[6], panel), panel_start)
        c = emit.data(signature.args[8], sums)
        here = emit.clamped(row, rows, last)
        v_rows = [emit.at(emit.line(signature.args[0], values, i), start) for i in here]
        x_rows = [emit.at(emit.line(signature.args[1], indices, i), start) for i in here]

        def step(t, held):
            new = []
            for i in range(rows):
                k = builder.zext(builder.load(emit.at(x_rows[i], t)), I64)
                partner = emit.load(emit.at(b, builder.mul(k, I64(width))))
                value = emit.splat(builder.load(emit.at(v_rows[i], t)))
                new.append(emit.multiply_add(value, partner, held[i]))
            return new

        held = emit.sum_loop(count, rows, step)
        if signature.args[8].dtype != signature.args[0].dtype:
            emit = Emit(context, builder, context.get_value_type(signature.args[8].dtype), width)
            held = [builder.fptosi(value, emit.vector) for value in held]
        targets = [emit.at(c, I64(i * width)) for i in range(rows)]
        with builder.if_else(builder.trunc(add, ir.IntType(1))) as (then, otherwise):
            with then:
                for value, target in zip(held, targets, strict=True):
                    emit.store(emit.add(emit.load(target), value), target)
            with otherwise:
                for value, target in zip(held, targets, strict=True):
                    emit.store(value, target)
        return context.get_dummy_value()

    return signature, codegen


def lanes_of_dots(itemsize: int) -> int:
    """Stored elements that one step of `dots` takes from a row."""
    return VECTOR_BYTES // itemsize if VECTOR_BYTES >= 32 else 32 // itemsize


def _partners(emit: Emit, b, places):
    """The elements of ``b[: 2 * lanes]`` at `places`, one a lane."""
    builder, lanes, bits = emit.builder, emit.lanes, 8 * emit.bytes
    is_integer = isinstance(emit.element, ir.IntType)
    if VECTOR_BYTES == 64:
        low, high = emit.load(b), emit.load(emit.at(b, I64(lanes)))
        kind = "d" if is_integer else "ps" if bits == 32 else "pd"
        name = f"llvm.x86.avx512.vpermi2var.{kind}.512"
        return emit.intrinsic(name, emit.vector, low, places, high)
    if VECTOR_BYTES == 32 and bits == 32:  # lanes 0-3 take from the low half, 4-7 from the high
        kind = "d" if is_integer else "ps"
        name = f"llvm.x86.avx2.perm{kind}"
        halves = [
            emit.intrinsic(name, emit.vector, emit.load(emit.at(b, I64(start))), places)
            for start in (0, lanes)
        ]
        order = ir.Constant(ir.VectorType(I32, lanes), [0, 1, 2, 3, 12, 13, 14, 15])
        return builder.shuffle_vector(*halves, order)
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
                places = emit.places(m_rows[i], t)
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


INDEX_LANES = 16


@intrinsic
def write_indices(typingctx, metadata, row, run, indices):
    """Write the columns of 16 stored elements, the `run`-th such run of a row.

    `metadata` is an array of uint8 (m, bytes), `indices` of int32 (m, stored), both in C order.
    """
    signature = types.void(metadata, row, run, indices)

    def codegen(context, builder, signature, arguments):
        metadata, row, run, indices = arguments
        emit = Emit(context, builder, I32, INDEX_LANES)
        places = emit.places(emit.line(signature.args[0], metadata, row), run)
        first = builder.trunc(builder.mul(run, I64(2 * INDEX_LANES)), I32)
        target = emit.line(signature.args[3], indices, row)
        target = emit.at(target, builder.mul(run, I64(INDEX_LANES)))
        emit.store(builder.add(places, emit.splat(first)), target)
        return context.get_dummy_value()

    return signature, codegen
