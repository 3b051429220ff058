"""The average of weights is what a hand would compute, and costs training nothing."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, TINY, Cli, one_of_a_kind
from lightning.pytorch import Callback, LightningModule, Trainer
from several_fits import Small, data, quiet_trainer
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

import onecurve
from onecurve.checkpoint.format import read_checkpoint


def normed(inputs: int = 64, outputs: int = 10, **_: Any) -> nn.Module:
    """With BatchNorm, which is no average of weights."""
    hidden = (nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.Tanh())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(8, outputs))


class Normed(Small):
    def network(self) -> nn.Module:
        return normed(6, 2)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(self(batch[0]), batch[1]))


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


def weights(file: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(file, weights_only=True)["state_dict"]
    return state


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=ROUNDING)


def fitted(
    task: LightningModule,
    *callbacks: Callback,
    loader: Any = None,
    resume: Path | None = None,
    **options: Any,
) -> Trainer:
    """A Trainer that has fitted a task for four epochs of three batches."""
    usual = {"strategy": onecurve.Single(), "max_epochs": 4, "precision": "64-true"}
    trainer = quiet_trainer(**{**usual, **options}, callbacks=list(callbacks))
    trainer.fit(task, loader or data(), data(), ckpt_path=resume)
    return trainer


@pytest.mark.compares
def test_both_averages_are_those_of_a_hand(tmp_path: Path) -> None:
    """BatchNorm's statistics are PyTorch's over the same batches; training goes on with others."""
    swa, record = onecurve.StochasticWeightAveraging(str(tmp_path / "swa.ckpt"), 0.5), Record()
    task = Normed()
    trainer = fitted(task, swa, onecurve.ExponentialMovingAverage(0.8), record)
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
    (again,) = quiet_trainer(precision="64-true").validate(task, data(), verbose=False)
    assert again["val/loss"] == pytest.approx(validated.item(), rel=ROUNDING)


def test_the_average_is_what_a_command_tests(train: Cli, cli: Cli) -> None:
    outcome = train("callbacks=[checkpoint,swa]", "callbacks.swa.start=0.5")
    tested = cli("evaluate.py", f"checkpoint={outcome.run}/swa.ckpt").metrics
    assert outcome.metrics["test/loss"] == pytest.approx(tested["test/loss"], rel=1e-6)
    early = train("callbacks=[swa]", "callbacks.swa.start=10")
    assert "swa: the run ended before callbacks.swa.start=10: no average" in early.out
    assert not (early.run / "swa.ckpt").exists()


INTERRUPTED = (
    "callbacks=[checkpoint,swa,ema]", "callbacks.checkpoint.last_every_n_steps=3", "test=false",
    "callbacks.swa.start=0.4", "callbacks.swa.every_n_steps=2", "callbacks.swa.lr=0.01",
    "model._target_=test_averaging.normed",
)  # fmt: skip
FAILS = ("+callbacks.fail={_target_:test_failures.FailOnRank,rank:0,step:14}",)
RESUMED = ("single", "fsdp", "fsdp checkpoint.format=sharded", "pipeline")


@pytest.mark.compares
@pytest.mark.parametrize("strategy", one_of_a_kind(RESUMED, kept=["single"]))
def test_a_run_that_was_interrupted_while_averaging(
    train: Cli, cli: Cli, warm: Cli, strategy: str
) -> None:
    """Goes on, and ends as the whole run: bit for bit."""
    options = (*f"strategy={strategy}".split(), *INTERRUPTED)
    whole = train(*options).run
    stopped = cli("train.py", *TINY, *options, *FAILS)
    assert stopped.status == 1
    warm("train.py", "resume=last", "callbacks.fail.step=-1")
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
    fitted(Small(), swa, record, loader=data(80))
    rates = record.rates
    assert rates[:21] == [0.1] * 21
    assert rates[21] == pytest.approx(second, abs=1e-5)
    assert rates[30:] == pytest.approx([0.02] * 10)
    assert rates == sorted(rates, reverse=True)


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
            self.manual_backward(super().training_step(batch, batch_idx))
            each.step()

    def configure_optimizers(self) -> Any:
        parameters = list(self.net.parameters())
        parts = [parameters[number :: self.number] for number in range(self.number)]
        return [torch.optim.SGD(part, lr=0.1) for part in parts]


def test_two_optimizers_make_one_step_a_batch(tmp_path: Path) -> None:
    """All that counts steps does the same for two optimizers as for one."""

    def counted(optimizers: int) -> tuple[Any, ...]:
        folder, record = tmp_path / str(optimizers), Record()
        swa = onecurve.StochasticWeightAveraging(str(folder / "swa.ckpt"), 0.75, 2, lr=0.01)
        keeps = onecurve.BestAndLast(
            folder, save_last=True, save_top_k=0, last_every_n_steps=5, every_n_epochs=99
        )
        options: Any = {"max_steps": 18 * optimizers, "enable_checkpointing": True}
        fitted(ByHand(optimizers), swa, keeps, record, max_epochs=8, **options)
        return swa.average.count, record.rates, record.saved

    one = counted(1)
    assert counted(2) == one
    assert all(one)


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


def climb(strategy: Any, folder: Path) -> None:
    """Six steps, and a resume with six more."""
    rows = DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4, 2)), batch_size=4)
    options = {"strategy": strategy, "precision": "bf16-true", "loader": rows}
    options["devices"] = 1 if strategy.name == "single" else 2
    for epochs, resume in ((6, None), (12, folder / "6.ckpt")):
        swa = onecurve.StochasticWeightAveraging(str(folder / "swa.ckpt"), start=1)
        both = (swa, onecurve.ExponentialMovingAverage(0.9))
        trainer = fitted(Climbs(), *both, max_epochs=epochs, resume=resume, **deepcopy(options))
        trainer.save_checkpoint(folder / f"{epochs}.ckpt")


@pytest.mark.parametrize("kind", [onecurve.Single, onecurve.FSDP])
def test_averages_of_weights_in_16_bits_have_more(tmp_path: Path, kind: Any) -> None:
    if kind is onecurve.Single:
        climb(kind(), tmp_path)
    else:
        warm_ranks.run(climb, kind(), tmp_path)
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
    file, whole = tmp_path / "one.ckpt", Record()
    begins = Small()
    fitted(deepcopy(begins), whole, max_epochs=2)
    fitted(begins, onecurve.ExponentialMovingAverage(), max_epochs=1).save_checkpoint(file)
    rest = fitted(Small(), max_epochs=2, resume=file).lightning_module.state_dict()
    assert all(torch.equal(rest[name], value) for name, value in whole.states[-1].items())
    assert capsys.readouterr().out.count("training continues from its own weights") == 1
