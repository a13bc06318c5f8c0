"""CPU kernels on the plainest machines, after a fork, and while the interpreter ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PORTABLE = """
import numpy as np
from sparse24.kernels import _simd, cpu_compress, cpu_matmul, reference
assert _simd.VECTOR_BYTES == 16
rng = np.random.default_rng(0)
for kind in (np.float32, np.float64, np.int8):
    for n in (3, 21, 75):
        a = reference.prune((5 * rng.standard_normal((9, 75))).astype(kind))
        b = (5 * rng.standard_normal((75, n))).astype(kind)
        out = np.empty((9, n), np.int32 if kind is np.int8 else kind)
        values, metadata, _ = cpu_compress.compress(a, "check")
        cpu_matmul.matmul(values, metadata, 75, b, out)
        np.testing.assert_allclose(out, reference.matmul(a, b), rtol=1e-4, atol=1e-4)
"""


def test_machines_without_wide_vectors(tmp_path):
    """The same kernels compiled for the plainest CPU of this architecture."""
    environment = os.environ | {
        "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "SPARSE24_CACHE_DIR": str(tmp_path),
    }  # fmt: skip
    command = [sys.executable, "-P", "-c", PORTABLE]
    assert subprocess.run(command, env=environment, check=False).returncode == 0


FORKED = """
import os
import numpy as np
from sparse24.kernels import cpu_compress
x = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
want = cpu_compress.prune(x)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(cpu_compress.prune(x), want) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system knows no fork")
def test_a_forked_child_has_workers_of_its_own():
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-P", "-W", "ignore", "-c", FORKED]
    assert subprocess.run(command, env=environment, check=False, timeout=300).returncode == 0


OUTLIVING = """
import atexit, threading, time
import numpy as np
from sparse24.kernels import cpu_compress
x = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
want = cpu_compress.prune(x)

def outlive():
    threading.main_thread().join()
    time.sleep(0.2)  # until the pool is closed
    again()

def again():
    print(np.array_equal(cpu_compress.prune(x), want), flush=True)

threading.Thread(target=outlive).start()
atexit.register(again)
"""


def test_threads_that_outlive_the_main_one_and_exit_functions_work_alone():
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-P", "-c", OUTLIVING]
    done = subprocess.run(
        command, env=environment, check=True, timeout=300, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
