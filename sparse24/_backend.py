"""Where NumPy operands are computed: `backend`."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from sparse24 import _arrays, _check
from sparse24._errors import DeviceError

_chosen: contextvars.ContextVar[str] = contextvars.ContextVar("sparse24_backend", default="auto")


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Choose where arrays are prepared and multiplied inside a ``with`` block.

    Without it an array is computed where it lives: NumPy arrays on the CPU, CuPy arrays
    on their GPU.

    Parameters
    ----------
    name : {"cpu", "cuda", "auto"}
        ``"cuda"`` sends NumPy input of `compress` and its relatives to the current GPU;
        ``"cpu"`` refuses CuPy input; ``"auto"`` follows the array.

    Raises
    ------
    DeviceError
        If ``"cuda"`` is named and no GPU is there: there is no silent fallback.
    ArgumentError
        If the name is unknown.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> with s24.backend("cpu"):
    ...     A = s24.compress(np.eye(4, dtype=np.float32))
    >>> A.device
    'cpu'
    """
    _check.one_of(name, ("cpu", "cuda", "auto"), argument="name")
    if name == "cuda" and not _arrays.cuda_available():
        raise DeviceError(f"backend('cuda') was named, but {_arrays.why_no_cuda()}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def place(x):
    """The array where the chosen backend wants it."""
    name = _chosen.get()
    if name == "cuda" and not _arrays.is_cupy(x):
        return _arrays.cupy_module().asarray(x)
    if name == "cpu" and _arrays.is_cupy(x):
        raise DeviceError("backend('cpu') was named, but the array is on a GPU; use x.get()")
    return x
