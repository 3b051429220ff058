"""A classifier of real images, which measures what drawn images show, and how real they look."""

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from onecurve.errors import UserError
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

STEPS, PASSES = 600, 3  # it learns for so many steps, or so often from each image, if that is more
BATCH_SIZE = 64
NOISE = 0.2  # added to what it learns from


class Judge(nn.Module):
    """Features of images, in float64, so that results do not depend on the order of sums.

    Args:
        pixels: the number of values of an image.
        num_classes: the number of classes.
        num_features: of an image.
    """

    def __init__(self, pixels: int, num_classes: int, num_features: int = 32) -> None:
        super().__init__()
        self.num_features = num_features
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, 128), nn.ReLU(), nn.Linear(128, num_features), nn.ReLU()
        )
        self.head = nn.Linear(num_features, num_classes)
        self.double()

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) in -1..1 to features (N, num_features)."""
        features: Tensor = self.layers(images.double())
        return features

    def labels(self, images: Tensor) -> Tensor:
        """The classes (N,) of images (N, C, H, W)."""
        labels: Tensor = self.head(self(images)).argmax(dim=1)
        return labels


def the_judge(file: Path, images: Tensor, labels: Tensor, num_classes: int) -> Judge:
    """The judge stored in a file, or a new one, which is then stored there.

    Args:
        file: where.
        images: training images, (N, C, H, W) in -1..1.
        labels: their classes, (N,).
        num_classes: how many labels there are.

    Raises:
        UserError: it cannot be stored there.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        judge = Judge(images[0].numel(), num_classes)
        if file.is_file():
            judge.load_state_dict(torch.load(file, weights_only=True))
        else:
            learn(judge, images, labels)
            keep(judge, file)
    return judge.eval().requires_grad_(False)


def keep(judge: Judge, file: Path) -> None:
    """Write a file atomically: other runs may write it at the same time."""
    part = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(judge.state_dict(), part)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"data.root={file.parent}: the judge of drawn images cannot be kept there ({error}); "
            "name a folder that can be written to"
        ) from error
    part.replace(file)


def learn(judge: Judge, images: Tensor, labels: Tensor) -> None:
    """Train the judge, with a little noise, so that it does not memorize real images."""
    steps = max(STEPS, PASSES * len(images) // BATCH_SIZE)
    optimizer = torch.optim.AdamW(judge.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=steps)
    with torch.enable_grad():
        for _ in range(steps):
            drawn = torch.randint(len(images), (BATCH_SIZE,))
            noisy = images[drawn] + NOISE * torch.randn_like(images[drawn])
            optimizer.zero_grad()
            loss = F.cross_entropy(judge.head(judge(noisy)), labels[drawn])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def frechet_distance(judge: Judge, images: Tensor, known: Tensor) -> float:
    """The Fréchet distance of the features of images to known ones, as normal distributions."""
    distance = FrechetInceptionDistance(judge, sync_on_compute=False)
    distance.update(known, real=True)
    distance.update(images, real=False)
    return float(distance.compute())
