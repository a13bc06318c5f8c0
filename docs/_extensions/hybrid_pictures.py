"""Pictures of the cost model: its bands by columns, and the tiles of a real layer.

The layer is one of the sentence encoder that ``make demo`` fetches, where that has run; a build
reaches no network, so elsewhere a generated matrix takes its place, and the text says so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import sparse24 as s24
from sparse24 import _demo, _dtypes, families
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid import summary as hybrid_summary

LAYER = "encoder.layer.3"
ATTENTION = ("self.query", "self.key", "self.value", "output.dense")
ZEROS = 0.8
COLUMNS = (16, 512)
COLOURS = {"sparse": "tab:blue", "swing": "tab:orange", "dense": "tab:gray"}
RATES = hybrid_cost.H200_TENSOR


def pruned_layer(checkpoint: Path) -> tuple[np.ndarray, str]:
    """The matrices of a layer side by side, `ZEROS` of the model's are zeros; and what it is."""
    if not checkpoint.exists():
        made = families.make("beta5", (1152, 1536), zeros=ZEROS, dtype="float16", rng=0)
        return (
            made,
            "A matrix of the family ``beta5``; ``make demo`` has fetched no real model here.",
        )
    weights = load_file(checkpoint)
    matrices = [w for name, w in weights.items() if name.startswith("encoder") and w.ndim == 2]
    threshold = np.quantile(np.abs(np.concatenate([w.ravel() for w in matrices])), ZEROS)
    up, down = (weights[f"{LAYER}.{name}.dense.weight"] for name in ("intermediate", "output"))
    attention = np.hstack([weights[f"{LAYER}.attention.{name}.weight"] for name in ATTENTION])
    layer = np.vstack([attention, up.T, down])
    kept = np.where(np.abs(layer) >= threshold, layer, 0).astype(np.float16)
    return kept, (
        f"The fourth of six layers of MiniLM, whose {len(matrices)} matrices were pruned by one "
        f"threshold to {ZEROS:.0%} zeros.  Above query, key, value and output of the attention, "
        "then the first matrix of the feed-forward, transposed, and below it the second."
    )


def band_of(density: np.ndarray, n: int) -> np.ndarray:
    """0, 1 or 2 for tiles of the sparse, the swing and the dense band of an H200."""
    low, high = hybrid_cost.bands(_dtypes.lookup("float16"), n, RATES)
    return np.where(density < low, 0, np.where(density > high, 2, 1))


def write(folder: Path) -> None:
    """Write ``hybrid_bands.png``, ``hybrid_tiles.png`` and ``hybrid_tiles.txt``."""
    w, what = pruned_layer(_demo.checkpoint_path())
    density = hybrid_summary.tile_density(s24.hybrid(w))
    _draw_bands(folder / "hybrid_bands.png")
    _draw_tiles(density, folder / "hybrid_tiles.png")
    lines = [
        ".. image:: /benchmarks/generated/hybrid_tiles.png",
        "   :width: 100%",
        "   :alt: share of non-zeros of every tile of a layer, and the tiles' bands",
        "",
        f"{what}  The emptiest tile has {1 - density.min():.0%} zeros, the fullest "
        f"{1 - density.max():.0%}.  In the sparse band are {_share(density, COLUMNS[0])} of the",
        f"tiles with {COLUMNS[0]} columns, {_share(density, COLUMNS[1])} with {COLUMNS[1]}.",
    ]
    (folder / "hybrid_tiles.txt").write_text("\n".join(lines) + "\n")


def _share(density: np.ndarray, n: int) -> str:
    return f"{np.mean(band_of(density, n) == 0):.0%}"


def _figure(columns: int, size: tuple[float, float]):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)
    return figure, axes[0]


def _draw_bands(path: Path) -> None:
    import matplotlib.pyplot as plt

    columns = np.unique(np.geomspace(1, 4096, 100).astype(int))
    dtype = _dtypes.lookup("float16")
    low, high = np.array([hybrid_cost.bands(dtype, int(n), RATES) for n in columns]).T
    figure, (ax,) = _figure(1, (8, 3.2))
    edges = {"sparse": (0 * low, low), "swing": (low, high), "dense": (high, 0 * high + 1)}
    for name, (bottom, top) in edges.items():
        ax.fill_between(columns, bottom, top, color=COLOURS[name], alpha=0.6, label=name)
    ax.set(xscale="log", xlim=(1, 4096), ylim=(0, 1))
    ax.set(xlabel="columns of the dense operand", ylabel="share of non-zeros in a tile")
    ax.legend(loc="upper right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_tiles(density: np.ndarray, path: Path) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    figure, (left, right) = _figure(2, (9, 3.6))
    image = left.imshow(density, vmin=0, cmap="viridis")
    left.set(title="share of non-zeros", ylabel="tile along m", xlabel="tile along k")
    figure.colorbar(image, ax=left)
    image = right.imshow(
        band_of(density, COLUMNS[1]), vmin=-0.5, vmax=2.5, cmap=ListedColormap([*COLOURS.values()])
    )
    right.set(title=f"band with {COLUMNS[1]} columns", xlabel="tile along k")
    for ax in (left, right):
        ax.set_yticks(range(0, len(density), 6))
    figure.colorbar(image, ax=right, ticks=range(3)).ax.set_yticklabels([*COLOURS])
    figure.savefig(path, dpi=110)
    plt.close(figure)
