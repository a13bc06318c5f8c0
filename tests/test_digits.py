"""Training that is real and quick: digits, by every method, in NumPy and in torch."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from bench import digits

from sparse24._is_24 import is_24

pytest.importorskip("sklearn")
torch = pytest.importorskip("torch")
threadpoolctl = pytest.importorskip("threadpoolctl")

TWO_FOUR = (
    "one-shot at half time",
    "gradual to 2:4",
    "SR-STE",
    "SR-STE, then fixed",
    "SR-STE, decay found in warm-up",
    "transposable SR-STE",
)
LIBRARIES = ("numpy", "torch")


@pytest.fixture(autouse=True)
def one_thread():
    """The network is too small for more, and threads that wait for each other take minutes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpoolctl.threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


@functools.cache
def trained(library: str, name: str):
    """(accuracy in percent, masked parameters, masks) after 600 steps."""
    train = {"numpy": digits.train_numpy, "torch": digits.train_torch}[library]
    parameters, masks = train(digits.METHODS[name], seed=0)
    return 100 * digits.accuracy(parameters), parameters, masks


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", [n for n in digits.METHODS if n != "dense"])
def test_a_sparse_network_learns_the_digits(library, name):
    dense, (ours, parameters, masks) = trained(library, "dense")[0], trained(library, name)
    assert dense > 98
    assert ours > dense - (4 if name.startswith("one-shot, no") else 1.5)
    assert set(masks) == {"w0", "w1"}
    zeros = sum(int((~mask).sum()) for mask in masks.values())
    assert zeros == int((0.6 if "Dynamic" in name else 0.5) * sum(m.size for m in masks.values()))
    if name in TWO_FOUR:
        assert all(is_24(parameters[n]) for n in masks)
    if name.startswith("transposable"):
        assert all(is_24(parameters[n].T.copy()) for n in masks)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_best_two_four_network_is_as_good_as_the_dense_one(library):
    best = max(trained(library, name)[0] for name in TWO_FOUR)
    assert best >= trained(library, "dense")[0] - 0.5


def test_both_libraries_train_the_same_network():
    """The same batches, rules and masks; sums differ in order, so weights differ in last bits."""
    for name in ("dense", "gradual to 2:4", "DynamicScheduler, 0.3 to 0.6"):
        assert trained("numpy", name)[0] == pytest.approx(trained("torch", name)[0], abs=0.7)


def test_flip_rates_fall_as_the_decay_grows():
    method = digits.METHODS["SR-STE, decay found in warm-up"]
    rates = [
        sum(digits.flip_rates(replace(method, decay=factor), seed=0)) for factor in (0, 1e-3, 1e-1)
    ]
    assert rates[0] > rates[1] > rates[2] > 0
    assert method.found(seed=0).decay in method.candidates
