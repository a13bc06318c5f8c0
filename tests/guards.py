"""An allocator that notices writes outside of the memory that was asked for.

compute-sanitizer does not see what Hopper's TMA writes; this does.
"""

from __future__ import annotations

import numpy as np

SIZE = 512  # bytes before and behind every allocation, which CuPy aligns to as many
FILLED = 0xFF  # NaN in every float type, so that memory that nobody wrote is noticed, too


class Guarded:
    """CuPy's pool, with guards around every allocation; see `cupy.cuda.using_allocator`."""

    def __init__(self, cupy):
        self._cuda, self._pool = cupy.cuda, cupy.cuda.MemoryPool()
        self._live: list[tuple] = []  # memory with its guards, and the bytes between them

    def __call__(self, size: int):
        if not size:
            return self._pool.malloc(0)
        whole = self._pool.malloc(size + 2 * SIZE)
        whole.memset_async(FILLED, size + 2 * SIZE, self._cuda.get_current_stream())
        self._live.append((whole, size))
        device = self._cuda.runtime.getDevice()
        inner = self._cuda.UnownedMemory(whole.ptr + SIZE, size, whole, device)
        return self._cuda.MemoryPointer(inner, 0)

    def damage(self) -> list[str]:
        """What was written outside since the last look; waits for the device."""
        runtime, found = self._cuda.runtime, []
        runtime.deviceSynchronize()
        guard = np.empty(SIZE, np.uint8)
        for whole, size in self._live:
            for where, offset in (("before", 0), ("behind", SIZE + size)):
                runtime.memcpy(
                    guard.ctypes.data, whole.ptr + offset, SIZE, runtime.memcpyDeviceToHost
                )
                written = np.flatnonzero(guard != FILLED)
                if written.size:
                    found.append(f"byte {written[0]} {where} {size} bytes")
        self._live.clear()
        return found
