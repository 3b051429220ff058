"""The promise: the loss curve does not tell which strategy made it, nor do the weights.

`benchmarks/parity.py` of the template prints every cell of the table; here every strategy meets
every setting once, several settings in a run.
"""

from itertools import cycle
from typing import Any

import pytest
import torch
from conftest import FLOAT64, ROUNDING, ZBV, Cli, column, largest_difference, one_of_a_kind
from lightning.pytorch import Callback, LightningModule, Trainer
from small.task import Classification

# 247 training samples: 4 batches of 50 and one of 47, which ranks and micro-batches share unevenly.
# Fifty steps are in the benchmark: what is not the same, is not from its first steps on.
UNEVEN = (FLOAT64, "data.batch_size=50", "trainer.max_epochs=2", "data.samples=424")

STRATEGIES = {
    "dp": ("strategy=dp", "trainer.devices=2"),
    "dp of 3": ("strategy=dp", "trainer.devices=3"),
    "ddp": ("strategy=ddp",),
    "fsdp": ("strategy=fsdp",),
    "gpipe": ("strategy=pipeline", "strategy.schedule=gpipe"),
    "1f1b": ("strategy=pipeline", "strategy.schedule=1f1b"),
    "looped_bfs": ("strategy=pipeline", "strategy.schedule=looped_bfs"),
    "interleaved_1f1b": ("strategy=pipeline", "strategy.schedule=interleaved_1f1b"),
    "interleaved_zero_bubble": ("strategy=pipeline", "strategy.schedule=interleaved_zero_bubble"),
    "zbv": ("strategy=pipeline", f"strategy.schedule={ZBV}"),
    "2 pipelines of 2": ("strategy=pipeline", "strategy.replicas=2", "trainer.devices=4"),
    "2 pipelines of 2 shards": ("strategy=mesh", "strategy.pipeline=2", "trainer.devices=4"),
    "2 x 2 fsdp": ("strategy=fsdp", "strategy.replicas=2", "trainer.devices=4"),
}

RUNS = {
    "lenet": (
        "model=lenet",
        "data.image_size=32",
        *("optimizer=sgd", "optimizer.lr=0.05", "optimizer.momentum=0"),
        "trainer.val_check_interval=4",
        "trainer.gradient_clip_val=0.01",
        "trainer.gradient_clip_algorithm=value",
    ),
    "a frozen layer": (
        "optimizer=sgd",
        "optimizer.lr=0.05",
        "optimizer.momentum=0.9",
        "+callbacks.freeze._target_=test_parity.Freeze",
    ),
    "transformer": (
        "model._target_=sequences.transformer",
        "+model.depth=2",
        "data._target_=sequences.Sequences",
        "data.samples=147",
        "optimizer=adamw",
        "trainer.accumulate_grad_batches=2",
        "trainer.gradient_clip_val=0.3",
        "trainer.max_epochs=4",
        "trainer.check_val_every_n_epoch=2",
    ),
}
# Each strategy once, and each kind once in `make test`; all cells are in benchmarks/parity.py.
ONCE = [
    *(("dp of 3", run) for run in ("lenet", "transformer")),
    *((strategy, "a frozen layer") for strategy in ("fsdp", "zbv")),
    ("1f1b", "transformer"),
]
OTHERS = [name for name in STRATEGIES if name not in dict(ONCE)]
CELLS = [*ONCE, *zip(OTHERS, cycle(RUNS), strict=False)]


class Freeze(Callback):
    """Freezes the first layer that has parameters."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        first = next(layer for layer in pl_module.network if list(layer.parameters()))
        first.requires_grad_(False)


class TwoRates(Classification):
    """Trains its first layer with a learning rate of its own."""

    def configure_optimizers(self) -> Any:
        groups = [
            {"params": list(self.network[1].parameters()), "lr": 0.001, "name": "hidden1"},
            {"params": list(self.network[2:].parameters()), "name": "rest"},
        ]
        optimizer = self.build_optimizer(groups)
        scheduler = self.build_scheduler(
            optimizer, total_steps=1, monitor=self.monitor, mode=self.mode
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


LOGGED = ("train/loss", "val/loss", "val/acc", "test/loss", "test/acc")


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "run"), one_of_a_kind(CELLS, kept=ONCE))
def test_the_curve_is_that_of_single(train: Cli, trained: Cli, strategy: str, run: str) -> None:
    overrides = (*UNEVEN, *RUNS[run])
    single, other = trained(*overrides).run, train(*overrides, *STRATEGIES[strategy]).run
    assert len(column(single, "train/loss")) == (8 if run == "transformer" else 10)
    for name in LOGGED:
        difference = largest_difference(column(single, name), column(other, name))
        assert difference <= ROUNDING, f"{name} differs by {difference:.1e}"
    weights, found = (
        torch.load(made / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for made in (single, other)
    )
    assert list(found) == list(weights)
    assert distance(found, weights) <= ROUNDING


def distance(state: dict[str, Any], expected: dict[str, Any]) -> float:
    """Norm of the difference over the norm: a weight may have no gradient but rounding."""
    flat = [torch.cat([v.flatten().double() for v in part.values()]) for part in (state, expected)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


@pytest.mark.compares
@pytest.mark.parametrize("strategy", one_of_a_kind(["dp", "fsdp", "1f1b", "zbv"], kept=["dp"]))
def test_whatever_depends_on_a_metric_is_the_same_under_every_strategy(
    train: Cli, trained: Cli, strategy: str
) -> None:
    """Plateaus, early stopping, limits, parameter groups: every logged column equals single's."""
    settings = (
        "scheduler=plateau", "scheduler.patience=0", "scheduler.threshold=0.3", "monitor=val/loss",
        "mode=min", "callbacks=[early_stopping,lr_monitor,checkpoint]", "trainer.max_epochs=30",
        "callbacks.early_stopping.patience=2", "callbacks.early_stopping.min_delta=0.02",
        "trainer.num_sanity_val_steps=2", "trainer.limit_train_batches=5", "optimizer.lr=0.01",
        "trainer.limit_val_batches=2", "task._target_=test_parity.TwoRates", FLOAT64,
    )  # fmt: skip
    single = trained(*settings)
    other = train(*settings, *STRATEGIES[strategy])
    steps = single.metrics["global_step"]
    assert other.metrics["global_step"] == steps
    assert 10 < steps < 150, "stopped early"
    names = (single.run / "metrics.csv").read_text().splitlines()[0].split(",")
    assert set(names) == set((other.run / "metrics.csv").read_text().splitlines()[0].split(","))
    assert {name for name in names if name.startswith("lr-")} >= {"lr-AdamW/hidden1"}
    for name in names:
        a, b = column(single.run, name), column(other.run, name)
        assert largest_difference(a, b) <= ROUNDING, name
        if name.startswith("lr-"):
            assert len(set(a)) > 1, "the learning rate fell"


@pytest.mark.compares
@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fsdp", "1f1b"])
def test_overfitting_a_batch_is_the_same_as_under_single(
    train: Cli, trained: Cli, strategy: str
) -> None:
    settings = (FLOAT64, "trainer.overfit_batches=2", "trainer.max_epochs=5", "callbacks=[]")
    runs = trained(*settings), train(*settings, *STRATEGIES[strategy])
    curves = [column(outcome.run, "train/loss") for outcome in runs]
    assert largest_difference(*curves) <= ROUNDING
    assert len(curves[0]) == 10
