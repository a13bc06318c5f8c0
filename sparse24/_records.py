"""Plain records of arrays that kernels and the planner exchange.

The kernels know nothing of `Sparse24Array`; they take these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparse24._dtypes import DType

# Keys of `Compressed24.derived`
MASKS, EXPERTS, MAKING, DEQUANTISED = "masks", "experts", "making", "dequantised"


@dataclass(frozen=True, slots=True)
class Compressed24:
    """A 2:4 matrix, or a batch of them, as arrays.

    Attributes
    ----------
    values : array, shape (..., m, values_per_row(k))
        Stored elements, last axis contiguous.  On the GPU the rows start on
        16-byte boundaries, so this may be a view of wider storage.  fp8 is
        carried as ``uint8`` on the GPU.
    metadata : array of uint8, shape (..., m, metadata_bytes_per_row(k)), or None
        Canonical codes, two a byte, low K in the low nibble.
    packed : array of uint8, shape (..., K atoms, M atoms, 1024), or None
        The same codes in the order of the tensor cores.  At least one of
        `metadata` and `packed` is there.
    shape : tuple of int
        Logical shape (..., m, k).
    dtype : DType
        Logical element type.
    derived : dict
        Other layouts of the same elements, made by kernels that need them
        (``kernels/pieces.py``, and under `MASKS` ``kernels/cpu_expanded.py``); under `EXPERTS`
        the matrices of a batch that were multiplied one by one, by number; under `MAKING` what
        `_settled` knows of the end of its making; under `DEQUANTISED` records by type, on the CPU.
    quantised : int
        Bits of the integers of quantised matrices, else 0.  Their `values`, which are their
        `packed`, too, are then the bricks of ``kernels/bricks.py``, contiguous and of shape
        (..., row blocks, K atoms, bytes), and `dtype` is the type that products take them for.
    settled : bool
        Whether a kernel may read the arrays while the one before it still runs.
    """

    values: Any
    metadata: Any
    packed: Any
    shape: tuple[int, ...]
    dtype: DType
    settled: bool = False
    quantised: int = 0
    derived: dict[str, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def viewed(
        self, values: Any, metadata: Any, packed: Any, batch: tuple[int, ...]
    ) -> Compressed24:
        """Views of the same arrays with other batch axes; what is derived from them is shared."""
        shape = (*batch, *self.shape[-2:])
        other = Compressed24(values, metadata, packed, shape, self.dtype, quantised=self.quantised)
        object.__setattr__(other, "derived", self.derived)
        return other

    def __reduce__(self):
        """Without `derived`, which the first products after unpickling make anew."""
        parts = self.values, self.metadata, self.packed, self.shape, self.dtype
        return Compressed24, (*parts, False, self.quantised)

    @property
    def m(self) -> int:
        return self.shape[-2]

    @property
    def k(self) -> int:
        return self.shape[-1]


@dataclass(frozen=True, slots=True)
class Operand24:
    """The sparse (or left) operand of a product, with all stored forms of the matrix.

    A plain dense operand has neither `rows` nor `columns`.

    Attributes
    ----------
    rows : Compressed24 or None
        The matrix itself, pattern along its last axis: serves ``A @ b``.
    columns : Compressed24 or None
        The transposed matrix, pattern along *its* last axis: serves ``x @ A``.
    dense : array or None
        The same matrix dense, kept so that the dense product is a candidate.
    shape : tuple of int
        Logical shape (..., m, k).
    dtype : DType
    """

    rows: Compressed24 | None
    columns: Compressed24 | None
    dense: Any
    shape: tuple[int, ...]
    dtype: DType

    def transposed(self) -> Operand24:
        """The operand of the transposed matrix; nothing is copied."""
        dense = None if self.dense is None else self.dense.swapaxes(-1, -2)
        shape = (*self.shape[:-2], self.shape[-1], self.shape[-2])
        return Operand24(self.columns, self.rows, dense, shape, self.dtype)

    @property
    def stored(self) -> Compressed24:
        """The record that there is; `rows` if there are both."""
        record = self.rows if self.rows is not None else self.columns
        assert record is not None
        return record

    def multiplied(self, *, from_left: bool) -> Compressed24 | None:
        """The record that a product reads: `rows` for ``A @ b``, `columns` for ``x @ A``."""
        return self.columns if from_left else self.rows

    @property
    def elements(self):
        """The array of the stored elements, or the dense matrix where that is all there is."""
        is_dense = self.rows is None and self.columns is None
        return self.dense if is_dense else self.stored.values


@dataclass(frozen=True, slots=True)
class Fused:
    """An epilogue as kernels take it, in plain arrays and numbers; made by `_fuse.fuse`.

    It says what happens to an accumulator before it is stored.  In this order, for element (i, j)
    of the (m, n) result::

        x   = alpha * row_scale[i] * column_scale[j] * acc + beta * c[i, j]
        x  += row_bias[i] + column_bias[j]
        aux = x
        out = out_scale * activation(x)
    """

    alpha: float = 1.0
    beta: float = 0.0
    c: Any = None  # (..., m, n), dtype of the result, any strides
    row_scale: Any = None  # (m,) float32 (float64 for float64 results)
    column_scale: Any = None  # (n,)
    row_bias: Any = None  # (m,)
    column_bias: Any = None  # (n,)
    activation: str = "identity"
    lower: float = 0.0  # relu: values at or below it become 0
    upper: float = float("inf")  # relu: values above it become it
    out_scale: float = 1.0
    aux: Any = None  # (..., m, n), dtype of the result, any strides

    @property
    def is_plain(self) -> bool:
        """True if the accumulator is stored as it is."""
        return (
            self.alpha == 1.0
            and (self.beta == 0.0 or self.c is None)
            and self.row_scale is None
            and self.column_scale is None
            and self.row_bias is None
            and self.column_bias is None
            and self.activation == "identity"
            and self.out_scale == 1.0
            and self.aux is None
        )

    @property
    def treats_rows_alike(self) -> bool:
        """True if all rows of a result, in whichever matrix of a stack, have the same epilogue."""
        return all(part is None for part in (self.c, self.aux, self.row_scale, self.row_bias))

    def transposed(self) -> Fused:
        """The epilogue of the transposed product, out.T."""
        if self is PLAIN:
            return self
        turn = lambda x: None if x is None else x.swapaxes(-1, -2)  # noqa: E731
        return Fused(
            self.alpha,
            self.beta,
            turn(self.c),
            self.column_scale,
            self.row_scale,
            self.column_bias,
            self.row_bias,
            self.activation,
            self.lower,
            self.upper,
            self.out_scale,
            turn(self.aux),
        )


PLAIN = Fused()

Multiply = Callable[[Any, Any, Fused], None]  # a prepared product of matrices: b, out, epilogue


@dataclass(frozen=True, slots=True)
class Problem:
    """All that the planner and kernels know of a product before they see its data.

    The product is out (m, n) = A (m, k) @ b (k, n), and A is the 2:4 operand.  Orders are
    ``"row"`` (last axis contiguous), ``"column"`` (first axis contiguous) or ``"strided"``.  A
    matrix with one row or one column could be either; `_memory_order.order` decides.
    """

    m: int
    n: int
    k: int
    batch: int  # number of products; 1 without batch axes
    dtype: str
    b_dtype: str
    out_dtype: str
    b_order: str = "row"
    out_order: str = "row"
    a_batched: bool = False  # False: one A serves the whole batch
    b_batched: bool = False
    aligned: bool = True  # b and out start on, and advance by, multiples of 16 bytes
    b_aligned: bool = False  # where they do not both: b does
    out_aligned: bool = False  # where they do not both: out does
    out_spills: bool = False  # out is aligned, but 16-byte stores pass the ends of its lines
    b_in_lines: bool = True  # lines of b begin where lines of 128 bytes of memory do
    b_packed: bool = True  # lines of b follow one another without gaps
    plain: bool = True  # no epilogue
    activation: str = "identity"
    fast_accumulation: bool = True  # fp8 only: False promotes partial sums to float32
    tensor_float: bool = False  # float32 only: A is 1:2, and both operands round to TF32
    quantised: int = 0  # bits of the integers of a quantised A, which `dtype` does not tell
    compute_capability: int = field(default=90)
