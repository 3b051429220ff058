"""Speed, and what the devices do."""

import csv
from pathlib import Path

import pytest
import torch
from conftest import ALL, EPOCH, Cli, column


def header(run: Path) -> list[str]:
    with (run / "metrics.csv").open(newline="") as file:
        return next(csv.reader(file))


WATCHED = (
    "callbacks=[checkpoint,throughput,device_stats]", "callbacks.throughput.every_n_steps=5",
    "callbacks.device_stats.cpu_stats=true", "trainer.log_every_n_steps=5",
)  # fmt: skip


@pytest.mark.parametrize("name", ["single", "pipeline"])
def test_throughput_is_logged_and_summed_up(train: Cli, name: str) -> None:
    outcome = train(*ALL[name], *WATCHED, "+task.example_shape=[2,1,8,8]")
    speeds = column(outcome.run, "throughput/samples_per_second")
    assert len(speeds) == 4
    assert min(speeds) > 0
    metrics = outcome.metrics
    assert "peak_memory_mib" not in metrics  # on CPUs it would be that of torch
    # A product and a sum for each weight of the mlp, forward and twice that backward.
    state = torch.load(outcome.run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    weights = sum(value.numel() for name, value in state.items() if name.endswith("weight"))
    assert metrics["flops_per_second"] == pytest.approx(
        metrics["samples_per_second_in_training"] * 3 * 2 * weights
    )
    assert 2 * EPOCH * 64 / metrics["samples_per_second_in_training"] < metrics["seconds"] * 1.2
    if name == "single":
        assert "samples per second in training" in outcome.out
    assert any(name.startswith("DeviceStatsMonitor.") for name in header(outcome.run))
