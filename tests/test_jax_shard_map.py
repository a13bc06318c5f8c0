"""Products and layers within ``jax.shard_map``, with gradients."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.buffer_callback")
if not hasattr(jax, "shard_map"):
    pytest.skip("jax.shard_map came with JAX 0.6", allow_module_level=True)

import jax_shards  # noqa: E402

from sparse24._jax import axes as jax_axes  # noqa: E402

COMPARED = "88"


@pytest.mark.parametrize("kind", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_gradients_on_one_device(kind):
    try:
        device = jax.devices(kind)[0]
    except RuntimeError:
        pytest.skip(f"JAX has no {kind} here")
    with jax.default_device(device), jax.default_matmul_precision("highest"):
        there = f"cuda:{device.local_hardware_id}" if kind == "gpu" else "cpu"
        move = lambda A: A.to_device(there)  # noqa: E731
        assert str(jax_shards.compared([device], move)) == COMPARED


def test_gradients_on_two_devices():
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    program = [sys.executable, "-P", str(Path(jax_shards.__file__))]
    done = subprocess.run(program, env=os.environ | two, capture_output=True, text=True)
    assert done.stdout.strip() == COMPARED, done.stderr


class Old:
    """The type of an array, as releases of JAX before 0.10 have it."""

    vma = frozenset({"d"})


def test_releases_of_jax_name_the_axes_in_several_ways(monkeypatch):
    x = object()
    monkeypatch.setattr(jax, "typeof", lambda x: Old())
    assert jax_axes.varying(x, None) == {"d"}
    cast = lambda x, axes: (x, axes)  # noqa: E731
    monkeypatch.delattr(jax.lax, "pcast", raising=False)
    monkeypatch.setattr(jax.lax, "pvary", cast, raising=False)
    assert jax_axes.vary(x, frozenset({"d", "e"})) == (x, ("e",))
    assert jax_axes.vary(x, frozenset({"d"})) is x
    monkeypatch.delattr(jax, "typeof")
    assert jax_axes.varying(x) == frozenset()
