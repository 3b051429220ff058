"""Lightning's own introductory modules, as they stand, under every strategy."""

import json
from pathlib import Path

import pytest
from baking import LIBRARY, TEMPLATE, bake, python_in
from test_library_pages import write_files

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
        embedding = self.encoder(x)
        return embedding

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

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class WithLoss(LitClassifier):
    def forward(self, x):
        return self.model(x)

    def loss(self, outputs, targets):
        return F.cross_entropy(outputs, targets)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.loss(self(x), y)
        self.log("train_loss", loss)
        return loss
"""
# The columns of the README's table.
STRATEGIES = {
    "`single`": "strategy=single",
    "`dp`": "strategy=dp trainer.devices=2",
    "`ddp`": "strategy=ddp",
    "`fsdp`": "strategy=fsdp",
    "`mesh` of shards": "strategy=mesh strategy.shard=2",
    "`tensor`": "strategy=tensor",
    "`pipeline`": "strategy=pipeline",
}
ROWS = {
    "autoencoder": "LitAutoEncoder",
    "classifier": "LitClassifier",
    "the same": "WithLoss",
    "GAN": "GAN",
}
SHORT = """
    data.batch_size=256 callbacks=[] logger=csv monitor=null test=false
    trainer.precision=64-true trainer.max_epochs=1 trainer.limit_train_batches=3
"""
# That of docs/your_module.md with the tutorial's noise, drawn in the step. Pictures are added to
# the logger, and the table of layers meets its `example_input_array`.
OF_THE_GAN = f"{SHORT} task=lit_gan data=lit_gan logger=tensorboard callbacks=[model_summary]"
ONE_AFTER_THE_OTHER = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from onecurve.testing.runs import column, run_script

came_out = {}
for name, words in json.loads(sys.argv[1]).items():
    run = Path("runs", name.replace("`", "").replace(" ", "-"))
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()):
        status = run_script(Path("train.py").resolve(), *words, f"hydra.run.dir={run}")
    came_out[name] = [status, said.getvalue(), column(run, sys.argv[2]) if status == 0 else []]
print(json.dumps(came_out))
"""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def table() -> dict[tuple[str, str], str]:
    """What the README says of each module under each strategy."""
    lines = (TEMPLATE / "README.md").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| | `single`"))
    columns = cells(lines[first])[1:]
    said: dict[tuple[str, str], str] = {}
    for line in lines[first + 2 : first + 2 + len(ROWS)]:
        words, *results = cells(line)
        (name,) = (name for begins, name in ROWS.items() if words.startswith(begins))
        said |= {(name, column): result for column, result in zip(columns, results, strict=True)}
    return said


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_readme_is_what_comes_out(tmp_path: Path, row: str) -> None:
    name = ROWS[row]
    project = bake(tmp_path / "out")
    tasks = project / "src/my_project/tasks"
    if name == "GAN":
        write_files(LIBRARY / "docs/your_module.md", project)
        page = (tasks / "lit_gan.py").read_text()
        assert page.count("prepare(") == 2
        (tasks / "lit_gan.py").write_text(page.replace("prepare(", "drawn("))
        typed = OF_THE_GAN
    else:
        (tasks / "introduction.py").write_text(MODULES)
        target = f"_target_: my_project.tasks.introduction.{name}\n"
        (project / f"configs/task/{name}.yaml").write_text(target)
        typed = f"{SHORT} task={name} data.image_size=28 trainer.limit_val_batches=0"
    commands = {
        strategy: [*words.split(), *typed.split()] for strategy, words in STRATEGIES.items()
    }
    logged = "g_loss" if name == "GAN" else "train_loss"
    shown = python_in(project, "-c", ONE_AFTER_THE_OTHER, json.dumps(commands), logged)
    came_out = json.loads(shown.splitlines()[-1])
    single = came_out["`single`"][2]
    for strategy, (status, said, losses) in came_out.items():
        assert status == 0, said
        assert len(losses) == 3, said
        is_equal = strategy != "`single`" and losses == pytest.approx(single, rel=1e-11)
        assert ("equal" if is_equal else "trains") == table()[name, strategy], (strategy, said)
