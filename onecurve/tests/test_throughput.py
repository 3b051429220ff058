"""Speed, shares of time, and what the devices do."""

import csv
import re
from pathlib import Path

import pytest
import torch
from conftest import ALL, EPOCH, Cli, column, one_of_a_kind

SHARES = [f"throughput/{name}_share" for name in ("data", "step", "validation", "checkpoint")]


def header(run: Path) -> list[str]:
    with (run / "metrics.csv").open(newline="") as file:
        return next(csv.reader(file))


WATCHED = (
    "callbacks=[checkpoint,throughput,device_stats]", "callbacks.throughput.every_n_steps=5",
    "callbacks.device_stats.every_n_steps=5",
)  # fmt: skip


WAYS = one_of_a_kind(ALL, kept=["single", "ddp", "pipeline"])


@pytest.mark.parametrize("name", WAYS)
def test_throughput_is_logged_and_summed_up(trained: Cli, name: str) -> None:
    outcome = trained(*ALL[name], *WATCHED)
    lines = len(column(outcome.run, SHARES[0]))
    assert lines == 4
    for shares in zip(*(column(outcome.run, share) for share in SHARES), strict=True):
        assert sum(shares) == pytest.approx(1.0)
    # The first line is from before a validation or a checkpoint, the third from after.
    assert column(outcome.run, SHARES[2])[0] == column(outcome.run, SHARES[3])[0] == 0
    assert column(outcome.run, SHARES[2])[2] > 0 < column(outcome.run, SHARES[3])[2]

    metrics = outcome.metrics
    assert metrics["peak_memory_mib"] > 50
    # A product and a sum for each weight of the mlp, forward and twice that backward.
    state = torch.load(outcome.run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    weights = sum(value.numel() for name, value in state.items() if name.endswith("weight"))
    assert metrics["flops_per_second"] == pytest.approx(
        metrics["samples_per_second_in_training"] * 3 * 2 * weights
    )
    assert 2 * EPOCH * 64 / metrics["samples_per_second_in_training"] < metrics["seconds"] * 1.2
    if name == "single":
        assert "step share" in outcome.out
        assert re.search(r"peak memory +│ +[\d,]+ MiB", outcome.out), outcome.out


@pytest.mark.parametrize("name", WAYS)
def test_every_rank_has_stats(trained: Cli, name: str) -> None:
    outcome = trained(*ALL[name], *WATCHED)
    run = outcome.run
    ranks = outcome.metrics["world_size"]
    columns = {name for name in header(run) if name.startswith("device/")}
    assert columns == {
        f"device/rank_{rank}/{stat}"
        for rank in range(ranks)
        for stat in ("cpu_percent", "memory_mib")
    }
    for rank in range(ranks):
        assert min(column(run, f"device/rank_{rank}/memory_mib")) > 50
        assert len(column(run, f"device/rank_{rank}/cpu_percent")) == 4
