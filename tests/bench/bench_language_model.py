"""A language model trained dense, with 2:4 weights, and with 2:4 activations: loss by step.

The weights of the feed-forward layers are 2:4 in two ways, by magnitude at every step and by masks
of 4x4 tiles (transposable), and dense for the last tenth of the steps.  The rate is constant and
falls over that last tenth, in all runs.

All runs start from the same weights and see the same batches of bytes.  The text is the
documentation and source of installed packages; the record names them and carries its hash.

On a GPU: ``python tests/bench/bench_language_model.py`` (114 M parameters, some minutes).  It
writes ``language_model.json`` beside the other records; ``--kinds`` runs some of the four and
merges.  ``--tiny`` trains a toy on the CPU and writes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from bench_training import Block
from machine import needs_gpus

from sparse24 import _evidence
from sparse24 import schedule as S
from sparse24 import torch as st

DATA = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "data"
PACKAGES = ("numpy", "scipy", "torch", "jax", "hypothesis", "pytest")
KINDS = ("dense", "weights", "masks", "activations")
SUFFIXES = (".py", ".pyi", ".rst", ".md", ".txt")


@dataclass(frozen=True)
class Plan:
    width: int = 768
    heads: int = 12
    layers: int = 16
    length: int = 512
    batch: int = 32
    steps: int = 1000
    rate: float = 6e-4
    corpus: int = 64 << 20  # bytes at most
    schedule: str = "warm-up over a twentieth, constant, linear to zero over the last tenth"


TINY = Plan(width=32, heads=2, layers=2, length=32, batch=4, steps=40, rate=3e-3, corpus=1 << 20)


def corpus(limit: int) -> tuple[np.ndarray, dict]:
    """Bytes of the text, and where they are from."""
    parts, used, size = [], {}, 0
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        used[name] = metadata.version(name)
        for path in sorted(Path(spec.origin).parent.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and size < limit:
                parts.append(path.read_bytes())
                size += len(parts[-1])
    text = b"".join(parts)[:limit]
    digest = hashlib.sha256(text).hexdigest()
    source = {"packages": used, "suffixes": SUFFIXES, "bytes": len(text), "sha256": digest}
    return np.frombuffer(text, np.uint8), source


class LanguageModel(torch.nn.Module):
    """Bytes in, scores of the next byte out."""

    def __init__(self, plan: Plan):
        super().__init__()
        self.embed = torch.nn.Embedding(256, plan.width)
        self.place = torch.nn.Embedding(plan.length, plan.width)
        self.blocks = torch.nn.ModuleList(Block(plan.width, plan.heads) for _ in range(plan.layers))
        self.norm = torch.nn.LayerNorm(plan.width)
        self.head = torch.nn.Linear(plan.width, 256, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def scheduler(plan: Plan) -> S.MaskScheduler:
    """2:4 by 4x4 tiles, renewed every 20 steps, dense for the last tenth."""
    phases = S.dense_sparse_dense(0.5, start=0, stop=plan.steps * 9 // 10, every=20)
    recipe = S.Recipe(phases, pattern=S.Transposable24())
    return S.MaskScheduler(recipe, telemetry=S.Telemetry())


def prepared(model, kind: str, plan: Plan):
    """The model of one run, and its scheduler if it has one."""
    if kind == "weights":
        st.sparsify(model, {"*.ffn.*": {}})
    if kind == "masks":
        st.sparsify(model, {"*.ffn.*": {"transposable": True, "decay": 2.5e-4}})
        return model, scheduler(plan)
    if kind == "activations":  # of squared relu, which are half zeros already
        st.sparsify(model, {"*.ffn.down": {"sparse": "activation"}})
    return model, None


def batches(text: np.ndarray, plan: Plan, seed: int):
    rng = np.random.default_rng(seed)
    while True:
        begin = rng.integers(0, len(text) - plan.length - 1, plan.batch)
        yield torch.from_numpy(
            np.stack([text[b : b + plan.length + 1] for b in begin]).astype(np.int64)
        )


def loss_of(model, tokens):
    scores = model(tokens[:, :-1]).float()
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def rate(step: int, plan: Plan) -> float:
    """Linear warm-up over a twentieth, constant, and down to zero over the last tenth."""
    warm, cool = max(1, plan.steps // 20), max(1, plan.steps // 10)
    return plan.rate * min(1.0, (step + 1) / warm, (plan.steps - step) / cool)


def train(kind: str, text: np.ndarray, plan: Plan, device: str) -> dict:
    """One run: losses, the final loss on held-out text, and the time of a step."""
    torch.manual_seed(0)
    model, masks = prepared(LanguageModel(plan).to(device), kind, plan)
    on_gpu = device == "cuda"
    if on_gpu:
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate, weight_decay=0.01, fused=on_gpu)
    held_out, training = text[-len(text) // 50 :], text[: -len(text) // 50]
    losses, began = [], time.perf_counter()
    for step, tokens in zip(range(plan.steps), batches(training, plan, 1), strict=False):
        if kind == "weights" and step == plan.steps * 9 // 10:
            st.desparsify(model)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, plan)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(model, tokens.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if masks is not None:
            st.update_masks(model, masks, optimizer)
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses).cpu()
    seconds = time.perf_counter() - began
    model.eval()
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        drawn = zip(range(40), batches(held_out, plan, 2), strict=False)
        final = torch.stack([loss_of(model, tokens.to(device)) for _, tokens in drawn]).mean()
    flips = [] if masks is None else masks.telemetry.column("flip_rate", "blocks.0.ffn.up")
    curve = losses.reshape(-1, max(1, plan.steps // 50)).mean(1)
    return {
        "name": kind,
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss_curve": [round(x, 4) for x in curve.tolist()],
        "final_loss": round(final.item(), 4),
        "ms_a_step": round(1e3 * seconds / plan.steps, 2),
        "flip_rate": flips,
    }


def merged(path: Path, plan: Plan, source: dict, runs: list[dict]) -> dict:
    """The record, with the runs of an earlier one of the same plan and text."""
    known = json.loads(path.read_text()) if path.exists() else {}
    same_text = known.get("corpus", {}).get("sha256") == source["sha256"]
    if same_text and known["plan"] == asdict(plan):
        names = {run["name"] for run in runs}
        runs = [run for run in known["runs"] if run["name"] not in names] + runs
    runs.sort(key=lambda run: KINDS.index(run["name"]))
    for run in runs:
        if runs[0]["name"] == "dense":
            run["against_dense"] = round(run["final_loss"] / runs[0]["final_loss"] - 1, 4)
    return {"header": _evidence.header(), "plan": asdict(plan), "corpus": source, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    plan, device = (TINY, "cpu") if options.tiny else (Plan(), "cuda")
    plan = Plan(**{**asdict(plan), "steps": options.steps or plan.steps})
    if not options.tiny:
        needs_gpus()
    text, source = corpus(plan.corpus)
    gpu = _evidence.header().get("gpu")
    path, runs = (options.out or _evidence.folder(DATA, gpu)) / "language_model.json", []
    if not options.tiny:  # which records nothing
        _evidence.refuse_other_gpu(path, gpu)
    for kind in options.kinds:
        runs.append(train(kind, text, plan, device))
        print({k: v for k, v in runs[-1].items() if k != "flip_rate"}, flush=True)
        if not options.tiny:
            _evidence.write_json(path, merged(path, plan, source, runs))


if __name__ == "__main__":
    main()
