"""strategy=fsdp: the results do not depend on what is sharded, and how."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli, column, largest_difference, one_of_a_kind
from lightning.pytorch import Callback, LightningModule, Trainer
from several_fits import Case, Small, alone, fits_in_ranks
from small.task import Batch, Classification
from torch import Tensor, nn
from torch.distributed.tensor.debug import CommDebugMode

import onecurve
from onecurve.errors import UserError
from onecurve.strategies.unsupported import reject_scalars


class Convolution(nn.Module):
    """A convolution and its BatchNorm, as one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, images: Tensor) -> Any:
        return self.norm(self.convolution(images)).relu()


class Normalized(Classification):
    """Logs the mean over all ranks of one of its buffers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.network = nn.Sequential(
            Convolution(), nn.Flatten(), nn.LayerNorm(288), nn.Linear(288, 10)
        )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        statistics = self.network[0].norm.running_mean
        self.log("val/mean", statistics.abs().sum(), batch_size=len(batch[0]))


@pytest.mark.compares
def test_mixed_precision_stays_near_single() -> None:
    """Under `ddp` the curves differ as much: a bfloat16 has 8 bits, which is 0.004.

    Under SGD and with a smooth activation: both keep a small error small, and AdamW does not.
    """
    cases: dict[Any, Case] = {"": (Small, onecurve.FSDP(), {"precision": "bf16-mixed"})}
    curves = [logged[""]["train/loss"] for logged in (alone(cases), fits_in_ranks(cases))]
    assert 0 < largest_difference(*curves) <= 0.01


@pytest.mark.compares
def test_batch_norm_keeps_float32_and_the_statistics_of_rank_0(train: Cli) -> None:
    """Also inside a layer with activation checkpointing."""
    run = train(
        "task._target_=test_fsdp.Normalized", "trainer.precision=bf16-mixed", "strategy=fsdp",
        "strategy.activation_checkpointing=full",
    ).run  # fmt: skip
    state = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    saved = state["network.0.norm.running_mean"].abs().sum().item()
    # One mean over two ranks in float32, which rounds by 1e-7.
    assert column(run, "val/mean")[-1] == pytest.approx(saved, rel=1e-6)
    assert column(run, "train/loss")[-1] < 0.7 * column(run, "train/loss")[0]


def test_a_parameter_without_a_dimension_is_rejected_in_a_pipeline() -> None:
    """`fsdp` and `tensor` train it: see tests/parity."""
    scaled = nn.Linear(2, 2)
    scaled.temperature = nn.Parameter(torch.ones(()))
    with pytest.raises(UserError, match="strategy=mesh: parameter temperature has no dimension"):
        reject_scalars(scaled, "mesh")


class Counted(Callback):
    """Writes down how often a step gathers parameters and reduces gradients."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self.mode = CommDebugMode()
        self.mode.__enter__()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, number: int
    ) -> None:
        self.mode.__exit__(None, None, None)
        counts = {str(kind): count for kind, count in self.mode.get_comm_counts().items()}
        Path(f"sent-{trainer.global_rank}.json").write_text(json.dumps(counts))


@pytest.mark.parametrize(
    ("frees", "gathered"), one_of_a_kind([("true", 6), ("auto", 5)], kept=[("auto", 5)])
)
def test_the_head_is_gathered_once_a_step(train: Cli, frees: str, gathered: int) -> None:
    """Three layers with parameters: each is gathered for the forward and for the backward pass."""
    train(
        "strategy=fsdp", f"strategy.reshard_after_forward={frees}", "trainer.max_steps=2",
        "model.hidden=[16,16]", "+callbacks.counted._target_=test_fsdp.Counted", "test=false",
    )  # fmt: skip
    counts = json.loads(Path("sent-1.json").read_text())
    assert counts["c10d._allgather_base_"] == gathered
    assert counts["c10d._reduce_scatter_base_"] == 3
