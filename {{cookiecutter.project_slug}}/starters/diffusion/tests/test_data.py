"""Images in words, and the judge of what is drawn for them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CONFIGS, composed
from hydra.utils import instantiate
from onecurve.errors import UserError
from torch import Tensor

from {{ cookiecutter.package_name }}.data.captions import encoded


def load(name: str, *overrides: str) -> Any:
    data: Any = instantiate(composed(f"data={name}", *overrides).data)
    data.setup("test")
    return data


@pytest.mark.parametrize("name", [path.stem for path in sorted((CONFIGS / "data").glob("*.yaml"))])
def test_captions_name_their_class(small_files: Path, name: str) -> None:
    data = load(name, f"data.root={small_files}")
    for part, labels in zip(data.datasets, data.labels, strict=True):
        assert len(part) == len(labels)
        for words, label in zip(data.titles(part.labels), labels.tolist(), strict=True):
            assert words in data.ways[label]
    assert len(set(data.titles(data.datasets[0].labels))) > 2 * data.num_classes
    again = load(name, f"data.root={small_files}", "seed=7")
    assert torch.equal(again.datasets[0].labels, data.datasets[0].labels)
    images, _ = data.on_after_batch_transfer(next(iter(data.train_dataloader())), 0)
    assert (images.min(), images.max()) == (-1, 1)


def test_words_are_bytes() -> None:
    assert encoded(["7", "", "drei ß"], 8, "key").tolist() == [
        [55, 0, 0, 0, 0, 0, 0, 0],
        [0] * 8,
        [*"drei ß".encode(), 0],
    ]
    with pytest.raises(UserError, match=r"key=a handwritten 3: has 15 bytes, and .* room for 8"):
        encoded(["a handwritten 3"], 8, "key")


def test_the_judge_knows_real_digits(small_files: Path) -> None:
    data = load("digits", f"data.root={small_files}")
    test = data.datasets[2]

    def real(words: Tensor) -> Tensor:
        assert torch.equal(words, test.labels)
        return data.normalize(test.images)

    found = data.quality(real, 300)
    assert found["agreement"] == found["agreement_of_real"] > 0.95
    assert 0.05 < found["agreement_of_noise"] < 0.2
    assert found["frechet"] == found["frechet_of_real"] < 2
    assert found["frechet_of_noise"] > 100
    # Ones for all words: each looks real, together they do not.
    one = data.normalize(test.images[data.labels[2] == 1][:1])
    found = data.quality(lambda words: one.expand(len(words), -1, -1, -1), 300)
    assert 0.05 < found["agreement"] < 0.2
    assert found["frechet"] > 10


def test_the_judge_learns_once(small_files: Path, tmp_path: Path) -> None:
    def state(root: Path) -> dict[str, Tensor]:
        torch.manual_seed(len(str(root)))
        before = torch.get_rng_state()
        judge = load("digits", f"data.root={root}").judge()
        assert torch.equal(torch.get_rng_state(), before)
        return dict(judge.state_dict())

    learned, read = state(tmp_path / "new"), state(tmp_path / "new")
    assert len(list((tmp_path / "new").iterdir())) == 1
    for name, value in state(small_files).items():
        assert torch.equal(value, learned[name])
        assert torch.equal(value, read[name])
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file'?: the judge .* cannot be kept there"):
        state(tmp_path / "file")
