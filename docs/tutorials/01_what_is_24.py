"""
What 2:4 is
===========

A matrix is 2:4 sparse if every aligned group of four neighbours along a row holds at most two
non-zeros.  This page makes such a matrix by hand, with NumPy alone, and looks at it.
"""

# %%
# A dense matrix
# --------------
# Random numbers stand for the weights of a layer.

import matplotlib.pyplot as plt
import numpy as np

from sparse24 import plot

rng = np.random.default_rng(0)
weights = rng.standard_normal((16, 32)).astype(np.float32)

# %%
# Prune it
# --------
# In each group the two elements of largest magnitude are kept; the other two become zero.

groups = weights.reshape(16, 8, 4)
order = np.argsort(-abs(groups), axis=-1, kind="stable")
keep = np.zeros(groups.shape, bool)
np.put_along_axis(keep, order[..., :2], True, axis=-1)
pruned = np.where(keep, groups, 0).reshape(weights.shape)
pruned[:2, :8]

# %%
# The picture shows zeros in white.  Orange lines separate the groups: after pruning, each holds at
# most two dark squares.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
plot.spy(weights, ax=left).set_title("dense")
plot.spy(pruned, ax=right).set_title("2:4")
plt.show()

# %%
# What is kept
# ------------
# Half of the elements are gone, but much less than half of the *energy*, the sum of squares: the
# dropped elements are the small ones.

energy = (pruned**2).sum() / (weights**2).sum()
print(f"{energy:.1%} of the sum of squares is kept")

# %%
# Why this pattern
# ----------------
# Each group is stored as two elements and a few bits that say which two, so all groups take the
# same space.  All rows therefore have the same length, addresses can be computed, and the Tensor
# Cores of NVIDIA GPUs since Ampere select the matching elements of the other operand in hardware:
# the same result with half the multiplications.  Zeros without a pattern lack this regularity:

figure, axes = plt.subplots(1, 2, figsize=(9, 2.6), layout="constrained", sharey=True)
unstructured = np.where(abs(weights) > np.median(abs(weights)), weights, 0)
plot.group_histogram(unstructured, ax=axes[0]).set_title("any half of the elements")
plot.group_histogram(pruned, ax=axes[1]).set_title("2:4")
plt.show()

# %%
# Groups in red do not fit the pattern: they hold more than two non-zeros.

# %%
# Where to go next
# ----------------
# :doc:`/gallery/02_prune_compress_multiply` prunes with one call, stores the result in half the
# memory, and multiplies with it.  :doc:`/explanation/layout` shows which bits are stored.
