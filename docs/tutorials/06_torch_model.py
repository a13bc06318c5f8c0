"""
2:4 in a torch model
====================

``sparse24.torch`` swaps linear layers for layers whose products are 2:4 sparse.  Parameters,
optimizers, checkpoints, autocast and ``torch.compile`` work as before.  This page runs on the CPU
and shows the behaviour; the speed-up needs a GPU.
"""

# %%
# A small transformer layer
# -------------------------

import torch

import sparse24 as s24
from sparse24 import schedule
from sparse24 import torch as st

torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(torch.nn.functional.relu(self.up(self.norm2(x))))


model = torch.nn.Sequential(Block(), torch.nn.Linear(64, 64))

# %%
# Make layers sparse
# ------------------
# Layers are selected by name patterns; all others stay dense.  ``transposable=True`` prunes by
# 4x4 tiles, so that the backward product with the weight is sparse as well; ``decay`` is SR-STE's
# pull of pruned weights towards zero.

rule = {"transposable": True, "decay": 1e-3}
st.sparsify(model, {"*.up": rule, "*.down": rule})
print(model[0].up)
print(model[0].down)

# %%
# Train
# -----
# The model learns to reproduce a fixed function of random sequences.  By default a layer chooses
# its mask anew from the magnitudes at each call, and the whole gradient reaches the dense weight
# (straight-through).  Here a scheduler sets the masks instead and renews them every 10 steps up
# to step 100.

scheduler = schedule.MaskScheduler(
    schedule.Recipe(
        schedule.ConstantScheduler(0.5, every=10, stop=100),
        pattern=schedule.Transposable24(),
    ),
    telemetry=schedule.Telemetry(),
)
teacher = torch.randn(64, 64) / 8
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(150):
    x = torch.randn(16, 8, 64)
    loss = torch.nn.functional.mse_loss(model(x), torch.tanh(x @ teacher))
    optimizer.zero_grad()
    loss.backward()
    st.update_masks(model, scheduler, optimizer)
    optimizer.step()
    if step % 30 == 0 or step == 149:
        print(f"step {step:3d}  loss {loss.item():.3f}")

# %%
# The masks settle.  This is the flip rate of one of them, the share that changes, update by update;
# without the decay it would stay near 0.2.

print([f"{rate:.3f}" for rate in scheduler.telemetry.column("flip_rate", "0.up")])

# %%
# Autocast, checkpointing, compile
# --------------------------------

with torch.autocast("cpu", torch.bfloat16):
    print(model(x).dtype)

from torch.utils.checkpoint import checkpoint  # noqa: E402

checkpoint(model, x, use_reentrant=False).sum().backward()

compiled = torch.compile(model[0].up, fullgraph=True, backend="aot_eager")
print(torch.allclose(compiled(x), model[0].up(x)))

# %%
# Other ways to be sparse
# -----------------------
# A *soft* layer has no mask: it projects its weight to 2:4 continuously (S-STE).
# ``feed_forward`` prunes activations instead of weights; squared relu leaves most of them zero,
# so this costs the least in loss.  :doc:`/how_to/training_recipes` says what each method cost and
# gained.

soft = st.SparseLinear.from_dense(torch.nn.Linear(64, 256), soft=True)
down = torch.nn.Linear(256, 64)
print(soft)
y = st.feed_forward(x, soft.weight, down.weight, soft.bias, down.bias)
y.sum().backward()
print(soft(x).shape, y.shape, soft.weight.grad.shape)

# %%
# Back to dense layers
# --------------------
# ``desparsify`` puts ordinary layers back, with their weights pruned for good.  Such a weight can
# be compressed for serving, saved, or given to any other runtime.

model.eval()
with torch.no_grad():
    before = model(x)
    st.desparsify(model)
    print("difference:", (model(x) - before).abs().max().item())
weight = s24.compress(model[0].up.weight.detach())
print(weight)

# %%
# Compiled inference
# ------------------
# Without gradients a compiled layer keeps its packed weight as well, and packs it anew only after
# the weight has changed.

up = st.SparseLinear.from_dense(model[0].up)
compiled = torch.compile(up, fullgraph=True, backend="aot_eager")
with torch.no_grad():
    for _ in range(2):  # the weight is packed in the first call
        print("difference:", (compiled(x) - model[0].up(x)).abs().max().item())

# %%
# CUDA graphs, such as those of ``mode="reduce-overhead"``, cannot check at replay whether a weight
# has changed, so they pack it every time.  To pack a final weight only once, make it the parameter
# of an ordinary layer:

up = model[0].up
before = up(x)
up.weight = torch.nn.Parameter(st.to_sparse_semi_structured(up.weight), requires_grad=False)
compiled = torch.compile(up, fullgraph=True, backend="aot_eager")
with torch.no_grad():
    print("difference:", (compiled(x) - before).abs().max().item())

# %%
# Code written for xformers or torch's sparse tensors
# ---------------------------------------------------
# ``sparsify24`` and ``to_sparse_semi_structured`` replace the functions of the same names in
# xformers and torch; :doc:`/how_to/coming_from` has a table of these and many more.

layer = torch.nn.Linear(64, 32)
y = torch.nn.functional.linear(x, st.sparsify24(layer.weight, gradient="24dense"), layer.bias)
y.sum().backward()
print(layer.weight.grad.shape)

# %%
# Where to go next
# ----------------
# :doc:`/how_to/training_recipes` says which of these to choose, with recorded times and losses;
# :doc:`/how_to/serve_torch` prunes a trained model, and saves and loads packed weights;
# :doc:`/explanation/training` explains what a sparse layer does in a training step, and
# :doc:`/reference/layers` lists all options.
