"""Fused optimizers under every strategy: other kernels, the same results."""

from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ALL, FLOAT64, ROUNDING, Cli, column, largest_difference
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import MixedPrecision
from several_fits import quiet_trainer
from torch import nn
from torch.utils.data import DataLoader

import onecurve
from onecurve.errors import UserError
from onecurve.optim.optimizers import build_optimizer

OURS = (
    FLOAT64, "optimizer._target_=test_fused.build", "+optimizer.algorithm=torch.optim.AdamW",
    "data.batch_size=200", "test=false", "scheduler=none",
)  # fmt: skip


def build(parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    return build_optimizer([(str(n), p) for n, p in enumerate(parameters)], lr_scale={}, **options)


def groups(run: Path) -> list[dict[str, Any]]:
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return list(state["optimizer_states"][0]["param_groups"])


@pytest.mark.compares
@pytest.mark.parametrize(
    ("strategy", "before", "after"), [("single", "true", "false"), ("pipeline", "null", "true")]
)
def test_a_resumed_run_uses_its_own_kernels(
    train: Cli, trained: Cli, strategy: str, before: str, after: str
) -> None:
    whole = column(trained(*OURS, "+optimizer.fused=false").run, "train/loss")
    saved = trained(*OURS, "trainer.max_epochs=1", f"+optimizer.fused={before}").run
    last = f"resume={saved / 'checkpoints' / 'last.ckpt'}"
    rest = train(*OURS, f"+optimizer.fused={after}", last, *ALL[strategy])
    assert groups(saved)[0]["fused"] is (True if before == "true" else None)
    assert groups(rest.run)[0]["fused"] is (after == "true")
    assert "optimizer.fused" not in rest.out
    curve = column(saved, "train/loss") + column(rest.run, "train/loss")
    assert largest_difference(whole, curve) <= ROUNDING


class Line(LightningModule):
    def __init__(self, fused: bool | None) -> None:
        super().__init__()
        self.fused = fused
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        options = {"algorithm": "torch.optim.AdamW", "lr": 0.1, "fused": self.fused}
        return build(self.parameters(), **options)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_scaled_gradients_are_unscaled_before_they_are_clipped(precision: Any) -> None:
    """With the fused kernel the weights are those of the default one."""
    weights = []
    for fused in (True, None):
        torch.manual_seed(0)
        line = Line(fused)
        plugin = MixedPrecision(precision, "cpu")
        options = {"plugins": plugin, "max_epochs": 1, "gradient_clip_val": 0.1}
        trainer = quiet_trainer(onecurve.Single(), **options)
        trainer.fit(line, DataLoader(torch.ones(4, 2), batch_size=2))
        assert trainer.optimizers[0].param_groups[0]["fused"] is fused
        weights.append(line.layer.weight.detach())
    assert torch.allclose(*weights, rtol=0, atol=1e-7)


def test_two_kernels_at_a_time_are_one_line() -> None:
    weight, options = nn.Parameter(torch.ones(2)), {"algorithm": "torch.optim.Adam", "lr": 0.1}
    with pytest.raises(UserError, match="`fused` and `foreach` cannot be `True` together"):
        build([weight], fused=True, foreach=True, **options)


@pytest.mark.parametrize("columns", [4, 2])
def test_memory_layouts_change_no_step(columns: int) -> None:
    """PyTorch's kernel for the CPU silently misreads transposed gradients, and gaps in memory."""
    weights = []
    for fused in (True, None):
        weight = nn.Parameter(torch.ones(4, 4)[:, :columns])
        optimizer = build([weight], algorithm="torch.optim.AdamW", lr=0.1, fused=fused)

        def closure(weight: nn.Parameter = weight) -> float:
            weight.grad = torch.arange(4.0 * columns).sin().reshape(columns, 4).t()
            return 1.0

        assert optimizer.step(closure) == 1.0
        assert optimizer.param_groups[0]["fused"] is (fused if columns == 4 else None)
        weights.append(weight.detach())
    assert torch.allclose(*weights, rtol=0, atol=1e-6)


def test_moments_of_another_memory_format_are_read_in_order() -> None:
    """A checkpoint with contiguous moments, and a network in channels_last."""
    first = torch.randn(3, 2, 4, 4)
    gradient = torch.arange(96.0).reshape(3, 2, 4, 4).sin()
    layouts = {None: torch.contiguous_format, True: torch.channels_last}
    weights = {fused: nn.Parameter(first.to(memory_format=each)) for fused, each in layouts.items()}
    options: Any = {"algorithm": "torch.optim.AdamW", "lr": 0.1}
    plain, fused = (build([each], fused=kind, **options) for kind, each in weights.items())
    for parameter in weights.values():
        parameter.grad = gradient.clone()
    plain.step()
    weights[True].data.copy_(weights[None].detach())
    state = deepcopy(plain.state_dict())
    fused.load_state_dict({**state, "param_groups": fused.state_dict()["param_groups"]})
    for optimizer in (plain, fused):
        optimizer.step()
    assert torch.allclose(*(each.detach() for each in weights.values()), rtol=0, atol=1e-6)
