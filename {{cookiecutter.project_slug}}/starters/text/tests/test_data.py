"""The text of this project: every byte is read once, in one part, from a file that is made once."""

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import composed
from hydra.utils import instantiate
from onecurve.errors import UserError
from small_data import write_texts

from {{ cookiecutter.package_name }}.data import corpus

ALL = ("train", "val", "test")
WHOLE = ("data.train_bytes=null", "data.val_bytes=null", "data.test_bytes=null")


def load(folder: Path, *overrides: str) -> Any:
    fractions = ("data.val_fraction=0.2", "data.test_fraction=0.2")
    options = (f"data.cache={folder}/cache", *fractions, *overrides)
    module: Any = instantiate(composed("data=text", f"data.root={folder}/texts", *options).data)
    module.prepare_data()
    module.setup("fit")
    return module


def test_the_windows_of_all_parts_are_all_the_text(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts")
    module = load(tmp_path, *WHOLE, "data.context=7", "data.batch_size=9")
    found = corpus.split(corpus.pieces(f"{tmp_path}/texts", None), 0.2, 0.2)
    assert len({piece for part in ALL for piece in found[part]}) == 40
    counts = [len(found[part]) for part in ALL]
    assert sum(counts) == 40
    assert min(counts) > 3
    for part, loader in zip(
        ALL[1:], (module.val_dataloader(), module.test_dataloader()), strict=True
    ):
        text = b"".join(piece.file.read_bytes() for piece in found[part])
        windows = torch.cat(list(loader))
        assert windows.dtype == torch.uint8
        assert windows.shape == ((len(text) - 1) // 7, 8)
        # Each byte but the first is the last one of what predicts it, once.
        assert bytes(windows[:, 1:].flatten().tolist()) == text[1 : 7 * len(windows) + 1]
        assert torch.equal(windows[1:, 0], windows[:-1, -1])
    few = load(tmp_path, "data.train_bytes=100", "data.context=7").windows["train"]
    assert torch.equal(few[13], module.windows["train"][13])
    assert len(few) == 14


def test_a_file_stays_in_its_part_when_others_come(tmp_path: Path) -> None:
    def parts(count: int, *pieces: int) -> dict[tuple[str, int], str]:
        write_texts(tmp_path / "texts", count)
        found = corpus.split(corpus.pieces(f"{tmp_path}/texts", *pieces or [None]), 0.2, 0.2)
        return {(piece.name, piece.start): part for part in ALL for piece in found[part]}

    few, many = parts(20), parts(40)
    assert few.items() <= many.items()
    cut = parts(40, 64)
    assert many.items() <= cut.items()
    assert len({part for (name, _), part in cut.items() if name == "a/0.txt"}) > 1


def test_the_bytes_are_written_once_all_or_none(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts")
    first = load(tmp_path).windows["val"]
    made = first.file.stat()
    assert load(tmp_path, "data.context=9").windows["val"].file.stat() == made
    with (tmp_path / "texts/a/0.txt").open("a") as file:
        file.write("more")
    assert load(tmp_path).windows["val"].file != first.file
    # To a process that reads batches goes where the text is, and not the text.
    assert len(pickle.dumps(first)) < 1000
    shrunk = corpus.Piece("0.txt", tmp_path / "texts/a/0.txt", 0, 10**6)
    with pytest.raises(UserError, match=r"0.txt became shorter while it was read"):
        corpus.write({"train": [shrunk]}, tmp_path / "other/made.bytes")
    assert not list((tmp_path / "other").iterdir())


def test_one_long_file_is_refused_with_advice_that_works(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("to be or not to be, " * 2000)
    with pytest.raises(UserError, match=r" 0 bytes of \w+ text in 1 files, and a window") as error:
        load(tmp_path)
    assert not (tmp_path / "cache").exists()
    advice = str(error.value).split()[-1]
    assert advice == "piece_bytes=200"  # this is no command
    advice = f"data.{advice}"
    assert sum(len(load(tmp_path, advice, *WHOLE).windows[part].text()) for part in ALL) > 39_000


def test_baselines_know_how_often_a_byte_is(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / f"texts/{number}").write_bytes(b"aaab" * 1000)
    module = load(tmp_path, *WHOLE)
    bits = module.baselines()
    # The entropy of three to one.
    assert bits["unigram"] == pytest.approx(0.8113, abs=5e-3)
    text = module.windows["test"].text()
    assert bits["gzip"] == 8 * len(gzip.compress(text, 9)) / len(text) < 0.1


@pytest.mark.usefixtures("small_data")
def test_pythons_own_sources_are_there_without_their_tests(tmp_path: Path) -> None:
    config = composed("data=text", f"data.cache={tmp_path}/data/text", *WHOLE)
    module: Any = instantiate(config.data)
    module.prepare_data()
    module.setup("fit")
    assert len(module.windows["train"].text()) > 10 * len(module.windows["test"].text()) > 10**6
    names = {piece.name for piece in corpus.pieces(None, None)}
    assert {"argparse.py", "json/decoder.py"} <= names
    assert not [name for name in names if "/test" in name or "site-packages" in name]
