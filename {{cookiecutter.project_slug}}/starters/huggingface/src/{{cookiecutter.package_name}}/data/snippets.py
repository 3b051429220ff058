"""Short texts and their classes: lines of Python's packages, or your own CSV file."""

from collections.abc import Iterator, Sequence
from csv import DictReader
from pathlib import Path
from typing import NamedTuple

import torch
from onecurve.errors import UserError
from torch.utils.data import DataLoader, Dataset

from . import tokenizer as tokenizers
from .sources import sources
from .tokenized import Batch, Count, Fraction, FromZero, Tokenized

LINES = 8
"""Lines of source in a snippet."""


class Snippet(NamedTuple):
    """A text, and the name of its class."""

    text: str
    label: str


class Snippets(Tokenized):
    """Texts to classify: by default, which of Python's packages eight lines of source are from.

    The loaders deliver `input_ids` and `attention_mask` (N, max_length) and `labels` (N,), int64.
    Which texts are held out follows from a hash of each: it stays in its part when others come.

    Args:
        csv: A file with the columns `text` and `label`; None for Python's own sources.
        labels: Names of the classes: those in the CSV file, or packages.
        tokenizer: A name on the Hugging Face hub, or a folder; None trains one on the texts.
        vocab_size: Largest number of tokens of a trained tokenizer.
        max_length: Tokens of a text that are read; shorter ones are padded.
        batch_size: Texts in a training step, over all processes.
        num_workers: Processes that make batches; 0 makes them in the training process.
        val_fraction: Share of the texts held out for validation.
        test_fraction: Share held out for the test.
        cache: Folder of the trained tokenizers.
    """

    def __init__(
        self,
        *,
        csv: str | None,
        labels: Sequence[str],
        tokenizer: str | None,
        vocab_size: Count,
        max_length: Count,
        batch_size: Count,
        num_workers: FromZero,
        val_fraction: Fraction,
        test_fraction: Fraction,
        cache: str,
    ) -> None:
        made = f"{csv} {[*labels]} {vocab_size}"
        parts = val_fraction, test_fraction
        super().__init__(tokenizer, made, cache, batch_size, num_workers, parts)
        self.csv = csv
        self.labels = [str(label) for label in labels]
        self.vocab_size = vocab_size
        self.max_length = max_length

    def prepare_data(self) -> None:
        """Train the tokenizer unless it exists."""
        if self.made:
            texts = (snippet.text for snippet in self._split()["train"])
            tokenizers.make(texts, self.vocab_size, self.made)

    def setup(self, stage: str) -> None:
        """Read and tokenize the texts of each part, whatever the stage."""
        if self.samples:
            return
        parts = self._split()
        self.tokenizer = self.load_tokenizer()
        for part, snippets in parts.items():
            if not snippets:
                raise UserError(
                    f"data.val_fraction={self.val_fraction}: no text is left for {part}; add "
                    "texts, or take data.val_fraction=0.2 data.test_fraction=0.2"
                )
            made = self.tokenizer(
                [snippet.text for snippet in snippets],
                padding="max_length",
                truncation=True,
                max_length=self.max_length,
                return_tensors="pt",
            )
            classes = [self.labels.index(snippet.label) for snippet in snippets]
            texts = {name: made[name] for name in ("input_ids", "attention_mask")}
            self.samples[part] = Texts({**texts, "labels": torch.tensor(classes)})

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Samples that predict.py classifies: the test set."""
        return self._loader("test")

    def _split(self) -> dict[str, list[Snippet]]:
        found = [*(_of_packages(self.labels) if self.csv is None else self._of_csv(self.csv))]
        names = sorted({snippet.label for snippet in found})
        if names != sorted(self.labels):
            has = f"{self.csv} has" if self.csv else "there are of Python's packages"
            raise UserError(
                f"data.labels=[{','.join(self.labels)}]: {has} {', '.join(names)}; use "
                f"'data.labels=[{','.join(names)}]'"
            )
        parts: dict[str, list[Snippet]] = {part: [] for part in ("train", "val", "test")}
        for snippet in found:
            parts[self.part_of(snippet.text)].append(snippet)
        return parts

    def _of_csv(self, file: str) -> Iterator[Snippet]:
        path = Path(file).expanduser()
        if not path.is_file():
            raise UserError(
                f"data.csv={file}: there is no such file; name one with the columns text and "
                "label, or leave data.csv out, for Python's own sources"
            )
        with path.open(newline="", encoding="utf-8") as opened:
            rows = DictReader(opened)
            if missing := {"text", "label"} - set(rows.fieldnames or ()):
                raise UserError(
                    f"data.csv={file}: has no column {', '.join(sorted(missing))}; its first line "
                    "must name the columns text and label"
                )
            for row in rows:
                yield Snippet(row["text"], row["label"])


class Texts(Dataset[Batch]):
    """Tokens, mask and classes of texts: tensors with one row per text, by the model's names."""

    def __init__(self, tensors: Batch) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors["labels"])

    def __getitem__(self, index: int) -> Batch:
        return {name: value[index] for name, value in self.tensors.items()}

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        rows = torch.as_tensor(indices)
        return {name: value.index_select(0, rows) for name, value in self.tensors.items()}


def _of_packages(names: Sequence[str]) -> Iterator[Snippet]:
    """Pieces of the sources of Python's packages, without the lines that name the package."""
    for source in sources(None):
        package, _, rest = source.name.partition("/")
        if not rest or package not in names:
            continue
        lines = [line for line in source.read().splitlines() if line.strip()]
        lines = [line for line in lines if package not in line]
        for start in range(0, len(lines) - LINES + 1, LINES):
            yield Snippet("\n".join(lines[start : start + LINES]), package)
