"""Hugging Face losses are means over labels, of which ranks have different numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, one_of_a_kind
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

import onecurve
from onecurve.launch import agent
from onecurve.strategies.weight import labels_in, mean_over_labels


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


class Weighed(Fine):
    """Says itself what counts in a batch that is no pair."""

    def weight(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["labels"][:, 1:] != -100).sum()


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


WAYS: dict[str, Callable[[], Any]] = {
    "ddp": onecurve.DDP,
    "fsdp": onecurve.FSDP,
    "pipeline": lambda: onecurve.Pipeline(microbatches=2),
}


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "start_ranks", warm_ranks.start_ranks)


LOSSES = [("ddp", Fine), ("ddp", OfTokens), ("fsdp", Fine), ("pipeline", Fine)]


@pytest.mark.compares
@pytest.mark.parametrize(("way", "task"), one_of_a_kind(LOSSES, kept=[LOSSES[1], LOSSES[3]]))
def test_the_curve_is_that_of_one_process(way: str, task: Any) -> None:
    found = onecurve.parity(task, texts, strategy=WAYS[way](), accelerator="cpu", steps=6)
    assert found.equal, found.table()


@pytest.mark.compares
def test_weight_gets_the_batch_if_it_is_not_a_pair() -> None:
    """Values logged for an epoch are weighted as well, unlike with a plain Trainer."""
    found = onecurve.parity(Weighed, texts, strategy=onecurve.DDP(), accelerator="cpu", steps=6)
    apart = {row.quantity: row.relative for row in found.rows}
    assert apart["loss"] <= ROUNDING
    assert apart["weights at the end"] <= ROUNDING


def test_which_losses_are_known() -> None:
    class Said(Fine):
        def weight(self, batch: Any) -> int:
            return 1

    class Twice(Fine):
        def __init__(self) -> None:
            super().__init__()
            self.other = TinyForCausalLM()

    assert mean_over_labels(Fine()) == ("TinyForCausalLM", False)
    assert mean_over_labels(OfTokens()) == ("TinyForTokenClassification", True)
    assert mean_over_labels(Said()) is None
    assert mean_over_labels(Twice()) is None


def test_how_many_labels_there_are() -> None:
    labels = torch.tensor([[5, 1, -100], [-100, 2, 3]])
    assert labels_in({"labels": labels}, with_first=True) == 4
    assert labels_in({"labels": labels}, with_first=False) == 3
    assert labels_in({"labels": labels[:, 0]}, with_first=True) is None
    assert labels_in({"labels": labels.double()}, with_first=True) is None
    assert labels_in((labels, labels), with_first=True) is None
