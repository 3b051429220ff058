"""Bytes of text: Python's own sources, or any folder of text files."""

import gzip
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from lightning import LightningDataModule
from onecurve.errors import UserError
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from . import corpus

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]

NAMES = {"train": "training", "val": "validation", "test": "test"}


def whole_batch(batch: Any) -> Any:
    """Collate function of a data set whose `__getitems__` returns the batch itself."""
    return batch


class Text(LightningDataModule):
    """Windows of text, with one byte more than the network sees at once.

    The loaders yield bytes (N, context + 1), uint8. Entire files are held out, by a hash of their
    names. All bytes are written into one file once, which is mapped into memory from then on.

    Args:
        root: A folder of text files, or one file; None for the sources of Python's own library.
        context: Bytes that the network sees at once.
        batch_size: Windows in a training step, over all processes.
        num_workers: Processes that read batches; 0 reads them in the training process.
        val_fraction: Share of the files held out for validation.
        test_fraction: Share of the files held out for the test.
        piece_bytes: Split longer files into pieces of this many bytes, to hold out one by one.
        train_bytes: Read no more than this many bytes of the training text.
        val_bytes: Likewise of the validation text.
        test_bytes: Likewise of the test text.
        cache: Folder of the file with all bytes.
    """

    def __init__(
        self,
        *,
        root: str | None,
        context: Count,
        batch_size: Count,
        num_workers: int,
        val_fraction: Fraction,
        test_fraction: Fraction,
        piece_bytes: Count | None,
        train_bytes: Count | None,
        val_bytes: Count | None,
        test_bytes: Count | None,
        cache: str,
    ) -> None:
        super().__init__()
        self.root = root
        self.context = context
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.fractions = (val_fraction, test_fraction)
        self.piece_bytes = piece_bytes
        self.most_bytes = {"train": train_bytes, "val": val_bytes, "test": test_bytes}
        self.cache = Path(cache)
        self.windows: dict[str, Windows] = {}

    def prepare_data(self) -> None:
        """Write the bytes into one file, unless it exists."""
        parts = self._split()
        corpus.write(parts, corpus.file_of(parts, self.cache))

    def setup(self, stage: str) -> None:
        """Find the windows of each part, whatever the stage."""
        if self.windows:
            return
        parts, offset = self._split(), 0
        file = corpus.file_of(parts, self.cache)
        for part, pieces in parts.items():
            size = sum(piece.size for piece in pieces)
            used = min(size, self.most_bytes[part] or size)
            self.windows[part] = Windows(file, offset, used, self.context)
            offset += size

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Shuffled windows of the training text."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[Tensor]:
        """Windows of the validation text, in order."""
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[Tensor]:
        """Windows of the test text, in order."""
        return self._loader("test")

    def baselines(self) -> dict[str, float]:
        """Bits per byte of the test text for baselines without a network, by name.

        `unigram` uses the frequencies of bytes in the training text; gzip and xz do not use it.
        """
        train, test = self.windows["train"].text(), self.windows["test"].text()
        shares = (np.bincount(train, minlength=256) + 1) / (len(train) + 256)
        packed = {"gzip": gzip.compress(test, 9), "xz": lzma.compress(test, preset=9)}
        return {
            "unigram": float(-np.log2(shares)[test].mean()),
            **{name: 8 * len(made) / len(test) for name, made in packed.items()},
        }

    def _split(self) -> corpus.Parts:
        found = corpus.pieces(self.root, self.piece_bytes)
        parts = corpus.split(found, *self.fractions)
        everything = [piece for pieces in parts.values() for piece in pieces]
        files = len({piece.file for piece in everything})
        if not files:
            raise UserError(
                f"data.root={self.root}: no text in it; name a folder of text files, or leave "
                "data.root out, for Python's own sources"
            )
        for part, pieces in parts.items():
            size = sum(piece.size for piece in pieces)
            if min(size, self.most_bytes[part] or size) <= self.context:
                smaller = max(self.context + 1, sum(piece.size for piece in everything) // 200)
                raise UserError(
                    f"data.root={self.root}: {size} bytes of {NAMES[part]} text in {files} files, "
                    f"and a window has {self.context + 1}; add text, take a smaller data.context, "
                    f"or split long files with data.piece_bytes={smaller}"
                )
        return parts

    def _loader(self, part: str, shuffle: bool = False) -> DataLoader[Tensor]:
        return DataLoader(
            self.windows[part],
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            collate_fn=whole_batch,
        )


class Windows(Dataset[Tensor]):
    """Text split into windows: the last byte of each is the first of the next.

    Every byte except the first is predicted once; an incomplete window at the end is not read.

    Args:
        file: The file with the bytes.
        offset: The offset of the first byte.
        size: The number of bytes.
        context: The number of bytes that a window predicts.
    """

    def __init__(self, file: Path, offset: int, size: int, context: int) -> None:
        self.file = file
        self.offset = offset
        self.context = context
        self.count = (size - 1) // context

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Tensor:
        starts = np.asarray(indices)[:, None] * self.context
        return torch.from_numpy(self.text()[starts + np.arange(self.context + 1)])

    def text(self) -> Any:
        """All bytes of the windows, (T,); mapped each time, as a map would be copied to workers."""
        size = self.count * self.context + 1
        return np.memmap(self.file, np.uint8, "r", self.offset, (size,))
