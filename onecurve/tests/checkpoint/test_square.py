"""A checkpoint moves: saved in the middle of an epoch under A, resumed under B.

Every strategy at every world size saves, and others resume at each; the continued curve is that of
a run that was never interrupted.
"""

import pytest
import torch
from conftest import FLOAT64, MESHES, ROUNDING, Cli, column, largest_difference, one_of_a_kind

RUNS = {
    f"{strategy}({size})": (f"strategy={strategy}", f"trainer.devices={size}")
    for strategy in ("single", "dp", "ddp", "fsdp", "pipeline")
    for size in (1, 2, 3)
    if (strategy, size) not in {("single", 2), ("single", 3)}
}
# Meshes, one of them of three axes.
EIGHT = ("strategy=mesh", "strategy.pipeline=2", "strategy.shard=2", "strategy.tensor=2")
RUNS |= {**MESHES, "eight": (*EIGHT, "trainer.devices=8")}
# 6 batches an epoch, the last one of 17: the save is in the middle of the first.
SAME = (
    FLOAT64, "callbacks=[]", "data.batch_size=128", "trainer.max_epochs=2", "scheduler=none",
    "trainer.gradient_clip_val=1.0", "test=false",
)  # fmt: skip
SAVE = (
    "callbacks=[checkpoint]", "callbacks.checkpoint.every_n_train_steps=3",
    "callbacks.checkpoint.every_n_epochs=null", "callbacks.checkpoint.monitor=null",
    "trainer.max_steps=3",
)  # fmt: skip
# Whose checkpoint is a folder of shards.
SHARDED = ("fsdp(3)", "ddp(2)", "pipeline(3)", "shard x tensor", "eight")
# One whose state is empty, for a saver and those that go on with it.
WITHOUT_STATE = ("optimizer=sgd", "optimizer.momentum=0")


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize("saver", one_of_a_kind(RUNS, kept=["fsdp(3)", "pipeline(1)"]))
def test_every_strategy_goes_on_with_the_checkpoint(train: Cli, trained: Cli, saver: str) -> None:
    same = (*SAME, *(WITHOUT_STATE if saver == "fsdp(2)" else ()))
    whole = column(trained(*same, "strategy=single").run, "train/loss")
    assert len(whole) == 12
    form = "sharded" if saver in SHARDED else "file"
    saved = train(*same, *RUNS[saver], *SAVE, f"checkpoint.format={form}").run
    last = saved / "checkpoints/last.ckpt"
    assert last.is_dir() == (form == "sharded")
    names = list(RUNS)
    for further in (1, 5, 9):  # over all savers each strategy, at each world size
        resumer = names[(names.index(saver) + further) % len(names)]
        rest = train(*same, *RUNS[resumer], f"resume={last}").run
        curve = column(saved, "train/loss") + column(rest, "train/loss")
        difference = largest_difference(whole, curve)
        assert difference <= ROUNDING, f"{saver} to {resumer}: {difference:.1e}"


@pytest.mark.compares
def test_what_fsdp_saves_is_what_single_saves(train: Cli, warm: Cli) -> None:
    same = (FLOAT64, "data.batch_size=128")
    runs = [train(*same).run, train(*same, "strategy=fsdp").run]
    single, fsdp = (torch.load(run / "checkpoints/last.ckpt", weights_only=True) for run in runs)
    assert list(fsdp["state_dict"]) == list(single["state_dict"])
    for name, weight in single["state_dict"].items():
        assert type(fsdp["state_dict"][name]) is torch.Tensor
        torch.testing.assert_close(fsdp["state_dict"][name], weight, rtol=ROUNDING, atol=ROUNDING)
    (mine,), (wanted,) = fsdp["optimizer_states"], single["optimizer_states"]
    assert mine["param_groups"] == wanted["param_groups"]
    # Squares of gradients: entries of a square's size 1e-16 and less are rounding themselves.
    torch.testing.assert_close(mine["state"], wanted["state"], rtol=1e-8, atol=1e-15)

    command = ("evaluate.py", f"checkpoint={runs[1] / 'checkpoints/best.ckpt'}", FLOAT64)
    evaluated = warm(*command), warm(*command, "strategy=fsdp", "trainer.devices=3")
    for name in ("test/loss", "test/acc"):
        values = [outcome.metrics[name] for outcome in evaluated]
        assert values[1] == pytest.approx(values[0], rel=ROUNDING)
