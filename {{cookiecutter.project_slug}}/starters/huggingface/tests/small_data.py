"""Data and a model where a run in an empty folder looks, and mistakes to make."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

from {{ cookiecutter.package_name }}.data import tokenizer

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
