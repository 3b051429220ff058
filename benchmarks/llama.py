"""Llama 3, to plan with: its shapes and its operations, as a sequence of layers.

Source: A. Grattafiori et al., "The Llama 3 Herd of Models", 2024: grouped queries, rotary
positions, SwiGLU, RMSNorm. A network on the meta device is enough for a plan.
"""

from functools import partial
from typing import NamedTuple

import torch
from gpu_check.tasks import Block, in_order
from torch import Tensor, nn
from torch.nn import functional as F

from onecurve.planner.network import Network, Precision


class Shape(NamedTuple):
    """Of a network: widths, and numbers of layers and heads."""

    width: int
    depth: int
    heads: int
    groups: int
    hidden: int
    vocabulary: int = 128256


SHAPES = {
    "8B": Shape(4096, 32, 32, 8, 14336),
    "70B": Shape(8192, 80, 64, 8, 28672),
}


class Attention(nn.Module):
    """Grouped queries, causal."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.width // shape.heads
        self.repeat = shape.heads // shape.groups
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, shape.groups * self.head_dim, bias=False)
        self.value = nn.Linear(shape.width, shape.groups * self.head_dim, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = (
            part(inputs).unflatten(-1, (-1, self.head_dim))
            for part in (self.query, self.key, self.value)
        )
        query, key = self.turned(query), self.turned(key)
        key, value = (part.repeat_interleave(self.repeat, dim=2) for part in (key, value))
        seen = F.scaled_dot_product_attention(
            *(part.transpose(1, 2) for part in (query, key, value)), is_causal=True
        )
        outputs: Tensor = self.output(seen.transpose(1, 2).flatten(2))
        return outputs

    def turned(self, heads: Tensor) -> Tensor:
        """Rotary positions, in float32 as Llama's own code turns them."""
        first, second = heads.float().unflatten(-1, (-1, 2)).unbind(-1)
        positions = torch.arange(heads.shape[1], device=heads.device, dtype=torch.float32)
        rates = 500000.0 ** -(
            torch.arange(0, self.head_dim, 2, device=heads.device) / self.head_dim
        )
        angles = (positions[:, None] * rates)[:, None, :]
        cos, sin = angles.cos(), angles.sin()
        turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
        return turned.flatten(-2).to(heads.dtype)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.down(F.silu(self.gate(inputs)) * self.up(inputs))
        return outputs


class Llama(nn.Sequential):
    """Tokens (N, T) to logits (N, T, vocabulary)."""

    def __init__(self, shape: Shape) -> None:
        norm = partial(nn.RMSNorm, shape.width, eps=1e-5)
        blocks = [Block(Attention(shape), FeedForward(shape), norm) for _ in range(shape.depth)]
        embedding = nn.Embedding(shape.vocabulary, shape.width)
        head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        super().__init__(in_order(embedding, blocks, norm(), head))


# How ranks share its layers, by the last part of their names.
STYLES = {
    **dict.fromkeys(("embedding", "head"), "vocab"),
    **dict.fromkeys(("query", "key", "value", "gate", "up"), "colwise"),
    **dict.fromkeys(("output", "down"), "rowwise"),
}


def planned(size: str, *, fused: bool = False, length: int = 8192) -> Network:
    """What a plan is made of: bf16-mixed, the mean cross entropy of the next token."""
    with torch.device("meta"):
        net = Llama(SHAPES[size])
    tokens = torch.empty(1, length, dtype=torch.long, device="meta")
    last = {name: name.rpartition(".")[2] for name, _ in net.named_modules()}
    plan = {name: STYLES[word] for name, word in last.items() if word in STYLES}
    return Network(
        dict(net.named_children()),
        (tokens,),
        loss=lambda outputs, targets: F.cross_entropy(outputs.flatten(0, 1), targets.flatten()),
        targets=tokens,
        plan=plan,
        precision=Precision.named("bf16-mixed"),
        fused=fused,
    )
