"""A small transformer that reads an image row by row, as a language model reads its text.

Its layers have the shapes and the order of those of a large one, so code that cuts a large one into
slices or shards also cuts this one. Queries, keys and values have a layer each, because a slice
takes whole heads of all three.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Self-attention with several heads, each of which looks at everything.

    A module whose layers ``query``, ``key`` and ``value`` have been cut computes with as many
    heads as they still have.

    Raises:
        ValueError: if the heads do not share the width evenly.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads cannot share a width of {width}: choose a multiple")
        self.head_width = width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N, tokens, width) for (N, tokens, width)."""
        projected = (layer(x) for layer in (self.query, self.key, self.value))
        per_head = (t.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for t in projected)
        mixed = F.scaled_dot_product_attention(*per_head)
        return self.out(mixed.transpose(1, 2).flatten(2))


class TransformerMLP(nn.Module):
    """Two linear layers with a GELU between them, the inner one four times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N, tokens, width) for (N, tokens, width)."""
        return self.down(F.gelu(self.up(x)))


class TransformerBlock(nn.Module):
    """Attention and an MLP, each after a layer norm and added to its input.

    Source: Vaswani and others, "Attention Is All You Need", 2017, arXiv:1706.03762, section 3; the
    norms come first, as in GPT-2 and later models.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), TransformerMLP(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N, tokens, width) for (N, tokens, width)."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Classify an image whose rows are the tokens.

    Args:
        size: pixels a side: the number of tokens, and of numbers in each.
        width: numbers by which a token is represented.
        heads: attention heads of each block.
        depth: number of blocks.
        classes: number of classes.
    """

    def __init__(
        self, size: int = 28, width: int = 64, heads: int = 4, depth: int = 2, classes: int = 10
    ) -> None:
        super().__init__()
        self.embedding = nn.Linear(size, width)
        self.position = nn.Parameter(0.02 * torch.randn(size, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (N, classes) for images (N, 1, size, size)."""
        x = self.embedding(images.squeeze(1)) + self.position
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x).mean(dim=1))
