"""What new deals of the columns of two groups gain, as LLVM vector code, one row a lane.

The vectors are as wide on every machine, so that sums are added in the same order.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from sparse24.kernels._llvm import I64, Emit

LANES = 16  # rows of a run


class _Rows(Emit):
    """Runs of float32, of some lines of a matrix."""

    def __init__(self, context, builder):
        super().__init__(context, builder, ir.FloatType(), LANES)

    def lines(self, kind, array, first, count: int):
        return [self.line(kind, array, self.builder.add(first, I64(i))) for i in range(count)]

    def runs(self, lines, t):
        return [self.load(self.at(line, self.builder.mul(t, I64(LANES)))) for line in lines]

    def larger(self, x, y):
        return self._extreme("max", x, y)

    def smaller(self, x, y):
        return self._extreme("min", x, y)

    def _extreme(self, which: str, x, y):
        """The larger or smaller of two numbers, none NaN.

        A comparison and a choice would be the same, but where the result replaces an operand in
        memory LLVM makes of these a store under a mask, which takes AMD's processors 20 cycles.
        """
        kind = ir.FunctionType(self.vector, [self.vector, self.vector])
        name = f"llvm.{which}num.v{LANES}f32"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [x, y], fastmath=("nnan",))

    def add_to(self, kind, totals, row, sums):
        """Add a run of float32 to a row of float64."""
        wide = Emit(self.context, self.builder, ir.DoubleType(), LANES)
        at = wide.line(kind, totals, row)
        wide.store(wide.add(wide.load(at), self.builder.fpext(sums, wide.vector)), at)


@intrinsic
def write_two(typingctx, columns, i, j, run, runs, twos, number):
    """Write the sums and the larger elements of two columns to lines of their own.

    These are the lines ``2 * number`` and ``2 * number + 1`` of `twos`; the columns are lines
    of `columns`, of which `runs` are taken from the `run`-th on.
    """
    signature = types.void(columns, i, j, run, runs, twos, number)

    def codegen(context, builder, signature, arguments):
        columns, i, j, run, runs, twos, number = arguments
        rows = _Rows(context, builder)
        lines = [rows.line(signature.args[0], columns, column) for column in (i, j)]
        out = rows.lines(signature.args[5], twos, builder.mul(number, I64(2)), 2)

        def step(t, held):
            x, y = rows.runs(lines, builder.add(run, t))
            for value, line in zip((rows.add(x, y), rows.larger(x, y)), out, strict=True):
                rows.store(value, rows.at(line, builder.mul(t, I64(LANES))))
            return held

        rows.loop(runs, [], step)
        return context.get_dummy_value()

    return signature, codegen


def _kept(rows: _Rows, n: int, first, second):
    """Sum of the `n` largest of four, of which two pairs' sums and larger elements are given."""
    (s, m), (t, o) = first, second
    if n == 1:
        return rows.larger(m, o)
    if n == 2:
        return rows.larger(rows.larger(s, t), rows.add(m, o))
    return rows.larger(rows.add(s, o), rows.add(m, t))


def _kept_of_deal(rows: _Rows, kind, twos, deal, n: int):
    """Function that gives, of run t, what the mask keeps of the four pairs of a deal."""
    firsts = [rows.builder.mul(rows.builder.extract_value(deal, i), I64(2)) for i in range(4)]
    lines = [rows.lines(kind, twos, first, 2) for first in firsts]

    def kept(t):
        a, b, c, d = (rows.runs(two, t) for two in lines)
        return rows.add(_kept(rows, n, a, b), _kept(rows, n, c, d))

    return kept


@intrinsic
def write_kept(typingctx, twos, deal, runs, n, out):
    """Write what the mask keeps of a deal, row by row.

    Parameters
    ----------
    twos : array of float32, C order
        As `write_two` wrote it.
    deal : tuple of int
        Numbers of the two pairs of the first group, and of those of the second.
    runs : int
    n : tuple of zeros
        Its length is how many of four are kept.
    out : array of float32, flat
    """
    signature = types.void(twos, deal, runs, n, out)
    count = len(n)

    def codegen(context, builder, signature, arguments):
        twos, deal, runs, _, out = arguments
        rows = _Rows(context, builder)
        kept = _kept_of_deal(rows, signature.args[0], twos, deal, count)
        line = rows.data(signature.args[4], out)

        def step(t, held):
            rows.store(kept(t), rows.at(line, builder.mul(t, I64(LANES))))
            return held

        rows.loop(runs, [], step)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_gain(typingctx, twos, deal, runs, n, base, gains, number):
    """Add to row `number` of `gains` what a deal keeps more than `base`; see `write_kept`."""
    signature = types.void(twos, deal, runs, n, base, gains, number)
    count = len(n)

    def codegen(context, builder, signature, arguments):
        twos, deal, runs, _, base, gains, number = arguments
        rows = _Rows(context, builder)
        kept = _kept_of_deal(rows, signature.args[0], twos, deal, count)
        line = rows.data(signature.args[4], base)

        def step(t, held):
            (before,) = rows.runs([line], t)
            return [rows.add(held[0], builder.fsub(kept(t), before))]

        (sums,) = rows.sum_loop(runs, 1, step)
        rows.add_to(signature.args[5], gains, number, sums)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def insert(typingctx, x, column, runs, largest, places):
    """Insert a column into the lists of the largest, one list a lane, the largest first.

    `largest` (places, rows) holds the lists.
    """
    signature = types.void(x, column, runs, largest, places)

    def codegen(context, builder, signature, arguments):
        x, column, runs, largest, places = arguments
        rows = _Rows(context, builder)
        line = rows.line(signature.args[0], x, column)

        def insert_run(t, held):
            def compare(place, fallen):
                at = rows.line(signature.args[3], largest, place)
                at = rows.at(at, builder.mul(t, I64(LANES)))
                here, (new,) = rows.load(at), fallen
                rows.store(rows.larger(new, here), at)
                return [rows.smaller(new, here)]

            rows.loop(places, rows.runs([line], t), compare)
            return held

        rows.loop(runs, [], insert_run)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def write_bars(typingctx, x, column, runs, largest, n, bars):
    """Write what stands against a newcomer that takes a column's place, and what that one loses.

    These are the lines ``2 * column`` and ``2 * column + 1`` of `bars`; `largest` is as `insert`
    left it, of the n + 1 largest.
    """
    signature = types.void(x, column, runs, largest, n, bars)

    def codegen(context, builder, signature, arguments):
        x, column, runs, largest, n, bars = arguments
        rows = _Rows(context, builder)
        columns = [rows.line(signature.args[0], x, column)]
        limits = rows.lines(signature.args[3], largest, builder.sub(n, I64(1)), 2)
        out = rows.lines(signature.args[5], bars, builder.mul(column, I64(2)), 2)

        def step(t, held):
            value, last, spare = rows.runs(columns + limits, t)
            bar = builder.select(builder.fcmp_ordered(">=", value, last), spare, last)
            for result, line in zip((bar, rows.larger(value, last)), out, strict=True):
                rows.store(result, rows.at(line, builder.mul(t, I64(LANES))))
            return held

        rows.loop(runs, [], step)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_exchange(typingctx, x, i, j, runs, bars, gains, number):
    """Add to row `number` of `gains` what is won where columns i and j change groups.

    ``max(x[j], bars[2 * i]) - bars[2 * i + 1]`` is that of the group which column i leaves, and
    the same with i for j that of the other one.
    """
    signature = types.void(x, i, j, runs, bars, gains, number)

    def codegen(context, builder, signature, arguments):
        x, i, j, runs, bars, gains, number = arguments
        rows = _Rows(context, builder)
        columns = [rows.line(signature.args[0], x, column) for column in (j, i)]
        both = [builder.mul(column, I64(2)) for column in (i, j)]
        lines = [rows.lines(signature.args[4], bars, first, 2) for first in both]

        def step(t, held):
            won = []
            for newcomer, group in zip(rows.runs(columns, t), lines, strict=True):
                bar, before = rows.runs(group, t)
                won.append(builder.fsub(rows.larger(newcomer, bar), before))
            return [rows.add(held[0], rows.add(*won))]

        (sums,) = rows.sum_loop(runs, 1, step)
        rows.add_to(signature.args[5], gains, number, sums)
        return context.get_dummy_value()

    return signature, codegen
