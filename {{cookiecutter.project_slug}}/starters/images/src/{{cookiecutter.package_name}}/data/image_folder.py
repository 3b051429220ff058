"""Your own images: one folder per class."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from onecurve.data.files import check_image, list_images, read_image
from onecurve.data.images import Datasets, ImageDataModule
from onecurve.data.in_memory import Batch, InMemoryImages
from onecurve.data.splits import stratified_split
from onecurve.errors import UserError
from torch import Tensor
from torch.utils.data import Dataset

LabelledFiles = tuple[list[Path], list[int]]


class ImageFolder(ImageDataModule):
    """Image files in `root/<class>/`, or in `root/train/<class>/` with or without `val` and `test`.

    Without `root/train`, the files are split by the two fractions, class by class. With it, a
    missing `root/val` is split off the training files, and where `root/test` is missing the
    validation set is the test set too. All parts must have the same classes.

    Args:
        val_fraction: part of the files held out for validation, where there is no `root/val`.
        test_fraction: part of the files held out for the test, where there is no `root/train`.
        split_seed: seed of the split.
        in_memory: read all files once, before training, instead of once per epoch in the workers.
        options: those of `ImageDataModule`.
    """

    def __init__(
        self,
        *,
        val_fraction: float,
        test_fraction: float,
        split_seed: int,
        in_memory: bool,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.folder = Path(str(self.root)).expanduser()
        if self.channels not in (1, 3, 4):
            raise UserError(
                f"data.channels={self.channels}: must be 1, 3 or 4; try data.channels=3"
            )
        for key, value in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
            if not 0 < value < 1:
                raise UserError(f"data.{key}={value}: must be between 0 and 1; try data.{key}=0.1")
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.split_seed = split_seed
        self.keep_in_memory = in_memory
        if in_memory:
            self.num_workers = 0

    def load_datasets(self) -> Datasets:
        """Find the files, check each one, and split them."""
        root = self.folder
        if not root.is_dir():
            raise UserError(
                f"data.root={self.root}: no such folder; name one that has a folder of images "
                "for each class, or use data=digits"
            )
        if not (root / "train").is_dir():
            train, val, test = self._split(self._find(root), self.val_fraction, self.test_fraction)
            return self._dataset(train), self._dataset(val), self._dataset(test)
        train = self._find(root / "train")
        if (root / "val").is_dir():
            val = self._find(root / "val")
        else:
            train, val = self._split(train, self.val_fraction)
        val_set = self._dataset(val)
        test_set = self._dataset(self._find(root / "test")) if (root / "test").is_dir() else val_set
        return self._dataset(train), val_set, test_set

    def _find(self, folder: Path) -> LabelledFiles:
        """List and check the files of each class, so that training does not fail later."""
        names = {
            entry.name
            for entry in folder.iterdir()
            if entry.is_dir() and not entry.name.startswith(".")
        }
        if names != set(self.class_names):
            raise UserError(
                f"data.root={self.root}: the folders in {folder} are {_listed(names)}, but "
                f"data.class_names is {_listed(self.class_names)}; every part needs one folder "
                "for each class, and no other"
            )
        files: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(self.class_names):
            members = list_images(folder / name)
            if not members:
                raise UserError(
                    f"data.root={self.root}: no image in {folder / name}; put some there, "
                    "or take the folder away"
                )
            files += members
            labels += [label] * len(members)
        with ThreadPoolExecutor() as threads:
            for _ in threads.map(check_image, files):
                pass
        return files, labels

    def _split(self, found: LabelledFiles, *fractions: float) -> list[LabelledFiles]:
        files, labels = found
        sizes = [round(fraction * len(files)) for fraction in fractions]
        parts = stratified_split(torch.tensor(labels), sizes, self.split_seed)
        return [([files[i] for i in part], [labels[i] for i in part]) for part in parts]

    def _dataset(self, found: LabelledFiles) -> Dataset[Batch]:
        dataset = ImageFiles(*found, self.channels, self.image_size, self.resize)
        if not self.keep_in_memory:
            return dataset
        with ThreadPoolExecutor() as threads:
            images = torch.stack(list(threads.map(dataset.read, range(len(dataset)))))
        return InMemoryImages(images, dataset.labels)


class ImageFiles(Dataset[Batch]):
    """Labelled image files, each read when it is needed."""

    def __init__(
        self, files: list[Path], labels: list[int], channels: int, image_size: int, resize: str
    ) -> None:
        self.files = files
        self.labels = torch.tensor(labels)
        self.channels = channels
        self.image_size = image_size
        self.resize = resize

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Batch:
        return self.read(index), self.labels[index]

    def read(self, index: int) -> Tensor:
        """Read one image, uint8 (C, H, W)."""
        return read_image(self.files[index], self.channels, self.image_size, self.resize)


def _listed(names: Any) -> str:
    shown = sorted(names)
    return (", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "")) or "none"
