"""Every block of code on the page of training recipes runs, on a model with its names."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from sparse24 import is_24, schedule  # noqa: E402
from sparse24 import torch as st  # noqa: E402

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how_to" / "training_recipes.rst"
BLOCKS = re.findall(r"code-block:: python\n\n((?: +[^\n]*\n|\n)+)", PAGE.read_text())
EARLIER = """
recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), pattern=schedule.NM(2, 4))
batches = [(torch.ones(8, 64), torch.zeros(8, 64))] * 2
loss = torch.nn.functional.mse_loss
loss(model(batches[0][0]), batches[0][1]).backward()
"""


def model():
    block = torch.nn.Module()
    up, down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)
    block.ffn = torch.nn.ModuleDict({"up": up, "down": down})
    block.forward = lambda x: block.ffn["down"](block.ffn["up"](x).relu())
    whole = torch.nn.Module()
    whole.blocks = torch.nn.ModuleList([block])
    whole.forward = lambda x: whole.blocks[0](x)
    return whole


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs(number):
    made, block = model(), textwrap.dedent(BLOCKS[number])
    if "sparse_layers(" in block:  # of a model that an earlier block made sparse
        st.sparsify(made, {"*.ffn.*": {}})
    optimizer = torch.optim.AdamW(made.parameters())
    names = {"torch": torch, "st": st, "schedule": schedule, "model": made, "optimizer": optimizer}
    exec(EARLIER, names)
    exec(compile(block, PAGE.name, "exec"), names)
    sparse = "sparse_layers(" in block or "st.sparsify(" in block
    assert bool(st.sparse_layers(made)) == (sparse and "st.desparsify(" not in block)
    if "set_mask(" in block:
        assert all(layer.mask is not None for layer in st.sparse_layers(made).values())
    assert isinstance(names["recipe"], schedule.Recipe)
    assert torch.isfinite(made(torch.ones(8, 64))).all()


def test_an_average_has_the_masks_of_its_model():
    made = model()
    (block,) = (textwrap.dedent(block) for block in BLOCKS if "AveragedModel(" in block)
    names = {"torch": torch, "st": st, "schedule": schedule, "model": made}
    names["optimizer"] = torch.optim.AdamW(made.parameters())
    exec(EARLIER + block, names)
    average = st.sparse_layers(names["average"].module)
    for name, layer in st.sparse_layers(made).items():
        assert torch.equal(average[name].mask, layer.mask)
        assert is_24(average[name].to_dense().weight)


def test_the_page_has_blocks_whose_names_match():
    names = [name for name, _ in model().named_modules()]
    assert len(BLOCKS) > 8
    assert {"blocks.0.ffn.up", "blocks.0.ffn.down"} <= set(names)
    assert "``blocks.0.ffn.up`` and ``blocks.0.ffn.down``" in PAGE.read_text()
