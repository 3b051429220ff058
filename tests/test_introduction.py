"""Lightning's own introductory modules, as they stand, under every strategy."""

import json
from pathlib import Path

import pytest
from baking import TEMPLATE, bake, python_in

# As in Lightning's README and guides: no method `loss`, the network called by its name.
MODULES = """
import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
import torchvision
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


class Generator(nn.Module):
    def __init__(self, latent_dim, img_shape):
        super().__init__()
        self.img_shape = img_shape

        def block(in_feat, out_feat, normalize=True):
            layers = [nn.Linear(in_feat, out_feat)]
            if normalize:
                layers.append(nn.BatchNorm1d(out_feat, 0.8))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(
            *block(latent_dim, 128, normalize=False),
            *block(128, 256),
            nn.Linear(256, int(np.prod(img_shape))),
            nn.Tanh(),
        )

    def forward(self, z):
        img = self.model(z)
        return img.view(img.size(0), *self.img_shape)


class Discriminator(nn.Module):
    def __init__(self, img_shape):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(int(np.prod(img_shape)), 256),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(256, 1),
        )

    def forward(self, img):
        return self.model(img.view(img.size(0), -1))


class GAN(L.LightningModule):
    def __init__(self, channels=1, width=28, height=28, latent_dim=100, lr=0.0002):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        data_shape = (channels, width, height)
        self.generator = Generator(latent_dim=latent_dim, img_shape=data_shape)
        self.discriminator = Discriminator(img_shape=data_shape)
        self.validation_z = torch.randn(8, latent_dim)
        self.example_input_array = torch.zeros(2, latent_dim)

    def forward(self, z):
        return self.generator(z)

    def adversarial_loss(self, y_hat, y):
        return F.binary_cross_entropy_with_logits(y_hat, y)

    def training_step(self, batch, batch_idx):
        imgs, _ = batch
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(imgs.shape[0], self.hparams.latent_dim)
        z = z.type_as(imgs)

        self.toggle_optimizer(optimizer_g)
        self.generated_imgs = self(z)
        grid = torchvision.utils.make_grid(self.generated_imgs[:6])
        self.logger.experiment.add_image("train/generated_images", grid, self.current_epoch)
        valid = torch.ones(imgs.size(0), 1)
        valid = valid.type_as(imgs)
        g_loss = self.adversarial_loss(self.discriminator(self(z)), valid)
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)

        self.toggle_optimizer(optimizer_d)
        valid = torch.ones(imgs.size(0), 1)
        valid = valid.type_as(imgs)
        real_loss = self.adversarial_loss(self.discriminator(imgs), valid)
        fake = torch.zeros(imgs.size(0), 1)
        fake = fake.type_as(imgs)
        fake_loss = self.adversarial_loss(self.discriminator(self(z).detach()), fake)
        d_loss = (real_loss + fake_loss) / 2
        self.log("d_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)

    def configure_optimizers(self):
        lr, betas = self.hparams.lr, (0.5, 0.999)
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=betas)
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=betas)
        return [opt_g, opt_d], []
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
LOSSES = {"GAN": "g_loss"}
"""What is compared, where it is not `train_loss`."""
# Pictures are added to the logger, and the table of layers meets its `example_input_array`.
OF_THE_GAN = "logger=tensorboard callbacks=[model_summary]"
SHORT = """
    data.image_size=28 data.batch_size=256 callbacks=[] logger=csv monitor=null test=false
    trainer.precision=64-true trainer.max_epochs=1 trainer.limit_train_batches=3
    trainer.limit_val_batches=0
"""
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
    (project / "src/my_project/tasks/introduction.py").write_text(MODULES)
    file = project / f"configs/task/{name}.yaml"
    file.write_text(f"_target_: my_project.tasks.introduction.{name}\n")
    more = OF_THE_GAN.split() if name == "GAN" else []
    commands = {
        strategy: [f"task={name}", *typed.split(), *SHORT.split(), *more]
        for strategy, typed in STRATEGIES.items()
    }
    logged = LOSSES.get(name, "train_loss")
    shown = python_in(project, "-c", ONE_AFTER_THE_OTHER, json.dumps(commands), logged)
    came_out = json.loads(shown.splitlines()[-1])
    single = came_out["`single`"][2]
    for strategy, (status, said, losses) in came_out.items():
        assert status == 0, said
        assert len(losses) == 3, said
        is_equal = strategy != "`single`" and losses == pytest.approx(single, rel=1e-11)
        assert ("equal" if is_equal else "trains") == table()[name, strategy], (strategy, said)
