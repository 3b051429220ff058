"""What is trained: an MLP, and transformers that predict the next token; their data are made up."""

from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from onecurve.strategies.context_parallel import positions

FEATURES, CLASSES = 32, 10


class Size(NamedTuple):
    """Of a transformer, and of the batch that it is trained on."""

    vocabulary: int
    length: int
    width: int
    depth: int
    heads: int
    batch: int


SMALL = Size(vocabulary=64, length=16, width=32, depth=4, heads=4, batch=8)
# 1.04 billion parameters, 16,384 tokens a step; and what stands for it on a CPU.
BILLION = Size(vocabulary=32_000, length=2048, width=2048, depth=18, heads=16, batch=8)
TINY = Size(vocabulary=512, length=64, width=64, depth=2, heads=4, batch=8)


class Task(LightningModule):
    """Classes of samples, or of every position of a sequence."""

    def __init__(self, network: nn.Module, lr: float = 1e-3) -> None:
        super().__init__()
        self.network = network
        self.lr = lr

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.network(inputs)
        return outputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of logits (N, T, C), or (N, C)."""
        if outputs.ndim == 2:
            return F.cross_entropy(outputs, targets)
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss = self.loss(self(inputs), targets)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Embedding(nn.Module):
    """A vector for each token, plus one for its position."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.tokens(tokens) + self.positions(positions(tokens))
        return vectors

    def tensor_plan(self) -> dict[str, str]:
        return {"tokens": "vocab"}


class Attention(nn.Module):
    """Causal; the rows of `qkv` are those of the first head, then those of the second."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_dim = size.width // size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.output = nn.Linear(size.width, size.width)

    def forward(self, inputs: Tensor) -> Tensor:
        samples, length, _ = inputs.shape
        qkv = self.qkv(inputs).view(samples, length, -1, 3, self.head_dim)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        outputs: Tensor = self.output(seen.transpose(1, 2).flatten(2))
        return outputs

    def tensor_plan(self) -> dict[str, str]:
        return {"": "heads"}


class Block(nn.Module):
    """Attention and two linear layers, each added to what it was given."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.mlp_norm = nn.LayerNorm(size.width)
        expand = nn.Linear(size.width, 4 * size.width)
        self.mlp = nn.Sequential(expand, nn.GELU(), nn.Linear(4 * size.width, size.width))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs + self.attention(self.attention_norm(inputs))
        outputs: Tensor = inputs + self.mlp(self.mlp_norm(inputs))
        return outputs


class Head(nn.Linear):
    """Vectors to logits."""

    def tensor_plan(self) -> dict[str, str]:
        return {"": "vocab"}


def transformer(size: Size) -> Task:
    """Tokens (N, T) to logits (N, T, vocabulary)."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(embedding=Embedding(size))
    for number in range(size.depth):
        layers[f"block{number}"] = Block(size)
    layers["norm"] = nn.LayerNorm(size.width)
    layers["head"] = Head(size.width, size.vocabulary, bias=False)
    network = nn.Sequential(layers)
    for parameter in network.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
    return Task(network)


def tokens(size: Size, steps: int) -> DataLoader[Any]:
    """Sequences in which a token follows from the one before it."""
    tokens = torch.empty(size.batch * steps, size.length + 1, dtype=torch.long)
    tokens[:, 0] = torch.arange(len(tokens)) % size.vocabulary
    for place in range(size.length):
        tokens[:, place + 1] = (3 * tokens[:, place] + 1) % size.vocabulary
    return DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), size.batch, pin_memory=True)


def small_transformer() -> Task:
    """The transformer of the matrix."""
    return transformer(SMALL)


def small_tokens() -> DataLoader[Any]:
    """Its data."""
    return tokens(SMALL, 4)


def mlp() -> Task:
    """Features (N, 32) to logits (N, 10)."""
    first, second = nn.Linear(FEATURES, 64), nn.Linear(64, 64)
    return Task(nn.Sequential(first, nn.GELU(), second, nn.GELU(), nn.Linear(64, CLASSES)))


def noisy_mlp() -> Task:
    """The MLP with dropout: a run that is resumed must go on with the same random numbers."""
    task = mlp()
    assert isinstance(task.network, nn.Sequential)
    task.network.insert(2, nn.Dropout(0.3))
    return task


def samples() -> DataLoader[Any]:
    """Its data."""
    numbers = torch.Generator().manual_seed(0)
    features = torch.randn(32, FEATURES, generator=numbers)
    classes = features[:, :CLASSES].argmax(1)
    return DataLoader(TensorDataset(features, classes), 8, pin_memory=True)
