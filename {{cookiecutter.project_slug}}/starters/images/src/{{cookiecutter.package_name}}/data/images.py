"""The base of image data modules: loaders, and batches that become inputs on the device."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from lightning import LightningDataModule
from onecurve.errors import UserError
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .files import list_images, read_image, resized

Batch = tuple[Tensor, Tensor]
Datasets = tuple[Dataset[Batch], Dataset[Batch], Dataset[Batch]]
Count = Annotated[int, Field(ge=1)]


class InMemoryImages(Dataset[Batch]):
    """Images (N, C, H, W), uint8, and labels (N,), of which a loader takes whole batches."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images.contiguous()
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        index = torch.as_tensor(indices)
        return self.images.index_select(0, index), self.labels.index_select(0, index)


def stratified_split(labels: Tensor, held_out: Sequence[int], seed: int) -> list[Tensor]:
    """Split samples at random, class by class: the indices that remain, then those held out."""
    sizes = [len(labels) - sum(held_out), *held_out]
    if min(sizes) < 1:
        raise UserError(
            f"data: {len(labels)} samples cannot be split into a training part and held-out parts "
            f"of {' + '.join(map(str, held_out))}; change the split keys of data"
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    # The k-th of a class's n samples gets the key (k + 1/2) / n. Sorted by it, every range of the
    # samples has the classes in the proportions of the full set.
    keys = torch.empty(len(labels), dtype=torch.float64)
    for label in torch.unique(labels):
        members = order[labels[order] == label]
        keys[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    line = order[keys[order].argsort(stable=True)]
    return [part.sort().values for part in torch.split(line, sizes)]


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
        resize: `pad` or `stretch`, see `files.resized`.
        batch_size: Samples in a training step, over all processes.
        num_workers: Processes that read batches; 0 reads them in the training process.
        mean: Mean of each channel (or one number for all), for values in 0..1.
        std: Standard deviation of each channel, likewise.
        augment: Transforms of training batches (floats in 0..1), in this order; None is none.
        images: An image, or a folder of them, that predict.py predicts instead of the test set.
    """

    def __init__(
        self,
        *,
        root: str | None,
        class_names: Sequence[str],
        num_classes: Annotated[int, Field(ge=2)],
        channels: Count,
        image_size: Count,
        resize: Literal["pad", "stretch"],
        batch_size: Count,
        num_workers: Annotated[int, Field(ge=0)],
        mean: Sequence[float],
        std: Sequence[Annotated[float, Field(gt=0)]],
        augment: Mapping[str, Callable[[Tensor], Tensor] | None],
        images: str | None = None,
    ) -> None:
        super().__init__()
        for key, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, channels):
                raise UserError(
                    f"data.{key}={list(values)}: must have one number for each of "
                    f"data.channels={channels}, or one for all; try 'data.{key}=[0.5]'"
                )
        self.root = root
        self.class_names = [str(name) for name in class_names]
        self.num_classes = num_classes
        self.channels, self.image_size, self.resize = channels, image_size, resize
        self.batch_size, self.num_workers = batch_size, num_workers
        self.mean, self.std = (torch.tensor([*v]).view(-1, 1, 1) for v in (mean, std))
        self.augment = [transform for transform in augment.values() if transform is not None]
        self.datasets: Datasets | None = None
        self.predicted_files = [] if images is None else list_images(images)
        if images is not None and not self.predicted_files:
            raise UserError(f"data.images={images}: no image in it; name another, or one file")

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
        if (classes := int(labels.max()) + 1) > self.num_classes:
            raise UserError(
                f"data.class_names=[{','.join(self.class_names)}]: these images are of {classes} "
                "classes; give a name for each, or leave it out"
            )
        return InMemoryImages(resized(images, self.image_size, self.resize), labels)

    def setup(self, stage: str) -> None:
        """Load the data once, whatever the stage; image files to predict need none of it."""
        if stage == "predict" and self.predicted_files:
            return
        self.datasets = self.datasets or self.load_datasets()

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
        """Batches of the files of `images`, or of the test set."""
        if not self.predicted_files:
            return self._loader(2)
        files: Any = self.predicted_files
        size, workers, collate = self.batch_size, self.num_workers, self.read_images
        # By name: Lightning makes loaders of predictions again, and fails where it is by position.
        return DataLoader(files, batch_size=size, num_workers=workers, collate_fn=collate)

    def _loader(self, part: int, shuffle: bool = False) -> DataLoader[Batch]:
        assert self.datasets is not None, "call setup() before asking for a loader"
        dataset = self.datasets[part]
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            collate_fn=tuple if isinstance(dataset, InMemoryImages) else None,
        )

    def read_images(self, files: Sequence[Path]) -> Batch:
        """Image files as a batch, without labels of theirs."""
        images = [read_image(file, self.channels, self.image_size, self.resize) for file in files]
        return torch.stack(images), torch.zeros(len(files), dtype=torch.int64)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Turn a batch into the network's input, on the device that it is already on."""
        if isinstance(batch, Tensor):  # Lightning's summary: the task's `example_input_array`
            return batch
        images, labels = batch
        if (trainer := self.trainer) is None:
            return self.normalize(images), labels
        inputs = self.normalize(images, self.augment if trainer.training else ())
        # Lightning converts a batch to the precision of the run before this hook, as uint8.
        return trainer.precision_plugin.convert_input((inputs, labels))

    def normalize(
        self, images: Tensor, augment: Sequence[Callable[[Tensor], Tensor]] = ()
    ) -> Tensor:
        """Turn uint8 images (N, C, H, W) into normalised floats."""
        if self.mean.device != images.device:
            self.mean, self.std = self.mean.to(images.device), self.std.to(images.device)
        if not augment:  # two operations on a batch, and no division
            return images.mul(1 / (255 * self.std)).sub_(self.mean / self.std)
        images = images / 255
        for transform in augment:
            images = transform(images)
        return images.sub_(self.mean).div_(self.std)

    def denormalize(self, inputs: Tensor) -> Tensor:
        """Turn the network's input (N, C, H, W) back into images in 0..1, for displays."""
        return inputs * self.std.to(inputs) + self.mean.to(inputs)
