"""The tasks of this project: trained alike under every strategy, and what they say."""

from collections.abc import Callable
from functools import partial
from math import exp
from pathlib import Path
from typing import Any

import onecurve
import pytest
import torch
from conftest import TWO_STEPS, composed
from hydra.utils import instantiate
from onecurve.app.run.instantiate import build_task
from onecurve.testing.runs import Cli, column
from torch.utils.data import DataLoader

from {{ cookiecutter.package_name }}.tasks.causal_lm import CausalLM

SMALL = ("data.vocab_size=64", "scheduler=none")
CLASSIFY = ("task=text_classification", "data=snippets", "data.labels=[a,b,c]")
LENGTHS = torch.arange(13, 1, -1).repeat(2)


def padded(labels: torch.Tensor | None = None) -> DataLoader[Any]:
    """Texts of other lengths in a batch."""
    ids = torch.randint(2, 64, (24, 12), generator=torch.Generator().manual_seed(1))
    is_text = torch.arange(12) < LENGTHS[:, None]
    rows = {
        "input_ids": ids * is_text,
        "attention_mask": is_text.long(),
        "labels": ids.masked_fill(~is_text, -100) if labels is None else labels,
    }
    samples: Any = [{name: value[row] for name, value in rows.items()} for row in range(24)]
    return DataLoader(samples, batch_size=8)


def texts(labels: torch.Tensor | None = None) -> tuple[DataLoader[Any], DataLoader[Any]]:
    return padded(labels), padded(labels)


def small(*overrides: str) -> Any:
    return build_task(composed(*overrides, *SMALL))


LLAMA = partial(small, "model=llama_tiny")
GPT2 = partial(small, "model=gpt2_tiny", "model.gradient_checkpointing=true")
BERT = partial(small, "model=bert_tiny", *CLASSIFY)
classes = partial(texts, torch.arange(24) % 3)
STRATEGIES = (onecurve.DDP, onecurve.FSDP, onecurve.Tensor, onecurve.Pipeline)


@pytest.mark.parametrize(
    ("task", "data", "strategy"),
    [
        *((LLAMA, texts, strategy) for strategy in STRATEGIES),
        (GPT2, texts, onecurve.Pipeline),
        *((BERT, classes, strategy) for strategy in STRATEGIES[1::2]),
    ],
)
def test_it_trains_as_under_a_plain_trainer(
    task: Callable[[], Any], data: Callable[[], Any], strategy: Callable[[], Any]
) -> None:
    found = onecurve.parity(task, data, strategy=strategy(), accelerator="cpu", steps=4)
    # By labels, and a plain Trainer knows no `weight`.
    by_labels = {"val/loss"} if data is texts else set()
    differ = {row.quantity for row in found.rows if row.step is not None} - by_labels
    assert not differ, found.table()


@pytest.fixture
def run(once: Any) -> Any:
    return once(*TWO_STEPS, "data=text_blocks", "model=llama_tiny", "model.dtype=float32")


def test_a_checkpoint_makes_the_task_again(run: Path, tmp_path: Path) -> None:
    """`load_from_checkpoint` as of any LightningModule, and the loss that was logged."""
    task = CausalLM.load_from_checkpoint(run / "checkpoints/last.ckpt").eval()
    config = composed("data=text_blocks", "data.batch_size=8", f"data.cache={tmp_path}")
    data: Any = instantiate(config.data)
    data.prepare_data()
    data.setup("fit")
    with torch.no_grad():
        loss = task(**next(iter(data.val_dataloader()))).loss.item()
    # float32, as the run
    assert loss == pytest.approx(column(run, "val/loss")[-1], rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_perplexity_has_more_digits_than_bfloat16(once: Any, dtype: str) -> None:
    run = once(*TWO_STEPS, "data=text_blocks", "model=llama_tiny", f"model.dtype={dtype}")
    for part in ("val", "test"):
        (loss,), (perplexity,) = column(run, f"{part}/loss"), column(run, f"{part}/perplexity")
        assert perplexity == pytest.approx(exp(loss), rel=1e-5)


def test_predict_continues_a_prompt(run: Path, cli: Cli) -> None:
    checkpoint = f"checkpoint={run}/checkpoints/last.ckpt"
    typed = (checkpoint, "predict.prompt=for i in", "predict.length=5")
    outcomes = [cli("predict.py", *typed, f"predict.temperature={value}") for value in (0, 0, 1.5)]
    made = [(outcome.run / "predictions.txt").read_text() for outcome in outcomes]
    assert all(text.startswith("for i in") and len(text) > 8 for text in made)
    assert made[0] == made[1] != made[2]
    assert cli("predict.py", *typed, "predict.length=0").err.startswith("error: predict.length=0:")


@pytest.mark.usefixtures("small_data")
def test_a_classifier_learns_and_predicts(cli: Cli) -> None:
    of_csv = ("data.csv=two.csv", "data.labels=[no,yes]", "data.vocab_size=300")
    few = ("data.max_length=12", "data.batch_size=8", "trainer.max_epochs=8", "logger=csv")
    outcome = cli("train.py", "experiment=snippets", *of_csv, *few)
    assert outcome.status == 0, outcome.err
    assert outcome.metrics["test/acc"] == 1
    checkpoint = f"checkpoint={outcome.run}/checkpoints/best.ckpt"
    written = cli("predict.py", checkpoint)
    assert written.status == 0, written.err
    table = (written.run / "predictions.csv").read_text().splitlines()
    assert table[0] == "sample,label,probability"
    assert {row.split(",")[1] for row in table[1:]} == {"0", "1"}
