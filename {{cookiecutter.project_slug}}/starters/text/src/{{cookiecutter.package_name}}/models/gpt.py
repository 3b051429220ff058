"""A small GPT: a transformer that predicts the next byte of a text.

Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2), 2019:
pre-norm blocks, weights drawn with a deviation of 0.02, smaller where a
block adds to its input. Its tokens are bytes, so that it needs no tokenizer; it has neither
dropout nor a head that shares the embedding's weights.
"""

from collections import OrderedDict
from math import sqrt
from typing import Annotated

from onecurve import positions
from onecurve.errors import UserError
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

Count = Annotated[int, Field(ge=1)]

BYTES = 256


class Embedding(nn.Module):
    """A vector for each byte, plus one for its position."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.positions = nn.Embedding(context, width)

    def forward(self, text: Tensor) -> Tensor:
        """Bytes (N, T), T at most the context, to vectors (N, T, width)."""
        length, most = text.shape[1], self.positions.num_embeddings
        if length > most:
            raise UserError(
                f"model.context={most}: must be at least data.context={length}; "
                f"use model.context={length}, or leave it out"
            )
        vectors: Tensor = self.bytes(text) + self.positions(positions(text))
        return vectors

    def tensor_plan(self) -> dict[str, str]:
        """The plan for `strategy=tensor`: sharded along the vocabulary."""
        return {"bytes": "vocab"}


class Head(nn.Linear):
    """Vectors to logits."""

    def tensor_plan(self) -> dict[str, str]:
        """The plan: sharded along the vocabulary; logits stay sharded until the loss."""
        return {"": "vocab"}


class Attention(nn.Module):
    """Causal self-attention.

    The rows of `qkv` are those of the first head (query, key, value), then those of the second: a
    shard of rows holds complete heads, and their number follows from its size.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (N, T, width) to (N, T, width)."""
        samples, length, _ = inputs.shape
        qkv = self.qkv(inputs).view(samples, length, -1, 3, self.head_dim)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        outputs: Tensor = self.output(seen.transpose(1, 2).flatten(2))
        return outputs

    def tensor_plan(self) -> dict[str, str]:
        """The plan: sharded by heads."""
        return {"": "heads"}


class Block(nn.Module):
    """Attention and a feed-forward network, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(
                expand=nn.Linear(width, 4 * width),
                gelu=nn.GELU(),
                output=nn.Linear(4 * width, width),
            )
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (N, T, width) to (N, T, width)."""
        inputs = inputs + self.attention(self.attention_norm(inputs))
        outputs: Tensor = inputs + self.mlp(self.mlp_norm(inputs))
        return outputs


def gpt(context: Count, width: Count, depth: Count, heads: Count) -> nn.Sequential:
    """Build a GPT: bytes (N, T) to logits (N, T, 256) of the byte after each of them.

    Args:
        context: The longest T.
        width: Length of the vector that a position carries from block to block.
        depth: How many blocks.
        heads: The number of attention heads in each block; it divides the width.

    Raises:
        UserError: If it does not.
    """
    if width % heads:
        fits = max(number for number in range(1, heads) if width % number == 0)
        raise UserError(
            f"model.heads={heads}: must divide model.width={width}; use model.heads={fits}, "
            f"or model.width={-(-width // heads) * heads}"
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict(embedding=Embedding(context, width))
    for number in range(1, depth + 1):
        layers[f"block{number}"] = Block(width, heads)
    layers["norm"] = nn.LayerNorm(width)
    layers["head"] = Head(width, BYTES, bias=False)
    net = nn.Sequential(layers)
    for name, parameter in net.named_parameters():
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)
        elif parameter.ndim == 2:
            added = name.endswith("output.weight")
            nn.init.normal_(parameter, std=0.02 / sqrt(2 * depth) if added else 0.02)
    return net
