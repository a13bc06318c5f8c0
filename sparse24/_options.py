"""The options of a product: `Epilogue`, which users make, and `Call`, all of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True)
class Epilogue:
    """Bias, activation and scales of a product, applied in the same pass before it is stored.

    For element (i, j) of the result::

        x   = alpha * alpha_vector * scales * (a @ b)[i, j] + beta * c[i, j] + bias
        aux = x
        out = out_scale * activation(x)

    Attributes
    ----------
    bias : array or float, optional
        Shape (n,) or (1, n) adds to columns, (m, 1) to rows, a number to all.
    activation : {None, "relu", "relu2", "gelu", "gelu_tanh", "silu"}
        ``relu2`` is the square of relu; ``gelu`` uses erf, ``gelu_tanh`` its usual
        approximation.  On a GPU, for results of 16 bits or fewer, the last three are computed with
        one approximate instruction: the relative error is at most 8e-4 where x is positive, the
        absolute one at most ``2.5e-4 * abs(x) + 2.7e-4`` where x is negative.
    alpha_vector : array or float, optional
        A factor for each column or row of the product; shapes as for `bias`.
    out_scale : float, default 1
        Factor of the result, for instance before it is rounded to fp8 or int8.
    lower, upper : float
        Bounds, for ``"relu"`` only: values at or below `lower` become 0, values above `upper`
        become `upper`.
    aux : array, optional
        Receives the value before the activation; shape and dtype of the result.  Must not
        overlap another array of the product.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.compress(np.eye(4, dtype=np.float32))
    >>> e = s24.Epilogue(bias=np.array([[-1.], [0.], [1.], [2.]]), activation="relu")
    >>> s24.matmul(A, np.zeros((4, 2), np.float32), epilogue=e)[:, 0]
    array([0., 0., 1., 2.], dtype=float32)
    """

    bias: Any = None
    activation: str | None = None
    alpha_vector: Any = None
    out_scale: float = 1.0
    lower: float = 0.0
    upper: float = float("inf")
    aux: Any = None


class Call(NamedTuple):
    """The options of `sparse24.matmul` as they were given, but for `out`."""

    c: Any = None
    alpha: float = 1.0
    beta: float = 0.0
    dtype: Any = None
    epilogue: Epilogue | None = None
    scales: tuple | None = None
    algorithm: str = "auto"
    other_dtype: Any = None
    fast_accumulation: bool = True

    @property
    def is_plain(self) -> bool:
        """True if nothing was asked for."""
        plain = self.alpha == 1.0 and self.algorithm == "auto" and self.fast_accumulation
        nothing = self.c is None and self.dtype is None and self.epilogue is None
        return plain and nothing and self.scales is None and self.other_dtype is None

    @property
    def fits_all_formats(self) -> bool:
        """True without options that only a `Sparse24Array` takes."""
        return self.algorithm == "auto" and self.other_dtype is None and self.fast_accumulation


# Tested for by ``is``: with ``==`` the arrays of two calls would be compared.
NO_OPTIONS = Call()
