"""A small GPT: pre-norm blocks, causal attention, learned positions, tied embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256  # tokens are bytes


@dataclass(frozen=True)
class Shape:
    """Size of the model.

    Attributes
    ----------
    layers, width, heads
        Number of blocks, features per token, attention heads per block.
    context
        Most tokens the model looks at.
    """

    layers: int
    width: int
    heads: int
    context: int


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.mixed = nn.Linear(shape.width, 3 * shape.width)
        self.output = nn.Linear(shape.width, shape.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``(batch, time, width)`` to the same shape."""
        batch, time, width = hidden.shape
        query, key, value = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.mixed(hidden).split(width, dim=2)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.output(attended.transpose(1, 2).reshape(batch, time, width))
        return joined


class Block(nn.Module):
    """One transformer block: attention, then a two-layer perceptron, each on a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.perceptron_norm = nn.LayerNorm(shape.width)
        self.perceptron = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``(batch, time, width)`` to the same shape."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        updated: Tensor = hidden + self.perceptron(self.perceptron_norm(hidden))
        return updated


class GPT(nn.Module):
    """Byte-level language model (Radford et al., 2019, without dropout)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.apply(_initialize)
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.output.weight", "perceptron.2.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per byte.

        Parameters
        ----------
        inputs, targets
            Token ids, int64, both ``(batch, time)``; ``targets`` is ``inputs`` one byte later.
        """
        position = torch.arange(inputs.shape[1], device=inputs.device)
        hidden = self.norm(self.blocks(self.tokens(inputs) + self.positions(position)))
        logits = functional.linear(hidden, self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def parameter_count(model: nn.Module) -> int:
    """Count the model's parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _initialize(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
