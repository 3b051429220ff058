"""What is cut in a network that has no plan, what a plan says, and what is refused."""

import random
from typing import Any

import pytest
import torch
from cut_networks import Fused, Gated, Grouped, Stacked, Task, made
from torch import nn

from onecurve.errors import UserError
from onecurve.strategies.tensor.local_size import local_numel
from onecurve.strategies.tensor.plan import check_plan, find_plan
from onecurve.strategies.tensor.report import plan_table, shares
from onecurve.strategies.tensor.summands import find_summing


def plan_of(name: str, given: Any = None, **options: Any) -> tuple[Task, dict[str, str]]:
    task, _, _ = made(name, **options)
    return task, find_plan(task, {"": task}, given, 2)


@pytest.mark.parametrize(
    ("kind", "summing"), [(Fused, "output"), (Grouped, "output"), (Gated, "down"), (Stacked, None)]
)
def test_a_module_is_tried_out(kind: type[nn.Module], summing: str | None) -> None:
    module = kind()
    state = torch.random.get_rng_state(), random.getstate()
    before = [weight.clone() for weight in module.parameters()]
    assert find_summing(module) == summing
    assert torch.equal(torch.random.get_rng_state(), state[0])
    assert all(map(torch.equal, before, module.parameters()))
    with torch.device("meta"):
        module = kind()
    assert find_summing(module) == summing


def test_the_plan_of_a_transformer() -> None:
    """Of its own layers, of modules that say how they are cut, and of what has been tried out."""
    _, plan = plan_of("gpt")
    assert plan == {
        "network.embedding.tokens": "vocab",
        "network.block1": "sequence",
        "network.block1.attention": "heads",
        "network.block1.attention.qkv": "colwise",
        "network.block1.attention.output": "rowwise",
        "network.block1.mlp.0": "colwise",
        "network.block1.mlp.3": "rowwise",
        "network.block2": "sequence",
        "network.block2.attention": "heads",
        "network.block2.attention.query": "colwise",
        "network.block2.attention.key": "colwise",
        "network.block2.attention.value": "colwise",
        "network.block2.attention.output": "rowwise",
        "network.block2.mlp": "colwise",
        "network.block2.mlp.gate": "colwise",
        "network.block2.mlp.down": "rowwise",
        "network.block2.mlp.up": "colwise",
        "network.norm": "sequence",
        "network.head": "vocab",
    }


def test_a_pair_never_crosses_the_ends_of_the_layers() -> None:
    task, _, _ = made("mlp")
    layers = {name: task.get_submodule(name) for name in ("network.0", "network.1")}
    assert find_plan(task, layers, None, 2) == {"network.0": "colwise_gather"}


def test_a_given_plan_alone_counts() -> None:
    _, plan = plan_of("gpt", {"block*.mlp": "colwise", "network.block2.mlp.up": "colwise_gather"})
    assert plan["network.block1.mlp.0"] == "colwise"
    assert plan["network.block1.mlp.3"] == "rowwise"
    assert plan["network.block2.mlp.up"] == "colwise_gather"
    assert "network.head" not in plan


REFUSED = {
    "unknown": ("gpt", {"block*": "columns"}, 2, 1, "block*=columns is no style; use one of col"),
    "misspelt": ("gpt", {"blok1.mlp.0": "colwise"}, 2, 1, "blok1.mlp.0 fits no module; use names"),
    "text": ("gpt", "all", 2, 1, "strategy.plan=all: must be auto"),
    "heads": (
        "gpt",
        None,
        4,
        1,
        "cannot share the 2 heads of network.block2.attention evenly; use",
    ),
    "features": ("mlp", None, 3, 1, "cannot share the 32 output features of network.0 evenly"),
    "stacked": ("vit", None, 2, 2, "holds queries, keys and values stacked"),
    "norm": (
        "gpt",
        {"norm": "rowwise"},
        2,
        1,
        "network.norm is LayerNorm, and rowwise is of Linear",
    ),
    "nothing": ("gpt", {"norm": "sequence"}, 2, 1, "nothing to cut in Task"),
    "tied": ("gpt", {"head": "vocab"}, 2, 1, "are one weight, cut in two ways (whole, colwise)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_in_a_line(case: str) -> None:
    name, given, size, shard, line = REFUSED[case]
    options = {"tied": True} if case == "tied" else {}
    with pytest.raises(UserError) as refused:
        check_plan(*plan_of(name, given, **options), size, shard)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_a_rank_holds() -> None:
    task, plan = plan_of("vit")
    whole, held, cut = shares(task, plan, 2)
    biases = sum(
        weight.numel()
        for name, weight in task.named_parameters()
        if name.endswith(("out_proj.bias", "mlp.3.bias"))
    )
    assert held == whole - cut // 2
    assert cut / whole > 0.82
    assert biases
    assert local_numel("rowwise", "bias", (16,), 2) == 16
    assert local_numel("rowwise", "weight", (16, 32), 4) == 128
    table = plan_table(task, plan, 2, sequence=False)
    assert table.row_count == 4
