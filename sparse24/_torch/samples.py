"""Custom operators of gradients that are sampled to 2:4: the clock, and a sample."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sparse24 import _arrays, _foreign, _foreign_streams
from sparse24._errors import UnsupportedError
from sparse24._schedule.gradients import compress_mvue_24, mvue_key
from sparse24._torch import repack as torch_repack
from sparse24._torch import replay as torch_replay
from sparse24._torch.operators import meaning_for_tracing, operator
from sparse24._torch.parts import empty_parts, tensors_of
from sparse24._train_rule import Rule


def new_clock(rule: Rule, step: int = 0) -> Tensor:
    """A layer's clock: the number of its next sample, and the seed of all, 0 if it draws none."""
    with torch.inference_mode(False):  # else the layer could not learn with it
        # On the CPU, so that compiled code reads it anew and nothing waits for a device.
        shown = [step, rule.seed if rule.samples else 0]
        return torch.tensor(shown, dtype=torch.int64, device="cpu")


@functools.partial(operator, mutates=("clock",))
def tick(clock: Tensor) -> Tensor:
    """What the clock shows; then it goes on by one, and a seed that it shows too stays.

    One operator, for ``torch.compile`` moves a copy that only backward needs into backward, where
    the clock has gone on already.
    """
    now = clock.clone()
    clock.view(-1)[0].add_(1)
    return now


@meaning_for_tracing("tick")
def _(clock):
    return torch.empty_like(clock)


@operator
def pack_sample(x: Tensor, seed: int, clock: Tensor) -> list[Tensor]:
    """Values and codes of `x` sampled to 2:4 along its rows without bias, by `clock` and `seed`.

    A layer's clock shows its seed, too: of a number, torch.compile would make new code for each.
    """
    _refuse_capture(x)
    step, seed = clock.tolist() if clock.ndim else (int(clock), seed)
    key = torch_repack.sampling_key(x)
    known = torch_replay.find(key)
    if known is not None:
        return known(x, mvue_key(seed, step))
    with _foreign_streams.stream_of(x):
        array = compress_mvue_24(_foreign.view_of(x), step=step, seed=seed)
        if key is not None:
            torch_replay.keep(key, torch_repack.Sampling(x))
        return tensors_of(array._operand.stored)


def _refuse_capture(x: Tensor) -> None:
    if _arrays.captures_work_on(x):
        raise UnsupportedError(
            "sampled gradients cannot be captured into a CUDA graph, which would draw the same "
            "samples at every replay; capture a step with gradient='ste' or '24dense', or run this "
            "one without a graph"
        )


@meaning_for_tracing("pack_sample")
def _(x, seed, clock):
    return empty_parts(x, *x.shape)
