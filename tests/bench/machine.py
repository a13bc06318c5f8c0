"""What the benchmark drivers ask of the machine before they start."""

from __future__ import annotations

import torch

from sparse24 import _arrays


def needs_gpus(count: int = 1) -> None:
    """End the program with one sentence where there are fewer GPUs than it times."""
    if not _arrays.cuda_available():
        raise SystemExit(f"this benchmark runs on a GPU: {_arrays.why_no_cuda()}")
    found = torch.cuda.device_count()
    if found < count:
        raise SystemExit(f"this benchmark runs on {count} GPUs or more, torch finds {found}")
