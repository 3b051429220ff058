"""Blocks of tokens: Python's own sources, or any folder of text files."""

from collections.abc import Sequence
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from onecurve.errors import UserError
from torch.utils.data import Dataset

from . import tokenizer as tokenizers
from .sources import Source, place_of, sources
from .tokenized import Batch, Count, Fraction, FromZero, Tokenized

NAMES = {"train": "training", "val": "validation", "test": "test"}
IGNORED = -100


class TextBlocks(Tokenized):
    """Text as tokens, file after file, split into blocks for a model that predicts the next.

    The loaders deliver `input_ids`, `attention_mask` and `labels`, each (N, block_size) int64; the
    last block of a part is padded, and its labels there are -100. Files are held out whole, by a
    hash of their names. All tokens are written to one file for each part once, which is mapped into
    memory from then on.

    Args:
        root: A folder of text files, or one file; None for the sources of Python's own library.
        tokenizer: A name on the Hugging Face hub, or a folder; None trains one on the text.
        vocab_size: Largest number of tokens of a trained tokenizer.
        block_size: Tokens in a block.
        batch_size: Blocks in a training step, over all processes.
        num_workers: Processes that read batches; 0 reads them in the training process.
        val_fraction: Share of the files held out for validation.
        test_fraction: Share of the files held out for the test.
        train_blocks: Largest number of blocks of the training text; None for all.
        val_blocks: Likewise of the validation text.
        test_blocks: Likewise of the test text.
        cache: Folder of the tokens and of the trained tokenizers.
    """

    def __init__(
        self,
        *,
        root: str | None,
        tokenizer: str | None,
        vocab_size: Count,
        block_size: Count,
        batch_size: Count,
        num_workers: FromZero,
        val_fraction: Fraction,
        test_fraction: Fraction,
        train_blocks: Count | None,
        val_blocks: Count | None,
        test_blocks: Count | None,
        cache: str,
    ) -> None:
        parts = val_fraction, test_fraction
        super().__init__(tokenizer, f"{root} {vocab_size}", cache, batch_size, num_workers, parts)
        most = {"train": train_blocks, "val": val_blocks, "test": test_blocks}
        self.most_tokens = {part: blocks and blocks * block_size for part, blocks in most.items()}
        self.root = root
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.cache = Path(cache)

    def prepare_data(self) -> None:
        """Train the tokenizer and write the tokens, unless they exist."""
        parts = self._split()
        if self.made:
            texts = (source.read() for source in parts["train"])
            tokenizers.make(texts, self.vocab_size, self.made)
        tokenizer = self.load_tokenizer()
        for part, those in parts.items():
            _write(those, tokenizer, self.most_tokens[part], self._tokens(part, those, tokenizer))

    def setup(self, stage: str) -> None:
        """Find the blocks of each part, whatever the stage."""
        if self.samples:
            return
        self.tokenizer = self.load_tokenizer()
        for part, those in self._split().items():
            file = self._tokens(part, those, self.tokenizer)
            blocks = Blocks(file, self.block_size, self.tokenizer.pad_token_id)
            if not len(blocks):
                raise self._no_text(part, those)
            self.samples[part] = blocks

    def _split(self) -> dict[str, list[Source]]:
        """Files of each part, in the order of their places: the first ones are a sample of all."""
        parts: dict[str, list[Source]] = {part: [] for part in NAMES}
        for source in sorted(sources(self.root), key=lambda source: place_of(source.name)):
            parts[self.part_of(source.name)].append(source)
        if empty := [part for part in NAMES if not parts[part]]:
            raise self._no_text(empty[0], [])
        return parts

    def _no_text(self, part: str, those: Sequence[Source]) -> UserError:
        return UserError(
            f"data.root={self.root}: no {NAMES[part]} text in {len(those)} files; add files, or "
            "take a larger share, such as data.val_fraction=0.2 data.test_fraction=0.2"
        )

    def _tokens(self, part: str, those: Sequence[Source], tokenizer: Any) -> Path:
        """The file of a part's tokens: a different one for each tokenizer and set of texts."""
        key = sha256(f"{self.most_tokens[part]} {tokenizer.backend_tokenizer.to_str()}".encode())
        for source in those:
            facts = source.file.stat()
            key.update(f"\n{source.file} {facts.st_size} {facts.st_mtime_ns}".encode())
        return self.cache / f"{part}-{key.hexdigest()[:16]}.tokens"


class Blocks(Dataset[Batch]):
    """Tokens split into blocks, of which the last is padded.

    Args:
        file: With the tokens, int32.
        size: Tokens in a block.
        padding: The token that fills the last one.
    """

    def __init__(self, file: Path, size: int, padding: int) -> None:
        self.file = file
        self.size = size
        self.padding = padding
        self.tokens = file.stat().st_size // 4
        # A last block of a single token has none to predict.
        self.count = self.tokens // size + (self.tokens % size > 1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Batch:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        places = np.asarray(indices)[:, None] * self.size + np.arange(self.size)
        # Mapped here, since a map would be copied to workers.
        tokens = np.memmap(self.file, np.int32, "r")
        ids = torch.from_numpy(tokens[places.clip(max=self.tokens - 1)]).long()
        is_text = torch.from_numpy(places < self.tokens)
        return {
            "input_ids": ids.masked_fill(~is_text, self.padding),
            "attention_mask": is_text.long(),
            "labels": ids.masked_fill(~is_text, IGNORED),
        }


def _write(those: Sequence[Source], tokenizer: Any, most: int | None, file: Path) -> None:
    """Write the tokens of files, each with an end token, atomically, unless they exist."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    left = inf if most is None else most
    # Another node may be making it at the same time.
    unfinished = file.with_suffix(f".{uuid4().hex}.new")
    try:
        with unfinished.open("wb") as out:
            for source in those:
                # By the tokenizer below that of transformers, which warns of texts that are long.
                read = tokenizer.backend_tokenizer.encode(source.read(), add_special_tokens=False)
                ids = np.asarray([*read.ids, tokenizer.eos_token_id], np.int32)
                ids[: int(min(left, len(ids)))].tofile(out)
                left -= len(ids)
                if left <= 0:
                    break
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
