"""Products and layers of arrays that are split over explicit axes of a mesh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.buffer_callback")
if not hasattr(jax.sharding, "reshard"):
    pytest.skip("explicit axes came with JAX 0.7", allow_module_level=True)


@pytest.fixture(scope="module")
def told():
    """The lines of the program `jax_splits`, on four devices of the CPU."""
    four = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    program = [sys.executable, "-P", str(Path(__file__).with_name("jax_splits.py"))]
    done = subprocess.run(program, env=os.environ | four, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_results_and_gradients_are_split_as_dense_ones(told):
    assert told[0] == "96 20 8 12 6"


def test_what_jax_refuses_is_refused_by_name(told):
    inner, rows = told[1:3]
    for line in (inner, rows):
        assert line.startswith("ArgumentError: operands must be split over the mesh as those of a")
        assert line.endswith("split them otherwise by jax.sharding.reshard")
    assert "Contracting dimensions are sharded" in inner
    assert "illegally sharded result" in rows


def test_transforms_that_lose_splits_are_refused(told):
    mapped, within, shapes = told[3:6]
    assert "jax.vmap must not map over an axis that the mesh splits over ['d']; leave" in mapped
    assert "arrays must not be split over others that are explicit; name all of them in" in within
    assert shapes.startswith("ShapeError: matmul: shapes (8, 32) @ (16, 32) do not fit")


def test_arrays_are_multiplied_outside_of_the_mesh(told):
    assert told[6:] == ["float32[8@d,16@m]"]
