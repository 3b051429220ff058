"""The weights that are tested in the end are the best that were measured, wherever they lie."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import EPOCH, Cli, Outcome
from lightning.pytorch import Callback, LightningModule, Trainer

from onecurve.checkpoint.format import read_checkpoint


class Script(Callback):
    """Logs a value in each validation, by the step that it comes after."""

    def __init__(self, values: dict[int, float]) -> None:
        self.values = values

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            pl_module.log("val/script", self.values[trainer.global_step])


def scripted(values: dict[int, float]) -> list[str]:
    return [
        "monitor=val/script",
        "mode=min",
        "+callbacks.script._target_=test_best.Script",
        "+callbacks.script.values={" + ",".join(f"{step}:{values[step]}" for step in values) + "}",
    ]


# The best comes first.
VALUES = {EPOCH: 0.5, 2 * EPOCH: 2.0, 3 * EPOCH: 1.5, 4 * EPOCH: 1.0}
BEGUN = (*scripted(VALUES), "strategy=single")
KEEPS = "callbacks.checkpoint.save_top_k"


def kept(run: Path) -> dict[str, int]:
    """What a run keeps as its best: files, and the step that each was saved after."""
    files = {path.name: path for path in (run / "checkpoints").iterdir()}
    files.pop("last.ckpt")
    return {name: read_checkpoint(path)["global_step"] for name, path in files.items()}


def states_of_checkpoints(run: Path) -> list[dict[str, Any]]:
    states = read_checkpoint(run / "checkpoints/last.ckpt")["callbacks"]
    return [states[key] for key in states if key.startswith("ModelCheckpoint")]


def shown(outcome: Outcome) -> str:
    """The line about the best checkpoint, which is the one that was tested."""
    return outcome.out.partition("Evaluate the best checkpoint:")[2]


def loss_of(run: Path) -> float:
    loss: float = json.loads((run / "metrics.json").read_text())["test/loss"]
    return loss


def test_a_run_that_was_copied_or_moved_has_the_best_of_its_own(
    trained: Cli, warm: Cli, tmp_path: Path
) -> None:
    """Even where the run that it is a copy of is still there."""
    written = trained(*BEGUN, "checkpoint.format=sharded").run
    run, loss = Path(shutil.copytree(written, tmp_path / "run")), loss_of(written)
    for name, epochs in (("copied", 3), ("moved", 4)):
        run = run.rename(run.with_name(name))
        # How often is in the name of the callback's state.
        changed = ("callbacks.checkpoint.every_n_epochs=3", f"trainer.max_epochs={epochs}")
        resumed = warm("train.py", f"resume={run}", *changed)
        assert f"{name}/checkpoints/best.ckpt" in shown(resumed)
        assert kept(run) == {"best.ckpt": EPOCH}
        assert loss_of(run) == pytest.approx(loss, rel=1e-5)


def test_a_best_that_is_gone_is_told_and_found_again(
    trained: Cli, warm: Cli, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained(*BEGUN).run, tmp_path / "run"))
    (run / "checkpoints/best.ckpt").unlink()
    resumed = warm("train.py", f"resume={run}", "trainer.max_epochs=3")
    assert "resume: the best so far is gone (val/script 0.5 in " in resumed.out
    assert kept(run) == {"best.ckpt": 3 * EPOCH}


def test_a_new_run_from_a_checkpoint_has_a_best_of_its_own(train: Cli, trained: Cli) -> None:
    other = trained(*BEGUN).run
    last = other / "checkpoints/last.ckpt"
    new = train(*BEGUN, f"resume={last}", "trainer.max_epochs=4")
    told = f"the run before had val/script 0.5 in {other}/checkpoints/best.ckpt\n"
    assert new.out.count(told) == 1
    assert kept(new.run) == {"best.ckpt": 4 * EPOCH}
    assert f"{new.run.name}/checkpoints/best.ckpt" in shown(new)
    assert loss_of(new.run) != loss_of(other)


def test_a_run_that_was_killed_writes_each_best_once_and_may_keep_fewer_from_then_on(
    trained: Cli, warm: Cli, tmp_path: Path
) -> None:
    whole = trained(*BEGUN, f"{KEEPS}=2", "trainer.max_epochs=3").run
    killed, first = Path(shutil.copytree(whole, tmp_path / "killed")), "best-epoch0-step11.ckpt"
    assert kept(whole) == {first: 11, "best-epoch2-step33.ckpt": 33}
    for file in (killed / "checkpoints").iterdir():
        if file.name != first:
            file.unlink()
    warm("train.py", f"resume={killed}")
    assert kept(killed) == kept(whole)
    resumed = warm("train.py", f"resume={killed}", f"{KEEPS}=1", "trainer.max_epochs=4")
    (state,) = states_of_checkpoints(killed)
    assert [Path(path).name for path in state["best_k_models"]] == [first]
    assert first in shown(resumed)


EVERY = "callbacks.checkpoint.every_n"


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ([f"{EVERY}_train_steps=2", f"{EVERY}_epochs=null"], [22, 11]),
        (["trainer.val_check_interval=4"], [8, 19, 4, 15]),
        # The second epoch is cut short.
        (["trainer.max_steps=16"], [11]),
    ],
)
def test_a_metric_counts_for_the_weights_that_it_was_measured_with(
    options: list[str], steps: list[int], train: Cli
) -> None:
    values = {4: 2.0, 8: 0.5, 11: 1.5, 15: 2.5, 19: 1.0, 22: 0.25}
    run = train(*scripted(values), f"{KEEPS}=-1", *options).run
    (state,) = states_of_checkpoints(run)
    saved = kept(run)
    assert {
        saved[Path(path).name]: value.item() for path, value in state["best_k_models"].items()
    } == {step: values[step] for step in steps}
