"""Your task learns: replace this by what yours should reach."""

from onecurve.testing.runs import Cli, column


def test_it_learns(cli: Cli) -> None:
    few = ("trainer.max_epochs=10", "logger=csv", "callbacks=[checkpoint]")
    outcome = cli("train.py", "experiment=wide", *few)
    assert outcome.status == 0, outcome.err
    # The variance of the targets is what a constant would reach.
    assert column(outcome.run, "train/loss")[0] > 2
    assert outcome.metrics["test/loss"] < 1
