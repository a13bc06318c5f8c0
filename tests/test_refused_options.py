"""Arrays and lists where a name, a type or True and False are asked for: the message names it."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import distributed, families, functional

W = np.eye(8, 16, dtype=np.float32)
B, X = np.ones((16, 3), np.float32), np.ones((3, 16), np.float32)
A, H = s24.compress(W), s24.hybrid(W)
STACK, OFFSETS = s24.random((2, 8, 16), rng=0), [0, 1, 3]

WRONG = {
    "an array": np.array([1, 2]),
    "an array of one": np.array(["auto"]),
    "an array of flags": np.array([[True], [False]]),
    "an empty array": np.array([]),
    "an array without axes": np.array(7),
    "a list": ["auto"],
    "a mapping": {},
    "a set": {1},
}
OTHERS = [s24.compress(W, pattern=pattern) for pattern in ((3, 8), (1, 4))]

OF_NAMES = {
    "matmul": lambda **k: s24.matmul(A, B, **k),
    "matmul from the left": lambda **k: s24.matmul(X, A.T, **k),
    "matmul of plain arrays": lambda **k: s24.matmul(W, B, **k),
    "matmul of 3:8": lambda **k: s24.matmul(OTHERS[0], B, **k),
    "matmul of 1:4": lambda **k: s24.matmul(OTHERS[1], B, **k),
    "matmul of a hybrid": lambda **k: s24.matmul(H, B, **k),
    "explain": lambda **k: s24.explain(A, B, **k),
    "explain of a hybrid": lambda **k: s24.explain(H, B, **k),
}
OF_EXPERTS = {
    "grouped_matmul": lambda **k: s24.grouped_matmul(STACK, B, offsets=OFFSETS, **k),
    "explain of experts": lambda **k: s24.explain(STACK, B, offsets=OFFSETS, **k),
}
OF_RESULTS = {
    "linear": lambda **k: s24.linear(X, A, **k),
    "linear of a hybrid": lambda **k: s24.linear(X, H, **k),
    "grouped_linear": lambda **k: s24.grouped_linear(X, STACK, offsets=OFFSETS, **k),
    "plan": lambda **k: s24.plan(A, B, **k),
}
OF_ARRAYS = {
    "sum": lambda **k: A.sum(**k),
    "mean": lambda **k: H.mean(**k),
    "tocsr": lambda **k: A.tocsr(**k),
    "astype": lambda **k: H.astype(**k),
    "compress": lambda **k: s24.compress(W, **k),
    "prune": lambda **k: s24.prune(W, **k),
    "random": lambda **k: s24.random((4, 8), **k),
    "hybrid": lambda **k: s24.hybrid(W, **k),
}


def assert_refused(call, argument: str, value, error=s24.ArgumentError) -> None:
    with pytest.raises(error, match=f"^{argument} must be .*got") as caught:
        call(**{argument: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("call", [*OF_NAMES, "plan", "HybridArray.matmul"])
def test_an_algorithm_is_a_name(call, wrong):
    known = {**OF_NAMES, **OF_RESULTS, "HybridArray.matmul": lambda **k: H.matmul(B, **k)}
    assert_refused(known[call], "algorithm", WRONG[wrong])


@pytest.mark.parametrize("wrong", [*WRONG, "a name"])
@pytest.mark.parametrize("call", [*OF_NAMES, *OF_EXPERTS])
def test_fast_accumulation_is_on_or_off(call, wrong):
    assert_refused(
        {**OF_NAMES, **OF_EXPERTS}[call], "fast_accumulation", {**WRONG, "a name": "no"}[wrong]
    )


@pytest.mark.parametrize("wrong", [name for name in WRONG if name != "a mapping"])
@pytest.mark.parametrize("call", [*OF_NAMES, *OF_EXPERTS, *OF_RESULTS, *OF_ARRAYS])
def test_a_type_is_no_array(call, wrong):
    known = {**OF_NAMES, **OF_EXPERTS, **OF_RESULTS, **OF_ARRAYS}
    assert_refused(known[call], "dtype", WRONG[wrong], s24.DTypeError)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_type_of_an_operand_is_no_array(wrong):
    pruned, value = s24.prune(W), WRONG[wrong]
    for argument in ("a_dtype", "b_dtype"):
        assert_refused(lambda **k: s24.matmul(pruned, B, **k), argument, value, s24.DTypeError)
    assert_refused(lambda **k: s24.linear(X, A, **k), "x_dtype", value, s24.DTypeError)
    for other in (OTHERS[0], H):
        with pytest.raises(s24.ArgumentError, match=r"operand types .* are for Sparse24Array"):
            s24.matmul(other, B, b_dtype=value)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_precision_is_one_of_two(wrong):
    for a in (A, W, H, OTHERS[0]):
        assert_refused(lambda a=a, **k: s24.matmul(a, B, **k), "precision", WRONG[wrong])


COMM = distributed.in_threads(1)[0]
FLAGS = {
    "balance": lambda **k: H.matmul(B, **k),
    "balance of a stack": lambda **k: H.matmul(np.ones((2, 16, 3), np.float32), **k),
    "check of compress": lambda **k: s24.compress(W, **k),
    "check of 3:8": lambda **k: s24.NMArray.from_dense(W, pattern=(3, 8), **k),
    "check of sums": lambda **k: distributed.all_reduce(A, COMM, **k),
    "check of blocks": lambda **k: distributed.reduce_scatter(A, COMM, **k),
    "transposable of compress": lambda **k: s24.compress(W, on_excess="prune", **k),
    "transposable of 3:8": lambda **k: s24.compress(W, pattern=(3, 8), **k),
    "transposable of prune": lambda **k: s24.prune(W, **k),
    "transposable of mask": lambda **k: s24.mask(W, **k),
    "transposable of pack": lambda **k: functional.pack(W, **k),
    "transposable of linear": lambda **k: functional.linear(X, W, **k),
    "keep_dense": lambda **k: s24.compress(W, **k),
    "gated": lambda **k: s24.grouped_linear(X, STACK, offsets=OFFSETS, **k),
    "gated of explain": lambda **k: s24.explain(STACK, B, offsets=OFFSETS, **k),
    "gated of explain without offsets": lambda **k: s24.explain(A, B, **k),
    "quantise": lambda **k: s24.activate_compress(W, **k),
    "bias": lambda **k: s24.Calibration(**k),
    "enabled": lambda **k: s24.autotune(**k).__enter__(),
    "keepdims": lambda **k: A.sum(**k),
    "keepdims of max": lambda **k: H.max(**k),
}


@pytest.mark.parametrize("wrong", [*WRONG, "a name", "a number"])
@pytest.mark.parametrize("option", FLAGS)
def test_a_flag_is_on_or_off(option, wrong):
    assert_refused(
        FLAGS[option], option.split()[0], {**WRONG, "a name": "no", "a number": 2}[wrong]
    )


@pytest.mark.parametrize("on", [True, 1, np.True_, np.array(True)])
def test_a_flag_of_numpy_is_taken(on):
    assert s24.compress(np.eye(4), transposable=on).transposable
    np.testing.assert_array_equal(H.matmul(B, balance=on), W @ B)
    np.testing.assert_array_equal(s24.matmul(A, B, fast_accumulation=on), W @ B)
    assert A.sum(axis=0, keepdims=on).shape == (1, 16)


NAMES = {
    "on_excess": lambda **k: s24.compress(W, **k),
    "on_excess of 3:8": lambda **k: s24.compress(W, pattern=(3, 8), **k),
    "on_excess of blocks": lambda **k: s24.compress_stream(W, **k),
    "method": lambda **k: s24.prune(W, **k),
    "activation": lambda **k: s24.activate_compress(W, **k),
    "activation of linear": lambda **k: s24.linear(X, A, **k),
    "activation of experts": lambda **k: s24.grouped_linear(X, STACK, offsets=OFFSETS, **k),
    "out_order": lambda **k: s24.plan(A, B, **k),
    "b_order": lambda **k: H.explain(**k),
    "format": lambda **k: A.asformat(**k),
    "name": lambda name: s24.backend(name).__enter__(),
    "name of a family": lambda name: families.make(name, (64, 64), zeros=0.5),
    "mode": s24.show_config,
    "device": lambda device: A.to_device(device),
    "device of random": lambda **k: s24.random((4, 8), **k),
    "device of blocks": lambda **k: s24.compress_blocks(W, **k),
}


KNOWN = {
    "on_excess": "prune", "method": "magnitude", "activation": "relu", "out_order": "row",
    "b_order": "row", "format": "csr", "name": "cpu", "mode": "dict", "device": "cpu",
}  # fmt: skip


@pytest.mark.parametrize("wrong", [*WRONG, "a known name in an array"])
@pytest.mark.parametrize("option", NAMES)
def test_a_name_is_no_array(option, wrong):
    argument = option.split()[0]
    value = {**WRONG, "a known name in an array": np.array(KNOWN[argument])}[wrong]
    assert_refused(NAMES[option], argument, value)


def test_a_device_to_load_to_is_no_array(tmp_path):
    path = tmp_path / "a.npz"
    s24.save_npz(path, A)
    for value in WRONG.values():
        assert_refused(lambda **k: s24.load_npz(path, **k), "device", value)
