"""Your own images: one folder per class."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from onecurve.errors import UserError
from PIL import Image
from pydantic import Field
from torch import Tensor
from torch.utils.data import Dataset

from .files import list_images, read_image
from .images import Batch, Datasets, ImageDataModule, InMemoryImages, stratified_split

Fraction = Annotated[float, Field(gt=0, lt=1)]
Labelled = tuple[list[Path], Tensor]


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
        channels: Literal[1, 3, 4],
        val_fraction: Fraction,
        test_fraction: Fraction,
        split_seed: int,
        in_memory: bool,
        **options: Any,
    ) -> None:
        super().__init__(channels=channels, **options)
        self.folder = Path(str(self.root)).expanduser()
        self.fractions = (val_fraction, test_fraction)
        self.split_seed = split_seed
        self.keep_in_memory = in_memory
        self.num_workers = 0 if in_memory else self.num_workers

    def load_datasets(self) -> Datasets:
        """Find the files, check each one, and split them."""
        if not (self.folder / "train").is_dir():
            train, val, test = self._split(self._find(self.folder), *self.fractions)
            return self._dataset(train), self._dataset(val), self._dataset(test)
        train = self._find(self.folder / "train")
        if (self.folder / "val").is_dir():
            val = self._find(self.folder / "val")
        else:
            train, val = self._split(train, self.fractions[0])
        has_test = (self.folder / "test").is_dir()
        val_set = self._dataset(val)
        test_set = self._dataset(self._find(self.folder / "test")) if has_test else val_set
        return self._dataset(train), val_set, test_set

    def _find(self, folder: Path) -> Labelled:
        """List and check the files of each class, so that training does not fail later."""
        names = sorted(e.name for e in folder.iterdir() if e.is_dir() and e.name[0] != ".")
        if names != sorted(self.class_names):
            raise UserError(
                f"data.root={self.root}: the folders in {folder} are {', '.join(names[:5])}, but "
                f"data.class_names is {', '.join(self.class_names[:5])}; every part needs one "
                "folder for each class, and no other"
            )
        found = [list_images(folder / name) for name in self.class_names]
        for name, files in zip(self.class_names, found, strict=True):
            if not files:
                raise UserError(
                    f"data.root={self.root}: no image in {folder / name}; put some there, "
                    "or take the folder away"
                )
        labels = [torch.full((len(files),), label) for label, files in enumerate(found)]
        everything = [file for files in found for file in files]
        with ThreadPoolExecutor() as threads:
            list(threads.map(_check, everything))
        return everything, torch.cat(labels)

    def _split(self, found: Labelled, *fractions: float) -> list[Labelled]:
        files, labels = found
        sizes = [round(fraction * len(files)) for fraction in fractions]
        parts = stratified_split(labels, sizes, self.split_seed)
        return [([files[i] for i in part], labels[part]) for part in parts]

    def _dataset(self, found: Labelled) -> Dataset[Batch]:
        files = ImageFiles(*found, self.channels, self.image_size, self.resize)
        if not self.keep_in_memory:
            return files
        with ThreadPoolExecutor() as threads:
            images = torch.stack(
                [image for image, _ in threads.map(files.__getitem__, range(len(files)))]
            )
        return InMemoryImages(images, files.labels)


class ImageFiles(Dataset[Batch]):
    """Labelled image files, each read when it is needed; `how` is what `read_image` is told."""

    def __init__(self, files: list[Path], labels: Tensor, *how: Any) -> None:
        self.files, self.labels, self.how = files, labels, how

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Batch:
        return read_image(self.files[index], *self.how), self.labels[index]


def _check(file: Path) -> None:
    try:
        with Image.open(file) as image:
            image.verify()
    except Exception as error:  # see read_image
        raise UserError(f"{file}: cannot be read as an image; replace or remove it") from error
