"""BatchNorm over ranks: outputs, gradients and running statistics of one process, or a line."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import warm_ranks
from lightning.pytorch import Callback, LightningModule, Trainer
from several_fits import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import onecurve
from onecurve.errors import user_error_behind

PYTORCHS = F.batch_norm
SAMPLES, BATCH = 12, 5  # four ranks share five samples, and the two that remain


class Normalized(LightningModule):
    """BatchNorm of all kinds; optionally with a penalty on the gradient of the inputs."""

    def __init__(self, penalizes: bool = False) -> None:
        super().__init__()
        self.penalizes = penalizes
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 4, 3)),
            *(nn.BatchNorm2d(4, momentum=None, affine=False), nn.Flatten(), nn.Linear(16, 8)),
            *(nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 1)),
        )

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        loss = F.mse_loss(self(inputs), targets)
        if self.penalizes:
            inputs = inputs.clone().requires_grad_()
            (slope,) = torch.autograd.grad(self(inputs).sum(), inputs, create_graph=True)
            loss = loss + slope.square().sum((1, 2, 3)).mean()
        self.log("train", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", F.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Looks(Callback):
    """Calls the network in training mode where only one rank does."""

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if trainer.world_size > 1 and trainer.global_rank == 0:
            kept = {name: each.clone() for name, each in module.named_buffers()}
            module(torch.zeros(4, 1, 6, 6, dtype=module.dtype, device=module.device))
            for name, each in module.named_buffers():
                each.copy_(kept[name])


def trained(strategy: Any, devices: int = 1, penalizes: bool = False, **options: Any) -> Any:
    """What a fit logs, and the state at its end."""
    torch.manual_seed(3)
    inputs = torch.randn(SAMPLES, 1, 6, 6, generator=torch.Generator().manual_seed(0)) + 2
    data = TensorDataset(inputs, inputs.mean((1, 2, 3))[:, None].sin())
    task, loader = Normalized(penalizes), DataLoader(data, BATCH, shuffle=True)
    options = {"max_epochs": 1, "precision": "64-true", "sync_batchnorm": True} | options
    looks = [Looks()] if isinstance(strategy, onecurve.DDP) else []
    options |= {"callbacks": looks, "num_sanity_val_steps": 0}
    trainer = quiet_trainer(strategy, devices, **options)
    trainer.fit(task, loader, DataLoader(data, BATCH))
    logged = {name: each.clone() for name, each in trainer.callback_metrics.items()}
    return {**trainer.strategy.lightning_module_state_dict(), **logged}


RUNS: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
    (onecurve.DDP, {}, {}),
    (onecurve.DDP, {}, {"accumulate_grad_batches": 2}),
    (onecurve.DDP, {"activation_checkpointing": "full"}, {}),
    (onecurve.FSDP, {}, {}),
    (onecurve.mesh, {"replicate": 2, "shard": 2}, {}),
]


def in_four_ranks(runs: list[Any]) -> list[Any]:
    return [trained(made(**settings), 4, **options) for made, settings, options in runs]


def test_synchronized_statistics_are_those_of_one_process() -> None:
    """Two of the ranks have no sample of the last batch, and the others one each."""
    found = warm_ranks.run("test_batchnorm.in_four_ranks", (RUNS,), processes=4)
    for (_, settings, options), other in zip(RUNS, found, strict=True):
        recomputed = settings.get("activation_checkpointing", "none")
        one = trained(onecurve.Single(activation_checkpointing=recomputed), **options)
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.allclose(value, other[name], rtol=1e-11, atol=1e-11), (name, settings)


def with_a_penalty() -> str:
    try:
        trained(onecurve.DDP(), 2, penalizes=True)
    except Exception as error:
        return str(user_error_behind(error))
    return "it was trained"


def test_second_derivatives_are_rejected() -> None:
    line = warm_ranks.run("test_batchnorm.with_a_penalty", (), processes=2)
    assert "the loss has second derivatives through BatchNorm" in line


@pytest.mark.parametrize(("strategy", "devices"), [(onecurve.Single, 1), (onecurve.DP, 2)])
def test_one_process_pays_nothing(
    strategy: type[Any], devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    def forward(self: Normalized, inputs: Tensor) -> Any:
        called.append(F.batch_norm)
        return self.net(inputs)

    monkeypatch.setattr(Normalized, "forward", forward)
    trained(strategy(), devices, limit_train_batches=1, limit_val_batches=1)
    assert set(called) == {PYTORCHS}
