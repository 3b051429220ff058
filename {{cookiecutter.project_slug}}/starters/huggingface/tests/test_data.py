"""The texts of this project: every token is read once, in one part."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import composed
from hydra.utils import instantiate
from onecurve.errors import UserError
from small_data import write_csv

WHOLE = ("data.train_blocks=null", "data.val_blocks=null", "data.test_blocks=null")
SHARES = ("data.val_fraction=0.2", "data.test_fraction=0.2", "data.vocab_size=300")


def load(folder: Path, *overrides: str, root: str = "texts") -> Any:
    options = (f"data.root={folder}/{root}", f"data.cache={folder}/cache", *SHARES, *overrides)
    module: Any = instantiate(composed("data=text_blocks", *options).data)
    module.prepare_data()
    module.setup("fit")
    return module


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / f"texts/{number}.txt").write_text(f"{number} is a number of ünits\n" * 9)
    return tmp_path


def test_the_blocks_of_all_parts_are_all_the_text(texts: Path) -> None:
    module = load(texts, *WHOLE, "data.block_size=7", "data.batch_size=9")
    read = []
    for loader in (module.train_dataloader(), module.val_dataloader(), module.test_dataloader()):
        blocks = [loader.dataset[index] for index in range(len(loader.dataset))]
        batches = list(loader)
        assert sum(len(batch["labels"]) for batch in batches) == len(blocks)
        for block in blocks:
            is_text = block["attention_mask"].bool()
            assert is_text.all() or block is blocks[-1]
            assert torch.equal(block["labels"][is_text], block["input_ids"][is_text])
            assert (block["labels"][~is_text] == -100).all()
            assert (block["input_ids"][~is_text] == module.tokenizer.pad_token_id).all()
            read += block["input_ids"][is_text].tolist()
    ends = read.count(module.tokenizer.eos_token_id)
    # A last token without any before it is left out.
    assert 40 - 3 <= ends <= 40
    text = module.tokenizer.decode(read, skip_special_tokens=True)
    expected = "".join(file.read_text() for file in (texts / "texts").iterdir())
    assert sorted(text) == sorted(expected)


def test_a_tokenizer_stays_when_texts_come_and_tokens_are_made_again(texts: Path) -> None:
    first = load(texts)
    (texts / "texts/more.txt").write_text("zyx" * 1000)
    second = load(texts)
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    files = [{blocks.file for blocks in each.samples.values()} for each in (first, second)]
    assert len(files[0] & files[1]) == 2
    assert len(load(texts, "data.train_blocks=2").samples["train"]) == 2
    other = load(texts, "data.vocab_size=280")
    assert len(other.tokenizer) == 280
    # A model's tokenizer that has no padding gets one.
    made = next((texts / "cache").glob("tokenizer-*"))
    named = load(texts, f"data.tokenizer={made}")
    assert named.tokenizer.pad_token_id == 0


def test_too_little_text_gets_advice(texts: Path) -> None:
    with pytest.raises(UserError, match=r"no \w+ text in 0 files; add files, or take a larger"):
        load(texts, root="texts/1.txt")
    assert not (texts / "cache").exists()


def test_rows_of_a_file_are_each_in_one_part(tmp_path: Path) -> None:
    write_csv(tmp_path / "two.csv")
    options = (f"data.csv={tmp_path}/two.csv", "data.labels=[yes,no]", f"data.cache={tmp_path}")
    module: Any = instantiate(composed("data=snippets", *options, *SHARES).data)
    module.prepare_data()
    module.setup("fit")
    texts = {}
    for part, held in module.samples.items():
        for row in range(len(held)):
            sample = held[row]
            text = module.tokenizer.decode(sample["input_ids"], skip_special_tokens=True)
            texts[text] = module.labels[sample["labels"]]
            assert sample["attention_mask"].sum() < 96
        assert len(held) > 4, part
    assert len(texts) == 80
    assert all(("odd" in text) == (label == "yes") for text, label in texts.items())
    with pytest.raises(UserError, match=r"use labels=\['no', 'yes'\]"):
        instantiate(composed("data=snippets", options[0], *SHARES).data).prepare_data()


@pytest.mark.usefixtures("small_data")
def test_snippets_do_not_name_their_package(tmp_path: Path) -> None:
    module: Any = instantiate(composed("data=snippets", f"data.cache={tmp_path}/data").data)
    module.prepare_data()
    module.setup("fit")
    assert len(module.samples["train"]) > 2 * len(module.samples["test"]) > 200
    held = module.samples["test"]
    assert set(held.tensors["labels"].tolist()) == set(range(8))
    for row in range(0, len(held), 10):
        sample = held[row]
        assert module.labels[sample["labels"]] not in module.tokenizer.decode(sample["input_ids"])
