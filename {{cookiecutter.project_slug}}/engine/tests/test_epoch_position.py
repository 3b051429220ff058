"""A run that stopped inside an epoch goes on there with any data, or says that it cannot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer, seed_everything
from torch.utils.data import DataLoader
from zoo import data, tasks
from zoo.train import LIGHTNING, Record

import onecurve
from onecurve.launch.environment import unchanged_environment

Made = Callable[[], Any]


class Save(Callback):
    """Saves after two steps, inside the first epoch."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 2:
            trainer.save_checkpoint(self.file)


def losses(
    made: Made, task: type[tasks.Plain], *, save: Path | None = None, resume: Path | None = None
) -> list[float]:
    """Of two epochs, of which each has three steps or more."""
    record = Record()
    with unchanged_environment(LIGHTNING):
        seed_everything(1, verbose=False)
        trainer = Trainer(
            accelerator="cpu", devices=1, strategy=onecurve.Single(), precision="64-true",
            callbacks=[record, *([Save(save)] if save else [])], logger=False, max_epochs=2,
            enable_model_summary=False, enable_progress_bar=False, enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(task(), made(), ckpt_path=resume)
    return record.losses


@pytest.mark.parametrize("made", [data.plain, data.weighted, data.buckets, data.split])
def test_it_goes_on_with_the_rest_of_the_epoch(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "inside.ckpt"
    whole = losses(made, tasks.Plain, save=file)
    assert losses(made, tasks.Plain, resume=file) == whole[2:]
    assert "resume:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("made", "task", "why"),
    [
        (data.stream, tasks.Plain, "its loader cannot skip it"),
        (data.two, tasks.TwoLoaders, "there are several training loaders"),
    ],
)
def test_what_has_no_position_says_so(
    made: Made, task: Any, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "inside.ckpt"
    losses(made, task, save=file)
    assert "resume:" not in capsys.readouterr().out
    losses(made, task, resume=file)
    assert f"resume: the epoch's data start again: {why}" in capsys.readouterr().out


def test_batches_of_another_size_are_refused_inside_an_epoch(tmp_path: Path) -> None:
    file = tmp_path / "inside.ckpt"
    losses(data.plain, tasks.Plain, save=file)
    with pytest.raises(onecurve.UserError, match=r"no batch ends at sample 20 now; leave the"):
        losses(lambda: DataLoader(data.pairs(), 8, shuffle=True), tasks.Plain, resume=file)
