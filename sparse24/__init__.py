"""2:4 sparse kernels for CuPy and NumPy arrays, with a NumPy-like API.

`compress` makes a `Sparse24Array` of a weight, which ``A @ b``, ``x @ A.T`` and `linear` multiply;
`hybrid` takes matrices without a pattern.  `torch`, `jax` and `schedule` are for training,
`save_safetensors` and ``python -m sparse24 convert`` for checkpoints.

>>> import numpy as np, sparse24 as s24
>>> w = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
>>> A = s24.compress(w, on_excess="prune")
>>> (A @ np.ones(128, np.float32)).shape
(64,)
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:  # the same names for editors and type checkers, which do not run `__getattr__`
    from sparse24 import convert as convert
    from sparse24 import distributed as distributed
    from sparse24 import families as families
    from sparse24 import functional as functional
    from sparse24 import jax as jax
    from sparse24 import plot as plot
    from sparse24 import schedule as schedule
    from sparse24 import testing as testing
    from sparse24 import torch as torch
    from sparse24 import tuning as tuning
    from sparse24._activate import activate_compress as activate_compress
    from sparse24._advise import advise as advise
    from sparse24._backend import backend as backend
    from sparse24._calibration import Calibration as Calibration
    from sparse24._compress import compress as compress
    from sparse24._compress_stream import compress_blocks as compress_blocks
    from sparse24._compress_stream import compress_stream as compress_stream
    from sparse24._config import show_config as show_config
    from sparse24._explain import explain as explain
    from sparse24._grouped_matmul import grouped_linear as grouped_linear
    from sparse24._grouped_matmul import grouped_matmul as grouped_matmul
    from sparse24._is_24 import check_24 as check_24
    from sparse24._is_24 import is_24 as is_24
    from sparse24._make import asarray as asarray
    from sparse24._make import from_scipy as from_scipy
    from sparse24._make import random as random
    from sparse24._matmul import linear as linear
    from sparse24._matmul import matmul as matmul
    from sparse24._options import Epilogue as Epilogue
    from sparse24._permutation import find_permutation as find_permutation
    from sparse24._permutation import fold_permutation as fold_permutation
    from sparse24._plan import MatmulPlan as MatmulPlan
    from sparse24._plan import autotune as autotune
    from sparse24._plan import plan as plan
    from sparse24._prune import mask as mask
    from sparse24._prune import prune as prune
    from sparse24._quantise import quantise as quantise
    from sparse24._refit import refit as refit
    from sparse24._report import report as report
    from sparse24._to_hybrid import hybrid as hybrid
    from sparse24.formats.files import load_npz as load_npz
    from sparse24.formats.files import load_safetensors as load_safetensors
    from sparse24.formats.files import save_npz as save_npz
    from sparse24.formats.files import save_safetensors as save_safetensors
    from sparse24.formats.hybrid import HybridArray as HybridArray
    from sparse24.formats.n_m import NMArray as NMArray
    from sparse24.formats.quantised import Quantised24Array as Quantised24Array
    from sparse24.formats.two_four import Sparse24Array as Sparse24Array

# In a clone, `formats` and `kernels` lie beside this folder, not within: found there too, so that
# Python works in the root of a clone, whose bare folder it finds before an installed package.
_here = __path__[0]
if not os.path.isdir(os.path.join(_here, "formats")):
    __path__.append(os.path.dirname(_here))

# Public names and the modules that hold them; imported at first use, so that
# `import sparse24` is quick and needs neither SciPy nor Numba nor CuPy.
_HOMES = {
    "Sparse24Array": "sparse24.formats.two_four",
    "NMArray": "sparse24.formats.n_m",
    "HybridArray": "sparse24.formats.hybrid",
    "Quantised24Array": "sparse24.formats.quantised",
    "compress": "sparse24._compress",
    "activate_compress": "sparse24._activate",
    "compress_blocks": "sparse24._compress_stream",
    "compress_stream": "sparse24._compress_stream",
    "asarray": "sparse24._make",
    "from_scipy": "sparse24._make",
    "random": "sparse24._make",
    "prune": "sparse24._prune",
    "mask": "sparse24._prune",
    "Calibration": "sparse24._calibration",
    "refit": "sparse24._refit",
    "find_permutation": "sparse24._permutation",
    "fold_permutation": "sparse24._permutation",
    "quantise": "sparse24._quantise",
    "report": "sparse24._report",
    "is_24": "sparse24._is_24",
    "check_24": "sparse24._is_24",
    "backend": "sparse24._backend",
    "matmul": "sparse24._matmul",
    "linear": "sparse24._matmul",
    "grouped_matmul": "sparse24._grouped_matmul",
    "grouped_linear": "sparse24._grouped_matmul",
    "Epilogue": "sparse24._options",
    "plan": "sparse24._plan",
    "MatmulPlan": "sparse24._plan",
    "explain": "sparse24._explain",
    "autotune": "sparse24._plan",
    "advise": "sparse24._advise",
    "hybrid": "sparse24._to_hybrid",
    "save_npz": "sparse24.formats.files",
    "load_npz": "sparse24.formats.files",
    "save_safetensors": "sparse24.formats.files",
    "load_safetensors": "sparse24.formats.files",
    "show_config": "sparse24._config",
}
_MODULES = (
    "convert", "distributed", "families", "functional", "jax", "plot", "schedule", "testing",
    "torch", "tuning",
)  # fmt: skip
# Named as the framework that each of them needs, so no `from sparse24 import *` brings them:
# that would take the place of `import torch`.
_BRIDGES = ("jax", "torch")

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
    *(name for name in _MODULES if name not in _BRIDGES),
]


if not TYPE_CHECKING:  # with it, a type checker would let every misspelt name pass

    def __getattr__(name: str):
        if name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        elif name in _MODULES:
            value = _module(name)
        else:
            raise AttributeError(f"module 'sparse24' has no attribute {name!r}")
        globals()[name] = value
        return value


def _module(name: str):
    try:
        return importlib.import_module(f"sparse24.{name}")
    except ModuleNotFoundError as error:
        if error.name != name or name not in _BRIDGES:
            raise
        raise ModuleNotFoundError(
            f"sparse24.{name} needs {name}, which is not installed; install it with: "
            f"pip install 'sparse24[{name}]'",
            name=name,
        ) from error


def __dir__() -> list[str]:
    """What can be had here, so that `help` and completion may fetch all of it."""
    return sorted([*__all__, *filter(_is_installed, _BRIDGES)])


def _is_installed(framework: str) -> bool:
    if framework in sys.modules:
        return sys.modules[framework] is not None  # None: an import that is forbidden
    return importlib.util.find_spec(framework) is not None
