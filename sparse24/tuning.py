"""The tuning cache: winners measured on this GPU, and the fitted cost model."""

from __future__ import annotations

from pathlib import Path

from sparse24 import _arrays, _planner_fit, _tuning_cache
from sparse24._errors import DeviceError, FormatError
from sparse24._hybrid import fit as hybrid_fit

__all__ = ["calibrate", "clear", "load", "path", "save"]


def _device() -> int:
    if not _arrays.cuda_available():
        raise DeviceError(f"the tuning cache belongs to a GPU, but {_arrays.why_no_cuda()}")
    return _arrays.cupy_module().cuda.Device().id


def path() -> Path:
    """The file that tuning results of the current GPU are kept in.

    It lies in the user's cache folder, or in ``$SPARSE24_CACHE_DIR``.

    Returns
    -------
    pathlib.Path

    Raises
    ------
    DeviceError
        If no GPU is there.
    FileNotFoundError
        If there is no such folder, as for a user without a home directory; the message tells
        what to set.

    Examples
    --------
    >>> import sparse24 as s24
    >>> s24.tuning.path()  # doctest: +SKIP
    PosixPath('/home/me/.cache/sparse24/tuning-NVIDIA-H200.json')
    """
    return _tuning_cache.path(_device())


def save(file=None, *, replace: bool = False) -> Path:
    """Write what was tuned to a file; atomic, merged with what the file holds.

    Parameters
    ----------
    file : path, optional
        By default `path`.
    replace : bool
        Overwrite a file of another GPU, driver or version; without it that is an error.

    Returns
    -------
    pathlib.Path

    Raises
    ------
    FormatError
        If the file belongs to another GPU, driver or version, or is not a tuning file.
    ArgumentError
        If `file` is not a path that a file can be written to.
    DeviceError
        If no GPU is there.

    Examples
    --------
    >>> import sparse24 as s24
    >>> s24.tuning.save("tuning.json")  # doctest: +SKIP
    PosixPath('tuning.json')
    """
    device = _device()
    target = _tuning_cache.named(_tuning_cache.path(device) if file is None else file)
    if not _tuning_cache.write(target, device, replace=replace):
        raise FormatError(
            f"{target} belongs to another GPU, driver or version, or is not a complete tuning "
            "file; pass replace=True to overwrite it"
        )
    return target


def load(file=None) -> bool:
    """Take over the winners of a tuning file.

    Parameters
    ----------
    file : path, optional
        By default `path`.

    Returns
    -------
    bool
        False if there is none, or it is damaged or belongs to another GPU, driver or version.

    Raises
    ------
    ArgumentError
        If `file` is not a path of a file.
    DeviceError
        If no GPU is there.

    Examples
    --------
    >>> import sparse24 as s24
    >>> s24.tuning.load("tuning.json")  # doctest: +SKIP
    True
    """
    device = _device()
    target = _tuning_cache.named(_tuning_cache.path(device) if file is None else file)
    return _tuning_cache.merge(target, device)


def clear() -> None:
    """Forget what was tuned and calibrated, in memory; files stay.

    Raises
    ------
    DeviceError
        If no GPU is there.

    Examples
    --------
    >>> import sparse24 as s24
    >>> s24.tuning.clear()  # doctest: +SKIP
    """
    device = _device()
    _tuning_cache.forget(device)
    hybrid_fit.forget(device)


def calibrate() -> dict[str, float]:
    """Fit the cost models to the current GPU: of 2:4 products, and of hybrid matrices.

    Takes some twenty seconds (the first time, when kernels are compiled, up to two minutes) and up
    to 6 GB of the GPU's memory; synchronises.  `save` keeps the model of 2:4 products for later
    processes; that of the paths of `sparse24.hybrid` is kept at once.  Where its file cannot be
    written, a `RuntimeWarning` says so, and it serves this process alone.

    Returns
    -------
    dict
        Bandwidth in bytes a second under ``"bandwidth"``, and for each kernel the median
        of measured over predicted time.

    Raises
    ------
    DeviceError
        If no GPU is there.

    Examples
    --------
    >>> import sparse24 as s24
    >>> rates = s24.tuning.calibrate()  # doctest: +SKIP
    >>> path = s24.tuning.save()  # doctest: +SKIP
    """
    device = _device()
    fitted = _planner_fit.fit(device)
    bandwidth = fitted.pop("bandwidth")
    _tuning_cache.record_model(device, bandwidth=bandwidth, scales=fitted)
    hybrid_fit.fit(device)
    return {"bandwidth": bandwidth, **fitted}
