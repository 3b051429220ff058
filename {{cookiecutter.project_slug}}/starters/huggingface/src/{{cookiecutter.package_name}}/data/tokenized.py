"""What both kinds of data here have in common: a tokenizer, and loaders of one batch size."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from lightning import LightningDataModule
from onecurve.errors import UserError
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from . import tokenizer as tokenizers
from .sources import place_of

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
FromZero = Annotated[int, Field(ge=0)]

Batch = dict[str, Tensor]


def whole_batch(batch: Any) -> Any:
    """Collate function of a data set whose `__getitems__` returns the batch itself."""
    return batch


class Tokenized(LightningDataModule):
    """Texts as tokens: `setup` fills `samples`, and loaders deliver them.

    Args:
        tokenizer: A name on the Hugging Face hub, or a folder; None trains one on the texts.
        made: What the folder of the trained tokenizer is named after. Not the current texts: a
            checkpoint needs its own tokenizer, whatever texts are added later.
        cache: Where that folder is.
        batch_size: Samples in a training step, over all processes.
        num_workers: Processes that make batches; 0 makes them in the training process.
        fractions: Shares that are held out for validation and for the test.
    """

    samples: dict[str, Dataset[Batch]]

    def __init__(
        self,
        tokenizer: str | None,
        made: str,
        cache: str,
        batch_size: int,
        num_workers: int,
        fractions: Sequence[float],
    ) -> None:
        super().__init__()
        if sum(fractions) >= 1:
            raise UserError(
                f"data.val_fraction={fractions[0]:g}: with data.test_fraction={fractions[1]:g} "
                f"nothing is left to train on; use data.val_fraction={(1 - fractions[1]) / 2:g}"
            )
        folder = Path(cache) / f"tokenizer-{sha256(made.encode()).hexdigest()[:16]}"
        self.made = None if tokenizer else folder
        self.tokenizer_name = str(tokenizer or folder)
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.val_fraction, self.test_fraction = fractions
        self.samples = {}

    def load_tokenizer(self) -> Any:
        """The tokenizer: the one that `prepare_data` trained, or that of a model."""
        return tokenizers.load(self.tokenizer_name)

    def part_of(self, text: str) -> str:
        """Which part a text is in, or a file with this name."""
        place = place_of(text)
        if place < self.test_fraction:
            return "test"
        return "val" if place < self.test_fraction + self.val_fraction else "train"

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled samples of training."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Samples of validation, in order."""
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        """Samples of the test, in order."""
        return self._loader("test")

    def _loader(self, part: str, shuffle: bool = False) -> DataLoader[Batch]:
        return DataLoader(
            self.samples[part],
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            collate_fn=whole_batch,
        )
