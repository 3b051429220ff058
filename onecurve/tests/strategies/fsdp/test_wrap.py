"""Which modules strategy=fsdp shards one by one, and which it cannot."""

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

import onecurve
from onecurve.errors import UserError
from onecurve.strategies.fsdp.sharding import check_methods, check_wrap, find_units


class Block(nn.Module):
    """Attention and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.linear = nn.Linear(8, 8)


class Task(LightningModule):
    """Says nothing of the order of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 30, bias=False)
        self.register_parameter("scale", nn.Parameter(torch.ones(1)))


def test_wrap_selects_the_units() -> None:
    task = Task()
    first, second = task.blocks
    parts = [task.embedding, first, second, task.head]
    assert find_units(task, "layer") == parts
    assert find_units(task, ["Linear"]) == [task.head, second.linear, first.linear]
    assert find_units(task, ["Linear", "Block"])[1:] == [
        second.linear, second, first.linear, first
    ]  # fmt: skip


def test_a_unit_holds_all_uses_of_a_tied_parameter_or_none() -> None:
    task = Task()
    first, second = task.blocks
    task.head.weight = task.embedding.weight
    first.linear.bias = first.attention.out_proj.bias
    assert find_units(task, "layer") == [first, second]
    assert find_units(task, ["Linear", "Block"]) == [second.linear, second, first]
    # The same layer in two places.
    second.linear = first.linear
    assert find_units(task, "layer") == []


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        ("layers", "wrap='layers': must be layer or a list"),
        (["Linear", "Conv2d"], "wrap=['Linear', 'Conv2d']: the task has no Conv2d"),
    ],
)
def test_unknown_units_are_rejected(wrap: Any, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        check_wrap(Task(), onecurve.FSDP(wrap=wrap).parallelisms[0].options.wrap)
    assert words in str(refusal.value)
    assert "wrap='layer'" in str(refusal.value)


def test_so_are_unknown_methods() -> None:
    check_methods(Task(), ["forward"])
    with pytest.raises(UserError, match=r"forward_methods=\['encode'\]: no module of Task has"):
        check_methods(Task(), ["encode"])
