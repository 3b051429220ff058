"""The callbacks that look for a learning rate and a batch size before training."""

import pytest
from conftest import ALL, FLOAT64, ROUNDING, Cli, column, largest_difference, one_of_a_kind
from PIL import Image

from onecurve.callbacks.lr_finder import suggestion

PLAIN = (FLOAT64, "callbacks=[]", "trainer.max_epochs=1", "test=false")
FINDER = (*PLAIN, "callbacks=[lr_finder]", "callbacks.lr_finder.steps=40")


@pytest.mark.compares
@pytest.mark.parametrize(
    "name", one_of_a_kind(["single", "pipeline", "shard x tensor"], kept=["single"])
)
def test_a_learning_rate_is_suggested_and_applied(train: Cli, name: str) -> None:
    """Afterwards the run is the one with that learning rate, as if nothing had been tried."""
    outcome = train(*ALL[name], *FINDER, "callbacks.lr_finder.apply=true")
    found = outcome.metrics["suggested_lr"]
    assert 1e-4 < found < 0.5
    assert Image.open(outcome.run / "lr_finder.png").width > 300
    plain = (*PLAIN, f"optimizer.lr={found}")
    given = train(*ALL[name], *plain).run
    ours, theirs = (column(run, "train/loss") for run in (outcome.run, given))
    assert largest_difference(ours, theirs) <= ROUNDING


@pytest.mark.compares
def test_a_suggestion_changes_nothing_unless_it_is_applied(train: Cli) -> None:
    with_finder, without = train(*FINDER), train(*PLAIN)
    found = with_finder.metrics["suggested_lr"]
    said = (
        f"lr_finder: optimizer.lr={found:.3g} ({with_finder.run}/lr_finder.png); training continues"
    )
    assert said in with_finder.out
    ours, theirs = (column(outcome.run, "train/loss") for outcome in (with_finder, without))
    assert ours == theirs


def test_where_the_loss_falls_fastest() -> None:
    rates = [10 ** (-6 + power / 10) for power in range(60)]
    losses = [2.0] * 30 + [2.0 - 0.1 * step for step in range(10)] + [1.0] * 10 + [9.0] * 10
    losses[35] -= 0.05
    found = suggestion(rates, losses)
    assert found is not None
    assert rates[29] <= found <= rates[40]
    assert suggestion(rates, [float(step) for step in range(60)]) is None


@pytest.mark.compares
def test_the_largest_batch_is_found(train: Cli) -> None:
    finder = ("callbacks=[batch_size_finder]", "callbacks.batch_size_finder.first=16")
    finder += ("callbacks.batch_size_finder.largest=128", "test=false")
    suggested = train(*finder)
    assert "data.batch_size=128 fits; training continues with 64" in suggested.out
    applied = train(*finder, "callbacks.batch_size_finder.apply=true")
    assert "data.batch_size=128 fits; training with it" in applied.out
    for outcome, size in ((suggested, 64), (applied, 128)):
        given = train("callbacks=[]", f"data.batch_size={size}").run
        assert column(outcome.run, "train/loss") == column(given, "train/loss")
