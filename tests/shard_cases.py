"""A small checkpoint in three shards, as other libraries save one."""

from __future__ import annotations

import json

from cli_cases import small_checkpoint

from sparse24 import _raw_writers

INDEX = "model.safetensors.index.json"
SHARDS = tuple(f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3))
# The second one has nothing to prune; the order of the index is not that of the shards.
HOMES = {
    "layer.1.bias": SHARDS[2],
    "embeddings.word.weight": SHARDS[0],
    "layer.0.weight": SHARDS[0],
    "layer.2.weight": SHARDS[1],
    "ids": SHARDS[1],
    "layer.1.weight": SHARDS[2],
}


def sharded(folder, rng):
    """Write the checkpoint and its index; the arrays by name."""
    arrays = small_checkpoint(rng)
    folder.mkdir(exist_ok=True)
    for shard in SHARDS:
        mine = {name: x for name, x in arrays.items() if HOMES[name] == shard}
        _raw_writers.write_safetensors(folder / shard, mine, None, {"format": "pt"})
    metadata = {"total_size": sum(x.nbytes for x in arrays.values()), "total_parameters": 8}
    write_index(folder, weight_map=HOMES, metadata=metadata, note="mine")
    return arrays


def write_index(folder, **content):
    (folder / INDEX).write_text(json.dumps(content))


def read_index(folder):
    return json.loads((folder / INDEX).read_text())
