"""
A SciPy matrix on Tensor Cores
==============================

Most sparse matrices are not 2:4.  :func:`sparse24.hybrid` takes any of them, from SciPy, CuPy or
NumPy, keeps every element, and multiplies with the kernel that a cost model predicts to be the
fastest.  This page runs on the CPU; the same calls multiply a CuPy or cupyx matrix on its GPU.
"""

# %%
# Any matrix
# ----------
# When a whole network is pruned by one threshold, its layers have dense and nearly empty regions.
# The family ``beta2`` imitates that: some 70 % zeros in all, spread unevenly over tiles of 64 by
# 64.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator, svds

import sparse24 as s24
from sparse24 import families, plot

dense = families.make("beta2", (1024, 1536), zeros=0.7, rng=0)
weights = scipy.sparse.csr_array(dense)
print(f"{weights.nnz / dense.size:.1%} non-zeros, 2:4: {s24.is_24(dense)}")

# %%
# Store it
# --------
# Each tile is stored as empty, dense, 2:4 with a list of the elements that do not fit, a bitmap
# with its non-zeros, or non-zeros with their places, whichever the cost model finds cheapest for
# products with ``n_hint`` columns.  The line ``bands`` of the summary counts the tiles that are so
# full that the dense kind is the cheapest, those so empty that a coded kind is, and between them
# the *swing* tiles, for which both cost nearly the same.

H = s24.hybrid(weights, n_hint=256)
print(H.summary())

# %%
# Nothing is lost: the dense matrix comes back bit for bit.

assert np.array_equal(H.toarray(), dense)

# %%
# The tiles
# ---------
# The left picture shows how full each tile is, the right one how it is stored.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
plot.tile_map(H, what="density", ax=left).set(title="share of non-zeros")
plot.tile_map(H, what="kind", ax=right).set(title="kind")
plt.show()

# %%
# Multiply
# --------
# Matrices, vectors, stacks and products from the left work as in NumPy.

b = np.random.default_rng(1).standard_normal((1536, 64)).astype(np.float32)
error = np.abs(H @ b - dense @ b).max()
print(f"largest difference from NumPy: {error:.1e}")
assert (b.T @ H.T).shape == (64, 1024)
assert (H @ b[:, 0]).shape == (1024,)

# %%
# A layer
# -------
# A layer's weight has one row for each output, so the product is ``tokens @ H.T``.
# :func:`sparse24.linear` adds a bias and an activation; no transposed copy of the matrix is made.

tokens = np.random.default_rng(2).standard_normal((2, 16, 1536)).astype(np.float32)
hidden = s24.linear(tokens, H, np.zeros(1024, np.float32), activation="gelu")
assert hidden.shape == (2, 16, 1024)

# %%
# An operator for SciPy's solvers
# -------------------------------
# The matrix has ``matvec`` and ``rmatvec``, so SciPy's iterative methods accept it.

leading = svds(aslinearoperator(H), k=1, return_singular_vectors=False, random_state=0)
print(f"largest singular value {leading[0]:.1f}")

# %%
# A graph
# -------
# The same call takes matrices with hardly any elements.  If a sparse matrix has fewer than one
# non-zero in 1000 elements, its rows are stored instead of tiles, in the memory that CSR takes.
# Here each node of a graph takes the mean of its neighbours' features, as a graph network does in
# each layer.  The matrix never becomes dense, not even on a GPU.  :func:`sparse24.torch.matmul` is
# the same product with a gradient for the features.

nodes, degree = 20_000, 8
neighbours = np.random.default_rng(3).integers(0, nodes, (nodes, degree))
places = np.arange(nodes).repeat(degree), neighbours.ravel()
edges = scipy.sparse.coo_array((np.full(neighbours.size, 1 / degree), places), (nodes, nodes))
graph = s24.hybrid(edges, dtype="float32")
features = np.random.default_rng(4).standard_normal((nodes, 32)).astype(np.float32)

means = graph @ features
assert np.allclose(means, features[neighbours].mean(axis=1), atol=1e-5)
print(graph)

# %%
# Save it
# -------
# The file holds plain arrays, which are checked when they are read.

with tempfile.TemporaryDirectory() as folder:
    s24.save_npz(Path(folder) / "weights.npz", H)
    again = s24.load_npz(Path(folder) / "weights.npz")
assert np.array_equal(again.toarray(), dense)

# %%
# Which path, and why
# -------------------
# A *path* is one way to multiply the matrix.  ``H.explain`` lists the paths with their predicted
# times in seconds; those on the CPU are rough, and for one thread.  If the dense product is
# predicted to win, it is chosen, and the reason says so.

H.explain(n=16)

# %%
# Where to go next
# ----------------
# :doc:`/explanation/hybrid` explains how each path works and from what share of zeros on it beats
# the dense product; :doc:`/how_to/other_libraries` has more on SciPy, and on torch and JAX.
