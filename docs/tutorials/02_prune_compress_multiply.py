"""
Prune, compress, multiply
=========================

The three steps from a dense weight to a sparse product, what they save and what pruning costs.
This page runs on the CPU; given CuPy arrays, the same calls run on their GPU and return CuPy
arrays.
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
# :func:`sparse24.compress` stores what is left.  A matrix that does not obey the pattern is
# refused, because dropping elements silently would be a wrong result:

try:
    s24.compress(weight)
except s24.PatternError as error:
    print(error)

# %%
# Given a pruned matrix it loses nothing; ``on_excess="prune"`` does both steps in one pass.

A = s24.compress(pruned)
B = s24.compress(weight, on_excess="prune")
assert (A.toarray() == pruned).all()
assert (B.toarray() == pruned).all()
print(A)

# %%
# ``values`` holds two elements of every four, ``metadata`` four bits that say where they stood.

print(A.values.shape, A.metadata.shape)
print(f"{A.nbytes / weight.nbytes:.1%} of the dense bytes")

# %%
# Multiply
# --------
# ``@`` works from both sides.  From the left the groups run along the axis that is summed over, so
# the kernel skips the zeros; a layer computes ``x @ A.T``, which is the same product transposed.

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
# Where it says that a dense product would be faster still, ``compress(..., keep_dense=True)`` keeps
# the dense matrix too and lets that product run.

# %%
# What pruning costs
# ------------------
# The two largest of four random normal numbers carry most of the energy (the sum of squares), and
# trained weights are similar.  A network may still lose accuracy; that is what
# calibration and training with masks are for.

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
# - Does it pay for your shapes?  :doc:`/how_to/when_24_pays` predicts and measures it.
# - :doc:`/how_to/products` has the rest of multiplying: ``out=``, 8-bit types, streams and graphs.
# - A whole checkpoint takes one command: :doc:`/how_to/checkpoints`.
# - Masks that cost less: :doc:`/gallery/03_better_than_magnitude`, and with training
#   :doc:`/gallery/04_sparse_training`.
# - A matrix whose zeros lie anywhere: :doc:`/gallery/05_scipy_on_tensor_cores`.
