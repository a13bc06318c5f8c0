"""What is shown of a hybrid matrix: its summary, its density and the map of its tiles."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24 import families
from sparse24._errors import ArgumentError, DTypeError
from sparse24._to_hybrid import hybrid

pytestmark = pytest.mark.stem("hybrid_tiles")


def test_summary_tells_bands_memory_and_choice(rng):
    h = hybrid(families.make("beta2", (512, 512), zeros=0.7, rng=rng), n_hint=4096)
    text = h.summary()
    for word in ("bitmap", "swing", "dense", "CSR", "choice  cpu", "n = 4096"):
        assert word in text
    assert h.explain(32)["choice"] == "cpu"
    assert repr(h).startswith("<HybridArray 512x512 float32, ")


@pytest.mark.parametrize(
    ("held", "zeros"),
    [
        (0, "100.0%"),
        (1, "99.9994%"),
        (8, "99.995%"),
        (80, "99.95%"),
        (800, "99.5%"),
        (8000, "95.1%"),
    ],
)
def test_hardly_any_elements_do_not_read_as_none(held, zeros):
    w = np.zeros((400, 410), np.float32)
    w.reshape(-1)[:held] = 1
    assert repr(hybrid(w)) == f"<HybridArray 400x410 float32, {zeros} zeros, cpu>"


@pytest.mark.parametrize("what", ["kind", "density"])
def test_tile_map(rng, what):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from sparse24 import plot

    h = hybrid(families.make("beta2", (256, 192), zeros=0.7, rng=rng))
    ax = plot.tile_map(h, what=what)
    assert ax.images[0].get_array().shape == (4, 3)
    assert all(tick == int(tick) for tick in (*ax.get_xticks(), *ax.get_yticks()))
    with pytest.raises(ArgumentError, match="'kind', 'density'"):
        plot.tile_map(h, what="size")
    with pytest.raises(ArgumentError, match="h must be a HybridArray, got ndarray"):
        plot.tile_map(np.eye(4))


@pytest.mark.parametrize("shape", [(100, 150), (128, 64), (3, 70), (0, 8), (8, 0)])
def test_tile_map_shows_full_tiles_at_the_edges_as_full(shape):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from sparse24 import plot

    w = np.ones(shape, np.float32)
    w[:2, :2] = 0
    shown = np.asarray(plot.tile_map(hybrid(w), what="density").images[0].get_array())
    wanted = [
        [w[i : i + 64, j : j + 64].mean() for j in range(0, max(shape[1], 1), 64)]
        for i in range(0, shape[0], 64)
    ]
    assert shown.size == 0 or np.allclose(shown, wanted)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_refused_types_are_not_told_to_become_fp8(dtype):
    w = np.eye(8)
    with pytest.raises(DTypeError, match=r"^w\.dtype must be .* float64, int8, got") as refused:
        hybrid(w.astype(dtype))
    assert "fp8" not in str(refused.value)
    with pytest.raises(DTypeError, match=r"^dtype must be .* int8 for a hybrid .*; name one of"):
        hybrid(w, dtype="float8_e5m2")
