"""strategy=fsdp: which modules it shards one by one, and what a run of half precision saves."""

from typing import Any

import pytest
import torch
from conftest import Cli, column
from lightning.pytorch import LightningModule
from small.task import Batch, Classification
from torch import Tensor, nn

import onecurve
from onecurve.errors import UserError
from onecurve.strategies.fsdp.sharding import check_methods, check_wrap, find_units
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


class Block(nn.Module):
    """Attention and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.linear = nn.Linear(8, 8)


class Task(LightningModule):
    """Says nothing of the order of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 30, bias=False)
        self.register_parameter("scale", nn.Parameter(torch.ones(1)))


def test_wrap_selects_the_units() -> None:
    task = Task()
    first, second = task.blocks
    parts = [task.embedding, first, second, task.head]
    assert find_units(task, "layer") == parts
    assert find_units(task, ["Linear"]) == [task.head, second.linear, first.linear]
    assert find_units(task, ["Linear", "Block"])[1:] == [
        second.linear, second, first.linear, first
    ]  # fmt: skip


def test_a_unit_holds_all_uses_of_a_tied_parameter_or_none() -> None:
    task = Task()
    first, second = task.blocks
    task.head.weight = task.embedding.weight
    first.linear.bias = first.attention.out_proj.bias
    assert find_units(task, "layer") == [first, second]
    assert find_units(task, ["Linear", "Block"]) == [second.linear, second, first]
    # The same layer in two places.
    second.linear = first.linear
    assert find_units(task, "layer") == []


def test_unknown_units_and_methods_are_rejected() -> None:
    for wrap, words in (
        ("layers", r"wrap='layers': must be layer or a list"),
        (["Linear", "Conv2d"], r"wrap=\['Linear', 'Conv2d'\]: the task has no Conv2d"),
    ):
        with pytest.raises(UserError, match=f"{words}.*wrap='layer'"):
            check_wrap(Task(), onecurve.FSDP(wrap=wrap).parallelisms[0].options.wrap)  # type: ignore[arg-type]
    check_methods(Task(), ["forward"])
    with pytest.raises(UserError, match=r"forward_methods=\['encode'\]: no module of Task has"):
        check_methods(Task(), ["encode"])


def test_a_parameter_without_a_dimension_is_rejected_in_a_pipeline() -> None:
    """`fsdp` and `tensor` train it: see tests/parity."""
    scaled = nn.Linear(2, 2)
    scaled.temperature = nn.Parameter(torch.ones(()))
    with pytest.raises(UserError, match="strategy=mesh: parameter temperature has no dimension"):
        reject_scalars(scaled, "mesh")
