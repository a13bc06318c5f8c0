"""The inner loops of products of n:m matrices with few columns, as LLVM vector code.

A row's stored elements are loaded as they lie, a vector from the first that is not used yet, and
spread over the columns where they belong.  The mask has a bit for every column, 1 where an element
is stored; the number of its ones says where the next vector begins.

The lanes without an element keep their sums, so what stands there in b has no effect, not even NaN.
How a vector is spread: ``_simd_spread.py``.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sparse24.kernels._llvm import I64, Emit
from sparse24.kernels._simd import FEATURES, VECTOR_BYTES
from sparse24.kernels._simd_spread import Spread

# int8 meets int16 where bytes can be spread and pairs of products added in one instruction.
_PAIRS = {"avx512f", "avx512vbmi2", "avx512bw", "avx512vl"} <= FEATURES
INTEGERS = "int16" if _PAIRS else "int32"
AVAILABLE = ("float32", INTEGERS, "float64") if VECTOR_BYTES >= 32 else ()
SPREAD = ("float32", "int32", "float64") if VECTOR_BYTES >= 32 else ()


def lanes_of(itemsize: int) -> int:
    """Columns of a step, for elements of b of this size; AVX2 takes two vectors of float64."""
    return max(8, VECTOR_BYTES // itemsize)


def is_half(n: int, m: int, itemsize: int) -> bool:
    """Whether n:m stores half of all columns that AVX2 spreads at once, of b of this size."""
    return VECTOR_BYTES == 32 and 2 * n == m and (4 if itemsize == 8 else 8) % m == 0


def _emit_for(context, builder, kind: types.Array) -> Emit:
    """Vectors of the elements of such an array, as wide as there are."""
    element = context.get_value_type(kind.dtype)
    return Emit(context, builder, element, lanes_of(context.get_abi_sizeof(element)))


def _lines(emit: Emit, kind: types.Array, array, first, number: int) -> list:
    """Pointers to some rows of a matrix in C order, from row `first` on."""
    return [emit.line(kind, array, emit.builder.add(first, I64(i))) for i in range(number)]


def _first(emit: Emit, kind: types.Type, stored, row):
    """The first element of a row: by the elements of each row, or from where rows begin."""
    builder = emit.builder
    if isinstance(kind, types.Array):
        return builder.load(emit.at(emit.data(kind, stored), row))
    return builder.mul(stored, row)


def _adds_all(emit: Emit) -> bool:
    """Whether `_add` adds in all lanes: there are no integers whose product with 0 is not 0."""
    return isinstance(emit.element, ir.IntType)


def _add(emit: Emit, flags, value, partner, total):
    """``total + value * partner`` in the lanes that hold an element; without flags, in all."""
    builder = emit.builder
    if emit.bytes == 2:
        name = "llvm.x86.avx512.pmaddw.d.512"
        return builder.add(emit.intrinsic(name, total.type, value, partner), total)
    if flags is None or _adds_all(emit):
        return emit.multiply_add(value, partner, total)
    return builder.select(flags, emit.multiply_add(value, partner, total), total)


@intrinsic
def expanded_dots(
    typingctx, values, stored, masks, first, row, last, count, b, column, sums, shape
):
    """Multiply some rows of A by a few columns of b.

    ``sums[i, j]`` becomes the product of row ``row + i`` with row ``column + j`` of b, which
    holds the columns; rows beyond `last` repeat it.

    Parameters
    ----------
    values : array, flat
        Of the type of `b`, or narrow as in `Emit.load_narrow`.  A vector is read from behind the
        elements of each row on.
    stored : int, or array of int64
        Elements of a row; or the first element of each row.
    masks : array of uint8 (m, bytes), C order
        Those of `values` from row `first` on.
    row, last, count, column : int
        `count` steps of `lanes_of` columns cover a row.
    b : array (n, k), C order
    sums : array (rows, columns), C order
        int32 where `b` is int16.
    shape : tuple (tuple of zeros, tuple of zeros, tuple of zeros)
        The lengths are the numbers of rows and of columns, and 1 if `is_half`, else 0.
    """
    signature = types.void(values, stored, masks, first, row, last, count, b, column, sums, shape)
    rows, columns, half = len(shape[0]), len(shape[1]), len(shape[2]) > 0

    def codegen(context, builder, signature, arguments):
        values, stored, masks, first, row, last, count, b, column, sums, _ = arguments
        emit = _emit_for(context, builder, signature.args[7])
        out = _emit_for(context, builder, signature.args[9])
        expand = Spread.of(emit, signature.args[0].dtype, zeros=_adds_all(emit), half=half)
        here = emit.clamped(row, rows, last)
        v = emit.data(signature.args[0], values)
        v_rows = [emit.at(v, _first(emit, signature.args[1], stored, i)) for i in here]
        m_rows = [emit.line(signature.args[2], masks, builder.add(first, i)) for i in here]
        b_rows = _lines(emit, signature.args[7], b, column, columns)
        later = emit.clamped(builder.add(row, I64(rows)), rows, last)
        ahead = [emit.at(v, _first(emit, signature.args[1], stored, i)) for i in later]

        def step(t, held):
            used, totals = list(held[:rows]), list(held[rows:])
            at = builder.mul(t, I64(emit.lanes))
            partners = [emit.load(emit.at(b, at)) for b in b_rows]
            for i in range(rows):
                value, flags, number = expand(emit.at(v_rows[i], used[i]), m_rows[i], t)
                emit.prefetch(emit.at(ahead[i], used[i]))
                used[i] = builder.add(used[i], number)
                for j in range(columns):
                    slot = i * columns + j
                    totals[slot] = _add(emit, flags, value, partners[j], totals[slot])
            return used + totals

        zeros = [ir.Constant(out.vector, None)] * (rows * columns)
        held = emit.loop(count, [I64(0)] * rows + zeros, step)
        c = emit.data(signature.args[9], sums)
        for slot, vector in enumerate(held[rows:]):
            builder.store(out.total(vector), emit.at(c, I64(slot)))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def expand_row(typingctx, values, start, masks, row, count, out, to, half):
    """``out[to:]`` becomes `count` vectors of a row's columns, zeros where nothing is stored.

    Parameters
    ----------
    values : array, flat
        The row begins at element `start`; as for `expanded_dots`.
    masks : array of uint8 (m, bytes), C order
    row, count : int
    out : array of floats, flat
        Of `lanes_of` elements a vector.
    half : tuple of zeros
        Of length 1 if `is_half`, else 0.
    """
    signature = types.void(values, start, masks, row, count, out, to, half)

    def codegen(context, builder, signature, arguments):
        values, start, masks, row, count, out, to, _ = arguments
        emit = _emit_for(context, builder, signature.args[5])
        expand = Spread.of(emit, signature.args[0].dtype, zeros=True, half=len(half) > 0)
        v = emit.at(emit.data(signature.args[0], values), start)
        m = emit.line(signature.args[2], masks, row)
        c = emit.at(emit.data(signature.args[5], out), to)

        def step(t, held):
            value, _, number = expand(emit.at(v, held[0]), m, t)
            emit.store(value, emit.at(c, builder.mul(t, I64(emit.lanes))))
            return [builder.add(held[0], number)]

        emit.loop(count, [I64(0)], step)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_expanded(
    typingctx, values, start, stored, masks, row, first, count, x, column, sums, shape
):
    """Add some rows of A, each times an element of some columns of b, to sums.

    ``sums[j]`` grows by the columns of ``x[column + j, row + i] * A[row + i]``, over i, in steps
    `first` to ``first + count`` of `lanes_of` columns.

    Parameters
    ----------
    values : array, flat
        As for `expanded_dots`; the first element of step `first` of row `row` is at `start`.
    stored : int
        Elements of a row.
    masks : array of uint8 (m, bytes), C order
    row, first, count, column : int
    x : array (n, m), C order
    sums : array (columns, width), C order
        Of the type of `x`.
    shape : tuple (tuple of zeros, tuple of zeros, tuple of zeros)
        The lengths are the numbers of rows and of columns, and 1 if `is_half`, or 2 if all of x is
        finite, too, else 0.
    """
    signature = types.void(values, start, stored, masks, row, first, count, x, column, sums, shape)
    rows, columns, half = len(shape[0]), len(shape[1]), len(shape[2]) > 0
    finite = len(shape[2]) == 2

    def codegen(context, builder, signature, arguments):
        values, start, stored, masks, row, first, count, x, column, sums, _ = arguments
        emit = _emit_for(context, builder, signature.args[7])
        expand = Spread.of(emit, signature.args[0].dtype, zeros=_adds_all(emit), half=half)
        v = emit.at(emit.data(signature.args[0], values), start)
        v_rows = [emit.at(v, builder.mul(stored, I64(i))) for i in range(rows)]
        here = [builder.add(row, I64(i)) for i in range(rows)]
        m_rows = _lines(emit, signature.args[3], masks, row, rows)
        x_rows = _lines(emit, signature.args[7], x, column, columns)
        factors = [[emit.splat(builder.load(emit.at(line, i))) for line in x_rows] for i in here]
        targets = _lines(emit, signature.args[9], sums, I64(0), columns)

        def step(t, used):
            places = [emit.at(target, builder.mul(t, I64(emit.lanes))) for target in targets]
            totals, new = [emit.load(place) for place in places], []
            for i in range(rows):
                at = emit.at(v_rows[i], used[i])
                value, flags, number = expand(at, m_rows[i], builder.add(first, t))
                flags = None if finite else flags  # zeros times anything finite add nothing
                new.append(builder.add(used[i], number))
                totals = [
                    _add(emit, flags, value, factor, total)
                    for factor, total in zip(factors[i], totals, strict=True)
                ]
            for total, place in zip(totals, places, strict=True):
                emit.store(total, place)
            return new

        emit.loop(count, [I64(0)] * rows, step)
        return context.get_dummy_value()

    return signature, codegen
