"""Scikit-learn's digits, and a two-hidden-layer network for them in NumPy and in torch.

Both trainers run the same loop: the scheduler gives masks, the masked network gives gradients,
the rule says what the dense weights receive, Adam moves them.  One thread is best: the network
is small, and the second thread of torch mostly waits.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

import numpy as np

from sparse24 import schedule as S

SIZES = (64, 256, 128, 10)
STEPS, BATCH, RATE = 600, 128, 2e-3
WARM_UP = 40  # steps with each candidate for the decay


@functools.cache
def data():
    """Images in [0, 1] and labels: 1347 to train on, 450 to test on, always the same."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order].astype(np.float32) / 16, labels[order]
    return images[:1347], labels[:1347], images[1347:], labels[1347:]


@dataclass(frozen=True)
class Method:
    """A way to train: masks from `rules`, and what pruned weights receive."""

    rules: S.Rules | None
    straight_through: bool = False
    decay: float = 0.0
    adaptive: bool = False  # the two-level DynamicScheduler instead of `rules`
    candidates: tuple[float, ...] = ()  # of the decay, tried in warm-up

    def scheduler(self):
        if self.adaptive:
            ramp = S.CosineScheduler(target_sparsity=0.6, stop=STEPS // 2, every=10)
            return S.DynamicScheduler(0.3, ramp, dense=("w2",))
        if self.rules is None:
            return None
        return S.MaskScheduler({"w2": None, "*": self.rules}, telemetry=S.Telemetry())

    def found(self, seed: int) -> Method:
        """The method with its decay, which short runs from the first weights find if need be."""
        if not self.candidates:
            return self
        search = S.DecayFactorSearch(self.candidates, steps_each=WARM_UP - 1)
        while not search.done:
            trial = replace(self, decay=search.trial, candidates=())
            for rate in flip_rates(trial, seed):
                search.feed(rate)
        return replace(self, decay=search.factor, candidates=())


RAMP = S.CubicScheduler(0.5, stop=STEPS // 2, every=10)
METHODS = {
    "dense": Method(None),
    "one-shot, no training after": Method(S.Recipe(S.OneShot(0.5, STEPS - 1), pattern=S.NM())),
    "one-shot at half time": Method(S.Recipe(S.OneShot(0.5, STEPS // 2), pattern=S.NM())),
    "gradual to 2:4": Method(S.Recipe(RAMP, pattern=S.Elastic((4, 16), least=2))),
    "SR-STE": Method(S.sr_ste(), straight_through=True, decay=2e-4),
    "SR-STE, then fixed": Method(
        S.Recipe(S.ConstantScheduler(0.5, every=1, stop=STEPS // 2), pattern=S.NM()),
        straight_through=True,
        decay=2e-4,
    ),
    "SR-STE, decay found in warm-up": Method(
        S.sr_ste(), straight_through=True, candidates=(1e-4, 1e-3, 1e-2)
    ),
    "transposable SR-STE": Method(
        S.Recipe(S.ConstantScheduler(0.5, every=1), pattern=S.Transposable24()),
        straight_through=True,
        decay=2e-4,
    ),
    "gradual unstructured, 0.5": Method(S.Recipe(RAMP)),
    "DynamicScheduler, 0.3 to 0.6": Method(None, adaptive=True),
}


def initial(seed: int) -> dict[str, np.ndarray]:
    """He-initialised weights w0, w1, w2 (out, in) and biases b0, b1, b2."""
    rng = np.random.default_rng(seed)
    parameters = {}
    for i, (k, m) in enumerate(itertools.pairwise(SIZES)):
        parameters[f"w{i}"] = (rng.normal(size=(m, k)) * np.sqrt(2 / k)).astype(np.float32)
        parameters[f"b{i}"] = np.zeros(m, np.float32)
    return parameters


def batches(count: int, seed: int, steps: int = STEPS):
    rng = np.random.default_rng(1000 + seed)
    for _ in range(steps):
        yield rng.integers(0, count, BATCH)


def train_numpy(method: Method, seed: int):
    """Trained and masked parameters, and the masks."""
    return _train_numpy(method.found(seed), seed, STEPS)[:2]


def flip_rates(method: Method, seed: int) -> list[float]:
    """Shares of the masks that flip at each step of a warm-up, the first step aside."""
    scheduler = _train_numpy(method, seed, WARM_UP)[2]
    rows = scheduler.telemetry.rows
    flips, sizes = ([0] * WARM_UP for _ in range(2))
    for row in rows:
        flips[row["step"]] += row["flips"]
        sizes[row["step"]] += row["size"]
    return [f / size for f, size in zip(flips[1:], sizes[1:], strict=True)]


def _train_numpy(method: Method, seed: int, steps: int):
    x, labels, _, _ = data()
    parameters, masks, scheduler = initial(seed), {}, method.scheduler()
    moments = {n: (np.zeros_like(p), np.zeros_like(p)) for n, p in parameters.items()}
    for t, rows in enumerate(batches(len(x), seed, steps), start=1):
        grads = gradients(S.apply_masks(parameters, masks), x[rows], labels[rows])
        if scheduler is not None:
            weights = {n: p for n, p in parameters.items() if n.startswith("w")}
            masks = scheduler.step(weights=weights, gradients={n: grads[n] for n in weights})
        for name, grad in grads.items():
            if name in masks:
                kept = masks[name]
                grad = grad if method.straight_through else grad * kept
                grad = S.sr_ste_gradient(parameters[name], grad, kept, method.decay)
            _adam(parameters[name], grad, *moments[name], t)
    return S.apply_masks(parameters, masks), masks, scheduler


def _adam(parameter, grad, first, second, t: int) -> None:
    first += 0.1 * (grad - first)
    second += 0.001 * (grad * grad - second)
    step = RATE * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    parameter -= step.astype(np.float32)


def forward(parameters, x):
    """Inputs of each layer, and the scores of the digits."""
    inputs = [x]
    for i in range(2):
        h = inputs[-1] @ parameters[f"w{i}"].T + parameters[f"b{i}"]
        inputs.append(np.maximum(h, 0))
    return inputs, inputs[-1] @ parameters["w2"].T + parameters["b2"]


def gradients(parameters, x, labels) -> dict[str, np.ndarray]:
    """Of the mean cross-entropy."""
    inputs, scores = forward(parameters, x)
    chance = np.exp(scores - scores.max(1, keepdims=True))
    chance /= chance.sum(1, keepdims=True)
    chance[np.arange(len(x)), labels] -= 1
    dy, grads = chance / len(x), {}
    for i in (2, 1, 0):
        grads[f"w{i}"], grads[f"b{i}"] = dy.T @ inputs[i], dy.sum(0)
        dy = (dy @ parameters[f"w{i}"]) * (inputs[i] > 0)
    return grads


def train_torch(method: Method, seed: int):
    """The same with `sparse24.torch` layers; returns the masked parameters and the masks."""
    import torch

    from sparse24 import torch as st

    x, labels, _, _ = data()
    x, labels = torch.from_numpy(x), torch.from_numpy(labels)
    pairs = itertools.pairwise(SIZES)
    parts = [part for k, m in pairs for part in (torch.nn.Linear(k, m), torch.nn.ReLU())]
    net = torch.nn.Sequential(*parts[:-1])
    layers = {"0": 0, "2": 1, "4": 2}
    start, method = initial(seed), method.found(seed)
    with torch.no_grad():
        for name, i in layers.items():
            net[int(name)].weight.copy_(torch.from_numpy(start[f"w{i}"]))
            net[int(name)].bias.copy_(torch.from_numpy(start[f"b{i}"]))
    scheduler = method.scheduler()
    if scheduler is not None:
        rule = {
            "gradient": "ste" if method.straight_through else "24dense",
            "decay": method.decay,
            "sparse": "masked",
        }
        st.sparsify(net, {"4": None, "*": rule})
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    for rows in batches(len(x), seed):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x[rows]), labels[rows])
        loss.backward()
        if scheduler is not None:
            st.update_masks(net, scheduler)
        optimizer.step()
    sparse = st.sparse_layers(net)
    masks = {f"w{layers[name]}": layer.current_mask().numpy() for name, layer in sparse.items()}
    st.desparsify(net)
    parameters = {}
    for name, i in layers.items():
        parameters[f"w{i}"] = net[int(name)].weight.detach().numpy().copy()
        parameters[f"b{i}"] = net[int(name)].bias.detach().numpy().copy()
    return parameters, masks


def accuracy(parameters) -> float:
    """Share of the test images that are named right."""
    _, _, x, labels = data()
    return float((forward(parameters, x)[1].argmax(1) == labels).mean())
