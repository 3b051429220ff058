"""What is trained: an MLP, transformers that predict the next token, ResNets; on made-up data."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from onecurve.chunked_loss import chunked_cross_entropy
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
    """Classes of samples, or of every position of a sequence.

    Args:
        network: Inputs to logits.
        lr: The learning rate.
        fused: Whether AdamW is one kernel.
        chunks: Compute the logits and their loss in so many chunks, inside of the last layer.
    """

    def __init__(
        self, network: nn.Module, lr: float = 1e-3, fused: bool = False, chunks: int = 0
    ) -> None:
        super().__init__()
        self.network = network
        self.lr, self.fused, self.chunks = lr, fused, chunks

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
        if self.chunks:
            assert isinstance(self.network, nn.Sequential)
            *layers, head = self.network
            for layer in layers:
                inputs = layer(inputs)
            loss = head(inputs, targets, self.chunks).mean()
        else:
            loss = self.loss(self(inputs), targets)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=self.fused or None)


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
    """Attention and a feed-forward network, each added to what it was given."""

    def __init__(self, attention: nn.Module, mlp: nn.Module, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.attention_norm, self.attention = norm(), attention
        self.mlp_norm, self.mlp = norm(), mlp

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs + self.attention(self.attention_norm(inputs))
        outputs: Tensor = inputs + self.mlp(self.mlp_norm(inputs))
        return outputs


class Head(nn.Linear):
    """Vectors to logits."""

    def tensor_plan(self) -> dict[str, str]:
        return {"": "vocab"}


class HeadWithLoss(nn.Linear):
    """Vectors to logits; with targets, to losses, in chunks."""

    def forward(self, inputs: Tensor, targets: Tensor | None = None, chunks: int = 0) -> Tensor:
        if targets is None:
            return super().forward(inputs)
        return chunked_cross_entropy(inputs, self.weight, targets, chunks)


def in_order(
    embedding: nn.Module, blocks: Iterable[nn.Module], norm: nn.Module, head: nn.Module
) -> OrderedDict[str, nn.Module]:
    """The layers of a transformer, by their names."""
    named = {f"block{number}": block for number, block in enumerate(blocks)}
    return OrderedDict(embedding=embedding, **named, norm=norm, head=head)


def transformer(size: Size, **options: Any) -> Task:
    """Tokens (N, T) to logits (N, T, vocabulary); the options are those of the task."""
    norm, wide = partial(nn.LayerNorm, size.width), 4 * size.width
    blocks = []
    for _ in range(size.depth):
        mlp = nn.Linear(size.width, wide), nn.GELU(), nn.Linear(wide, size.width)
        blocks.append(Block(Attention(size), nn.Sequential(*mlp), norm))
    kind = HeadWithLoss if options.get("chunks") else Head
    head = kind(size.width, size.vocabulary, bias=False)
    network = nn.Sequential(in_order(Embedding(size), blocks, norm(), head))
    for parameter in network.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
    return Task(network, **options)


def tokens(size: Size, steps: int) -> DataLoader[Any]:
    """Sequences in which a token follows from the one before it."""
    tokens = torch.empty(size.batch * steps, size.length + 1, dtype=torch.long)
    tokens[:, 0] = torch.arange(len(tokens)) % size.vocabulary
    for place in range(size.length):
        tokens[:, place + 1] = (3 * tokens[:, place] + 1) % size.vocabulary
    return DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), size.batch, pin_memory=True)


class ChannelsLast(nn.Module):
    """Images of bytes to what a network of convolutions is fastest with."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        numbers = images.float().div(127.5).sub(1)
        outputs: Tensor = self.network(numbers.contiguous(memory_format=torch.channels_last))
        return outputs


def resnet(is_large: bool, **options: Any) -> Task:
    """ResNet-50 of torchvision, or a tiny one."""
    from torchvision.models import resnet50  # not needed by anything else here
    from torchvision.models.resnet import BasicBlock, ResNet

    network = resnet50() if is_large else ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)
    return Task(ChannelsLast(network), **options)


class WholeBatches(TensorDataset):
    """A loader takes whole batches of it."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return tuple(tensor[indices] for tensor in self.tensors)


def images(is_large: bool, steps: int) -> DataLoader[Any]:
    """Each step the same: 256 of 224 pixels, or a few small ones."""
    batch, pixels = (256, 224) if is_large else (8, 32)
    drawn = torch.randint(256, (batch, 3, pixels, pixels), dtype=torch.uint8)
    dataset = WholeBatches(drawn, torch.arange(batch) % CLASSES)
    order = [*range(batch)] * steps
    return DataLoader(dataset, batch, sampler=order, pin_memory=True, collate_fn=tuple)


# The transformer of the matrix, and its data.
small_transformer = partial(transformer, SMALL)
small_tokens = partial(tokens, SMALL, 4)


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
