"""2:4 sparse kernels for CuPy and NumPy arrays, with a NumPy-like API.

>>> import numpy as np, sparse24 as s24
>>> w = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
>>> A = s24.compress(w, on_excess="prune")
>>> (A @ np.ones(128, np.float32)).shape
(64,)
"""

from __future__ import annotations

import importlib

from sparse24._errors import (
    ArgumentError,
    CompileError,
    DeviceError,
    DTypeError,
    FormatError,
    PatternError,
    ShapeError,
    Sparse24Error,
    UnsupportedError,
)
from sparse24._version import __version__

# Public names and the modules that hold them; imported at first use, so that
# `import sparse24` is quick and needs neither SciPy nor Numba nor CuPy.
_HOMES = {
    "Sparse24Array": "sparse24.formats.two_four",
    "NMArray": "sparse24.formats.n_m",
    "HybridArray": "sparse24.formats.hybrid",
    "compress": "sparse24._compress",
    "activate_compress": "sparse24._activate",
    "compress_blocks": "sparse24._stream",
    "compress_stream": "sparse24._stream",
    "asarray": "sparse24._make",
    "from_scipy": "sparse24._make",
    "random": "sparse24._make",
    "prune": "sparse24._prune",
    "mask": "sparse24._prune",
    "Calibration": "sparse24._calibration",
    "refit": "sparse24._refit",
    "find_permutation": "sparse24._permutation",
    "fold_permutation": "sparse24._permutation",
    "report": "sparse24._report",
    "is_24": "sparse24._obeys",
    "check_24": "sparse24._obeys",
    "backend": "sparse24._backend",
    "matmul": "sparse24._matmul",
    "linear": "sparse24._matmul",
    "Epilogue": "sparse24._fuse",
    "plan": "sparse24._plan",
    "MatmulPlan": "sparse24._plan",
    "explain": "sparse24._explain",
    "autotune": "sparse24._plan",
    "advise": "sparse24._advise",
    "hybrid": "sparse24._hybrid",
    "save_npz": "sparse24.formats.files",
    "load_npz": "sparse24.formats.files",
    "save_safetensors": "sparse24.formats.files",
    "load_safetensors": "sparse24.formats.files",
    "show_config": "sparse24._config",
}
_MODULES = (
    "convert", "families", "functional", "jax", "plot", "schedule", "testing", "torch", "tuning",
)  # fmt: skip

__all__ = [
    "ArgumentError",
    "CompileError",
    "DTypeError",
    "DeviceError",
    "FormatError",
    "PatternError",
    "ShapeError",
    "Sparse24Error",
    "UnsupportedError",
    "__version__",
    *_HOMES,
    *_MODULES,
]


def __getattr__(name: str):
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"sparse24.{name}")
    else:
        raise AttributeError(f"module 'sparse24' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
