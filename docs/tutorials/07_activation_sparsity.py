"""
Activation sparsity
===================

Weights are not the only operand that can be sparse.  After a relu, and more so after a squared
relu, many activations are zero or small, and the small ones matter little.  If two of every four
features of a token are kept, the second product of a feed-forward layer runs on the 2:4 kernels
while the weights stay dense: nothing has to be retrained to fit a mask.  This page measures
what that costs on a small network.  It runs on the CPU in a few seconds; with float16 or bfloat16
CuPy arrays the same calls run on the GPU, where activation, pruning, packing and quantisation to
fp8 are one pass.
"""

# %%
# A network
# ---------
# A classifier of handwritten digits, whose hidden layer is a relu.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import sparse24 as s24

images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    (images / 16).astype(np.float32), labels, test_size=0.4, random_state=0
)
network = MLPClassifier((256,), max_iter=200, tol=1e-3, random_state=0).fit(x_train, y_train)
up, down = (matrix.astype(np.float32) for matrix in network.coefs_)
bias_up, bias_down = (vector.astype(np.float32) for vector in network.intercepts_)


def accuracy(scores):
    return (scores.argmax(1) == y_test).mean()


before = x_test @ up + bias_up  # (images, features), before the activation
dense = np.maximum(before, 0) @ down + bias_down
print(f"dense: {accuracy(dense):.1%} of the test images")
print(f"{(before <= 0).mean():.0%} of the activations are zero")

# %%
# Two of every four features
# --------------------------
# :func:`sparse24.activate_compress` applies the activation, keeps the two largest of every four
# features of each image, and stores them as a 2:4 operand.

active = s24.activate_compress(before, "relu")
print(active)
sparse = active @ down + bias_down
print(f"2:4 activations: {accuracy(sparse):.1%}")

# %%
# A relu alone does not make the activations 2:4: a group can have three or four positive features.
# Pruning drops the smaller of them, which hold little of the energy (the sum of squares):

full = np.maximum(before, 0)
print(f"{(active.toarray() ** 2).sum() / (full**2).sum():.1%} of the energy is kept")
print("2:4 without pruning:", s24.is_24(full))

# %%
# Eight bits
# ----------
# ``quantise=True`` stores the result in fp8, scaled so that the largest activation of each image
# becomes 448, the largest number of the type.  The product takes the scales.

eighth, scales = s24.activate_compress(before, "relu", quantise=True)
weights = down.astype(eighth.dtype)
product = s24.matmul(eighth, weights, scales=(scales, 1.0)).astype(np.float32)
share = eighth.nbytes / full.nbytes
print(f"2:4 and fp8: {accuracy(product + bias_down):.1%}, {share:.0%} of the bytes")

# %%
# Squared relu
# ------------
# Squaring makes large activations larger, so pruning loses less of the energy.  Here are the shares
# of the energy that 2:4 keeps, for the same inputs.

kept = {}
for name, wide in (("relu", full), ("relu2", full**2)):
    pruned = s24.activate_compress(before, name).toarray()
    kept[name] = (pruned**2).sum(1) / np.maximum((wide**2).sum(1), 1e-12)
    print(f"{name}: {kept[name].mean():.1%}")

figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.hist(list(kept.values()), bins=30, label=list(kept))
axes.set_xlabel("share of an image's activation energy that 2:4 keeps")
axes.set_ylabel("images")
axes.legend()
plt.show()

# %%
# Where to go next
# ----------------
# :doc:`/how_to/training_recipes` trains with sparse activations, and says what that cost and gained
# on a language model.  :doc:`/explanation/packing_kernels` explains how one pass does all of it.
