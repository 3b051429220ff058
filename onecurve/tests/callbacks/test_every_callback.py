"""Every callback under every strategy trains and changes nothing, or is refused with a reason."""

from typing import Any

import pytest
from conftest import ALL, ROOT, Cli, column, largest_difference, one_of_a_kind

# A search for the batch size trains with what it finds: test_finders.py.
CALLBACKS = sorted(
    path.stem
    for path in (ROOT / "configs/callbacks").glob("*.yaml")
    if path.stem != "batch_size_finder"
)
SHORT = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=4",
    "trainer.limit_val_batches=1",
    "test=false",
)
# What a callback needs beside its name to do something in four steps.
SET = {
    "device_stats": ("callbacks.device_stats.cpu_stats=true",),
    "gradient_accumulation": ("callbacks.gradient_accumulation.scheduling={0:1,4:2}",),
    "lr_finder": ("callbacks.lr_finder.steps=20",),
    "swa": ("callbacks.swa.start=0.5",),
    # A figure costs more than the run.
    "tensorboard": ("callbacks.tensorboard.images=4",),
    "throughput": ("callbacks.throughput.every_n_steps=2",),
    "wandb": ("callbacks.wandb.images=4",),
}
WITHOUT: dict[str, list[float]] = {}


# Every fourth is in the same run; each is in one that is not long.
CELLS = [(strategy, CALLBACKS[start::4]) for strategy in ALL for start in range(4)]
QUICK = ("single", "ddp", "fsdp", "pipeline")
KEPT = [(strategy, CALLBACKS[start::4]) for start, strategy in enumerate(QUICK)]


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "callbacks"), one_of_a_kind(CELLS, kept=KEPT), ids=str)
def test_every_callback_under_every_strategy(
    train: Cli, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, strategy: str, callbacks: list[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    options = [*ALL[strategy], *SHORT]
    if strategy not in WITHOUT:
        WITHOUT[strategy] = column(train(*options, "callbacks=[]").run, "train/loss")
    options += [f"callbacks=[{','.join(callbacks)}]"]
    outcome = train(*options, *[option for name in callbacks for option in SET.get(name, ())])
    assert "Traceback" not in outcome.err
    curve = column(outcome.run, "train/loss")
    assert len(curve) == 4
    # Training is what it is without. A rank draws nothing, so it is so to the last bit.
    assert largest_difference(curve, WITHOUT[strategy]) == 0.0
