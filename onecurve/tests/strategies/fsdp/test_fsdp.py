"""strategy=fsdp: what it rejects, and what a run of half precision saves."""

from typing import Any

import pytest
import torch
from conftest import Cli, column
from several_fits import Case, Small, fits_in_ranks
from small.task import Batch, Classification
from torch import nn

import onecurve
from onecurve.errors import UserError


class Normalized(Classification):
    """Logs the mean over all ranks of one of its buffers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
        self.network = nn.Sequential(*layers, nn.Linear(288, 10))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        statistics = self.network[1].running_mean
        self.log("val/mean", statistics.abs().sum(), batch_size=len(batch[0]))


@pytest.mark.compares
def test_batch_norm_keeps_float32_and_the_statistics_of_rank_0(train: Cli) -> None:
    typed = ("task._target_=test_fsdp.Normalized", "trainer.precision=bf16-mixed")
    run = train(*typed, "strategy=fsdp", "strategy.activation_checkpointing=full").run
    state = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    saved = state["network.1.running_mean"].abs().sum().item()
    # One mean over two ranks in float32, which rounds by 1e-7.
    assert column(run, "val/mean")[-1] == pytest.approx(saved, rel=1e-6)
    assert column(run, "train/loss")[-1] < 0.9 * column(run, "train/loss")[0]


class Tempered(Small):
    """Has a parameter without a dimension, which `fsdp` and `tensor` train: see tests/parity."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))


REJECTED: dict[Any, Case] = {
    "wrap=['Conv2d']: the task has no Conv2d": (Small, onecurve.FSDP(wrap=["Conv2d"]), {}),
    "['encode']: no module of Small has": (Small, onecurve.FSDP(forward_methods=["encode"]), {}),
    "parameter temperature has no dimension": (Tempered, onecurve.mesh(context=2), {}),
}


def test_unknown_units_and_methods_and_scalars_are_rejected() -> None:
    with pytest.raises(UserError, match=r"wrap='layers': must be layer or a list.*wrap='layer'"):
        onecurve.FSDP(wrap="layers")  # type: ignore[arg-type]
    for line, said in fits_in_ranks(REJECTED).items():
        assert line in said
