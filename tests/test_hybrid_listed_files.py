"""Files of matrices of which rows are stored."""

from __future__ import annotations

import numpy as np
import pytest
from hybrid_cases import DTYPES
from listed_cases import dense, graph, on

import sparse24 as s24
from sparse24._arrays import to_numpy


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_files_hold_the_rows(rng, xp, tmp_path, kind, dtype):
    m = graph(rng, dtype=dtype)
    h, path = s24.hybrid(on(xp, m), n_hint=3, dtype=dtype), tmp_path / f"graph.{kind}"
    getattr(s24, f"save_{kind}")(path, {"graph": h, "turned": h.T})
    loaded = getattr(s24, f"load_{kind}")(path, device=h.device)
    assert loaded["graph"].stored.is_listed
    assert (loaded["graph"].n_hint, loaded["graph"].device) == (3, h.device)
    want = dense(m, dtype)
    np.testing.assert_array_equal(to_numpy(loaded["graph"].toarray()), want)
    np.testing.assert_array_equal(to_numpy(loaded["turned"].toarray()), want.T)


DAMAGE = {
    "starts": [("ascend", lambda x: x[::-1]), ("begin 700 rows", lambda x: x[1:])],
    "columns": [("ascend in each row", np.zeros_like), ("below 900", lambda x: x + 900),
                ("entries", lambda x: x[1:])],
    "values": [("not be zero", lambda x: x * 0), ("elements", lambda x: x[1:])],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rule", "change"),
    [(name, *case) for name, cases in DAMAGE.items() for case in cases],
)
def test_damaged_files_are_refused(rng, tmp_path, name, rule, change):
    from sparse24.formats.array_parts import parts_of
    from sparse24.formats.hybrid_parts import HybridRowsParts

    parts = parts_of(s24.hybrid(graph(rng)))
    pieces = parts.pieces()
    changed = np.ascontiguousarray(change(pieces[name]))
    if rule == "ascend":
        changed[0] = 0
    with pytest.raises(s24.FormatError, match=rule):
        HybridRowsParts.from_entry(parts.describe(), {**pieces, name: changed}, where="here")
