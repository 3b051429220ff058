"""The minimum that has to work, even without the optional parts of the library."""

from pathlib import Path

from conftest import TINY, Cli

SHORT = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
)


def test_a_run_by_default_and_its_evaluation(cli: Cli) -> None:
    trained = cli("train.py", *SHORT)
    assert trained.status == 0, trained.err
    assert trained.metrics["status"] == "finished"
    checkpoint = trained.run / "checkpoints" / "last.ckpt"
    evaluated = cli("evaluate.py", f"checkpoint={checkpoint}")
    assert evaluated.status == 0, evaluated.err
    assert evaluated.metrics["test/acc"] >= 0


def test_a_run_of_two_processes(cli: Cli) -> None:
    outcome = cli("train.py", *TINY, *SHORT, "strategy=ddp", "trainer.accelerator=cpu")
    assert outcome.status == 0, outcome.err
    assert outcome.metrics["world_size"] == 2


def test_help(cli: Cli, scripts: Path) -> None:
    for script in {path.name for path in scripts.glob("*.py")} - {"report.py"}:
        outcome = cli(script, "--help")
        assert outcome.status == 0, outcome.err
        assert "GROUP=CHOICE" in outcome.out
