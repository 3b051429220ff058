"""strategy=fsdp saves full checkpoints: every strategy reads them, and it reads those of others."""

import pytest
import torch
from conftest import FLOAT64, ROUNDING, Cli, column, largest_difference, one_of_a_kind
from torch import Tensor

# 6 batches an epoch.
SAME = (FLOAT64, "data.batch_size=128")


@pytest.mark.compares
def test_a_checkpoint_is_that_of_single(train: Cli, warm: Cli) -> None:
    runs = [train(*SAME).run, train(*SAME, "strategy=fsdp").run]
    single, fsdp = (torch.load(run / "checkpoints/last.ckpt", weights_only=True) for run in runs)
    assert list(fsdp["state_dict"]) == list(single["state_dict"])
    for name, weight in single["state_dict"].items():
        assert type(fsdp["state_dict"][name]) is Tensor
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


@pytest.mark.compares
@pytest.mark.parametrize(
    "optimizer",
    one_of_a_kind(
        ["optimizer=adamw", "optimizer=sgd optimizer.momentum=0"], kept=["optimizer=adamw"]
    ),
)
@pytest.mark.parametrize("order", [("fsdp", "single"), ("single", "fsdp")])
def test_a_run_resumes_under_another_strategy(
    train: Cli, trained: Cli, optimizer: str, order: tuple[str, str]
) -> None:
    """In the middle of the second epoch."""
    same = (*SAME, *optimizer.split(), "scheduler=none")
    whole = trained(*same)
    first = train(
        *same, f"strategy={order[0]}", "trainer.max_steps=8", "trainer.max_epochs=-1",
        "callbacks.checkpoint.every_n_train_steps=1", "callbacks.checkpoint.every_n_epochs=null",
    )  # fmt: skip
    rest = train(*same, f"strategy={order[1]}", f"resume={first.run / 'checkpoints/last.ckpt'}")
    losses = column(first.run, "train/loss") + column(rest.run, "train/loss")
    assert largest_difference(losses, column(whole.run, "train/loss")) <= ROUNDING
