"""A small checkpoint for the tests of the command line, and how a command is run."""

from __future__ import annotations

import numpy as np

from sparse24 import _cli, _dtypes, _raw_writers

BFLOAT16 = _dtypes.TABLE["bfloat16"].logical


def small_checkpoint(rng) -> dict[str, np.ndarray]:
    """Arrays by name: two matrices that are eligible, and what is not."""

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "embeddings.word.weight": normal(80, 40),
        "layer.0.weight": normal(48, 36),
        "layer.1.weight": normal(40, 64).astype(BFLOAT16),
        "layer.1.bias": normal(40),
        "layer.2.weight": normal(8, 8),
        "ids": np.arange(4),
    }


def saved(arrays, folder):
    """The path of a safetensors file of these arrays."""
    path = folder / "model.safetensors"
    _raw_writers.write_safetensors(path, arrays, None)
    return path


def run(capsys, *arguments, code=0):
    """What a command prints, or says of its error, if it ends with this exit code."""
    assert _cli.main([str(x) for x in arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out
