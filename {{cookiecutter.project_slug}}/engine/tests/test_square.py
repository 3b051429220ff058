"""A checkpoint moves: saved in the middle of an epoch under A, gone on with under B.

Every strategy at every world size saves, and each strategy goes on with a checkpoint of each; the
continued curve is that of a run that was never interrupted.
"""

import pytest
from conftest import FLOAT64, ROUNDING, Cli, column, largest_difference

RUNS = {
    f"{strategy}({size})": (f"strategy={strategy}", f"trainer.devices={size}")
    for strategy in ("single", "dp", "ddp", "fsdp", "pipeline")
    for size in (1, 2, 3)
    if (strategy, size) not in {("single", 2), ("single", 3)}
}
# 6 batches an epoch, the last one of 17: the save is in the middle of the first.
SAME = (
    FLOAT64,
    "callbacks=[]",
    "data.batch_size=256",
    "trainer.max_epochs=2",
    "trainer.gradient_clip_val=1.0",
    "scheduler=none",
    "test=false",
)
SAVE = (
    "callbacks=[checkpoint]",
    "callbacks.checkpoint.every_n_train_steps=3",
    "callbacks.checkpoint.every_n_epochs=null",
    "callbacks.checkpoint.monitor=null",
    "trainer.max_steps=3",
)
WHOLE: list[float] = []


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize("saver", RUNS)
def test_every_strategy_goes_on_with_the_checkpoint(train: Cli, saver: str) -> None:
    if not WHOLE:
        WHOLE.extend(column(train(*SAME, "strategy=single").run, "train/loss"))
    assert len(WHOLE) == 12
    saved = train(*SAME, *RUNS[saver], *SAVE).run
    for resumer in resumers(saver):
        rest = train(*SAME, *RUNS[resumer], f"resume={saved}/checkpoints/last.ckpt").run
        curve = column(saved, "train/loss") + column(rest, "train/loss")
        difference = largest_difference(WHOLE, curve)
        assert difference <= ROUNDING, f"{saver} to {resumer}: {difference:.1e}"


def resumers(saver: str) -> list[str]:
    """Who goes on: over the world sizes of a saver's strategy each strategy at least once."""
    strategies = ("single", "dp", "ddp", "fsdp", "pipeline")
    names = list(RUNS)
    turn = names.index(saver)
    if saver != "single(1)":
        first = 2 * (turn % 3)
        strategies = (strategies[first], strategies[(first + 1) % 5])
    chosen = []
    for shift, strategy in enumerate(strategies):
        sizes = [name for name in names if name.startswith(f"{strategy}(")]
        chosen.append(sizes[(turn + shift) % len(sizes)])
    return chosen


def test_all_pairs_of_strategies_are_there() -> None:
    pairs = {(a.partition("(")[0], b.partition("(")[0]) for a in RUNS for b in resumers(a)}
    assert len(pairs) == 25
    sizes = {(a.partition("(")[2], b.partition("(")[2]) for a in RUNS for b in resumers(a)}
    assert len(sizes) >= 7
