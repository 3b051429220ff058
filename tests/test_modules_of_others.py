"""Modules as others wrote them train under every strategy as the README and the pages say."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from baking import LIBRARY, TEMPLATE, bake, scripts_in

# As in Lightning's README and guides: no method `loss`, the network called by its name.
MODULES = """
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 128), nn.ReLU(), nn.Linear(128, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 28 * 28))

    def forward(self, x):
        return self.encoder(x)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        z = self.encoder(x)
        x_hat = self.decoder(z)
        loss = F.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class LitClassifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        hidden = [nn.Flatten(), nn.Linear(28 * 28, 128), nn.ReLU()]
        self.model = nn.Sequential(*hidden, nn.Linear(128, 10))

    def of(self, x, y):
        return F.cross_entropy(self.model(x), y)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.of(x, y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class WithLoss(LitClassifier):
    def forward(self, x):
        return self.model(x)

    def loss(self, outputs, targets):
        return F.cross_entropy(outputs, targets)

    def of(self, x, y):
        return self.loss(self(x), y)
"""
STRATEGIES = {
    "single": "strategy=single",
    "dp": "strategy=dp trainer.devices=2",
    "ddp": "strategy=ddp",
    "fsdp": "strategy=fsdp",
    "mesh of shards": "strategy=mesh strategy.shard=2",
    "tensor": "strategy=tensor",
    "pipeline": "strategy=pipeline",
    "zero bubble": "strategy=pipeline strategy.schedule=interleaved_zero_bubble",
}
SHORT = (
    "callbacks=[] logger=csv monitor=null test=false trainer.precision=64-true "
    "trainer.max_epochs=2 trainer.limit_train_batches=8 trainer.limit_val_batches=1"
)


def write_files(page: Path, project: Path) -> None:
    """Those that a page tells to write."""
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"In\s`((?:tasks|configs)/\S+)`[^`]*\n\n```\w+\n(.*?)```", text, re.DOTALL)
    for name, block in files:
        folder = project if name.startswith("configs/") else project / "src/my_project"
        (folder / name).write_text(block, encoding="utf-8")


def trained(project: Path, typed: str, loss: str, *strategies: str) -> dict[str, str]:
    """For each strategy whether the losses of all steps are "equal" to those of `single`."""
    from onecurve.testing.runs import column  # torch, which collecting need not import

    runs = {name: f"runs/{name.replace(' ', '-')}" for name in ("single", *strategies)}
    common = f"train.py {SHORT} {typed}"
    scripts_in(
        project, *(f"{common} {STRATEGIES[name]} hydra.run.dir={run}" for name, run in runs.items())
    )
    curves = {name: column(project / run, loss) for name, run in runs.items()}
    assert len(curves["single"]) > 4
    single = pytest.approx(curves["single"], rel=1e-11, abs=0)
    return {name: "equal" if curve == single else "trains" for name, curve in curves.items()}


# The rows of the README's table; the GAN is that of docs/your_module.md, below.
ROWS = {
    "autoencoder": "LitAutoEncoder",
    "classifier": "LitClassifier",
    "the same": "WithLoss",
    "GAN": "lit_gan",
}
# Batches that ranks share evenly.
EVEN = "data.batch_size=256 trainer.limit_train_batches=3 trainer.limit_val_batches=0"


def table() -> dict[tuple[str, str], str]:
    """What the README says of each module under each strategy."""
    lines = (TEMPLATE / "README.md").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| | `single`"))
    columns, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[first : first + 2 + len(ROWS)]
    )
    said: dict[tuple[str, str], str] = {}
    for words, *results in rows:
        (name,) = (name for begins, name in ROWS.items() if words.startswith(begins))
        named = [column.replace("`", "") for column in columns[1:]]
        said |= {(name, column): each for column, each in zip(named, results, strict=True)}
    return said


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS.values())
def test_a_row_of_the_readme_is_what_comes_out(tmp_path: Path, name: str) -> None:
    project = bake(tmp_path / "out")
    tasks = project / "src/my_project/tasks"
    if name == "lit_gan":
        write_files(LIBRARY / "docs/your_module.md", project)
        page = (tasks / "lit_gan.py").read_text()
        assert page.count("prepare(") == 2
        # The tutorial's noise, drawn in the step. Pictures are added to the logger, and the table
        # of layers meets its `example_input_array`.
        (tasks / "lit_gan.py").write_text(page.replace("prepare(", "drawn("))
        typed, loss = "data=lit_gan logger=tensorboard callbacks=[model_summary]", "g_loss"
    else:
        (tasks / "introduction.py").write_text(MODULES)
        target = f"_target_: my_project.tasks.introduction.{name}\n"
        (project / f"configs/task/{name}.yaml").write_text(target)
        typed, loss = "data.image_size=28", "train_loss"
    said = {strategy: result for (row, strategy), result in table().items() if row == name}
    others = [strategy for strategy in said if strategy != "single"]
    found = trained(project, f"task={name} {EVEN} {typed}", loss, *others)
    assert found == {**said, "single": "equal"}
    assert said["single"] == "trains"


class Example(NamedTuple):
    """A task that a page tells to write, and what trains it alike."""

    page: str
    typed: str
    loss: str
    strategies: tuple[str, ...]
    change: tuple[str, str] = ("", "")
    """What is written instead of something in the task's file."""


ALL = ("dp", "ddp", "fsdp", "mesh of shards", "tensor", "pipeline")
# BatchNorm's statistics are those of the global batch; dp has a device's, pipeline a micro-batch's.
IN_STEP = ("ddp", "fsdp", "mesh of shards", "tensor")
LAYER_NORM = ("nn.BatchNorm1d(out_feat, 0.8)", "nn.LayerNorm(out_feat)")
VIT = "vit data=synthetic data.channels=3 data.num_samples=300 data.num_val=20"
MODULE, TASKS = "onecurve/docs/your_module.md", "docs/tasks.md"
EXAMPLES = {
    "vit": Example("onecurve/docs/strategies.md", VIT, "train/loss", ("fsdp", "zero bubble")),
    "network": Example(MODULE, "lit_mnist data=lit_mnist", "train_loss", ALL),
    "gan": Example(MODULE, "lit_gan data=lit_gan", "d_loss", IN_STEP),
    "gan with LayerNorm": Example(MODULE, "lit_gan data=lit_gan", "d_loss", ALL, LAYER_NORM),
    "language model": Example(MODULE, "lit_text data=lit_text", "train_loss", ALL),
    "tagging": Example(TASKS, "tagging data=sentences", "train/loss", ("dp", "ddp", "pipeline")),
    "contrast": Example(TASKS, "contrast data=points", "train/loss", ("ddp", "fsdp")),
}


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_a_page_trains_alike(tmp_path: Path, name: str) -> None:
    """Under strategies that shard it or split it; for tutorials, the table of their page."""
    example, project = EXAMPLES[name], bake(tmp_path / "out")
    write_files((project if example.page == TASKS else TEMPLATE) / example.page, project)
    file = project / f"src/my_project/tasks/{example.typed.split()[0]}.py"
    module = file.read_text(encoding="utf-8")
    assert example.change[0] in module
    file.write_text(module.replace(*example.change), encoding="utf-8")
    found = trained(project, f"task={example.typed}", example.loss, *example.strategies)
    assert set(found.values()) == {"equal"}, found
