"""What sparse arrays have by the names of SciPy's: conversions to its formats, its operators.

Names that only other arrays have lead to what stands for them here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparse24 import _check
from sparse24._dtypes import DType
from sparse24.formats import convert

# Attributes of SciPy's arrays, as `tocsr` gives one, that these have not.
ONLY_OF_SCIPY = frozenset((
    "argmax", "argmin", "conj", "conjugate", "count_nonzero", "data", "diagonal", "format", "imag",
    "indices", "indptr", "maximum", "minimum", "nonzero", "power", "real", "reshape", "setdiag",
    "tobsr", "todia", "todok", "tolil", "trace",
))  # fmt: skip

# Methods of NumPy's arrays, as `toarray` gives one on the CPU, that these have not.
ONLY_OF_NUMPY = frozenset((
    "all", "any", "argpartition", "argsort", "clip", "cumprod", "cumsum", "flatten", "item", "prod",
    "ravel", "repeat", "sort", "squeeze", "std", "take", "tobytes", "tofile", "tolist", "var",
))  # fmt: skip

# Attributes of other arrays, of any of these libraries or hybrid ones, and what stands in their
# place here.
OF_OTHERS = {
    "get": '.to_device("cpu")', "cpu": '.to_device("cpu")', "cuda": '.to_device("cuda")',
    "to": ".to_device(device) or .astype(dtype)",
    "half": '.astype("float16")', "bfloat16": '.astype("bfloat16")',
    "float": '.astype("float32")', "double": '.astype("float64")',
    "to_dense": ".toarray()", "numpy": ".toarray()", "t": ".T",
    "round": ".rint() or .toarray().round", "swapaxes": ".mT", "itemsize": ".dtype.itemsize",
    "A": ".toarray()", "H": ".T", "getnnz": ".nnz or .tocsr().count_nonzero(axis)",
    "getrow": ".tocsr()[[i]]", "getcol": ".tocsr()[:, [j]]",
    "row": ".tocoo().row", "col": ".tocoo().col", "coords": ".tocoo().coords",
    "__dlpack__": ".toarray()",
    "detach": "sparse24.torch.to_sparse_semi_structured(A) for a parameter of torch",
    "mm": "@", "mv": "@", "save": "sparse24.save_safetensors or sparse24.save_npz",
    "sparsity": "1 - A.density", "matmul": "@ or sparse24.matmul", "explain": "sparse24.explain",
}  # fmt: skip


def way_to(name: str) -> str | None:
    """What stands in the place of an attribute of other arrays; None for other names."""
    if name in ONLY_OF_SCIPY:
        return f".tocsr().{name}"
    return f".toarray().{name}" if name in ONLY_OF_NUMPY else OF_OTHERS.get(name)


def _way_for_stacks(name: str) -> str:
    """As `way_to`, of attributes of SciPy's arrays, for a stack, which does not become one."""
    if hasattr(np.ndarray, name):
        return f".toarray().{name}"
    return f".tocsr().{name} of each matrix, such as A[0]"


def missing(array: Any, name: str, way_out: str) -> AttributeError:
    """The error of an attribute that an array does not have."""
    text = f"{type(array).__name__!r} object has no attribute {name!r}; {way_out}"
    return AttributeError(text, name=name, obj=array)


class ScipyNames:
    """Methods of SciPy's arrays and of its `LinearOperator`; for others the way to them."""

    _dtype: DType
    device: Any
    T: Any
    ndim: Any
    toarray: Any

    def todense(self):
        """The same as `toarray`, as in SciPy."""
        return self.toarray()

    def tocsr(self, dtype=None):
        """The matrix as `scipy.sparse.csr_array` (`cupyx.scipy.sparse.csr_matrix` on the GPU).

        Waits for the device.

        Parameters
        ----------
        dtype : dtype, optional
            Element type of the result.  By default that of the array, or float32 for types that
            the library does not store: floats of 16 and 8 bits, and in cupyx int8.

        Raises
        ------
        ArgumentError
            If this is a batch.
        """
        array: Any = self
        if self._dtype.is_float8 and self.device != "cpu":  # its dense form there is bits
            array = array.astype("float32")
        return convert.to_csr(array.toarray(), dtype)

    def tocoo(self, dtype=None):
        """The matrix as `scipy.sparse.coo_array`; see `tocsr`."""
        return self.tocsr(dtype).tocoo()

    def tocsc(self, dtype=None):
        """The matrix as `scipy.sparse.csc_array`; see `tocsr`."""
        return self.tocsr(dtype).tocsc()

    def asformat(self, format: str, dtype=None):
        """The matrix in any format of SciPy or, on the GPU, of cupyx; see `tocsr`.

        Parameters
        ----------
        format : {"csr", "csc", "coo", "dia", "bsr", "dok", "lil"}
            On a GPU only the first three, as CuPy converts to no others.
        dtype : dtype, optional
            Element type of the result.

        Raises
        ------
        ArgumentError
            If the format is not available, or this is a batch.
        """
        known: tuple[str, ...] = ("csr", "csc", "coo")
        known += ("dia", "bsr", "dok", "lil") if self.device == "cpu" else ()
        _check.one_of(format, known, argument="format")
        return self.tocsr(dtype).asformat(format)

    def matvec(self, x):
        """``A @ x`` for a vector (`matvec`) or a matrix (`matmat`), for `scipy.sparse.linalg`."""
        return self @ x

    matmat = matvec

    def rmatvec(self, x):
        """``A.T @ x`` for a vector (`rmatvec`) or a matrix (`rmatmat`)."""
        return self.T @ x

    rmatmat = rmatvec

    if not TYPE_CHECKING:  # which knows all attributes, and would take any name for one

        def __getattr__(self, name: str):
            way = way_to(name)
            if way is None:
                return object.__getattribute__(self, name)  # which raises as it did before
            if name in ONLY_OF_SCIPY and self.ndim > 2:
                way = _way_for_stacks(name)
            raise missing(self, name, f"use {way}")
