"""The average of weights is what a hand would compute, and costs training nothing."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, TINY, Cli, one_of_a_kind
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging as Lightnings
from lightning.pytorch.loggers.logger import DummyLogger
from several_fits import Small, data, quiet_trainer
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

import onecurve
from onecurve.callbacks.nan_guard import NanGuard
from onecurve.callbacks.throughput import Throughput
from onecurve.checkpoint.format import read_checkpoint


class Normed(Small):
    """With BatchNorm, which is no average of weights."""

    def network(self) -> nn.Module:
        middle = nn.Sequential(nn.Tanh(), nn.Linear(8, 8))
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), middle, nn.BatchNorm1d(8), nn.Linear(8, 2)
        )

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(self(batch[0]), batch[1]))


class Fail(Callback):
    """Ends the run before a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        if trainer.global_step == self.at:
            raise ArithmeticError("it failed")


class Record(Callback):
    """Keeps the learning rate of each step, its weights, and when checkpoints were written."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.states: list[dict[str, Tensor]] = []
        self.saved: list[int] = []

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: Trainer, task: LightningModule, *_: object) -> None:
        self.states.append(deepcopy(task.state_dict()))

    def on_save_checkpoint(self, *_: object) -> None:
        self.saved.append(len(self.rates))


STRATEGIES: dict[str, Any] = {
    "single": onecurve.Single, "fsdp": onecurve.FSDP, "pipeline": onecurve.Pipeline
}  # fmt: skip


def weights(file: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(file, weights_only=True)["state_dict"]
    return state


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=ROUNDING)


def trainer_of(*callbacks: Callback, name: str = "single", **options: Any) -> Trainer:
    usual = {"strategy": STRATEGIES[name](), "max_epochs": 4, "precision": "64-true"}
    devices = 1 if name == "single" else 2
    return quiet_trainer(devices=devices, **{**usual, **options}, callbacks=list(callbacks))


def run(work: Callable[..., None], name: str, *arguments: Any) -> None:
    """In this process, or in two ranks."""
    if name == "single":
        work(name, *arguments)
    else:
        warm_ranks.run(work, name, *arguments)


@pytest.mark.compares
def test_both_averages_are_those_of_a_hand(tmp_path: Path) -> None:
    """BatchNorm's statistics are PyTorch's over the same batches; training goes on with others."""
    swa, record = onecurve.StochasticWeightAveraging(str(tmp_path / "swa.ckpt"), 0.5), Record()
    task = Normed()
    trainer = trainer_of(swa, onecurve.ExponentialMovingAverage(0.8), record)
    trainer.fit(task, data(), data())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    live, last = record.states[-1], torch.load(tmp_path / "last.ckpt", weights_only=True)
    average, by_hand = weights(tmp_path / "swa.ckpt"), Normed().double()
    for name, parameter in by_hand.named_parameters():
        assert_close(average[name], (record.states[8][name] + live[name]) / 2)
        parameter.data.copy_(average[name])
    update_bn((inputs.double() for inputs, _ in data()), by_hand)
    for name, value in by_hand.state_dict().items():
        assert_close(average[name], value)
        assert torch.equal(task.state_dict()[name], live[name])
        assert torch.equal(last["averages"]["live"][name], live[name])
    for name, moving in record.states[0].items():
        for count, state in enumerate(record.states[1:], 1):
            decay = min(0.8, (1 + count) / (10 + count))
            moving = decay * moving + (1 - decay) * state[name]
        expected = moving if "weight" in name or "bias" in name else live[name]
        assert_close(last["state_dict"][name], expected)
    # It is validated.
    validated = trainer.callback_metrics["val/loss"]
    task.load_state_dict(last["state_dict"])
    (again,) = trainer_of().validate(task, data(), verbose=False)
    assert again["val/loss"] == pytest.approx(validated.item(), rel=ROUNDING)


def test_the_average_is_what_a_command_tests(train: Cli, cli: Cli) -> None:
    outcome = train("callbacks=[checkpoint,swa]", "callbacks.swa.start=0.5")
    tested = cli("evaluate.py", f"checkpoint={outcome.run}/swa.ckpt").metrics
    assert outcome.metrics["test/loss"] == pytest.approx(tested["test/loss"], rel=1e-6)
    early = train("callbacks=[swa]", "callbacks.swa.start=10")
    assert "swa: the run ended before callbacks.swa.start=10: no average" in early.out
    assert not (early.run / "swa.ckpt").exists()


def normed(**_: Any) -> nn.Module:
    layers = (nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 10))
    return nn.Sequential(*layers)


INTERRUPTED = (
    "callbacks=[checkpoint,swa,ema]", "callbacks.checkpoint.last_every_n_steps=3", "test=false",
    "callbacks.swa.start=0.4", "callbacks.swa.every_n_steps=2", "callbacks.swa.lr=0.01",
    "model._target_=test_averaging.normed",
)  # fmt: skip
RESUMED = ("single", "fsdp", "fsdp checkpoint.format=sharded", "pipeline")


@pytest.mark.compares
@pytest.mark.parametrize("strategy", one_of_a_kind(RESUMED, kept=["single"]))
def test_a_run_that_was_interrupted_while_averaging(
    train: Cli, cli: Cli, warm: Cli, strategy: str
) -> None:
    """Goes on, and ends as the whole run: bit for bit."""
    options = (*f"strategy={strategy}".split(), *INTERRUPTED)
    whole = train(*options).run
    fails = ("+callbacks.fail._target_=test_averaging.Fail", "+callbacks.fail.at=14")
    stopped = cli("train.py", *TINY, *options, *fails)
    assert stopped.status == 1
    warm("train.py", "resume=last", "callbacks.fail.at=-1")
    for file in ("swa.ckpt", "checkpoints/last.ckpt"):
        ours, theirs = (read_checkpoint(run / file) for run in (stopped.run, whole))
        states = [(ours["state_dict"], theirs["state_dict"])]
        if file != "swa.ckpt":
            assert ours["averages"].keys() == {"live", "swa"}
            states += [(ours["averages"][key], theirs["averages"][key]) for key in ("live", "swa")]
        for mine, expected in states:
            assert all(torch.equal(mine[key], expected[key]) for key in expected), file


@pytest.mark.parametrize(("annealing", "second"), [("cosine", 0.09804), ("linear", 0.092)])
def test_the_learning_rate_of_the_phase(tmp_path: Path, annealing: Any, second: float) -> None:
    """The first step of ten down is little at first, or as much as any."""
    file, record = str(tmp_path / "swa.ckpt"), Record()
    swa = onecurve.StochasticWeightAveraging(file, 0.5, lr=0.02, annealing=annealing)
    trainer_of(swa, record).fit(Small(), data(80))
    rates = record.rates
    assert rates[:21] == [0.1] * 21
    assert rates[21] == pytest.approx(second, abs=1e-5)
    assert rates[30:] == pytest.approx([0.02] * 10)
    assert rates == sorted(rates, reverse=True)


class Saves(Callback):
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(f"{trainer.current_epoch}.ckpt")


def fitted(
    epochs: int, *callbacks: Callback, strategy: Any = None, resume: str | Path | None = None
) -> Trainer:
    torch.manual_seed(0)
    trainer = trainer_of(*callbacks, max_epochs=epochs, strategy=strategy or onecurve.Single())
    trainer.fit(Small(), data(), ckpt_path=resume)
    return trainer


def test_it_goes_on_with_the_average_of_lightnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of that after two epochs, and of the ends of the other two."""
    monkeypatch.chdir(tmp_path)
    fitted(4, Lightnings(0.1, 1), Saves(), strategy="auto")
    theirs = torch.load("1.ckpt", weights_only=False)
    state = theirs["callbacks"]["StochasticWeightAveraging"]
    count = state["n_averaged"]
    ours = onecurve.StochasticWeightAveraging("swa.ckpt", start=2)
    fitted(4, ours, Saves(), resume="1.ckpt")
    assert ours.average.count == count + 2 > 2
    ends = [weights(tmp_path / f"{epoch}.ckpt") for epoch in (2, 3)]
    for name, mean in weights(tmp_path / "swa.ckpt").items():
        sums = count * state["average_model_state"][name] + ends[0][name] + ends[1][name]
        expected = sums / (count + 2)
        torch.testing.assert_close(mean, expected, rtol=ROUNDING, atol=ROUNDING)


class ByHand(Small):
    """One optimizer, or several of which each makes a step in every batch."""

    def __init__(self, optimizers: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.number = optimizers

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizers: Any = self.optimizers()
        for each in optimizers if self.number > 1 else [optimizers]:
            each.zero_grad()
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss)
            each.step()

    def configure_optimizers(self) -> Any:
        parameters = list(self.net.parameters())
        parts = [parameters[number :: self.number] for number in range(self.number)]
        return [torch.optim.SGD(part, lr=0.1) for part in parts]


class Breaks(ByHand):
    """The loss of the second optimizer is no number in the third batch."""

    losses = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.losses += 1
        return super().loss(outputs, targets) * (float("nan") if self.losses == 6 else 1.0)


class Notes(DummyLogger):
    """The steps at which something was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, int | None]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.steps += [(name, step) for name in metrics]


@pytest.mark.parametrize(
    ("start", "every", "most"), [(0.5, None, None), (2, 2, None), (0.75, None, 18)]
)
def test_two_optimizers_make_one_step_a_batch(
    tmp_path: Path, start: float, every: int | None, most: int | None
) -> None:
    """All that counts steps does the same for two optimizers as for one."""

    def counted(optimizers: int) -> tuple[Any, ...]:
        folder, record, notes = tmp_path / str(optimizers), Record(), Notes()
        swa = onecurve.StochasticWeightAveraging(str(folder / "swa.ckpt"), start, every, lr=0.01)
        keeps = onecurve.BestAndLast(
            folder, save_last=True, save_top_k=0, last_every_n_steps=5, every_n_epochs=99
        )
        trainer = trainer_of(
            swa, keeps, Throughput(4), record, max_epochs=8, enable_checkpointing=True,
            max_steps=most * optimizers if most else -1, logger=notes,
        )  # fmt: skip
        trainer.fit(ByHand(optimizers), data())
        return swa.average.count, record.rates, record.saved, notes.steps

    one = counted(1)
    assert counted(2) == one
    assert all(one)


def test_the_guard_looks_at_every_optimizer_of_a_step(tmp_path: Path) -> None:
    guard = NanGuard(str(tmp_path / "nan.pt"), str(tmp_path / "nan.ckpt"), every_n_steps=2)
    with pytest.raises(onecurve.UserError, match="step 2: a value is not finite"):
        trainer_of(guard, max_epochs=1).fit(Breaks(2), data())


class Plus(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.weight


class Climbs(Small):
    """Each step adds exactly one step of bfloat16 to every weight, between 1 and 2."""

    STEP = 2.0**-7

    def network(self) -> nn.Module:
        return nn.Sequential(Plus(), Plus())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -outputs.sum(1).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.STEP)


def climb(name: str, folder: Path) -> None:
    """Six steps, and a resume with six more."""
    rows = DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4, 2)), batch_size=4)
    for epochs, resume in ((6, None), (12, folder / "6.ckpt")):
        swa = onecurve.StochasticWeightAveraging(str(folder / "swa.ckpt"), start=1)
        both = (swa, onecurve.ExponentialMovingAverage(0.9))
        trainer = trainer_of(*both, name=name, max_epochs=epochs, precision="bf16-true")
        trainer.fit(Climbs(), rows, ckpt_path=resume)
        trainer.save_checkpoint(folder / f"{epochs}.ckpt")


@pytest.mark.parametrize("name", one_of_a_kind(STRATEGIES, kept=["single", "fsdp"]))
def test_averages_of_weights_in_16_bits_have_more(tmp_path: Path, name: str) -> None:
    run(climb, name, tmp_path)
    steps = [1 + Climbs.STEP * step for step in range(1, 13)]
    moving = steps[0]
    for count, step in enumerate(steps[1:], 1):
        moving += (1 - min(0.9, (1 + count) / (10 + count))) * (step - moving)
    for file, average in (("swa.ckpt", sum(steps[1:]) / 11), ("12.ckpt", moving)):
        state = weights(tmp_path / file)
        assert len(state) == 2
        for value in state.values():
            assert value.tolist() == pytest.approx([average] * 2, rel=1e-6)


def test_without_its_average_a_run_goes_on_from_the_weights_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.ckpt"
    fitted(1, onecurve.ExponentialMovingAverage()).save_checkpoint(file)
    rest = fitted(2, resume=file).lightning_module.state_dict()
    whole = fitted(2).lightning_module.state_dict()
    assert all(torch.equal(rest[name], whole[name]) for name in whole)
    assert capsys.readouterr().out.count("training continues from its own weights") == 1
