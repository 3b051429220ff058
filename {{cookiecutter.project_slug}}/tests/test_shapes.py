"""The shapes of what the data module delivers, and of what the network makes of it."""

from typing import Any

import pytest
import torch
from conftest import composed
from hydra.utils import instantiate
from torch.utils._pytree import tree_leaves


@pytest.fixture(scope="module")
def data() -> Any:
    module: Any = instantiate(composed("data.batch_size=8").data)
    module.prepare_data()
    module.setup("fit")
    return module


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_every_part_has_batches_of_the_global_size(data: Any, part: str) -> None:
    loader = getattr(data, f"{part}_dataloader")()
    tensors = [leaf for leaf in tree_leaves(next(iter(loader))) if torch.is_tensor(leaf)]
    assert tensors
    assert {len(tensor) for tensor in tensors} == {min(8, len(loader.dataset))}


def test_validation_repeats_and_training_is_shuffled(data: Any) -> None:
    def first(loader: Any) -> torch.Tensor:
        tensor: torch.Tensor = tree_leaves(next(iter(loader)))[0]
        return tensor

    assert torch.equal(first(data.val_dataloader()), first(data.val_dataloader()))
    assert not torch.equal(first(data.train_dataloader()), first(data.train_dataloader()))
