"""Tasks as others write them, beside the table of tests/parity: lines that are said once, files."""

from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING
from lightning.pytorch import LightningModule, Trainer
from others import WIDTH, AddsNoise, Centred, OwnLoader, Samples, Stranger, loaders
from several_fits import STRATEGIES, Saves, fits, quiet_trainer
from sharded_networks import fused
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

import onecurve
from onecurve.errors import UserError
from onecurve.strategies.layers import find_layers

pytestmark = pytest.mark.usefixtures("warm_launch")


def said_in_fit(task: Callable[[], LightningModule], data: Any = None, name: str = "ddp") -> str:
    """What is printed in a fit, with a checkpoint at its end."""
    options: dict[str, Any] = {"data": data or partial(DataLoader, Samples(), 8)}
    with redirect_stderr(StringIO()) as said, TemporaryDirectory() as folder:
        options["callbacks"] = [Saves(Path(folder) / "end.ckpt")]
        found = fits({"": (task, STRATEGIES[name](), options)})
    assert not isinstance(found[""], str)
    return said.getvalue()


def test_a_line_is_said_once() -> None:
    run = partial(warm_ranks.run, said_in_fit)
    for name in ("ddp", "fsdp"):
        line = f"strategy={name}: model.0.shift of Centred became different ones on each rank"
        assert run(Centred, None, name).count(line) == 1
    said = run(AddsNoise)
    drawn = "strategy=ddp: training_step of AddsNoise draws random numbers, different ones on each"
    words = "dropout may, which trains as well; draw noise in prepare(batch), where it is the same"
    assert said.count(drawn) == said.count(words) == 1
    line = "strategy=ddp: every rank computes every batch of OwnLoader"
    assert run(Stranger, OwnLoader).count(line) == 1


def test_layers_by_their_names() -> None:
    class Named(Stranger):
        def layers(self) -> list[str]:
            return ["model.0"]

    with pytest.raises(UserError, match=r"layers\(\) of Named: returns a str; return the modules"):
        find_layers(Named())


def fit_of_the_other_package(trains: str) -> None:
    import pytorch_lightning as other

    class Task(other.LightningModule):
        pass

    trainer = other.Trainer if trains == "pytorch_lightning" else Trainer
    trainer(accelerator="cpu", devices=2, strategy=onecurve.DDP(), logger=False).fit(Task())


@pytest.mark.parametrize("trains", ["lightning", "pytorch_lightning"])
def test_modules_of_the_other_lightning_package_are_rejected(
    trains: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"write import lightning\.pytorch as pl instead"):
        onecurve.launch(fit_of_the_other_package, trains, devices=2)


class KeepsItsMetrics(Stranger):
    """Among its hyperparameters, and in a checkpoint, as pytorch-forecasting's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = MeanMetric()
        self.save_hyperparameters({"width": WIDTH, "deep": {"metrics": [self.metric]}})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["special"] = {"metric": self.metric}


def saved(
    path: Path,
    task: Callable[[], LightningModule],
    strategy: Any,
    epochs: int = 1,
    resumed: Path | None = None,
) -> None:
    devices = 1 if strategy == "auto" or strategy.name == "single" else 2
    options = {"devices": devices, "precision": "64-true", "max_epochs": epochs}
    trainer = quiet_trainer(strategy, **options)
    torch.manual_seed(0)
    trainer.fit(task(), loaders()[0], ckpt_path=resumed)
    trainer.save_checkpoint(path)


def test_a_metric_in_a_checkpoint_has_no_group_of_ranks(tmp_path: Path) -> None:
    onecurve.launch(saved, tmp_path / "one.ckpt", KeepsItsMetrics, onecurve.Tensor(), devices=2)
    checkpoint = torch.load(tmp_path / "one.ckpt", weights_only=False)
    assert checkpoint["special"]["metric"].process_group is None
    assert checkpoint["hyper_parameters"] == {"width": WIDTH}


class OfOneProjection(Stranger):
    """Its attentions hold queries, keys and values in one weight each, of several orders."""

    def __init__(self) -> None:
        ends = partial(nn.Linear, WIDTH, 16), partial(nn.Linear, 16, WIDTH)
        super().__init__(lambda: nn.Sequential(ends[0](), *fused()[:3], ends[1]()).double())

    def configure_optimizers(self) -> Any:
        # The bias of keys has no gradient but for rounding, by whose size AdamW divides.
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3)


def test_a_checkpoint_holds_one_projection_as_it_was(tmp_path: Path) -> None:
    """The rows in their own order; one process goes on where two were, and two where one was."""
    plain, half, single, two = (tmp_path / name for name in ("plain", "half", "single", "two"))
    saved(plain, OfOneProjection, "auto", 3)
    onecurve.launch(saved, half, OfOneProjection, onecurve.Tensor(), devices=2)
    saved(single, OfOneProjection, onecurve.Single(), 2, half)
    onecurve.launch(saved, two, OfOneProjection, onecurve.Tensor(), 3, single, devices=2)
    expected, found = (torch.load(file, weights_only=True) for file in (plain, two))
    assert [*found["state_dict"]] == [*expected["state_dict"]]
    torch.testing.assert_close(found["state_dict"], expected["state_dict"], rtol=0, atol=ROUNDING)
    of_adam, expected_of_adam = (each["optimizer_states"][0]["state"] for each in (found, expected))
    torch.testing.assert_close(of_adam, expected_of_adam, rtol=0, atol=ROUNDING)
