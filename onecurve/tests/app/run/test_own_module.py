"""A newcomer's own module with Lightning's usual names, and the mistakes that people make in it."""

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, TINY, Cli, column
from lightning.pytorch import LightningDataModule, LightningModule
from several_fits import Case, Small, alone, fits_in_ranks
from small.digits import Digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from zoo.data import pairs
from zoo.tasks import Plain

import onecurve
from onecurve.app.metric_names import better

# What a step or `configure_optimizers` returns


class Returns(Small):
    """What people return from a step."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.of(batch)
        made: dict[str, Callable[[], Any]] = {
            "vector": lambda: loss.expand(4),
            "detached": loss.detach,
            "number": loss.item,
            "unnamed": lambda: {"los": loss},
            "logs": lambda: (self.log("losses", loss.expand(4)), loss)[1],
        }
        return made.get(self.kind, lambda: loss)()

    def configure_optimizers(self) -> Any:
        optimizers = [super().configure_optimizers()]
        made = {"no optimizer": None, "schedule": (optimizers, [torch.optim.lr_scheduler.StepLR])}
        return made.get(self.kind, optimizers)


class Forgets(Small):
    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        self.log("train_loss", self.of(batch))


REFUSED = {
    "vector": r"returned a tensor of shape \(4,\), and a loss is one number; return its .mean\(\)",
    "detached": r"returned a loss without a gradient; leave out .detach\(\) and torch.no_grad\(\)",
    "number": r"returned a float \(.*; return the loss alone, and not by .item\(\)",
    "unnamed": r"returned a dict without a loss \(keys: los\); add 'loss'",
    "": "returns nothing; end it with `return loss`",
    "logs": r"`self.log\(losses, ...\)`.* gets several numbers; log their .mean\(\)",
    "schedule": "returned what Lightning cannot use .type object 'StepLR' .* not their classes",
}
STEP = r"(\w+ of (Returns|Forgets) \(test_own_module.py, line \d+\)|strategy=\w+:)"


def test_what_a_step_returns_is_rejected_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    cases: dict[Any, Case] = {
        (kind, strategy): (partial(Returns, kind) if kind else Forgets, strategy(), {})
        for strategy in (onecurve.DDP, onecurve.FSDP, onecurve.Pipeline)
        for kind in REFUSED
    }
    for found in (fits_in_ranks(cases), alone(cases)):
        for (kind, strategy), line in found.items():
            assert re.match(f"{STEP} {REFUSED[kind]}", str(line)), (strategy, kind, line)
    # What trains nothing gets a line, too.
    capsys.readouterr()
    alone({1: (partial(Returns, "no optimizer"), None, {})})
    assert re.match(f"{STEP} returned None: ", capsys.readouterr().err)


# A metric that is monitored


class Mine(LightningModule):
    """The quick start, with Lightning's names."""

    def __init__(self, num_classes: int, monitor: str, mode: str, waits_for: str = "") -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
        self.waits_for = waits_for
        # The table of layers does not call the network, which would fail by its width.
        self.example_input_array = torch.zeros(2, 5)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        outputs = self.model(batch[0])
        self.log("val_loss", F.cross_entropy(outputs, batch[1]))
        self.log("val_acc", (outputs.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters())
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        waits = {"lr_scheduler": {"scheduler": plateau, "monitor": self.waits_for}}
        return {"optimizer": optimizer, **(waits if self.waits_for else {})}


class Unvalidated(Mine):
    validation_step = LightningModule.validation_step  # type: ignore[assignment]


NOTHING = "nothing logs a metric of that name; Mine logs val_acc, val_loss;"
WHOLE = "; or, if only a whole validation logs it, trainer.num_sanity_val_steps=0"
OWN = (*TINY, "task._target_=test_own_module.Mine", "test=false", "trainer.num_sanity_val_steps=1")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ((), f"monitor=val/acc: {NOTHING} use monitor=val_acc mode=max"),
        (("monitor=val/los", "strategy=ddp"), f"monitor=val/los: {NOTHING} use monitor=val_loss"),
        (
            ("monitor=val_acc", "+task.waits_for=val_los"),
            "monitor='val_los' in ReduceLROnPlateau of Mine.configure_optimizers: "
            f"{NOTHING} write monitor='val_loss' there",
        ),
    ],
)
def test_a_metric_that_validation_does_not_log_is_known_before_the_first_epoch(
    cli: Cli, typed: tuple[str, ...], line: str
) -> None:
    outcome = cli("train.py", *OWN, *typed)
    assert outcome.status == 2
    assert outcome.err.splitlines()[-1].startswith(f"error: {line}")
    assert outcome.err.endswith(f"{WHOLE}\n")
    assert outcome.runs == []


def test_a_run_without_a_validation_has_no_best_weights(cli: Cli) -> None:
    typed = ("train.py", *OWN, "monitor=val_acc", "callbacks=[checkpoint]")
    without = cli(*typed, "task._target_=test_own_module.Unvalidated")
    line = "monitor=val_acc: there is no validation (it needs validation_step, val_dataloader"
    assert line in without.err
    assert line in without.out
    rare = ("trainer.check_val_every_n_epoch=null", "trainer.val_check_interval=99")
    line = f"monitor=val_acc: there was no validation yet ({', '.join(rare)}), so no weights"
    assert line in cli(*typed, *rare).out
    assert "use trainer.val_check_interval=2, or" in cli(*typed, "trainer.max_steps=2").out


def test_names_without_a_slash_are_metrics_of_the_run(train: Cli) -> None:
    """Of its task, and not what is logged beside it."""
    outcome = train(*OWN, "monitor=val_acc", "callbacks=[checkpoint,lr_monitor,model_summary]")
    assert "650 parameters, 650 of them trainable" in outcome.out
    named = {name for name in outcome.metrics if name.startswith(("val", "train", "lr"))}
    assert named == {"train_loss", "val_acc", "val_loss"}
    assert re.search(r"│ val_loss +│ +\d", outcome.out), outcome.out
    assert "peak memory" not in outcome.out  # on a CPU it would be that of torch
    # Nor is a test proposed that the task does not have.
    assert (outcome.run / "checkpoints/best.ckpt").exists()
    assert "evaluate.py" not in outcome.out


def test_the_side_that_is_better_follows_the_name(cli: Cli) -> None:
    sides = {"val_loss": "min", "valid/accuracy": "max", "test_f1": "max", "interval_loss": None}
    assert {name: better(name) for name in sides} == sides
    follows = "mode='${mode_of:${monitor}}'"
    outcome = cli("train.py", *OWN, "monitor=val_gap", follows)
    line = "monitor=val_gap: its name does not tell which way is better; add mode=min or mode=max"
    assert (outcome.status, outcome.err) == (2, f"error: {line}\n")


# Errors of one's own code


class NoFile(Digits):
    """Reads a table that is not there: in its constructor, its `setup`, or for its batches."""

    def __init__(self, fails: str = "batch", workers: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.fails, self.workers = fails, workers
        self.read("built")

    def setup(self, stage: str) -> None:
        self.read("setup")
        super().setup(stage)

    def train_dataloader(self) -> Any:
        def collate(_: Any) -> Any:
            return self.read("batch") or {}["missing.csv"]

        return DataLoader([1, 2], collate_fn=collate, num_workers=self.workers)

    def read(self, when: str) -> Any:
        return when == self.fails and open("missing.csv")


NO_FILE = "data._target_=test_own_module.NoFile"


@pytest.mark.parametrize(
    "typed", ["+data.fails=setup", "+data.workers=1", "+data.workers=1 +data.fails=key"]
)
def test_errors_of_data_keep_the_frames_of_the_project(cli: Cli, typed: str) -> None:
    outcome = cli("train.py", *OWN, "monitor=val_acc", NO_FILE, *typed.split())
    assert outcome.status == 1
    shown = outcome.err.partition("Traceback (most recent call last):\n")[2]
    files = re.findall('^  File "(.*)"', shown, re.MULTILINE)
    assert len(files) == 3 - ("key" in typed)  # the first is of train.py
    assert {Path(file).name for file in files} == {"train.py", Path(__file__).name}
    error = "KeyError: " if "key" in typed else "FileNotFoundError: .*"
    assert re.search(f"""^{error}["']missing.csv["']""", shown, re.MULTILINE), shown


def test_errors_of_constructors_name_the_lines_of_the_project(cli: Cli) -> None:
    outcome = cli("train.py", *OWN, NO_FILE, "+data.fails=built")
    assert outcome.status == 2
    line = r"test_own_module.py, line \d+"
    told = rf"No such file or directory: 'missing.csv' \({line}, called in {line}\)"
    assert re.search(told, outcome.err)


class BackwardTwice(Mine):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        loss.backward()
        return loss


def test_no_library_s_inside_is_shown(cli: Cli) -> None:
    """Where no frame below train.py's is the project's."""
    task = "task._target_=test_own_module.BackwardTwice"
    outcome = cli("train.py", *OWN, "monitor=val_acc", task)
    assert outcome.status == 1
    trace = outcome.err.partition("Traceback (most recent call last):\n")[2]
    assert trace.count("  File ") == 1
    last = f"logs/rank_0.log of the run has all frames: {outcome.run}"
    assert trace.splitlines()[-1].endswith(last)
    assert "of the run" not in (outcome.run / "logs/rank_0.log").read_text()
    assert (outcome.run / "logs/rank_0.log").read_text().count("  File ") > 20


# A task that makes its own network needs no `model`, nor data that have channels


class Rows(LightningDataModule):
    """A table."""

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def loader(self) -> DataLoader[Any]:
        return DataLoader(pairs(64), batch_size=self.batch_size)

    train_dataloader = val_dataloader = test_dataloader = loader


class NoArguments(LightningModule):
    """Whose parts are all its own, and that has no `__init__`."""

    forward, loss, parts = Plain.forward, Plain.loss, Plain.parts
    training_step, validation_step = Plain.training_step, Plain.validation_step
    of, logged = Plain.of, Plain.logged
    configure_optimizers = Plain.configure_optimizers

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


class OwnNetwork(Plain):
    """As people write one."""

    test_step = Plain.validation_step

    def __init__(self, optimizer: Any, width: int = 4) -> None:
        super().__init__()
        self.net[-1] = nn.Sequential(nn.Linear(6, width), nn.Linear(width, 2))
        self.build_optimizer = optimizer

    def configure_optimizers(self) -> Any:
        return self.build_optimizer(self.parameters())


TARGET = "_target_: test_own_module.OwnNetwork\n"
FILES = {
    "data/rows": "# A table.\n_target_: test_own_module.Rows\nbatch_size: 16\n",
    "task/own": f"# Makes its network.\n{TARGET}width: 8\n",
    "task/bare": "# Makes all.\n_target_: test_own_module.NoArguments\n",
    "task/wide": f"# Reads.\n{TARGET}width: ${{model.hidden[0]}}\n",
}
OF_ROWS = (
    *("data=rows", "monitor=val/loss", "mode=min", "trainer.max_epochs=1", "logger=csv"),
    *("callbacks=[checkpoint]", "test=false"),
)


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    project = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT, project, dirs_exist_ok=True)
    for name, text in FILES.items():
        (project / f"configs/{name}.yaml").write_text(text)
    return str(project / "train.py")


@pytest.mark.parametrize(
    "typed",
    [
        "task=own ~model ~init ~scheduler optimizer=sgd",
        "task=bare ~model ~optimizer",
        "task=wide model=mlp model.in_channels=3 model.image_size=1 model.num_classes=1",
    ],
)
def test_what_a_task_takes_is_all_that_a_run_needs(warm: Cli, script: str, typed: str) -> None:
    outcome = warm(script, *typed.split(), *OF_ROWS, "data.batch_size=8")
    assert len(column(outcome.run, "train/loss")) == 8


def test_a_run_without_a_model_goes_on_and_is_measured(warm: Cli, cli: Cli, script: str) -> None:
    """What was typed for nothing is named."""
    first = warm(script, "task=own", "model=mlp", "init=xavier", *OF_ROWS)
    line = "model=mlp init=xavier: not used, as the task takes no network; leave it out"
    assert first.err.splitlines() == [line]
    warm(script, "task=own", *OF_ROWS, "resume=last", "trainer.max_epochs=2")
    assert len(column(first.run, "train/loss")) == 8
    checkpoint = first.run / "checkpoints/last.ckpt"
    other = cli(script, "task=own", f"init={checkpoint}", *OF_ROWS)
    assert "takes no network; in train.py: task.load_state_dict(torch.load(" in other.err
    warm(script.replace("train.py", "evaluate.py"), f"checkpoint={checkpoint}")
