"""Hugging Face losses are means over labels, of which ranks have different numbers."""

from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
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


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden).tanh()


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class PreTrainedModel(nn.Module):
    """What transformers' networks are known by; theirs count in float32."""

    next_one = 0

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        hidden = self.embed(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        logits = hidden @ self.embed.weight.T
        counted = labels[:, self.next_one :]
        logits = logits[:, : counted.shape[1]]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), counted.flatten())
        return Output(loss, logits)


class TinyForTokenClassification(PreTrainedModel):
    """A label for each token."""


class TinyForCausalLM(PreTrainedModel):
    """The label of a token is the next one."""

    next_one = 1


class Fine(LightningModule):
    """As tutorials write it."""

    kind: type[PreTrainedModel] = TinyForCausalLM

    def __init__(self) -> None:
        super().__init__()
        self.model = self.kind()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        self.log("train/loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.model(**batch).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OfTokens(Fine):
    kind = TinyForTokenClassification


PAGE = Path(__file__).parents[2] / "docs/your_network.md"
exec(PAGE.read_text(encoding="utf-8").split("```python\n")[2].split("```")[0], shown := {})


class Weighed(Fine):
    """Says itself what counts in a batch that is no pair."""

    weight = shown["weight"]


def texts() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Batches of 4 and 4 and 3 texts of many lengths, and some with one label."""
    draws = torch.Generator().manual_seed(0)
    samples = []
    for number in range(11):
        ids = torch.randint(16, (6,), generator=draws)
        length = (2, 6, 4)[number % 3]
        mask = (torch.arange(6) < length).long()
        labels = ids.masked_fill(mask == 0, -100)
        samples.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return DataLoader(samples, 4), DataLoader(samples, 4)  # type: ignore[arg-type]


def said_in_fit(task: type[LightningModule]) -> str:
    with redirect_stderr(StringIO()) as said:
        quiet_trainer(onecurve.DDP(), 2, max_epochs=1).fit(task(), *texts())
    return said.getvalue()


def test_labels_that_are_ignored_without_a_word_are_one_line() -> None:
    run = partial(warm_ranks.run, "test_labels.said_in_fit", processes=2)
    line = "strategy=ddp: labels of the batch are -100, of which ranks have different numbers"
    assert run((Fine,)).count(line) == 1
    assert run((OfTokens,)).count(line) == 1
    assert "labels" not in run((Weighed,))
