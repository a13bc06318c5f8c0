"""NumPy's functions of single elements that keep zeros, as methods with the names of SciPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from sparse24 import _devices, _elementwise
from sparse24._dtypes import DType


def _method(name: str) -> Callable[[Any], Any]:
    """The method that gives NumPy's ufunc `name` of each element."""

    def method(self):
        return self._each(getattr(np, name))

    method.__name__ = name
    method.__doc__ = f"`numpy.{name}` of each element; see `sqrt`."
    return method


class Unary:
    """A method for each function of NumPy's that is zero at zero; `KEEP_ZEROS` lists them."""

    device: Any
    _dtype: DType
    _elementwise: Any

    def sqrt(self) -> Self:
        """`numpy.sqrt` of each element, zeros staying zeros.

        Returns
        -------
        sparse array
            Of the same class and shape.  Its type is NumPy's for the dense array, as float16 for
            int8.  bfloat16 and fp8 stay as they are: results in these are computed in float32 and
            rounded once, and fp8 saturates.

        Notes
        -----
        Of stored elements only.  Those that become zero, as by `rint`, are zeros of the result.
        Does not synchronise, but that of a `HybridArray`, whose non-zeros are counted.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> A = s24.compress(np.array([[0, 4, 0, 9], [1, 0, 0, 0]], np.float32))
        >>> A.sqrt().toarray()
        array([[0., 2., 0., 3.],
               [1., 0., 0., 0.]], dtype=float32)
        >>> np.log1p(A).nnz
        3
        """
        return self._each(np.sqrt)

    arcsin = _method("arcsin")
    arcsinh = _method("arcsinh")
    arctan = _method("arctan")
    arctanh = _method("arctanh")
    ceil = _method("ceil")
    deg2rad = _method("deg2rad")
    expm1 = _method("expm1")
    floor = _method("floor")
    log1p = _method("log1p")
    rad2deg = _method("rad2deg")
    rint = _method("rint")
    sign = _method("sign")
    sin = _method("sin")
    sinh = _method("sinh")
    square = _method("square")
    tan = _method("tan")
    tanh = _method("tanh")
    trunc = _method("trunc")

    @_devices.on_own_device
    def _each(self, ufunc: np.ufunc) -> Any:
        return self._elementwise(ufunc, None, _elementwise.type_of_each(ufunc, self._dtype))


# The methods' ufuncs, which have their names.
KEEP_ZEROS = {getattr(np, name): name for name in vars(Unary) if not name.startswith("_")}
