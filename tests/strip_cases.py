"""Matrices that are rewritten as 2:4 strips, and what strips mean."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sparse24 import families
from sparse24._dtypes import TABLE
from sparse24.kernels import hybrid_evict, hybrid_regroup, hybrid_wgmma, hybrid_wgmma_plan
from sparse24.kernels.hybrid_strips import BLOCK, ROW_BLOCK, Strips, Tables, cost
from sparse24.kernels.hybrid_wgmma_configs import SPECIALISATIONS
from sparse24.kernels.hybrid_wgmma_pieces import pieces

REWRITES = {128: hybrid_evict, 256: hybrid_regroup}  # by rows of a strip
CUT = [config for config in SPECIALISATIONS if config.cuts]


def hopper():
    """CuPy; skips the test where there is no GPU that can multiply strips."""
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("needs compute capability 9.0")
    return cupy


def layout_for(monkeypatch, config, bits, row):
    """A layout that is multiplied by `config`."""
    monkeypatch.setattr(hybrid_wgmma_plan, "MOST_LIVE", 2.0 if config.skips else 0.0)
    return hybrid_wgmma.prepare(bits, row, REWRITES[config.block_m])


def assert_cut_tiles_are_exact(monkeypatch, config, sms: int, w: np.ndarray, b: np.ndarray):
    """Products with the layout of `w`, which it returns, on a chip so small that tiles are cut."""
    cupy, row, (m, n) = hopper(), TABLE["bfloat16"], (len(w), b.shape[1])
    monkeypatch.setattr(hybrid_wgmma_plan, "multiprocessors", lambda: sms)
    monkeypatch.setattr(hybrid_wgmma_plan, "SHARING", dict.fromkeys(hybrid_wgmma_plan.SHARING, 0))
    bits = cupy.asarray(w.astype(row.logical)).view(np.uint16)
    layout = layout_for(monkeypatch, config, bits, row)
    assert pieces(layout.table, layout.work, config, n)["helpers"].min() < 0
    right, want = cupy.asarray(b.astype(row.logical)), (w @ b).astype(row.logical)
    for _ in range(3):
        out = cupy.full((m, n), 0xFFFF, np.uint16).view(row.logical)
        hybrid_wgmma.product(layout, right, out, config)
        np.testing.assert_array_equal(out.get(), want)
    return layout


def matrix(family: str, zeros: float, shape) -> np.ndarray:
    """The bits of a float16 matrix."""
    w = families.make(family, shape, zeros=zeros, dtype="float16", rng=1)
    return w.view(np.uint16)


def restored(strips: Strips, shape) -> np.ndarray:
    """The matrix that the strips mean; elements that meet are added."""
    (m, k), rows = shape, strips.dense.shape[1]
    out = np.zeros((-(-m // rows) * rows, k + 1), np.int64)
    for first, stages, _, *row_blocks in strips.tables.table:
        numbers = (np.array(row_blocks)[:, None] + np.arange(ROW_BLOCK)).reshape(-1, 1)
        for stage in range(first, first + stages):
            columns = np.minimum(strips.sources[stage], k)
            part = strips.dense[stage // 2, :, stage % 2 * BLOCK :][:, :BLOCK]
            np.add.at(out, (numbers, columns), part)
    assert not out[:, k].any()
    assert not out[m:].any()
    return out[:m, :k]


def assert_restores(strips: Strips, w: np.ndarray) -> None:
    """Everything is kept once, two of every four, the longest strips first."""
    assert (strips.dense != 0).reshape(*strips.dense.shape[:2], -1, 4).sum(-1).max() <= 2
    np.testing.assert_array_equal(restored(strips, w.shape), w)
    where = strips.tables
    assert (np.diff(cost(where.lengths, where.shares)) <= 0).all()
    assert_live(strips)


def assert_live(strips: Strips) -> None:
    """No 64 rows of a stage that hold elements are said to be empty."""
    atoms, rows, _ = strips.dense.shape
    held = (strips.dense != 0).reshape(atoms, rows // 64, 64, 2, BLOCK).any(axis=(2, 4))
    masks = (held.transpose(0, 2, 1) << np.arange(rows // 64)).sum(axis=2).ravel()
    assert not (masks & ~strips.tables.live).any()


def assert_same_strips(got: Strips, want: Strips) -> None:
    """Those of a kernel and of its reference."""
    for name in ("dense", "sources"):
        np.testing.assert_array_equal(getattr(got, name).get(), getattr(want, name), err_msg=name)
    for field in dataclasses.fields(Tables):
        pair = (getattr(x.tables, field.name) for x in (got, want))
        np.testing.assert_array_equal(*pair, err_msg=field.name)
