"""
Sparse training with a scheduler
================================

A network that will run sparse can be trained sparse.  Here a small network, written in NumPy,
learns scikit-learn's handwritten digits while a scheduler takes its weights from dense to 2:4.
The same network is then trained with SR-STE and with the two-level
:class:`~sparse24.schedule.DynamicScheduler`.
"""

# %%
# A network by hand
# -----------------
# Two layers, softmax, cross-entropy; forward and backward are a dozen lines.  Nothing here knows
# of sparsity.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import sparse24 as s24
from sparse24 import schedule

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
images, labels = images[order].astype(np.float32) / 16, labels[order]
train, test = slice(None, 1347), slice(1347, None)


def initial():
    rng = np.random.default_rng(1)
    w1 = rng.normal(size=(128, 64)) * np.sqrt(2 / 64)
    w2 = rng.normal(size=(10, 128)) * np.sqrt(2 / 128)
    return {"w1": w1.astype(np.float32), "w2": w2.astype(np.float32)}


def gradients(weights, x, label):
    hidden = np.maximum(x @ weights["w1"].T, 0)
    scores = hidden @ weights["w2"].T
    chance = np.exp(scores - scores.max(1, keepdims=True))
    chance /= chance.sum(1, keepdims=True)
    chance[np.arange(len(x)), label] -= 1
    back = (chance @ weights["w2"]) * (hidden > 0)
    return {"w1": back.T @ x / len(x), "w2": chance.T @ hidden / len(x)}


def accuracy(weights):
    hidden = np.maximum(images[test] @ weights["w1"].T, 0)
    return ((hidden @ weights["w2"].T).argmax(1) == labels[test]).mean()


# %%
# The loop
# --------
# The weights stay dense.  At each step the scheduler takes the gradients and the weights and
# returns masks.  Forward and backward use the *masked* weights; the optimizer, SGD with momentum,
# updates the dense ones.

STEPS = 500


def learn(scheduler=None, straight_through=False, decay=0.0):
    rng = np.random.default_rng(2)
    weights, masks = initial(), {}
    momentum = {name: np.zeros_like(w) for name, w in weights.items()}
    for _ in range(STEPS):
        rows = rng.integers(0, 1347, 128)
        used = schedule.apply_masks(weights, masks)
        grads = gradients(used, images[rows], labels[rows])
        if scheduler is not None:
            masks = scheduler.step(weights=weights, gradients=grads)
        for name, grad in grads.items():
            if name in masks:
                grad = grad if straight_through else grad * masks[name]
                grad = schedule.sr_ste_gradient(weights[name], grad, masks[name], decay)
            momentum[name] = 0.9 * momentum[name] + grad
            weights[name] -= 0.2 * momentum[name]
    return schedule.apply_masks(weights, masks), masks


dense, _ = learn()
print(f"dense      {accuracy(dense):.3f}")

# %%
# Gradual, to 2:4
# ---------------
# A recipe combines parts: the *schedule* (how sparse at which step, here a cubic ramp that ends
# at half time), the *criterion* (which weights are pruned, by default those of least magnitude)
# and the *pattern*.  A fixed 2:4 pattern has a single sparsity, so it cannot follow a ramp.
# :class:`~sparse24.schedule.Elastic` with ``least=2`` makes each tile 4:4, 3:4 or 2:4, so that
# any sparsity on the way is met, in steps of a part of a tile, and ends as 2:4 everywhere.

recipe = schedule.Recipe(
    schedule.CubicScheduler(0.5, stop=STEPS // 2, every=10),
    pattern=schedule.Elastic(tile=(2, 32), least=2),
)
telemetry = schedule.Telemetry()
gradual, masks = learn(schedule.MaskScheduler({"w1": recipe, "*": None}, telemetry=telemetry))
print(f"gradual    {accuracy(gradual):.3f}, 2:4: {s24.is_24(gradual['w1'])}")

# %%
# Telemetry records how the masks changed.  The *flip rate*, the share of a mask that changes in an
# update, falls as the masks settle; a rate that stays high late in training is a sign of trouble.

telemetry.plot()
plt.show()

# %%
# SR-STE
# ------
# SR-STE is 2:4 from the first step: it chooses the mask anew at every step, passes the whole
# gradient to the dense weights (straight-through), and lets pruned weights decay.

steady, _ = learn(
    schedule.MaskScheduler({"w1": schedule.sr_ste(), "*": None}), straight_through=True, decay=2e-4
)
print(f"SR-STE     {accuracy(steady):.3f}, 2:4: {s24.is_24(steady['w1'])}")

# %%
# Two levels: a global schedule, and layers that adapt
# ----------------------------------------------------
# :class:`~sparse24.schedule.DynamicScheduler` sets how sparse the model is as a whole, here from
# 0.3 to 0.6 on a cosine.  Each layer has a ``LayerWiseAdapter``, which moves the layer's threshold
# with its gradients: a layer that still learns keeps more weights.  The total stays exact.

scheduler = schedule.DynamicScheduler(
    init_sparsity=0.3,
    scheduler=schedule.CosineScheduler(target_sparsity=0.6, stop=STEPS // 2, every=10),
)
dynamic, masks = learn(scheduler)
zeros = {name: f"{(~mask).mean():.3f}" for name, mask in masks.items()}
total = sum(mask.size for mask in masks.values())
print(f"dynamic    {accuracy(dynamic):.3f}, zeros by layer {zeros}")
count = sum(int((~mask).sum()) for mask in masks.values())
print(f"zeros      {count} of {total}, exactly 60 %, rounded down")

# %%
# Use it
# ------
# The trained 2:4 weight is compressed once.  From then on the layer is a sparse product, here on
# the CPU or, with CuPy arrays, on the Tensor Cores of a GPU.

w1 = s24.compress(gradual["w1"])
hidden = s24.linear(images[test], w1, activation="relu")
print(w1)
print("the same digits:", (hidden @ gradual["w2"].T).argmax(1)[:10], labels[test][:10])

# %%
# Stop and resume
# ---------------
# The state is a dictionary of numbers and packed masks, which a scheduler constructed in the same
# way loads.  Resumed training equals uninterrupted training bit for bit, even in the middle of
# accumulating scores.

saved = scheduler.state_dict()
again = schedule.DynamicScheduler(
    init_sparsity=0.3,
    scheduler=schedule.CosineScheduler(target_sparsity=0.6, stop=STEPS // 2, every=10),
)
again.load_state_dict(saved)
grads = gradients(dynamic, images[train], labels[train])
masks = scheduler.step(weights=dynamic, gradients=grads)
same = again.step(weights=dynamic, gradients=grads)  # its first step, which restores the state
print("masks agree:", all((same[name] == masks[name]).all() for name in masks))

# %%
# Where to go next
# ----------------
# :doc:`/how_to/training_recipes` says which method suits a large model, and what each cost in
# loss and gained in time.  :mod:`sparse24.torch` has layers that use these masks;
# :doc:`/reference/schedule` lists all parts of a recipe.
