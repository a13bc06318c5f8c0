"""`NMArray`: a matrix, or a batch, with at most n non-zeros in every group of m."""

from __future__ import annotations

from sparse24 import _arrays, _check, _devices, _foreign, _foreign_streams, _gradients
from sparse24._errors import PatternError, UnsupportedError
from sparse24.formats import n_m_parts, n_m_products, tensor_float
from sparse24.formats.n_m_storage import NMStorage
from sparse24.formats.two_four import Sparse24Array


class NMArray(NMStorage):
    """An n:m sparse array on the CPU or a GPU.  Immutable.

    Made by ``sparse24.compress(x, pattern=(n, m))`` or `from_dense`, of the element types of
    `Sparse24Array`.

    Attributes
    ----------
    pattern : tuple of int
        ``(n, m)``, ``0 < n < m <= 32``.
    axis : int
        The axis that the groups run along: -1, or -2 for the transpose of such an array.
    values : array, shape (..., rows, n * groups)
        Stored elements, n a group; of the transposed matrix if `axis` is -2.  fp8 is
        carried as ``uint8`` on the GPU.
    indices : array of uint8, shape of `values`
        Place of each stored element in its group, rising within a group.

    Notes
    -----
    Products run on the 2:4 kernels if the pattern is a special case of 2:4, with at most two
    elements in any aligned group of four, such as 1:2, 1:4 and 2:8.  Other patterns have kernels
    of their own on the CPU, unless they are more than three quarters full and multiply hundreds
    of columns.  Otherwise, and on the GPU, the product is dense.  For patterns such as 6:8,
    `windows` prepares an exact 2:4 product over a longer k.

    Parts, arithmetic and reductions are those of `Sparse24Array`, with groups of m columns; the
    values of ``A[rows]`` for any slice are views.

    Work goes to CuPy's current stream.  The first product, `nnz`, `density`, `tocsr`, `tocoo` and a
    move to the CPU wait for the device; later products, `toarray`, `mask`, `astype` and views do
    not.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.compress(np.array([[0, 0, 7, 0, 0, 5, 0, 0]], np.float32), pattern=(1, 4))
    >>> A
    <NMArray: pattern 1:4, shape (1, 8), dtype float32, axis -1, on cpu, 10 bytes (dense: 32)>
    >>> A.values, A.indices
    (array([[7., 5.]], dtype=float32), array([[2, 1]], dtype=uint8))
    >>> A @ np.arange(8, dtype=np.float32)
    array([39.], dtype=float32)
    """

    __slots__ = ()

    @classmethod
    def from_dense(
        cls, x, *, pattern=(2, 4), axis=-1, on_excess="raise", check: bool = True, dtype=None
    ) -> NMArray:
        """Compress an array that obeys n:m, or prune it to n:m by magnitude and compress it.

        Parameters
        ----------
        x : array, shape (..., m, k)
            NumPy, CuPy, torch or JAX array of an element type of `Sparse24Array`.
        pattern : tuple (n, m), default (2, 4)
        axis : {-1, -2}
            The axis that the groups run along.
        on_excess : {"raise", "prune"}
            What to do with a group of more than n non-zeros.  ``"raise"`` waits for
            the device.
        check : bool, default True
            ``False`` does not look for such groups, which then keep their first n non-zeros.
        dtype : dtype, optional
            Convert first; also the logical type of fp8 bits carried as ``uint8``.

        Returns
        -------
        NMArray
            On the device of `x`.

        Raises
        ------
        PatternError
            If a group has more than n non-zeros; names the first and their number.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> w = np.arange(8, dtype=np.float32).reshape(1, 8)
        >>> s24.NMArray.from_dense(w, pattern=(3, 8), on_excess="prune").toarray()
        array([[0., 0., 0., 0., 0., 5., 6., 7.]], dtype=float32)
        """
        n, m = _check.pattern(pattern)
        _check.one_of(on_excess, ("raise", "prune"), argument="on_excess")
        check = _check.flag(check, argument="check")
        with _foreign_streams.stream_of(x):
            array, own = n_m_parts.in_dtype(_foreign.take(x)[0], dtype)
            _check.at_least_2d(array.shape, argument="x")
            number = _check.matrix_axis(axis, array.ndim)
            array = array if number == -1 else array.swapaxes(-1, -2)
            values, indices, status = n_m_parts.compress(array, own, n, m, on_excess)
            if on_excess == "raise" and check:
                n_m_parts.raise_excess(status, (n, m), array.shape, number)
        return cls(values, indices, array.shape, (n, m), own, axis=number)

    # --- products -----------------------------------------------------------------------

    @_devices.on_own_device
    def to_24(self) -> Sparse24Array:
        """The same matrix as a `Sparse24Array`, where the pattern embeds into 2:4.

        Raises
        ------
        PatternError
            If an aligned group of four can hold more than two elements of the pattern.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> A = s24.compress(np.eye(8, dtype=np.float32), pattern=(1, 4), on_excess="prune")
        >>> A.to_24().shape
        (8, 8)
        """
        n, m = self._pattern
        if not n_m_parts.embeds_in_24(n, m):
            raise PatternError(
                f"{n}:{m} does not embed into 2:4: a group of four may hold more than two of its "
                "elements; use .windows() or .toarray()"
            )
        rows = self if self._axis == -1 else self.mT
        sparse = n_m_parts.as_24(rows.toarray(), self._dtype)
        return sparse if self._axis == -1 else sparse.mT

    @_devices.on_own_device
    def windows(self):
        """The matrix as an exact 2:4 matrix over a longer k, for patterns such as 6:8.

        Returns
        -------
        Windows24
            For ``A @ b``, or ``x @ A`` where the groups run along axis -2: holds the 2:4 array and
            the rows of b, or columns of x, that it multiplies.

        Raises
        ------
        PatternError
            If m is odd or n > m - 2, for which there is none.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> w = np.arange(16, dtype=np.float32).reshape(1, 16)
        >>> A = s24.compress(w, pattern=(6, 8), on_excess="prune")
        >>> W = A.windows()
        >>> W
        <Windows24: pattern 6:8, shape (1, 16) as 2:4 of shape (1, 24), dtype float32, on cpu>
        >>> W @ np.ones(16, np.float32), A @ np.ones(16, np.float32)
        (array([102.], dtype=float32), array([102.], dtype=float32))
        """
        from sparse24.formats.windows import Windows24

        return Windows24.from_dense(self.toarray(), self._pattern, self._dtype, axis=self._axis)

    def embedded(self) -> Sparse24Array | None:
        """The result of `to_24`, cached; None if the pattern does not embed into 2:4."""
        if self._axis == -2:  # one serves both sides
            rows = self.mT.embedded()
            return None if rows is None else rows.mT
        if not n_m_parts.embeds_in_24(*self._pattern):
            return None
        return self._converted("24", self.to_24)

    def _converted(self, name: str, make):
        """The form `name` for products, made by `make()` at the first one and kept."""
        if name not in self._cache:
            if _arrays.is_cupy(self._values) and _arrays.is_capturing():
                raise UnsupportedError(
                    "the first product of an n:m array converts it, which a graph cannot hold; "
                    "run it once before the capture"
                )
            with _devices.on_device(self.device):
                made = make()
                _arrays.settle(self._values)  # products run on streams of their operands
            self._cache[name] = made
        return self._cache[name]

    def _multiply(self, other):
        sparse = self.embedded()
        return n_m_products.product(self, other, left=True) if sparse is None else sparse @ other

    def _multiply_from_left(self, other):
        sparse = self.embedded()
        return n_m_products.product(self, other, left=False) if sparse is None else other @ sparse

    def multiply_tf32(self, other, *, left: bool = True):
        """``self @ other`` (or ``other @ self``) with both operands rounded to TF32.

        Parameters
        ----------
        other : array, float32, at most two axes
            On the array's GPU.
        left : bool, default True
            Whether this array is the left operand; its groups must run along the
            contracted axis.

        Returns
        -------
        array, float32
            On the same GPU.

        Raises
        ------
        PatternError, DTypeError, UnsupportedError
            If the pattern is not 1:2, a type is not float32, or the device is not Hopper.
        """
        _gradients.refuse(other)
        return self._converted("tf32", self._in_tf32).product(other, left=left)

    def _in_tf32(self) -> tensor_float.TensorFloat:
        tensor_float.check(self._pattern, self._dtype, self.device)
        return tensor_float.TensorFloat(self._values, self._indices, self._rows_shape, self._axis)
