"""What people write into their own train.py, each as its lines say, under every strategy."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent

import pytest
from conftest import (
    EPOCH,
    FLOAT64,
    ROOT,
    ROUNDING,
    STRATEGIES,
    TINY,
    Cli,
    Outcome,
    column,
    largest_difference,
    one_of_a_kind,
)

SCRIPT = (ROOT.parent / "harness" / "own_train.py").read_text()
TRAINER = "trainer = run.trainer(callbacks=run.build(cfg.callbacks), logger=run.build(cfg.logger))"
FIT = "trainer.fit(task, datamodule=data, ckpt_path=run.resume)"
TEST = "trainer.test(task, datamodule=data, ckpt_path=run.best, verbose=False)"
TWO_FITS = f"""
if not run.is_over(1):
    {TRAINER}
    {FIT}
again = run.trainer(callbacks=Steps("second"), max_epochs=1)
again.fit(task, datamodule=data, ckpt_path=run.resume if run.resumed_fit == 2 else None)
"""
ORDINARY = "\n".join((TRAINER, FIT, TEST))
NAMES = one_of_a_kind(["single", "ddp", "pipeline"], kept=["ddp"])
each_strategy = pytest.mark.parametrize("strategy", NAMES)


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A project of this test alone."""
    shutil.copytree(ROOT / "configs", tmp_path / "own" / "configs")
    return tmp_path / "own"


@pytest.fixture
def trained(scripts: Path, cli: Cli, warm: Cli) -> Callable[..., Outcome]:
    """A run of these lines, after data and task are built, which must end with a status."""

    def run(strategy: str, *lines: str, more: tuple[str, ...] = (), status: int = 0) -> Outcome:
        body = indent(dedent("\n".join(lines)), "    ").strip()
        (scripts / "train.py").write_text(SCRIPT.replace("# BODY", body))
        typed = ("train.py", *TINY, FLOAT64, *STRATEGIES[strategy], *more)
        outcome = cli(*typed) if status else warm(*typed)
        assert outcome.status == status, outcome.err
        return outcome

    return run


def printed(outcome: Outcome, strategy: str) -> str:
    """What the last rank printed: on the screen, or into its log where it is the second."""
    alone = strategy == "single"
    return outcome.out if alone else (outcome.run / "logs" / "rank_1.log").read_text()


@each_strategy
def test_what_a_script_does_before_its_fit_and_after_its_test(
    strategy: str, trained: Callable[..., Outcome]
) -> None:
    lines = (
        TRAINER,
        # The order of the samples is another one after a validation, as with a plain Trainer.
        "before = trainer.validate(task, datamodule=data, verbose=False)[0]",
        FIT,
        TEST,
        "print('plain of', trainer.global_rank)",
        "run.record(before=before['val/loss'], words=['a', 'b'])",
        "if trainer.is_global_zero:",
        "    (run.dir / 'artefact.txt').write_text(run.best)",
        "    trainer.logger.log_metrics({'after': 0.5}, step=trainer.global_step)",
    )
    alone, outcome = (trained(name, *lines) for name in ("single", strategy))
    for name in ("train/loss", "val/loss"):
        curves = [column(each.run, name) for each in (alone, outcome)]
        assert largest_difference(*curves) < ROUNDING
    assert len(column(outcome.run, "val/loss")) == 3
    assert outcome.metrics["before"] == pytest.approx(column(outcome.run, "val/loss")[0])
    assert abs(alone.metrics["test/loss"] - outcome.metrics["test/loss"]) < ROUNDING
    assert outcome.metrics["words"] == ["a", "b"]
    assert Path((outcome.run / "artefact.txt").read_text()).is_file()
    assert column(outcome.run, "after") == [0.5]
    assert f"plain of {int(strategy != 'single')}" in printed(outcome, strategy)


def test_a_number_that_is_returned_is_what_a_sweep_compares(
    trained: Callable[..., Outcome],
) -> None:
    swept = ("-m", "trainer.max_epochs=1", "test=false", "optimizer.lr=0.01,0.02")
    grid = trained("single", TRAINER, FIT, "return -cfg.optimizer.lr", more=swept)
    returned = [json.loads((run / "metrics.json").read_text())["returned"] for run in grid.runs]
    assert returned == [-0.01, -0.02]
    assert "-0.01" in grid.out


@each_strategy
def test_an_error_between_fit_and_test_or_an_exit(
    strategy: str, trained: Callable[..., Outcome]
) -> None:
    failed = trained(strategy, TRAINER, FIT, "[][0]", TEST, status=1)
    assert failed.metrics["status"] == "failed"
    assert "train.py" in failed.err
    assert "IndexError" in failed.err
    assert (failed.run / "checkpoints" / "last.ckpt").is_file()
    exits = [FIT, "sys.exit(3)"]
    if strategy == "ddp":
        exits = ["task.on_train_batch_end = lambda *_: sys.exit(3)", FIT]
    ended = trained(strategy, TRAINER, *exits, status=3)
    assert "the script ended itself by sys.exit(3)" in ended.err
    assert "Traceback" not in ended.err


@each_strategy
def test_a_second_fit_and_its_checkpoint(strategy: str, trained: Callable[..., Outcome]) -> None:
    """With callbacks of its own."""
    several = '[*run.build(cfg.callbacks), Steps("second")]'
    fits = TWO_FITS.replace('Steps("second")', several)
    saved = trained(strategy, fits, "again.test(task, datamodule=data, verbose=False)")
    assert f": {EPOCH} steps" in printed(saved, strategy)
    assert saved.metrics["status"] == "finished"
    assert saved.metrics["global_step"] == EPOCH
    assert "test/loss" in saved.metrics
    assert len(column(saved.run, "train/loss")) == 3 * EPOCH
    again = (f"resume={saved.run / 'checkpoints' / 'last.ckpt'}",)
    assert trained(strategy, fits, more=again).metrics["status"] == "finished"
    (line,) = trained(strategy, ORDINARY, more=again, status=2).err.splitlines()
    assert "was saved by fit 2 of the script, and this is fit 1" in line
    assert "`if not run.is_over(1):`" in line


def test_the_edits_of_the_page(trained: Callable[..., Outcome]) -> None:
    page = (ROOT.parents[1] / "docs" / "using.md").read_text()
    *blocks, of_a_trainer = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        trained("single", block, more=("trainer.max_epochs=1",))
    by_hand = trained("ddp", of_a_trainer, more=("trainer.max_epochs=1",))
    ordinary = trained("single", ORDINARY, more=("trainer.max_epochs=1",))
    curves = [column(outcome.run, "train/loss") for outcome in (ordinary, by_hand)]
    assert largest_difference(*curves) < ROUNDING
    assert (by_hand.run / "checkpoints" / "last.ckpt").is_file()
