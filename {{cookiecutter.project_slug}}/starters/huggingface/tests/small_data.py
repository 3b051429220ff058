"""Data and a model where a run in an empty folder looks, and mistakes to make."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

from {{ cookiecutter.package_name }}.data import tokenizer

# What is typed of data, model and task, and what the line must say.
MISTAKES = {
    "data=text_blocks data.root=nowhere": "data.root=nowhere: there is no such file; give a folder",
    "data=text_blocks data.block_size=0": "data.block_size=0: must be a whole number from 1",
    "data=text_blocks data.val_fraction=1": "data.val_fraction=1: must be a number above 0",
    "task=text_classification": "task: classifies, but the data have no classes",
    "data=snippets": "task: predicts the next token, but the data have classes",
    "experiment=snippets data.csv=no.csv": "data.csv=no.csv: there is no such file",
    "experiment=snippets data.csv=two.csv": "two.csv has no, yes; use 'data.labels=[no,yes]'",
    "model=pretrained model.name=none": "model.name=none: cannot be loaded",
    "data=text_blocks data.tokenizer=none": "data.tokenizer=none: cannot be loaded",
    "model=gpt2_tiny data.block_size=257": "data.block_size=257: the model knows 256 positions",
    "model=llama_tiny model.dtype=int8": "model.dtype=int8: must be one of float32",
    "callbacks=save_pretrained checkpoint.format=sharded": "callbacks.save_pretrained: saves full",
}
# What a choice needs beside its name.
NEEDS = {
    "data/snippets": ("experiment=snippets",),
    "model/bert_tiny": ("experiment=snippets",),
    "model/pretrained": ("model.name=pretrained",),
    "task/text_classification": ("experiment=snippets",),
}
TEXT = "".join(f"def number_{number}():\n    return {number}\n\n" for number in range(400))


def write_csv(file: Path) -> None:
    """Texts of two classes."""
    kinds = (("even", "no"), ("odd", "yes"))
    rows = [f"{number} is {kinds[number % 2][0]},{kinds[number % 2][1]}\n" for number in range(80)]
    file.write_text("".join(["text,label\n", *rows]))


def write_pretrained(folder: Path) -> None:
    """A small model and its tokenizer, as `save_pretrained` writes them."""
    tokenizer.make([TEXT], 300, folder.with_name("tokenizer"))
    made = tokenizer.load(folder.with_name("tokenizer"))
    config = LlamaConfig(
        **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 2),
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        pad_token_id=0,
        **dict.fromkeys(("bos_token_id", "eos_token_id"), 1),
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    made.save_pretrained(folder)


def write_broken(folder: Path) -> None:
    """A file of which no run can be made as it is typed."""
    # What was read of Python's sources stays, as a download would.
    folder.with_name("sources").mkdir(exist_ok=True)
    (folder / "data").symlink_to(folder.with_name("sources"))
    write_csv(folder / "two.csv")


@pytest.fixture(scope="session")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    (folder / "data").mkdir()
    (folder / "texts").mkdir()
    for number in range(40):
        (folder / f"texts/{number}.txt").write_text(TEXT)
    write_csv(folder / "two.csv")
    write_pretrained(folder / "pretrained")
    return folder


@pytest.fixture
def small_data(small_files: Path, tmp_path: Path) -> None:
    """What is made once in data/, a model in pretrained/, one's own text in texts/ and two.csv."""
    for name in ("data", "pretrained", "texts", "two.csv"):
        (tmp_path / name).symlink_to(small_files / name)
