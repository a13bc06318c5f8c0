"""For which types Numba compiles a kernel: for no more than its machine code differs by."""

from __future__ import annotations

from numba.core import sigutils, types
from numba.core.registry import CPUDispatcher


class Dispatcher(CPUDispatcher):
    """What is called as a kernel.

    Numba's own compiles once more for each constant that another kernel passes, and for arrays
    that are read-only: a quarter of what all tests together compiled.
    """

    def get_call_template(self, args, kws):
        """What another kernel calls."""
        return super().get_call_template([types.unliteral(kind) for kind in args], kws)

    def compile(self, sig):
        """Compile for arrays as if all were writable: kernels write into none but their results."""
        kinds, _ = sigutils.normalize_signature(sig)
        writable = tuple(_writable(kind) for kind in kinds)
        entry = super().compile(writable)
        if writable != kinds:
            self._insert([kind._code for kind in kinds], entry, False)
        return entry


def _writable(kind: types.Type) -> types.Type:
    is_read_only = isinstance(kind, types.Array) and not kind.mutable
    return kind.copy(readonly=False) if is_read_only else kind
