"""
Better than magnitude
=====================

Pruning by magnitude looks at the weights alone.  But a weight hardly matters, however large, if the
feature that it multiplies is always small; and the remaining weights can compensate for the pruned
ones.  This page prunes a small network in one shot, without training it again, and compares ways to
choose the mask.  It runs on the CPU in a few seconds.
"""

# %%
# A network
# ---------
# A classifier of handwritten digits with two hidden layers.

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import sparse24 as s24

images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    images / 16, labels, test_size=0.4, random_state=0
)
trained = MLPClassifier((128, 128), max_iter=300, tol=1e-3, random_state=0)
trained.fit(x_train, y_train)
weights = [matrix.T.copy() for matrix in trained.coefs_]  # (outputs, inputs) each
biases = [vector.copy() for vector in trained.intercepts_]


def layers(x, weights, biases):
    """The inputs of every layer, then the outputs of the last."""
    seen = [x]
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = x @ weight.T + bias
        x = np.maximum(x, 0) if i < len(weights) - 1 else x
        seen.append(x)
    return seen


def accuracy(weights, biases):
    return (layers(x_test, weights, biases)[-1].argmax(1) == y_test).mean()


print(f"dense: {accuracy(weights, biases):.1%} of the test images")

# %%
# Magnitude
# ---------
# The hidden layers keep one of every four weights, fewer than 2:4 would, so that differences
# between the methods show; the last layer stays dense.  :func:`sparse24.report` lists what was
# kept.

PATTERN = (1, 4)
results = {}

by_size = [s24.prune(w, pattern=PATTERN) for w in weights[:2]] + weights[2:]
results["magnitude"] = accuracy(by_size, biases)
print(f"magnitude: {results['magnitude']:.1%}")
print(s24.report({"first": by_size[0], "second": by_size[1]},
                 {"first": weights[0], "second": weights[1]}, pattern=PATTERN))  # fmt: skip

# %%
# Look at the inputs
# ------------------
# *Wanda* ranks a weight by its magnitude times the norm of its input.  The inputs come from some of
# the training images; a :class:`sparse24.Calibration` accumulates the statistics that the methods
# need, batch by batch if there are many.

calibration_images = x_train[:400]
inputs = layers(calibration_images, weights, biases)
by_input = [
    s24.prune(w, pattern=PATTERN, method="wanda", calibration=s24.Calibration(x))
    for w, x in zip(weights[:2], inputs[:2], strict=True)
] + weights[2:]
results["wanda"] = accuracy(by_input, biases)
print(f"wanda: {results['wanda']:.1%}")

# %%
# Let the remaining weights compensate
# ------------------------------------
# ``method="sparsegpt"`` rates every way to prune a group by the error that remains in the layer's
# outputs after the weights to the right of the group have been adjusted, and then adjusts them.  It
# changes values, not only which of them are zero.

second_order = [
    s24.prune(w, pattern=PATTERN, method="sparsegpt", calibration=s24.Calibration(x))
    for w, x in zip(weights[:2], inputs[:2], strict=True)
] + weights[2:]
results["sparsegpt"] = accuracy(second_order, biases)
print(f"sparsegpt: {results['sparsegpt']:.1%}")

# %%
# Layer by layer, towards the dense outputs
# -----------------------------------------
# Once the first layer is pruned, the second sees other inputs.  So prune in order: give each layer
# the inputs that the pruned layers before it produce, and as *targets* the outputs of the dense
# network.  :func:`sparse24.refit` then finds the best values under the mask, and
# :meth:`Calibration.new_bias <sparse24.Calibration.new_bias>` adapts the bias.

new_weights, new_biases = list(weights), list(biases)
for i in range(2):
    x = layers(calibration_images, new_weights, new_biases)[i]
    target = inputs[i] @ weights[i].T + biases[i]
    seen = s24.Calibration(x, target, bias=True)
    options = {"calibration": seen, "damping": 0.1}
    pruned = s24.prune(weights[i], pattern=PATTERN, method="sparsegpt", **options)
    new_weights[i] = s24.refit(pruned, weights[i], **options)
    new_biases[i] = seen.new_bias(new_weights[i])
results["sequential"] = accuracy(new_weights, new_biases)
print(f"sequential: {results['sequential']:.1%}")

# %%
# Permute the columns
# -------------------
# Which columns share a group is an accident of their order.  :func:`sparse24.find_permutation`
# groups columns whose large weights lie in different rows, and :func:`sparse24.fold_permutation`
# makes the preceding layer produce its outputs in that order, so that nothing has to be permuted
# at run time.  The dense network computes the same as before.

scores = np.abs(weights[1]) * s24.Calibration(inputs[1]).norms
started = time.perf_counter()
order = s24.find_permutation(scores, pattern=PATTERN)
print(f"found in {time.perf_counter() - started:.2f} s")
first, second, bias = s24.fold_permutation(order, weights[0], weights[1], bias=biases[0])
folded_weights, folded_biases = [first, second, weights[2]], [bias, *biases[1:]]
same = np.allclose(layers(x_test, folded_weights, folded_biases)[-1],
                   layers(x_test, weights, biases)[-1])  # fmt: skip
print("the dense network is unchanged:", same)

for name, ordered in (("as it was", weights[1]), ("permuted", second)):
    kept = s24.report(s24.prune(ordered, pattern=PATTERN), ordered, pattern=PATTERN)
    print(f"{name}: {kept.kept_magnitude:.2%} of the magnitude kept")

# %%
# Compare
# -------

figure, ax = plt.subplots(figsize=(6, 2.6), layout="constrained")
ax.barh(list(results), list(results.values()), color="#4C78A8")
ax.axvline(accuracy(weights, biases), color="#E45756", label="dense")
ax.set(xlim=(0, 1), xlabel="share of test images recognised")
ax.invert_yaxis()
figure.legend(loc="outside upper right")
plt.show()

# %%
# The result is ready for the kernels: 1:4 is a special case of 2:4.

A = s24.compress(new_weights[1].astype(np.float32), pattern=PATTERN)
print(A)
y = A @ inputs[1].T.astype(np.float32)
print(np.allclose(y, new_weights[1] @ inputs[1].T, atol=1e-3))

# %%
# Where to go next
# ----------------
# :doc:`/how_to/checkpoints` prunes a whole checkpoint by these methods, given inputs of its layers;
# :doc:`/explanation/masks` explains how they work.  If there is time to train with the masks, go on
# with :doc:`/gallery/04_sparse_training`.
