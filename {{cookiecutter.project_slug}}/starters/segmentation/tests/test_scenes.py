"""Scenes of digits, the tasks on them, and the network whose skips travel in a tuple."""

from typing import Any

import pytest
import torch
from conftest import TWO_STEPS, composed
from hydra.utils import instantiate
from onecurve.testing.runs import Cli, column, largest_difference
from torch import Tensor


def scenes(*overrides: str) -> list[tuple[Tensor, Tensor]]:
    module: Any = instantiate(composed(*overrides).data)
    module.setup("fit")
    return [(part.images, part.labels) for part in module.datasets]


def test_masks_show_where_digits_are_and_labels_which() -> None:
    train, val, test = scenes("experiment=segmentation")
    assert [len(part[0]) for part in (train, val, test)] == [2000, 500, 500]
    images, masks = train
    assert images.shape[1:] == (1, 24, 24)
    # What is faint belongs to nobody.
    assert torch.equal(images[:, 0] > 0, masks > 0)
    again, other = (scenes("experiment=segmentation", f"data.seed={seed}")[0] for seed in (0, 1))
    assert torch.equal(images, again[0])
    assert not torch.equal(images, other[0])
    # The same scenes, with the other targets; what is covered by others is still there.
    same = ("data.image_size=24", "data.num_samples=2000")
    twins, labels = scenes("experiment=multi_label", *same)[0]
    assert torch.equal(twins, images)
    seen = torch.stack([(masks == digit + 1).flatten(1).any(1) for digit in range(10)], dim=1)
    assert ((labels > 0) | ~seen).all()
    assert (labels > 0).sum(1).max() == 3
    assert (labels > 0).any(1).all()


def test_the_parts_show_different_digits() -> None:
    alone = ("data.image_size=8", "data.most_digits=1", "data.num_samples=5000")
    parts = [
        {image.tobytes() for image in part[0].numpy()} for part in scenes("data=scenes", *alone)
    ]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


def test_a_network_learns_masks(cli: Cli) -> None:
    easy = ("data.image_size=8", "data.most_digits=1", "data.num_samples=1000", "model.depth=1")
    few = ("trainer.max_epochs=4", "optimizer.lr=5e-3", "logger=csv", "callbacks=[checkpoint]")
    outcome = cli("train.py", "experiment=segmentation", *easy, *few)
    assert outcome.status == 0, outcome.err
    assert outcome.metrics["test/iou_of_background"] < 0.1
    assert outcome.metrics["test/iou"] > 0.3
    best = outcome.run / "checkpoints/best.ckpt"
    drawn = cli("predict.py", f"checkpoint={best}", "predict.output=masks")
    assert drawn.status == 0, drawn.err
    masks = torch.load("masks.pt", weights_only=True)
    assert masks.shape == (500, 1, 8, 8)
    assert {value % 25 for value in masks.unique().tolist()} == {0}


@pytest.mark.parametrize("experiment", ["segmentation", "multi_label"])
@pytest.mark.parametrize("strategy", ["ddp", "pipeline"])
def test_every_value_is_that_of_single(once: Any, experiment: str, strategy: str) -> None:
    small = ("trainer.precision=64-true", "data.num_samples=64", "data.num_val=64", "logger=csv")
    steps = (f"experiment={experiment}", *TWO_STEPS, *small)
    single, other = once(*steps), once(*steps, f"strategy={strategy}")
    metric = {"segmentation": "iou", "multi_label": "auroc"}[experiment]
    for name in ("train/loss", "val/loss", f"val/{metric}", "test/loss", f"test/{metric}"):
        assert largest_difference(column(single, name), column(other, name)) <= 1e-11, name
