"""
Prune, compress, multiply
=========================

This page takes a dense weight to a sparse product in three steps, and shows how much memory they
save and what pruning costs.  It runs on the CPU; given CuPy arrays, the same calls run on their
GPU and return CuPy arrays.
"""

# %%
# Prune
# -----
# :func:`sparse24.prune` zeroes two of every four neighbours along the last axis and returns an
# ordinary array.

import matplotlib.pyplot as plt
import numpy as np

import sparse24 as s24

rng = np.random.default_rng(0)
weight = rng.standard_normal((1024, 2048)).astype(np.float32)
pruned = s24.prune(weight)
print(s24.is_24(weight), s24.is_24(pruned))

# %%
# Compress
# --------
# :func:`sparse24.compress` stores what is left.  It refuses a matrix that does not obey the
# pattern: dropping elements silently would give wrong results.

try:
    s24.compress(weight)
except s24.PatternError as error:
    print(error)

# %%
# Compressing a pruned matrix loses nothing; ``on_excess="prune"`` does both steps in one pass.

A = s24.compress(pruned)
B = s24.compress(weight, on_excess="prune")
assert (A.toarray() == pruned).all()
assert (B.toarray() == pruned).all()
print(A)

# %%
# ``values`` holds two elements of each group of four, ``metadata`` a 4-bit code with their
# positions, two codes to a byte.

print(A.values.shape, A.metadata.shape)
print(f"{A.nbytes / weight.nbytes:.1%} of the dense bytes")

# %%
# Multiply
# --------
# ``@`` works from both sides.  In ``A @ b`` the groups of four run along the axis that is summed
# over, so the kernel skips the zeros.  A linear layer computes ``x @ A.T``, the same product
# transposed.

x = rng.standard_normal((32, 2048)).astype(np.float32)
y = x @ A.T
assert np.allclose(y, x @ pruned.T, rtol=1e-4, atol=1e-4)
print(y.shape)

# %%
# :func:`sparse24.linear` adds bias and activation in the same pass:

bias = rng.standard_normal(1024).astype(np.float32)
h = s24.linear(x, A, bias, activation="relu")
assert np.allclose(h, np.maximum(x @ pruned.T + bias, 0), rtol=1e-4, atol=1e-4)

# %%
# Which kernel ran, and why:

print(s24.explain(x, A.T))

# %%
# Where this says that a dense product would be faster, ``compress(..., keep_dense=True)`` keeps
# the dense matrix as well, so that the dense product can be chosen.

# %%
# What pruning costs
# ------------------
# The two largest of four random normal numbers carry most of the energy (the sum of squares), and
# trained weights are similar.  A network may still lose accuracy; calibration and training with
# masks reduce that loss.

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
bins = np.linspace(-4, 4, 81)
ax.hist(weight.ravel(), bins, label="dense", color="lightgray")
ax.hist(pruned[pruned != 0], bins, label="kept", color="tab:blue", alpha=0.7)
ax.set(xlabel="value", ylabel="elements")
ax.legend(frameon=False)
energy = (pruned.astype(np.float64) ** 2).sum() / (weight.astype(np.float64) ** 2).sum()
ax.set_title(f"{energy:.1%} of the sum of squares is kept")
plt.show()

# %%
# Save it
# -------
# The file holds the compressed form.  ``load_safetensors(path, device="cuda")`` reads it to a GPU.

import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "layer.safetensors"
    s24.save_safetensors(path, {"weight": A, "bias": bias})
    loaded = s24.load_safetensors(path)
assert (loaded["weight"].toarray() == pruned).all()

# %%
# Where to go next
# ----------------
# - Is it faster for your shapes?  :doc:`/how_to/when_24_pays` predicts and measures it.
# - :doc:`/how_to/products` has all options of a product: ``out=``, 8 and 4 bits, streams, graphs.
# - One command converts a whole checkpoint: :doc:`/how_to/checkpoints`.
# - Masks that cost less accuracy: :doc:`/gallery/03_better_than_magnitude`, and with training
#   :doc:`/gallery/04_sparse_training`.
# - A matrix whose zeros lie anywhere: :doc:`/gallery/05_scipy_on_tensor_cores`.
