"""A task that makes its own network needs no `model`, nor data that have channels."""

import shutil
from typing import Any

import pytest
from conftest import ROOT, Cli, column
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import DataLoader
from zoo.data import pairs
from zoo.tasks import Plain


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


OWN = "_target_: test_task_without_model.OwnNetwork\n"
FILES = {
    "data/rows": "# A table.\n_target_: test_task_without_model.Rows\nbatch_size: 16\n",
    "task/own": f"# Makes its network.\n{OWN}width: 8\n",
    "task/bare": "# Makes all.\n_target_: test_task_without_model.NoArguments\n",
    "task/wide": f"# Reads.\n{OWN}width: ${{model.hidden[0]}}\n",
}
SHORT = (
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
        "task=bare",
        "task=bare ~model ~optimizer",
        "task=wide model=mlp model.in_channels=3 model.image_size=1 model.num_classes=1",
    ],
)
def test_what_a_task_takes_is_all_that_a_run_needs(warm: Cli, script: str, typed: str) -> None:
    outcome = warm(script, *typed.split(), *SHORT, "data.batch_size=8")
    assert len(column(outcome.run, "train/loss")) == 8


def test_a_run_without_a_model_goes_on_and_is_measured(warm: Cli, script: str) -> None:
    """What was typed for nothing is named."""
    first = warm(script, "task=own", "model=mlp", "init=xavier", *SHORT)
    line = "model=mlp init=xavier: not used, as the task takes no network; leave it out"
    assert first.err.splitlines() == [line]
    warm(script, "task=own", *SHORT, "resume=last", "trainer.max_epochs=2")
    assert len(column(first.run, "train/loss")) == 8
    checkpoint = first.run / "checkpoints/last.ckpt"
    warm(script.replace("train.py", "evaluate.py"), f"checkpoint={checkpoint}")
