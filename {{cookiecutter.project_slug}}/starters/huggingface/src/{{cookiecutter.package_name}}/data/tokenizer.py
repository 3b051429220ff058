"""The tokenizer: that of a model, by name, or one trained on the text, without a download."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

from onecurve.errors import UserError, in_short
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Bytes
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

PADDING, END = "<pad>", "<end>"
SEEN = 2**20
"""Characters that one is made of at most: more of the same text changes little."""


def load(name: str | Path) -> Any:
    """Load a tokenizer by name, or from a folder; it always has a padding token.

    Raises:
        UserError: If there is none.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(name))
    except (OSError, ValueError) as error:
        raise UserError(
            f"data.tokenizer={name}: cannot be loaded ({in_short(error)}); give a folder that has "
            "one, or a name on the Hugging Face hub, such as data.tokenizer=gpt2"
        ) from None
    if tokenizer.pad_token is None:
        # GPT-2 and Llama have none; a label of -100 and the mask tell padding from an end.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def make(texts: Iterable[str], vocab_size: int, folder: Path) -> None:
    """Train a byte-level BPE on these texts and write it atomically to a folder, unless it exists.

    Args:
        texts: Texts to train it on.
        vocab_size: Largest number of tokens, including those of bytes and the two special ones.
        folder: The folder that `load` reads it from.
    """
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = Bytes()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PADDING, END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_first(texts), trainer)
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=PADDING, eos_token=END, bos_token=END
    )
    # Another node may be making it at the same time.
    unfinished = folder.with_name(f"{folder.name}.{uuid4().hex}.new")
    try:
        tokenizer.save_pretrained(unfinished)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        rmtree(unfinished, ignore_errors=True)


def _first(texts: Iterable[str]) -> Iterator[str]:
    left = SEEN
    for text in texts:
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return
