"""MNIST, Fashion-MNIST, CIFAR-10 and similar data sets, from torchvision."""

import contextlib
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from onecurve.errors import UserError
from torch import Tensor
from torchvision import datasets

from .images import Datasets, ImageDataModule, stratified_split


class TorchvisionImages(ImageDataModule):
    """A data set of torchvision, downloaded if its files are missing, and kept in memory.

    Args:
        name: The class in `torchvision.datasets`.
        val_size: Images of the training set held out for validation, by `split_seed`.
    """

    def __init__(
        self,
        *,
        name: Literal["MNIST", "FashionMNIST", "KMNIST", "CIFAR10", "CIFAR100"],
        val_size: int,
        split_seed: int,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.dataset = name
        self.folder = Path(self.root or "data").expanduser()
        self.split = ((val_size,), split_seed)

    def prepare_data(self) -> None:
        """Download missing files, once for all processes of a machine."""
        try:
            self._read(train=False)
        except RuntimeError:  # of torchvision, if files are missing or damaged
            self._download()

    def load_datasets(self) -> Datasets:
        """Read the files into memory; hold out a validation set."""
        images, labels = self._read(train=True)
        train, val = stratified_split(labels, *self.split)
        return (
            self.in_memory(images[train], labels[train]),
            self.in_memory(images[val], labels[val]),
            self.in_memory(*self._read(train=False)),
        )

    def _read(self, train: bool) -> tuple[Tensor, Tensor]:
        dataset = getattr(datasets, self.dataset)(str(self.folder), train=train)
        images = torch.as_tensor(dataset.data)
        # MNIST and similar ones are (N, H, W), CIFAR is (N, H, W, C).
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
        return images, torch.as_tensor(dataset.targets)

    def _download(self) -> None:
        """Download to a temporary folder first, so that a failure leaves nothing behind."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                with contextlib.redirect_stderr(io.StringIO()):  # progress bars
                    getattr(datasets, self.dataset)(folder, download=True)
                shutil.copytree(folder, self.folder, dirs_exist_ok=True)
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[-1:]
            raise UserError(
                f"data.root={self.root}: {self.dataset} is not there and cannot be downloaded "
                f"({''.join(reason)}); put its files there, or use data=digits, which needs no "
                "download"
            ) from error
