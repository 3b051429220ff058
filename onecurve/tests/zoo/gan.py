"""A generative adversarial network: two optimizers, by hand, as people write it."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import softplus

LATENT, HIDDEN = 3, 16


class Gan(LightningModule):
    """Learns the distribution of the targets (N, 2), from latents that are drawn in `prepare`."""

    def __init__(self, lr: float = 2e-3) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.lr = lr
        self.generator = _layers(LATENT, 2)
        self.discriminator = _layers(2, 1)

    def forward(self, latents: Tensor) -> Any:
        return self.generator(latents)

    def prepare(self, batch: Any) -> Any:
        real = batch[1]
        return torch.randn_like(real[:, :1].expand(-1, LATENT)), real

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """What the generator is told: how sure the discriminator is that samples are made up."""
        return softplus(-self.discriminator(outputs)).mean()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        latents, real = self.prepare(batch)
        for_generator, for_discriminator = self.optimizers()  # type: ignore[attr-defined]

        self.toggle_optimizer(for_generator)
        generator_loss = self.loss(self(latents), real)
        for_generator.zero_grad()
        self.manual_backward(generator_loss)
        for_generator.step()
        self.untoggle_optimizer(for_generator)

        self.toggle_optimizer(for_discriminator)
        made_up = self.discriminator(self(latents).detach())
        loss = (softplus(made_up) + softplus(-self.discriminator(real))).mean()
        for_discriminator.zero_grad()
        self.manual_backward(loss)
        for_discriminator.step()
        self.untoggle_optimizer(for_discriminator)
        self.log("train/generator", generator_loss)
        self.log("train/loss", loss)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        latents, real = self.prepare(batch)
        self.log("val/loss", self.loss(self(latents), real), batch_size=len(real))

    def configure_optimizers(self) -> Any:
        parts = (self.generator, self.discriminator)
        return [torch.optim.Adam(part.parameters(), self.lr, betas=(0.5, 0.9)) for part in parts]


def _layers(inputs: int, outputs: int) -> nn.Sequential:
    layers = [nn.Linear(inputs, HIDDEN), nn.LeakyReLU(0.2), nn.Linear(HIDDEN, HIDDEN)]
    return nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Linear(HIDDEN, outputs))
