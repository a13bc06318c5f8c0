"""Compiling CUDA sources without a GPU, from several threads."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from sparse24.kernels import loader

COMPILES = """
from concurrent.futures import ThreadPoolExecutor
from sparse24.kernels import loader

with ThreadPoolExecutor(8) as pool:
    cubins = pool.map(lambda size: loader.compile_cubin("transpose", (("BYTES", size),), "sm_90a"),
                      (1, 2, 4) * 3)
assert all(map(len, cubins))
"""


@pytest.mark.parametrize("attempt", range(3))
def test_the_first_kernels_of_a_process_compile_in_several_threads(nvrtc, attempt):
    """Without a program that one thread compiles alone before, four of five processes fail."""
    command = [sys.executable, "-P", "-c", COMPILES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_chip_without_kernels_and_a_compiler_without_the_chip_are_told():
    nvrtc = SimpleNamespace(getSupportedArchs=lambda: [80, 90, 120], getVersion=lambda: (12, 8))
    assert loader._unsupported(nvrtc, 90) == ""
    assert "80 and later, this is 75" in loader._unsupported(nvrtc, 75)
    assert "NVRTC 12.8 knows chips up to 120" in loader._unsupported(nvrtc, 121)
