"""A small transformer and made-up sequences, for benchmarks that start ranks themselves.

Its widths, heads, blocks and positions are divisible by up to eight ranks. There are more positions
than samples, as a pipeline cannot tell which is which where they are as many.
"""

import logging
import warnings
from contextlib import redirect_stdout
from io import StringIO
from math import prod
from typing import Any

import torch
from gpu_check.entries import STRATEGIES
from gpu_check.tasks import Size, Task, transformer
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

import onecurve

BATCH = 16
# With embedding, norm and head eight layers: as many as there are ranks.
BLOCKS = 5
SIZE = Size(vocabulary=32, length=24, width=16, depth=BLOCKS, heads=8, batch=BATCH)


class LanguageModel(Task):
    """Says the next token; keeps the loss of each step.

    Args:
        width: Features of a position.
    """

    def __init__(self, width: int) -> None:
        super().__init__(transformer(SIZE._replace(width=width)).network, lr=0.003)
        self.losses: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        """Keep it as a logger would."""
        self.losses.append(self.trainer.callback_metrics["train/loss"].item())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The same."""
        tokens, following = batch
        loss = self.loss(self(tokens), following)
        self.log("val/loss", loss, batch_size=len(tokens))


def sequences(number: int) -> DataLoader[Any]:
    """Made-up ones, the same at every call."""
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randint(SIZE.vocabulary, (number, SIZE.length + 1), generator=drawn)
    return DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=BATCH)


def trained(name: str, sizes: dict[str, int], width: int = SIZE.width, **options: Any) -> Trainer:
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
    made: Any = STRATEGIES[name]() if name in STRATEGIES else onecurve.mesh(**{"shard": 1, **sizes})
    off = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
    )
    devices = prod(sizes.values())
    trainer = Trainer(accelerator="cpu", strategy=made, devices=devices, **off, **options)
    with redirect_stdout(StringIO()):
        trainer.fit(LanguageModel(width), data, sequences(BATCH + 1))
    return trainer
