"""Where the machine code of the CPU kernels is kept.

That is in the user's cache folder, never inside the installed package: ``SPARSE24_CACHE_DIR``, or
what platformdirs names.  Where there is no such folder, it cannot be written, or what lies in it
is damaged, kernels are compiled anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import uuid
from pathlib import Path

from numba.core import caching

from sparse24._user_folder import user_folder
from sparse24._version import __version__


def cache_folder() -> Path:
    """Where compiled CPU kernels are kept."""
    return user_folder().absolute() / "numba"


@functools.cache
def _sources_digest() -> str:
    """Digest of every Python file here: a kernel may inline helpers of another file."""
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Locator(caching._CacheLocator):
    """Files of one kernel, in a folder of this version's sources in `cache_folder`."""

    def __init__(self, function):
        self._place = f"{function.__module__}.{function.__qualname__}"
        self._folder = str(cache_folder() / _sources_digest()[:16])

    def get_cache_path(self):
        return self._folder

    def get_source_stamp(self):
        return _sources_digest()

    def get_disambiguator(self):
        return hashlib.sha256(self._place.encode()).hexdigest()[:10]

    @classmethod
    def from_function(cls, py_func, py_file):
        try:
            locator = cls(py_func)
            locator.ensure_cache_path()
        except OSError:  # unknown or not writable: the caller compiles without a cache
            return None
        return locator


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class Files(caching.IndexDataCacheFile):
    """Files of machine code under names of their own, read as files that may be damaged.

    Numba numbers them, and two processes that compile at once may take the same
    number for different types.
    """

    def _data_name(self, number):
        return super()._data_name(uuid.uuid4().int)

    def _load_index(self):
        try:
            return super()._load_index()
        except Exception:  # as unpickling a file that is cut short or overwritten can raise any
            return {}

    def _load_data(self, name):
        try:
            return super()._load_data(name)
        except Exception as error:
            raise OSError(f"{name} is damaged") from error  # to Numba, a file that is not there


class Cache(caching.FunctionCache):
    """What Numba asks for the machine code of one kernel, and hands it to.

    Raises
    ------
    RuntimeError
        If there is no folder for it, or none that can be written.
    """

    _impl_class = _Implementation

    def __init__(self, function):
        super().__init__(function)
        self._cache_file = Files(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def save_overload(self, sig, data):
        # The kernel is compiled; that the disk is full must not keep it from running.
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)
