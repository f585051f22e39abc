"""A small transformer that writes on as Python's own documentation does, character by character."""

from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Array = np.ndarray[Any, np.dtype[Any]]


def documentation(characters: int = 20_000, length: int = 48) -> tuple[Array, Array]:
    """Tokens x and y, the next ones, both int64 (n, length): ASCII. Peers need the same version of Python."""
    text = "".join(topics[name] for name in sorted(topics))[:characters]
    tokens = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)
    starts = np.arange(0, len(tokens) - length, length)[:, None] + np.arange(length)
    return tokens[starts], tokens[starts + 1]


class Block(nn.Module):
    """Attention to what came before, then a layer for each token by itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.each = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, width) → the same."""
        split = self.queries_keys_values(self.first(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*split.unbind(), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.each(self.second(x))


class Tokens(nn.Module):
    """What each token is, and where it stands."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.what, self.where = nn.Embedding(vocabulary, width), nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        """int64 (n, T) → (n, T, width)."""
        place: Tensor = self.what(x) + self.where(torch.arange(x.shape[1], device=x.device))
        return place


def transformer(shape: tuple[int, ...], vocabulary: int) -> tuple[nn.Module, nn.Module]:
    """Two blocks of width 32 | a logit for each character."""
    width = 32
    extractor = nn.Sequential(Tokens(vocabulary, shape[0], width), Block(width, 4), Block(width, 4))
    return extractor, nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))
