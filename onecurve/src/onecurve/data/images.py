"""The base of all data modules of images: loaders, and the preparation of batches on the device."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import UserError
from .files import RESIZE_MODES, list_images, read_image, resize_images
from .in_memory import Batch, InMemoryImages, whole_batch

Datasets = tuple[Dataset[Batch], Dataset[Batch], Dataset[Batch]]


class ImageDataModule(LightningDataModule):
    """Base of the data modules; a subclass reads its images in `load_datasets`.

    The loaders deliver uint8 images (N, C, H, W) and int64 labels (N,). On the device the images
    become floats in 0..1, are augmented (in training only) and normalised, batch by batch.

    Args:
        root: Folder of the files; not every data set has one.
        class_names: What the labels 0, 1, ... mean.
        num_classes: Length of `class_names`.
        channels: 1 for grey, 3 for colour.
        image_size: Height and width of the delivered images, in pixels.
        resize: `pad` or `stretch`, see `resize_images`.
        batch_size: Samples in a training step, over all processes.
        num_workers: Processes that read batches; 0 reads them in the training process.
        mean: Mean of each channel (or one number for all), for values in 0..1.
        std: Standard deviation of each channel, likewise.
        augment: Transforms of training batches (floats in 0..1), applied in this order; None is
            none.

    Raises:
        UserError: If a value is invalid.
    """

    def __init__(
        self,
        *,
        root: str | None,
        class_names: Sequence[str],
        num_classes: int,
        channels: int,
        image_size: int,
        resize: Literal["pad", "stretch"],
        batch_size: int,
        num_workers: int,
        mean: Sequence[float],
        std: Sequence[float],
        augment: Mapping[str, Callable[[Tensor], Tensor] | None],
    ) -> None:
        super().__init__()
        counts = {"channels": channels, "image_size": image_size, "batch_size": batch_size}
        for key, value in counts.items():
            if value < 1:
                raise UserError(f"data.{key}={value}: must be a whole number of at least 1")
        if resize not in RESIZE_MODES:
            raise UserError(
                f"data.resize={resize}: must be one of {', '.join(RESIZE_MODES)}; "
                "try data.resize=pad"
            )
        for key, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, channels):
                raise UserError(
                    f"data.{key}={list(values)}: must have one number for each of "
                    f"data.channels={channels}, or one for all; try 'data.{key}=[0.5]'"
                )
        if min(std) <= 0:
            raise UserError(f"data.std={list(std)}: must be positive; try 'data.std=[0.5]'")
        self.root = root
        self.class_names = [str(name) for name in class_names]
        self.num_classes = num_classes
        self.channels = channels
        self.image_size = image_size
        self.resize = resize
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.augment = [transform for transform in augment.values() if transform is not None]
        self.datasets: Datasets | None = None
        # (x / 255 - mean) / std = x * scale + shift: two operations on a batch, and no division.
        self._std = torch.tensor(list(std), dtype=torch.float32).view(-1, 1, 1)
        self._mean = torch.tensor(list(mean), dtype=torch.float32).view(-1, 1, 1)
        self._scale = 1 / (255 * self._std)
        self._shift = -self._mean / self._std

    def load_datasets(self) -> Datasets:
        """Return the training, validation and test set."""
        raise NotImplementedError

    def in_memory(self, images: Tensor, labels: Tensor) -> InMemoryImages:
        """Resize uint8 images (N, C, H, W) and keep them in memory."""
        if images.shape[1] != self.channels:
            raise UserError(
                f"data.channels={self.channels}: these images have {images.shape[1]}; "
                f"use data.channels={images.shape[1]}"
            )
        if labels.max() >= self.num_classes:
            raise UserError(
                f"data.class_names: names {self.num_classes} classes, but the labels go up to "
                f"{labels.max()}; give one name for each, or leave data.class_names out"
            )
        return InMemoryImages(resize_images(images, self.image_size, self.resize), labels)

    def setup(self, stage: str) -> None:
        """Load the data once, whatever the stage."""
        if self.datasets is None:
            self.datasets = self.load_datasets()

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled batches of the training set."""
        return self._loader(0, shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Batches of the validation set, in order."""
        return self._loader(1)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Batches of the test set, in order."""
        return self._loader(2)

    def predict_dataloader(self) -> DataLoader[Batch]:
        """The batches of the test set: `predict.py` reads files of the user's choice instead."""
        return self.test_dataloader()

    def find_images(self, path: str) -> list[Path]:
        """List the image files at a path, a file or a folder, for `predict.py`."""
        return list_images(path)

    def read_images(self, files: Sequence[Path]) -> Tensor:
        """Read image files as the network's input: float (N, C, H, W), as in evaluation."""
        images = [read_image(file, self.channels, self.image_size, self.resize) for file in files]
        return self.normalize(torch.stack(images))

    def _loader(self, split: int, shuffle: bool = False) -> DataLoader[Batch]:
        if self.datasets is None:
            raise RuntimeError("call setup() before asking for a loader")
        dataset, trainer = self.datasets[split], self.trainer
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=trainer is not None and trainer.strategy.root_device.type == "cuda",
            collate_fn=whole_batch if isinstance(dataset, InMemoryImages) else None,
        )

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Turn a batch into the network's input, on the device that it is already on."""
        images, labels = batch
        trainer = self.trainer
        if trainer is None:
            return self.normalize(images), labels
        is_augmented = self.augment and trainer.training
        images = self.augmented(images) if is_augmented else self.normalize(images)
        # Lightning converts a batch to the precision of the run before this hook, when it is uint8.
        converted: Batch = trainer.precision_plugin.convert_input((images, labels))
        return converted

    def normalize(self, images: Tensor) -> Tensor:
        """Turn uint8 images (N, C, H, W) into normalised floats."""
        self._follow(images.device)
        return images.mul(self._scale).add_(self._shift)

    def denormalize(self, inputs: Tensor) -> Tensor:
        """Turn the network's input (N, C, H, W) back into images in 0..1, for displays."""
        return inputs * self._std.to(inputs) + self._mean.to(inputs)

    def augmented(self, images: Tensor) -> Tensor:
        """Turn uint8 images (N, C, H, W) into augmented, normalised floats."""
        self._follow(images.device)
        images = images / 255
        for transform in self.augment:
            images = transform(images)
        return images.sub(self._mean).div_(self._std)

    def _follow(self, device: torch.device) -> None:
        if self._scale.device != device:
            self._mean, self._std = self._mean.to(device), self._std.to(device)
            self._scale, self._shift = self._scale.to(device), self._shift.to(device)
