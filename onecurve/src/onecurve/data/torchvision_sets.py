"""MNIST, Fashion-MNIST, CIFAR-10 and similar data sets, from torchvision."""

import contextlib
import io
import logging
import shutil
import socket
import tempfile
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision import datasets

from ..errors import UserError
from .images import Datasets, ImageDataModule
from .splits import stratified_split

# Paths below data.root at which torchvision reads and writes the files.
LOCATIONS = {
    "MNIST": ("MNIST",),
    "FashionMNIST": ("FashionMNIST",),
    "KMNIST": ("KMNIST",),
    "CIFAR10": ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    "CIFAR100": ("cifar-100-python", "cifar-100-python.tar.gz"),
}
CONNECTION_TIMEOUT = 20.0  # seconds

log = logging.getLogger(__name__)


class TorchvisionImages(ImageDataModule):
    """A data set of torchvision, downloaded if its files are missing, and kept in memory.

    Args:
        name: The class in `torchvision.datasets`, one of `LOCATIONS`.
        val_size: Images of the training set held out for validation.
        split_seed: Seed of that split.
        options: Those of `ImageDataModule`.

    Raises:
        UserError: If the name is another, or the files are not there and cannot be downloaded.
    """

    def __init__(self, *, name: str, val_size: int, split_seed: int, **options: Any) -> None:
        super().__init__(**options)
        if name not in LOCATIONS:
            raise UserError(
                f"data.name={name}: must be one of {', '.join(LOCATIONS)}; try data.name=MNIST"
            )
        self.dataset = name
        self.folder = Path(self.root or "data").expanduser()
        self.val_size = val_size
        self.split_seed = split_seed

    def prepare_data(self) -> None:
        """Download missing files. Lightning calls this in one process of each machine."""
        try:
            self._open(train=True)
            self._open(train=False)
        except RuntimeError:  # torchvision raises this if files are missing or damaged
            self._download()

    def load_datasets(self) -> Datasets:
        """Read the files into memory; hold out a validation set."""
        try:
            images, labels = self._open(train=True)
            test = self.in_memory(*self._open(train=False))
        except RuntimeError as error:
            raise self._missing(error) from error
        train_indices, val_indices = stratified_split(labels, (self.val_size,), self.split_seed)
        train = self.in_memory(images, labels)
        return train.subset(train_indices), train.subset(val_indices), test

    def _open(self, train: bool) -> tuple[Tensor, Tensor]:
        dataset = getattr(datasets, self.dataset)(str(self.folder), train=train)
        images = torch.as_tensor(dataset.data)
        # MNIST and similar ones are (N, H, W), CIFAR is (N, H, W, C).
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
        return images, torch.as_tensor(dataset.targets, dtype=torch.long)

    def _download(self) -> None:
        """Download into a temporary folder first, so that a failure leaves nothing behind."""
        log.info("downloading %s to %s", self.dataset, self.folder)
        try:
            with tempfile.TemporaryDirectory() as temporary:
                for name in LOCATIONS[self.dataset]:
                    _copy(self.folder / name, Path(temporary) / name)
                with _quiet():
                    getattr(datasets, self.dataset)(temporary, download=True)
                for name in LOCATIONS[self.dataset]:
                    _copy(Path(temporary) / name, self.folder / name)
        except (OSError, RuntimeError, HTTPException, EOFError) as error:
            raise self._missing(error) from error

    def _missing(self, error: Exception) -> UserError:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        return UserError(
            f"data.root={self.root}: {self.dataset} is not there and cannot be downloaded "
            f"({reason}); put its files into {self.folder / LOCATIONS[self.dataset][0]}, "
            "or use data=digits, which needs no download"
        )


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Disable torchvision's progress bars, and set a timeout for its connections."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(CONNECTION_TIMEOUT)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        socket.setdefaulttimeout(before)
