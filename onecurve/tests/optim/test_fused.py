"""Fused optimizers under every strategy: other kernels, the same results."""

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ALL, FLOAT64, ROUNDING, Cli, column, largest_difference
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from several_fits import quiet_trainer
from torch import nn
from torch.utils.data import DataLoader

import onecurve
from onecurve.errors import UserError
from onecurve.optim.optimizers import build_optimizer, fuses, make_contiguous

OURS = (
    FLOAT64, "optimizer._target_=test_fused.build", "+optimizer.algorithm=torch.optim.AdamW",
    "data.batch_size=200", "test=false", "scheduler=none",
)  # fmt: skip
# With what fits their arguments.
FOR_FULL = {"SGD": "optimizer=sgd", "Adagrad": "~optimizer.betas"}


def build(parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    named = [(str(number), parameter) for number, parameter in enumerate(parameters)]
    return build_optimizer(named, lr_scale={}, **options)


class Transposed(Callback):
    """Lets gradients lie as those of some layers do."""

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for parameter in pl_module.parameters():
            if parameter.grad is not None and parameter.ndim == 2:
                parameter.grad = parameter.grad.t().contiguous().t()


def groups(run: Path) -> list[dict[str, Any]]:
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    found: list[dict[str, Any]] = state["optimizer_states"][0]["param_groups"]
    return found


@pytest.mark.compares
@pytest.mark.parametrize("strategy", ["single", "tensor"])
def test_the_curve_is_that_of_the_default_kernels(train: Cli, trained: Cli, strategy: str) -> None:
    plain = trained(*OURS, "+optimizer.fused=false").run
    fused = train(*OURS, "+optimizer.fused=auto", *ALL[strategy]).run
    assert groups(fused)[0]["fused"] is True
    difference = largest_difference(column(plain, "train/loss"), column(fused, "train/loss"))
    assert difference <= ROUNDING


@pytest.mark.compares
@pytest.mark.long
@pytest.mark.parametrize(("strategy", "algorithm"), product(["fsdp", "tensor"], FOR_FULL))
def test_kernels_for_full_parameters_update_shards(
    train: Cli, trained: Cli, strategy: str, algorithm: str
) -> None:
    ours = (*OURS, f"optimizer.algorithm=torch.optim.{algorithm}", FOR_FULL[algorithm])
    fused = trained(*ours, "+optimizer.fused=auto").run
    assert groups(fused)[0]["fused"] is True
    sharded = train(*ours, "+optimizer.fused=auto", *ALL[strategy]).run
    assert groups(sharded)[0]["fused"] is True
    losses = column(fused, "train/loss"), column(sharded, "train/loss")
    assert largest_difference(*losses) <= ROUNDING


@pytest.mark.compares
@pytest.mark.parametrize(
    ("strategy", "before", "after"), [("single", "auto", "false"), ("pipeline", "null", "auto")]
)
def test_a_resumed_run_uses_its_own_kernels(
    train: Cli, trained: Cli, strategy: str, before: str, after: str
) -> None:
    whole = column(trained(*OURS, "+optimizer.fused=false").run, "train/loss")
    saved = trained(*OURS, "trainer.max_epochs=1", f"+optimizer.fused={before}").run
    last = f"resume={saved / 'checkpoints' / 'last.ckpt'}"
    rest = train(*OURS, f"+optimizer.fused={after}", last, *ALL[strategy])
    assert groups(saved)[0]["fused"] is (True if before == "auto" else None)
    assert groups(rest.run)[0]["fused"] is (after == "auto")
    assert "optimizer.fused" not in rest.out
    curve = column(saved, "train/loss") + column(rest.run, "train/loss")
    assert largest_difference(whole, curve) <= ROUNDING


@pytest.mark.compares
def test_gradients_may_have_any_memory_layout(train: Cli, trained: Cli) -> None:
    """PyTorch's kernel for the CPU silently misreads them."""
    plain = trained(*OURS, "+optimizer.fused=false").run
    lying = "+callbacks.transposed._target_=test_fused.Transposed"
    fused = train(*OURS, "+optimizer.fused=auto", lying).run
    assert groups(fused)[0]["fused"] is True
    difference = largest_difference(column(plain, "train/loss"), column(fused, "train/loss"))
    assert difference <= ROUNDING


class Line(LightningModule):
    """Trains one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        options = {"algorithm": "torch.optim.AdamW", "lr": 0.1, "fused": "auto"}
        return build(self.parameters(), **options)


@pytest.mark.parametrize(("precision", "fused"), [("16-mixed", None), ("bf16-mixed", True)])
def test_scaled_gradients_are_unscaled_before_they_are_clipped(precision: Any, fused: Any) -> None:
    plugin = MixedPrecision(precision, "cpu")
    trainer = quiet_trainer(onecurve.Single(), plugins=plugin, max_epochs=1, gradient_clip_val=0.1)
    trainer.fit(Line(), DataLoader(torch.ones(4, 2), batch_size=2))
    assert trainer.optimizers[0].param_groups[0]["fused"] is fused


@pytest.mark.parametrize("name", ["LBFGS", "RMSprop", "SparseAdam"])
def test_what_has_no_kernel_keeps_its_own(name: str) -> None:
    assert not fuses(getattr(torch.optim, name), [nn.Parameter(torch.ones(2))], {})
    built = build([nn.Parameter(torch.ones(2))], algorithm=f"torch.optim.{name}", lr=0.1)
    assert not built.param_groups[0].get("fused")


@pytest.mark.parametrize(
    ("weight", "options"),
    [
        (torch.ones(2, 3).t(), {}),
        (torch.ones(2, dtype=torch.complex64), {}),
        (torch.ones(2), {"foreach": True}),
    ],
    ids=["transposed", "complex", "foreach"],
)
def test_the_default_is_used_where_the_kernel_does_not_work(
    weight: torch.Tensor, options: dict[str, Any]
) -> None:
    optimizer = build(
        [nn.Parameter(weight)], algorithm="torch.optim.AdamW", lr=0.1, fused="auto", **options
    )
    assert optimizer.param_groups[0]["fused"] is None


def test_a_requested_kernel_that_does_not_exist_is_rejected() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(UserError, match=r"^fused=True: .*SGD has no .*fused='auto'$"):
        build([weight], algorithm="torch.optim.SGD", lr=0.1, fused=True)
    kept = build([nn.Parameter(weight.real)], algorithm="torch.optim.SGD", lr=0.1, fused=True)
    assert kept.param_groups[0]["fused"] is True


def test_sparse_gradients_and_unfrozen_layers_use_the_default() -> None:
    first, second = (nn.Parameter(torch.zeros(2, 2)) for _ in range(2))
    options = {"algorithm": "torch.optim.SGD", "lr": 0.5, "fused": "auto"}
    for momentum, later in ((0.0, torch.eye(2).to_sparse()), (0.9, torch.eye(2))):
        optimizer = build([first, second], momentum=momentum, **options)
        assert optimizer.param_groups[0]["fused"] is True
        first.grad, second.grad = torch.eye(2), None
        make_contiguous(optimizer)
        optimizer.step()
        second.grad = later
        make_contiguous(optimizer)
        assert optimizer.param_groups[0]["fused"] is None
        optimizer.step()
    assert torch.equal(second.detach(), -torch.eye(2))
