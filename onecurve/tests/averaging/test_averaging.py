"""The average of weights is what a hand would compute, and costs training nothing."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ALL, FLOAT64, INTERLEAVED, ROUNDING, TINY, Cli, column, one_of_a_kind
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
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

WAYS = {**ALL, "interleaved": INTERLEAVED}
EPOCHS, BATCH = 4, 60
NET = (
    "model._target_=test_averaging.network",
    "data._target_=test_averaging.Images",
    f"data.batch_size={BATCH}",
    f"trainer.max_epochs={EPOCHS}",
    FLOAT64,
)
FOUR = ("single", "ddp", "fsdp", "pipeline")
SWA = ("callbacks=[checkpoint,swa]", "callbacks.swa.start=0.5")
EVERY_EPOCH = ("callbacks.checkpoint.save_top_k=-1", "callbacks.checkpoint.filename='{epoch}'")


def network(**_: Any) -> nn.Sequential:
    """A network with BatchNorm in two of its layers."""
    return nn.Sequential(
        OrderedDict(
            first=nn.Conv2d(1, 8, 3),
            norm1=nn.BatchNorm2d(8),
            second=nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten()),
            norm2=nn.BatchNorm1d(128),
            head=nn.Linear(128, 4),
        )
    )


def images() -> tuple[Tensor, Tensor]:
    """210 images, so that the last batch has 30."""
    random = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 4, (210,), generator=random)
    noise = torch.randn(210, 1, 8, 8, generator=random)
    return noise + targets[:, None, None, None] * 0.3, targets


class Images(LightningDataModule):
    """In an order that a test knows."""

    def __init__(self, batch_size: int, **_: Any) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(*images()), self.batch_size)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(*(part[:50] for part in images())), self.batch_size)

    test_dataloader = val_dataloader


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
    """Keeps the weights that every step has reached."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *rest: object
    ) -> None:
        state = trainer.strategy.lightning_module_state_dict()
        if trainer.is_global_zero:
            torch.save(state, f"step-{trainer.global_step}.pt")


def weights(file: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(file, weights_only=True)["state_dict"]
    return state


def is_close(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) <= ROUNDING * max(1.0, float(b.abs().max()))


@pytest.mark.compares
@pytest.mark.parametrize("name", one_of_a_kind(["single", "ddp", "pipeline"], kept=["single"]))
def test_the_average_is_that_of_the_epochs_ends(
    train: Cli, trained: Cli, cli: Cli, name: str
) -> None:
    """It is what is tested."""
    without = trained(*NET, *ALL[name], "test=false").run
    outcome = train(*NET, *ALL[name], *SWA, *EVERY_EPOCH)
    run = outcome.run
    for curve in ("train/loss", "val/loss"):
        assert column(run, curve) == column(without, curve)

    ends = [weights(run / f"checkpoints/{epoch}.ckpt") for epoch in (2, 3)]
    average = weights(run / "swa.ckpt")
    statistics = {key for key in average if key.split(".")[-1].startswith(("running", "num_b"))}
    for key in average.keys() - statistics:
        if average[key].is_floating_point():
            assert is_close(average[key], (ends[0][key] + ends[1][key]) / 2), key

    # Statistics as PyTorch takes them, over the same batches.
    by_hand_net = network().double()
    inside = {key.removeprefix("network."): average[key] for key in average if "network." in key}
    by_hand_net.load_state_dict(inside)
    update_bn((batch.double() for (batch, _) in Images(BATCH).train_dataloader()), by_hand_net)
    for key, value in by_hand_net.state_dict().items():
        if f"network.{key}" in statistics:
            assert is_close(average[f"network.{key}"], value), key

    # Training went on with its own weights and statistics, and the test took the average.
    last, last_without = (weights(each / "checkpoints/last.ckpt") for each in (run, without))
    assert all(torch.equal(last[key], last_without[key]) for key in last_without)
    tested = cli("evaluate.py", f"checkpoint={run}/swa.ckpt", FLOAT64).metrics
    assert outcome.metrics["test/loss"] == pytest.approx(tested["test/loss"], rel=ROUNDING)


@pytest.mark.compares
@pytest.mark.parametrize("name", one_of_a_kind(["ddp", "fsdp"], kept=["ddp"]))
def test_the_exponential_average_is_that_of_the_steps(
    train: Cli, trained: Cli, cli: Cli, tmp_path: Path, name: str
) -> None:
    without = trained(*NET, *ALL[name], "test=false").run
    ema = ("callbacks=[checkpoint,ema]", "callbacks.ema.decay=0.8")
    record = "+callbacks.record._target_=test_averaging.Record"
    run = train(*NET, *ALL[name], *ema, record, "test=false").run
    assert column(run, "train/loss") == column(without, "train/loss")

    steps = [torch.load(tmp_path / f"step-{step}.pt", weights_only=True) for step in range(1, 17)]
    last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    for key, first in steps[0].items():
        by_hand = first
        for count, step in enumerate(steps[1:], 1):
            decay = min(0.8, (1 + count) / (10 + count))
            by_hand = decay * by_hand + (1 - decay) * step[key]
        assert torch.equal(last["averages"]["live"][key], steps[-1][key])
        if "running" in key or not first.is_floating_point():
            by_hand = steps[-1][key]
        assert is_close(last["state_dict"][key], by_hand), key

    # Validation saw the average.
    tested = cli("evaluate.py", f"checkpoint={run}/checkpoints/last.ckpt", FLOAT64).metrics
    assert column(run, "val/loss")[-1] == pytest.approx(tested["test/loss"], rel=ROUNDING)
    assert column(run, "val/loss") != column(without, "val/loss")


@pytest.mark.compares
@pytest.mark.parametrize(
    ("name", "form"),
    one_of_a_kind(
        [("single", "file"), ("fsdp", "sharded"), ("pipeline", "file")], kept=[("single", "file")]
    ),
)
def test_a_run_that_was_interrupted_while_averaging(
    train: Cli, cli: Cli, warm: Cli, name: str, form: str
) -> None:
    """Killed in the last epoch, goes on, and ends as the whole run: bit for bit."""
    options = (
        *NET,
        *ALL[name],
        *SWA,
        "callbacks=[checkpoint,swa,ema]",
        "callbacks.swa.lr=0.0005",
        f"checkpoint.format={form}",
    )
    options += ("callbacks.swa.every_n_steps=2", "callbacks.checkpoint.last_every_n_steps=3")
    whole = train(*options, "test=false").run
    stop = ("+callbacks.fail._target_=test_averaging.Fail", "+callbacks.fail.at=14")
    stopped = cli("train.py", *TINY, *options, *stop, "test=false")
    assert stopped.status == 1
    warm("train.py", "resume=last", "callbacks.fail.at=-1")
    (run,) = set(whole.parent.iterdir()) - {whole}
    for file in ("swa.ckpt", "checkpoints/last.ckpt"):
        ours, theirs = (read_checkpoint(each / file) for each in (run, whole))
        states = [(ours["state_dict"], theirs["state_dict"])]
        if file != "swa.ckpt":
            assert ours["averages"].keys() == {"live", "swa"}
            states += [(ours["averages"][key], theirs["averages"][key]) for key in ("live", "swa")]
        for mine, expected in states:
            assert all(torch.equal(mine[key], expected[key]) for key in expected), file


@pytest.mark.parametrize(
    ("annealing", "second"),
    one_of_a_kind([("cosine", 0.0098), ("linear", 0.0092)], kept=[("cosine", 0.0098)]),
)
def test_the_learning_rate_of_the_phase(train: Cli, annealing: str, second: float) -> None:
    run = train(
        *NET, *SWA, "callbacks=[checkpoint,swa,lr_monitor]", "scheduler=none", "data.batch_size=20",
        "callbacks.lr_monitor.logging_interval=step", "optimizer.lr=0.01", "callbacks.swa.lr=0.002",
        f"callbacks.swa.annealing={annealing}", "test=false",
    ).run  # fmt: skip
    rates = column(run, "lr-AdamW")
    assert rates[:23] == [0.01] * 23
    assert rates[-5:] == pytest.approx([0.002] * 5)
    assert rates == sorted(rates, reverse=True)
    # The first step of ten down: little at first, or as much as any.
    first = next(rate for rate in rates if rate < 0.01)
    assert first == pytest.approx(second, abs=1e-4)


def test_a_run_that_ends_before_says_so(train: Cli) -> None:
    outcome = train(*NET, "callbacks=[swa]", "callbacks.swa.start=10")
    assert "swa: the run ended before callbacks.swa.start=10: no average" in outcome.out
    assert not (outcome.run / "swa.ckpt").exists()


class Saves(Callback):
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(f"{trainer.current_epoch}.ckpt")


def fitted(average: Callback, strategy: Any, resume: str | None = None) -> None:
    torch.manual_seed(0)
    options: Any = {"max_epochs": 4, "precision": "64-true", "callbacks": [average, Saves()]}
    quiet_trainer(strategy, **options).fit(Small(), data(), ckpt_path=resume)


def test_it_goes_on_with_the_average_of_lightnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of that after two epochs, and of the ends of the other two."""
    monkeypatch.chdir(tmp_path)
    fitted(Lightnings(0.1, 1), "auto")
    theirs = torch.load("1.ckpt", weights_only=False)
    state = theirs["callbacks"]["StochasticWeightAveraging"]
    count = state["n_averaged"]
    ours = onecurve.StochasticWeightAveraging("swa.ckpt", start=2)
    fitted(ours, onecurve.Single(), resume="1.ckpt")
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
        for number, each in enumerate(optimizers if self.number > 1 else [optimizers]):
            each.zero_grad()
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss * self.factor(number, batch_idx))
            each.step()

    def factor(self, optimizer: int, batch_idx: int) -> float:
        return 1.0

    def configure_optimizers(self) -> Any:
        parameters = list(self.net.parameters())
        parts = [parameters[number :: self.number] for number in range(self.number)]
        return [torch.optim.SGD(part, lr=0.1) for part in parts]


class Breaks(ByHand):
    def factor(self, optimizer: int, batch_idx: int) -> float:
        return float("nan") if (optimizer, batch_idx) == (1, 2) else 1.0


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
        last = tmp_path / str(optimizers) / "last.ckpt"
        swa = onecurve.StochasticWeightAveraging(f"{last}.swa", start, every, lr=0.01)
        rates, written, notes = [], [], Notes()

        class Looks(Callback):
            def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
                rates.append(trainer.optimizers[0].param_groups[0]["lr"])
                if last.exists():
                    written.append(len(rates))
                    last.unlink()

        keeps = onecurve.BestAndLast(
            last.parent, save_last=True, save_top_k=0, last_every_n_steps=5, every_n_epochs=99
        )
        steps = most * optimizers if most else -1
        trainer = quiet_trainer(
            onecurve.Single(), max_epochs=8, max_steps=steps, enable_checkpointing=True,
            callbacks=[swa, keeps, Throughput(4), Looks()], logger=notes,
        )  # fmt: skip
        trainer.fit(ByHand(optimizers), data())
        return swa.average.count, rates, written, notes.steps

    one = counted(1)
    assert counted(2) == one
    assert all(one)


def test_the_guard_looks_at_every_optimizer_of_a_step(tmp_path: Path) -> None:
    guard = NanGuard(str(tmp_path / "nan.pt"), str(tmp_path / "nan.ckpt"), every_n_steps=2)
    trainer = quiet_trainer(onecurve.Single(), max_epochs=1, callbacks=[guard])
    with pytest.raises(onecurve.UserError, match="step 2: a value is not finite"):
        trainer.fit(Breaks(2), data())


class Climbs(LightningModule):
    """Each step adds exactly one step of bfloat16 to every weight, between 1 and 2."""

    STEP = 2.0**-7

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs + self.weight

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(self.Layer(), self.Layer())

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = -self(batch[0]).sum(1).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.STEP)


def climb(name: str, folder: Path) -> None:
    """Six steps, and a resume with six more."""
    for epochs, resume in ((6, None), (12, folder / "6.ckpt")):
        swa = onecurve.StochasticWeightAveraging(str(folder / "swa.ckpt"), start=1)
        strategy, devices = {
            "single": (onecurve.Single(), 1),
            "fsdp": (onecurve.FSDP(), 2),
            "pipeline": (onecurve.Pipeline(), 2),
        }[name]
        trainer = quiet_trainer(
            strategy, devices, max_epochs=epochs, precision="bf16-true",
            callbacks=[swa, onecurve.ExponentialMovingAverage(0.9)],
        )  # fmt: skip
        rows = DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=4)
        trainer.fit(Climbs(), rows, ckpt_path=resume)
        trainer.save_checkpoint(folder / f"{epochs}.ckpt")


@pytest.mark.parametrize("name", ["single", "fsdp", "pipeline"])
def test_averages_of_weights_in_16_bits_have_more(tmp_path: Path, name: str) -> None:
    if name == "single":
        climb(name, tmp_path)
    else:
        warm_ranks.run("test_averaging.climb", (name, tmp_path), processes=2)
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
    def fitted(epochs: int, *callbacks: Callback, resume: Path | None = None) -> Trainer:
        trainer = quiet_trainer(onecurve.Single(), max_epochs=epochs, callbacks=list(callbacks))
        torch.manual_seed(0)
        trainer.fit(Small(), data(), ckpt_path=resume)
        return trainer

    file = tmp_path / "one.ckpt"
    fitted(1, onecurve.ExponentialMovingAverage()).save_checkpoint(file)
    rest = fitted(2, resume=file).lightning_module.state_dict()
    whole = fitted(2).lightning_module.state_dict()
    assert all(torch.equal(rest[name], whole[name]) for name in whole)
    assert capsys.readouterr().out.count("training continues from its own weights") == 1
