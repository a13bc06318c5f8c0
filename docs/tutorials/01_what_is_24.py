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
# Of each group the two elements of largest magnitude stay; the other two become zero.

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
# Half of the elements are gone, but not half of what they carry: the small ones were dropped.

energy = (pruned**2).sum() / (weights**2).sum()
print(f"{energy:.1%} of the sum of squares is kept")

# %%
# Why this pattern
# ----------------
# With two stored of every four, and a few bits that say which, each group takes the same space.  So
# rows have the same length, addresses can be computed, and the Tensor Cores of NVIDIA GPUs since
# Ampere select the matching elements of the other operand in hardware: the same result in half
# the multiplications.  Zeros without a pattern give no such regularity:

figure, axes = plt.subplots(1, 2, figsize=(9, 2.6), layout="constrained", sharey=True)
unstructured = np.where(abs(weights) > np.median(abs(weights)), weights, 0)
plot.group_histogram(unstructured, ax=axes[0]).set_title("any half of the elements")
plot.group_histogram(pruned, ax=axes[1]).set_title("2:4")
plt.show()

# %%
# Groups in red do not fit into the pattern: they hold more than two non-zeros.

# %%
# Where to go next
# ----------------
# :doc:`/gallery/02_prune_compress_multiply` does the same with three calls, in half the memory, and
# multiplies with it.  :doc:`/explanation/layout` shows which bits are stored.
