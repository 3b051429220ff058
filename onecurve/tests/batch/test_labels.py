"""Hugging Face losses are means over labels, of which ranks have different numbers."""

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import warm_ranks
from lightning.pytorch import LightningModule
from several_fits import quiet_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

import onecurve


class Fine(LightningModule):
    """As tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self.head(self.embed(batch["input_ids"]))
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


PAGE = Path(__file__).parents[2] / "docs/your_network.md"
exec(PAGE.read_text(encoding="utf-8").split("```python\n")[2].split("```")[0], shown := {})


class Weighed(Fine):
    """Says itself what counts in a batch that is no pair."""

    weight = shown["weight"]


def texts() -> DataLoader[Any]:
    """Batches of 4 and 4 and 3 texts of many lengths."""
    samples = []
    for number in range(11):
        ids = torch.arange(6)
        labels = ids.where(ids < (2, 6, 4)[number % 3], -100)
        samples.append({"input_ids": ids, "labels": labels})
    return DataLoader(samples, 4)  # type: ignore[arg-type]


def said_in_fit(task: type[LightningModule]) -> str:
    with redirect_stderr(StringIO()) as said:
        quiet_trainer(onecurve.DDP(), 2, max_epochs=1).fit(task(), texts())
    return said.getvalue()


def test_labels_that_are_ignored_without_a_word_are_one_line() -> None:
    line = "strategy=ddp: labels of the batch are -100, of which ranks have different numbers"
    assert warm_ranks.run(said_in_fit, Fine).count(line) == 1
    assert "labels" not in warm_ranks.run(said_in_fit, Weighed)
