"""CPU kernels on the plainest machines, after a fork, and while the interpreter ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sparse24.kernels import _simd_expand

TWO_FOUR = """
import numpy as np
from sparse24.kernels import _simd, cpu_compress, cpu_matmul, reference
assert _simd.VECTOR_BYTES == {vector_bytes}
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
N_M = """
import itertools
import numpy as np
import sparse24 as s24
from sparse24.kernels import _simd_expand
assert _simd_expand.AVAILABLE == {available}
rng = np.random.default_rng(0)
kinds = [(kind, kind) for kind in (np.float32, np.float64, np.int8)]
kinds += [(np.int8, np.float32), (np.int8, np.float64)]
for kind, of in kinds:
    for n, pattern in itertools.product({columns}, ((7, 8), (2, 4))):
        a = s24.compress((5 * rng.standard_normal((37, 75))).astype(kind), pattern=pattern,
                         on_excess="prune")
        b, x = ((5 * rng.standard_normal(s)).astype(of) for s in ((75, n), (n, 37)))
        dense = a.toarray().astype(float)
        np.testing.assert_allclose(a @ b, dense @ b.astype(float), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(x @ a, x.astype(float) @ dense, rtol=1e-4, atol=1e-4)
"""
DEALS = """
import numpy as np
from sparse24 import _deals
rng = np.random.default_rng(0)
for n, m in ((2, 4), (3, 5)):
    scores = rng.integers(0, 9, (12 * m, 70)).astype(np.float32)
    pairs, deals = rng.permutation(12 * m).reshape(-1, 2 * m), _deals.ways(m)
    best = _deals.best_by_sums(scores, deals, n, pairs)
    want = np.take_along_axis(pairs, deals[best], axis=1)
    np.testing.assert_array_equal(_deals.Search(scores, n, m).dealt_anew(pairs, np.inf), want)
"""
TILES = """
import numpy as np
from sparse24.kernels import cpu, reference
x = np.random.default_rng(0).choice(np.float32([np.nan, np.inf, -0.0, 1, -2, 3]), (36, 268))
np.testing.assert_array_equal(cpu.transposable_mask(x), reference.transposable_mask(x))
"""
BRICKS = """
import ml_dtypes
import numpy as np
import sparse24 as s24
from sparse24.kernels import cpu_few_bricks
assert cpu_few_bricks.AVAILABLE == {available}
rng = np.random.default_rng(0)
for kind in (np.float32, np.float16, ml_dtypes.bfloat16):
    for bits in (4, 8):
        a = s24.compress(rng.standard_normal((50, 300)).astype(kind), on_excess="prune")
        q = s24.quantise(a, bits=bits, method="absmax")
        for n in (1, 2, 3, 4, 9):
            x = rng.standard_normal((n, 300)).astype(kind)
            want = x.astype(float) @ q.toarray().T.astype(float)
            np.testing.assert_allclose((x @ q.T).astype(float), want, rtol=1e-2, atol=0.1)
"""
AVX2 = {"avx2", "fma", "f16c", "bmi", "bmi2", "popcnt"}


def exit_code(script, **environment):
    command = [sys.executable, "-P", "-c", script]
    return subprocess.run(command, env=os.environ | environment, check=False).returncode


def compiled_for(name, features):
    return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}


def test_machines_without_wide_vectors():
    """The same kernels compiled for the plainest CPU of this architecture."""
    n_m = N_M.format(available=(), columns=(1, 3, 16, 40))
    script = TWO_FOUR.format(vector_bytes=16) + n_m + DEALS + TILES
    script += BRICKS.format(available=False)
    assert exit_code(script, **compiled_for("generic", "")) == 0


@pytest.mark.skipif(not AVX2 <= _simd_expand.FEATURES, reason="this machine has no AVX2")
def test_machines_without_avx_512():
    """By 50 columns the panels of float64 have 8, 4 and 1 vectors, those of others 4, 2 and 1."""
    n_m = N_M.format(available=("float32", "int32", "float64"), columns=(1, 7, 50))
    features = ",".join(f"+{x}" for x in AVX2)
    script = TWO_FOUR.format(vector_bytes=32) + n_m + DEALS + TILES
    script += BRICKS.format(available=True)
    # A machine that is one itself runs its own kernels, which other tests have compiled.
    is_one = _simd_expand.VECTOR_BYTES == 32
    environment = {} if is_one else compiled_for("x86-64-v3", features)
    assert exit_code(script, **environment) == 0


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


FORKED_WHILE_COMPILING = """
import os, signal, threading, time
import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from sparse24.kernels import cpu_compress
held = threading.Event()

def compiles():
    with global_compiler_lock:
        held.set()
        time.sleep(1)

threading.Thread(target=compiles).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(120)  # where it waits for ever
    os._exit(0 if cpu_compress.prune(np.ones((8, 8), np.float32)).sum() == 32 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert cpu_compress.prune(np.ones((8, 8), np.float32)).sum() == 32
"""

FORKED_WHILE_PREPARING = """
import os, signal, threading
import numpy as np
import sparse24 as s24
h = s24.hybrid(np.eye(8, dtype=np.float32))
held, forked = threading.Event(), threading.Event()

def prepare():
    held.set()
    forked.wait()
    return np.zeros(1)

threading.Thread(target=h.prepared, args=("something", prepare)).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(120)
    os._exit(0 if (h @ np.ones(8, np.float32) == 1).all() else 1)
forked.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (h @ np.ones(8, np.float32) == 1).all()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system knows no fork")
@pytest.mark.parametrize("script", [FORKED_WHILE_COMPILING, FORKED_WHILE_PREPARING])
def test_a_child_needs_no_thread_that_was_busy_at_the_fork(script):
    command = [sys.executable, "-P", "-W", "ignore", "-c", script]
    assert subprocess.run(command, check=False, timeout=300).returncode == 0


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
