"""The minimum that has to work, even without the optional parts of the library."""

from pathlib import Path

from conftest import TINY, Cli

SHORT = ("trainer.max_epochs=1", "trainer.limit_train_batches=2")
SHORT += ("trainer.limit_val_batches=1", "trainer.limit_test_batches=1")


def test_a_run_by_default_and_its_evaluation(warm: Cli) -> None:
    trained = warm("train.py", *SHORT)
    assert trained.metrics["status"] == "finished"
    checkpoint = trained.run / "checkpoints" / "last.ckpt"
    evaluated = warm("evaluate.py", f"checkpoint={checkpoint}")
    assert evaluated.metrics["test/acc"] >= 0


def test_a_run_of_two_processes(warm: Cli) -> None:
    outcome = warm("train.py", *TINY, *SHORT, "strategy=ddp", "trainer.accelerator=cpu")
    assert outcome.metrics["world_size"] == 2


def test_help(warm: Cli, scripts: Path) -> None:
    for script in {path.name for path in scripts.glob("*.py")} - {"report.py"}:
        outcome = warm(script, "--help")
        assert "GROUP=CHOICE" in outcome.out
