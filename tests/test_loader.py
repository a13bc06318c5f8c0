"""Compiling CUDA sources without a GPU, from several threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
