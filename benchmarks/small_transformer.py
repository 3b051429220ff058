"""A small transformer and made-up sequences, for benchmarks that start ranks themselves.

A plain LightningModule, smooth all over. Its widths, heads, blocks and positions are divisible by
up to eight ranks; heads stand outermost in the features of queries, keys and values, so that
attention can be cut by heads.
"""

import logging
import warnings
from contextlib import redirect_stdout
from io import StringIO
from math import prod
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import onecurve

TOKENS = 32
BATCH = 16
LENGTH = 16
# With embedding, norm and head eight layers: as many as there are ranks.
BLOCKS = 5
MADE: dict[str, Any] = {
    "single": onecurve.Single,
    "ddp": onecurve.DDP,
    "fsdp": onecurve.FSDP,
    "pipeline": onecurve.Pipeline,
    "tensor": onecurve.Tensor,
}


class Embedding(nn.Module):
    """Tokens and their positions, (N, T) to (N, T, W)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.places = nn.Embedding(LENGTH, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """The sum of both."""
        made: Tensor = self.tokens(tokens) + self.places(onecurve.positions(tokens))
        return made


class Attention(nn.Module):
    """Causal, (N, T, W) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.of_head = width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, vectors: Tensor) -> Tensor:
        """By as many heads as there are features."""
        samples, length, _ = vectors.shape
        parts = self.qkv(vectors).view(samples, length, -1, 3, self.of_head)
        query, key, value = parts.permute(3, 0, 2, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        made: Tensor = self.output(seen.transpose(1, 2).flatten(2))
        return made


class Block(nn.Module):
    """Attention and two layers, each beside a path that passes it by."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, T, W) to the same."""
        vectors = vectors + self.attention(self.before_attention(vectors))
        made: Tensor = vectors + self.mlp(self.before_mlp(vectors))
        return made


class LanguageModel(LightningModule):
    """Says the next token; keeps the loss of each step.

    Args:
        width: Features of a position.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        blocks = [Block(width, heads=8) for _ in range(BLOCKS)]
        ends = nn.LayerNorm(width), nn.Linear(width, TOKENS, bias=False)
        self.network = nn.Sequential(Embedding(width), *blocks, *ends)
        self.losses: list[float] = []

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T) to logits (N, T, TOKENS)."""
        logits: Tensor = self.network(tokens)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The mean over all positions."""
        tokens, following = batch
        loss = self.loss(self(tokens), following)
        self.log("train/loss", loss)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        """Keep it as a logger would."""
        self.losses.append(self.trainer.callback_metrics["train/loss"].item())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The same."""
        tokens, following = batch
        loss = self.loss(self(tokens), following)
        self.log("val/loss", loss, batch_size=len(tokens))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=0.003)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over all positions; a pipeline asks for it by this name."""
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def sequences(number: int) -> DataLoader[Any]:
    """Made-up ones, the same at every call."""
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randint(TOKENS, (number, LENGTH + 1), generator=drawn)
    return DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=BATCH)


def trained(name: str, sizes: dict[str, int], width: int = 16, **options: Any) -> Trainer:
    """Train it in this rank, quietly and with one thread.

    Args:
        name: "single", "ddp", "fsdp", "pipeline", "tensor", or anything else for a mesh.
        sizes: Of the axes of a mesh.
        width: Of the network.
        options: The Trainer's, and `samples`: how many in all, in batches of BATCH.
    """
    torch.set_num_threads(1)
    for part in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{part}").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning.pytorch.utilities._pytree")
    seed_everything(1, verbose=False)
    data = sequences(options.pop("samples"))
    made: Any = MADE[name]() if name in MADE else onecurve.mesh(**{"shard": 1, **sizes})
    off = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
    )
    devices = prod(sizes.values())
    trainer = Trainer(accelerator="cpu", strategy=made, devices=devices, **off, **options)
    with redirect_stdout(StringIO()):
        trainer.fit(LanguageModel(width), data, sequences(BATCH + 1))
    return trainer
