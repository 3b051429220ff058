"""Weights and gradients that a task, or its own optimizer, draws, reads and changes by itself."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING
from lightning.pytorch import LightningModule
from several_fits import quiet_trainer
from test_strangers import STRATEGIES, Samples, Stranger, loaders, pair
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import onecurve
from onecurve.errors import UserError, user_error_behind
from onecurve.launch import agent
from onecurve.machine import unchanged_environment
from onecurve.testing import assert_parity


def four() -> nn.Sequential:
    return nn.Sequential(pair(), nn.GELU(), pair())


def fit(task: Callable[[], LightningModule], strategy: Any) -> None:
    short = {"max_epochs": 2, "num_sanity_val_steps": 0, "limit_train_batches": 2}
    trainer = quiet_trainer(strategy, devices=2, precision="64-true", **short)
    trainer.fit(task(), DataLoader(Samples(), 8), loaders()[1])


def full(task: Any) -> Any:
    """The context in which a task's weights are full; a plain Trainer needs none."""
    return getattr(task.trainer.strategy, "full_parameters", nullcontext)(task)


class Drawn(Stranger):
    """Draws its weights once training begins, and those of some rows again."""

    def on_train_start(self) -> None:
        for layer in self.model.modules():
            if isinstance(layer, nn.Linear) and not self.trainer.global_step:
                layer.reset_parameters()
                nn.init.normal_(layer.bias)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            with full(self), torch.no_grad():
                self.model[0].weight[:3].normal_(0, 0.1)
                self.model[0].weight.narrow(0, 6, 5)[1].zero_()
                half, _ = self.model[2].weight.chunk(2)
                half *= 2


class DrawnFull(Drawn):
    """Draws within the context that gives it full parameters."""

    def on_train_start(self) -> None:
        with self.context():
            super().on_train_start()
            if not self.trainer.global_step:
                nn.init.trunc_normal_(self.model[2].weight, std=0.3)

    def on_train_epoch_start(self) -> None:
        with self.context():
            super().on_train_epoch_start()

    def context(self) -> Any:
        return getattr(self.trainer.strategy, "full_parameters", lambda _: nullcontext())(self)


class Initialized(Stranger):
    """Initializes one layer after the other with what skips tensors without data."""

    def on_train_start(self) -> None:
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.trunc_normal_(parameter)


class Noise(Stranger):
    """Adds noise to gradients."""

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad += 0.1 * torch.randn_like(parameter.grad)


class ByFunctions(Stranger):
    """Uses functions that PyTorch has for full tensors alone."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            with full(self), torch.no_grad():
                first, last = self.model[0].weight, self.model[2].weight
                nn.init.orthogonal_(first)
                first.fill_diagonal_(0.1)
                torch.chunk(last, 2)[1].bernoulli_(0.5)
                last[1].copy_(torch.ones(last.shape[1], dtype=last.dtype))
                last.renorm_(2, 0, 0.5)


class ByNumbers(Stranger):
    """Assigns gradients and weights, and reads norms as numbers."""

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        gradient: Any = self.model[0].weight.grad
        gradient.data = gradient.data * 0.5
        norms = [p.grad.norm().item() for p in self.parameters() if p.grad is not None]
        optimizer.param_groups[0]["lr"] = 0.01 + 0.01 * sum(norms)

    def on_train_batch_start(self, *_: Any) -> None:
        weight = self.model[2].weight
        weight.data = F.normalize(weight.data, dim=0)


class OfRows(Stranger):
    """Changes rows of what is sharded without the context."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.change = change

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        weight = self.model[0].weight
        with torch.no_grad():
            exec(self.change, {"weight": weight, "gradient": weight.grad, "torch": torch, "nn": nn})


class BeforeZeroing(Stranger):
    """Reads gradients of the step before, which a checkpoint does not hold."""

    def on_before_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        norms = [p.grad.norm().item() for p in self.parameters() if p.grad is not None]
        self.log("norm", sum(norms) if self.global_step == 1 else -1.0)


class Fused(Stranger):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9, fused=True)


def critics() -> nn.ModuleDict:
    return nn.ModuleDict({"first": four(), "second": pair()})


class Slopes(Stranger):
    """A critic whose loss has its own gradient in it."""

    def __init__(self) -> None:
        super().__init__(critics)
        self.automatic_optimization = False

    def outputs(self, batch: Any) -> Tensor:
        made: Tensor = self.model["first"](batch["inputs"])
        return made + self.model["second"](batch["inputs"])

    def training_step(self, batch: Any, batch_idx: int) -> None:
        inputs = batch["inputs"].clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.model["first"](inputs).sum(), inputs, create_graph=True)
        loss = slope.square().mean() + F.mse_loss(self.outputs(batch), batch["labels"])
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log("train", loss)


class OwnSlopes(Stranger):
    """A network that is called again after its slopes were asked for."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs = batch["inputs"].clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.model(inputs).sum(), inputs, create_graph=True)
        return slope.square().mean() + super().training_step(batch, batch_idx)


class OfABook(torch.optim.Optimizer):
    """Expects a gradient for every parameter."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                size = parameter.data.norm() / (1 + parameter.grad.norm())
                parameter.data -= group["lr"] * size.item() * parameter.grad.data
        return loss


class ByNorm(torch.optim.Optimizer):
    """Divides by the norm over all gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure()
        parameters = self.param_groups[0]["params"]
        norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
        for parameter in parameters:
            parameter.sub_(0.01 * parameter.grad / norm)
        return loss


class Own(Stranger):
    """Has an optimizer of its own, and a scheduler whose state is its own."""

    def __init__(self, kind: type[torch.optim.Optimizer] = OfABook) -> None:
        super().__init__(four)
        self.kind: Any = kind

    def configure_optimizers(self) -> Any:
        optimizer = self.kind(self.parameters(), {"lr": 0.05})
        return {"optimizer": optimizer, "lr_scheduler": Halving(optimizer)}

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step()


class MadeEarly(Stranger):
    """Is given its optimizer, as it was before the fit."""

    def __init__(self) -> None:
        super().__init__()
        self.early = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.halving = torch.optim.lr_scheduler.StepLR(self.early, 1, 0.5)

    def configure_optimizers(self) -> Any:
        return {"optimizer": self.early, "lr_scheduler": self.halving}


class Taught(Stranger):
    """Learns from a network that it calls in inference mode."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = pair().requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.inference_mode():
            taught = self.teacher(batch["inputs"])
        return F.mse_loss(self.outputs(batch), taught.clone())


class Halving:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.epochs = optimizer, 0

    def step(self) -> None:
        self.epochs += 1
        self.optimizer.param_groups[0]["lr"] /= 2

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]


@pytest.fixture(autouse=True)
def _warm_ones(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(agent, "start_ranks", warm_ranks.start_ranks)
    monkeypatch.syspath_prepend(str(request.path.parent))


@pytest.mark.compares
@pytest.mark.parametrize(
    ("task", "strategy"),
    [
        *((Drawn, name) for name in ("fsdp", "tensor")),
        *((DrawnFull, name) for name in ("fsdp", "tensor", "pipeline")),
        *(
            (each, name)
            for each in (ByFunctions, ByNumbers, BeforeZeroing)
            for name in ("fsdp", "tensor")
        ),
        (Fused, "fsdp"),
        (Slopes, "tensor"),
        (OwnSlopes, "fsdp"),
        *((Own, name) for name in ("fsdp", "pipeline")),
        (partial(Own, ByNorm), "fsdp"),
        *((MadeEarly, name) for name in ("fsdp", "tensor", "pipeline")),
        *((Taught, name) for name in ("fsdp", "tensor")),
    ],
)
def test_it_is_as_in_one_process(task: Any, strategy: str) -> None:
    assert_parity(task, loaders, strategy=STRATEGIES[strategy](), accelerator="cpu")


def after(task: Callable[[], LightningModule], *ways: tuple[str, str]) -> Any:
    """What several Trainers make of one task: its weights, or the line that rejects it."""
    torch.manual_seed(0)
    one, options = task(), {"max_epochs": 1, "precision": "64-true", "num_sanity_val_steps": 0}
    for what, strategy in ways:
        made, devices = ("auto", 1) if strategy == "plain" else (STRATEGIES[strategy](), 2)
        trainer = quiet_trainer(made, devices, **options)
        try:
            getattr(trainer, what)(one, DataLoader(Samples(), 8))
        except Exception as error:
            if line := user_error_behind(error):
                return str(line)
            raise
    return trainer.strategy.lightning_module_state_dict()


@pytest.mark.parametrize(
    ("ways", "line"),
    [
        *(
            (f"validate {name}, fit {name}, fit {name}", "")
            for name in ("fsdp", "tensor", "pipeline")
        ),
        ("validate pipeline, fit ddp, fit fsdp", ""),
        ("fit tensor, fit fsdp", "strategy=fsdp: MadeEarly is still sharded by the strategy of an"),
        ("fit fsdp, fit pipeline", "MadeEarly is still sharded by the strategy of another Trainer"),
        ("fit pipeline, fit ddp", "strategy=ddp: AdamW is kept from a fit under pipeline, where"),
    ],
)
def test_an_early_optimizer_trains_for_one_trainer_after_another(ways: str, line: str) -> None:
    each: Any = [tuple(way.split()) for way in ways.split(", ")]
    found = warm_ranks.run("test_weights_by_hand.after", (MadeEarly, *each), processes=2)
    if line:
        assert line in found
        return
    with unchanged_environment(("PL_GLOBAL_SEED", "PL_SEED_WORKERS")):
        expected = after(MadeEarly, *((what, "plain") for what, _ in each))
    torch.testing.assert_close(found, expected, rtol=0, atol=ROUNDING)


class Cached(nn.Module):
    """Blocks that fill a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = block(inputs, cache={})
        return inputs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = pair()

    def forward(self, inputs: Tensor, cache: dict[str, Tensor]) -> Tensor:
        cache["made"] = self.layers(inputs)
        return cache["made"]


class Hooked(Stranger):
    """Keeps what one of its layers makes, for its loss."""

    def __init__(self) -> None:
        super().__init__(four)
        self.kept: dict[str, Tensor] = {}
        self.model[0].register_forward_hook(lambda *given: self.kept.update(made=given[2]))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss + F.mse_loss(self.kept["made"], batch["labels"])


class Mapped(Stranger):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        jacobian = torch.func.vmap(torch.func.jacrev(self.model))(batch["inputs"])
        return jacobian.square().mean()


class Adapted(Stranger):
    """Steps on copies of its weights first."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.mse_loss(self.outputs(batch), batch["labels"])
        return loss + torch.autograd.grad(loss, [*self.parameters()])[0].sum()


@pytest.mark.parametrize(
    ("task", "strategy", "line"),
    [
        (
            Drawn,
            "pipeline",
            "reads, draws or compares a weight or a gradient that",
        ),
        (Initialized, "pipeline", "on_train_start (test_weights_by_hand.py:"),
        (Noise, "pipeline", "on_before_optimizer_step (test_weights_by_hand.py:"),
        (partial(Stranger, Cached), "pipeline", "calls one that changes what it is given, such as"),
        (Hooked, "pipeline", "hooks of its layers (register_forward_hook) run on the rank"),
        (Mapped, "tensor", "Mapped does with sharded weights"),
        (Adapted, "fsdp", "Adapted does with sharded weights"),
    ],
)
def test_what_cannot_be_is_rejected_in_one_line(
    task: Any, strategy: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # ranks that fail are not to be warm
    with pytest.raises(UserError) as rejected:
        onecurve.launch(fit, task, STRATEGIES[strategy](timeout_seconds=8), devices=2)
    assert line in str(rejected.value)
    assert "\n" not in str(rejected.value)


CHANGES = [
    "weight[0] = 0",
    "gradient[0] = 0",
    "gradient[4:9] *= 0.5",
    "weight[:3].normal_()",
    "weight.narrow(0, 6, 5).zero_()",
    "torch.chunk(weight, 2)[0].mul_(2)",
    "weight.view(-1)[3:9] *= 2",
    "weight.diagonal().zero_()",
    "weight.fill_diagonal_(0.1)",
    "weight.renorm_(2, 0, 0.5)",
    "weight.data.copy_(torch.ones(weight.shape, dtype=weight.dtype))",
    "nn.init.orthogonal_(weight)",
]


def fits_that_change_rows(strategy: str) -> list[str]:
    """The lines that reject changes of rows of a sharded weight."""
    found = []
    for change in CHANGES:
        try:
            fit(partial(OfRows, change), STRATEGIES[strategy]())
            found.append("it was trained")
        except Exception as error:
            found.append(str(user_error_behind(error)))
    return found


@pytest.mark.parametrize("strategy", ["fsdp", "tensor"])
def test_rows_of_what_is_sharded_are_changed_in_the_context_alone(strategy: str) -> None:
    run = "test_weights_by_hand.fits_that_change_rows"
    lines = warm_ranks.run(run, (strategy,), processes=2)
    trained = [change for change, line in zip(CHANGES, lines, strict=True) if "trained" in line]
    assert trained == []
    for line in lines:
        assert "full_parameters(self)" in line
        assert "\n" not in line


class Pair(Stranger):
    """A network that is no sequence of layers, with a line of its own in between."""

    def __init__(self) -> None:
        super().__init__(lambda: Summed())


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.last(self.first(inputs).tanh()) + inputs
        return made


def between_two_fits(strategy: Any, devices: int = 2) -> list[Any]:
    """What a script reads of a task after its fit, changes, draws, loads, and trains on with."""
    torch.manual_seed(0)
    short = {"num_sanity_val_steps": 0, "limit_train_batches": 2, "max_epochs": 1}
    trainer = quiet_trainer(strategy, devices=devices, precision="64-true", **short)
    task, loader = Pair(), DataLoader(Samples(), 8)
    trainer.fit(task, loader)
    inputs = Samples()[0]["inputs"]
    full = {name: torch.ones_like(value) for name, value in Summed().double().state_dict().items()}
    found = []

    def notes(read: Callable[[], Tensor]) -> None:
        try:
            found.append(read().sum().item())
        except UserError as error:
            found.append(str(error))

    with trainer.strategy.full_parameters(task):  # type: ignore[attr-defined]
        found += [parameter.detach().sum().item() for parameter in task.parameters()]
        nn.init.orthogonal_(task.model.first.weight)
        task.model.last.weight.data *= 2
        notes(lambda: task.model(inputs))
    notes(lambda: task.model(inputs))
    with trainer.strategy.full_parameters(task.model.last):  # type: ignore[attr-defined]
        found += [parameter.detach().sum().item() for parameter in task.model.last.parameters()]
    task.model.load_state_dict(full)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(task, loader)
    return [*found, trainer.callback_metrics["train"].item()]


@pytest.mark.parametrize("strategy", ["fsdp", "tensor", "pipeline"])
def test_a_task_is_read_changed_and_loaded_after_its_fit(strategy: str) -> None:
    with unchanged_environment(("PL_GLOBAL_SEED", "PL_SEED_WORKERS")):
        single = between_two_fits(onecurve.Single(), 1)
    run = partial(warm_ranks.run, "test_weights_by_hand.between_two_fits", processes=2)
    found = run((STRATEGIES[strategy](),))
    lines = {each for each in found if isinstance(each, str)}
    expected = "called after the run" if strategy == "pipeline" else "within the context"
    assert [expected in line for line in lines] == [True]
    for one, two in zip(found, single, strict=True):
        assert isinstance(one, str) or abs(one - two) <= ROUNDING
