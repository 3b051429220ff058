"""The tensor plan: what is inferred, what a given plan means, and what is rejected."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sharded_networks import Task, made
from torch import nn

from onecurve.errors import UserError
from onecurve.strategies.tensor.plan import check_plan, find_plan, report_plan, sharded_parameters


def plan_of(task: Task, given: Any = None) -> dict[str, str]:
    return find_plan(task, {"": task}, given, 2)


def linears(*widths: tuple[int, int]) -> list[nn.Linear]:
    return [nn.Linear(*width) for width in widths]


def module(names: str, layers: Sequence[nn.Module], **attributes: Any) -> nn.Module:
    """One that holds layers by these names, and says of itself what is given."""
    made = nn.Module()
    for name, layer in zip(names.split(), layers, strict=True):
        setattr(made, name, layer)
    vars(made).update(attributes)
    return made


def test_the_attention_in_the_docs_is_sharded_by_heads() -> None:
    page = Path(__file__).parents[3] / "docs/your_network.md"
    block, _ = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(block, names := dict[str, Any]())
    task = Task(names["Attention"](8, 2))
    plan = plan_of(task)
    assert plan == {"network": "heads", "network.qkv": "fused", "network.proj": "rowwise"}
    check_plan(task, plan, 2)
    assert task(torch.ones(2, 3, 8).double()).shape == (2, 3, 8)


def test_a_model_of_transformers_brings_its_plan() -> None:
    """Its attentions and gated networks read their input once; other styles are left out."""
    layers = [*linears(*[(8, 8)] * 4), nn.LayerNorm(8)]
    attention = module("q_proj k_proj v_proj o_proj norm", layers, head_dim=4)
    hidden = module("gate up down", linears((8, 16), (8, 16), (16, 8)))
    block = module("self_attn mlp fused", [attention, hidden, nn.Linear(8, 24)])
    model = module("layers embed", [nn.ModuleList([block]), nn.Embedding(4, 8)])
    colwise = [*(f"self_attn.{name}_proj" for name in "qkv"), "mlp.gate", "mlp.up"]
    kept = {**dict.fromkeys(colwise, "colwise"), "self_attn.o_proj": "rowwise"}
    kept |= {"mlp.down": "rowwise"}
    others = {"fused": "colwise_gather_output", "self_attn.norm": "replicated_with_grad_allreduce"}
    given = {f"layers.*.{name}": style for name, style in (kept | others).items()}
    model.config = SimpleNamespace(base_model_tp_plan=given | {"embed": "embedding_rowwise"})
    kept |= {"self_attn": "heads", "mlp": "colwise", "fused": "colwise_gather"}
    task = Task(model)
    plan = plan_of(task)
    assert plan == {f"network.layers.0.{name}": style for name, style in kept.items()}
    check_plan(task, plan, 2)


def test_layers_without_pairs_are_sharded_where_that_is_possible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A pair is within one stage; a network outside of the tables is told of a plan."""
    task = made("mlp")[0]
    layers = {name: task.get_submodule(name) for name in ("network.0", "network.1")}
    assert find_plan(task, layers, None, 2) == {"network.0": "colwise_gather"}
    single = Task(module("first odd last", linears((8, 16), (16, 5), (5, 8))))
    plan = plan_of(single)
    assert plan == dict.fromkeys(("network.first", "network.last"), "colwise_gather")
    report_plan(single, plan, 2)
    said = capsys.readouterr().out
    assert "strategy.plan can give better styles" in said
    assert "parameters are sharded over 2 ranks; each holds 181" in said


def test_a_given_plan_replaces_the_inferred_one() -> None:
    given = {"block*.mlp": "colwise", "network.block2.mlp.up_proj": "colwise_gather"}
    plan = plan_of(made("gpt")[0], given)
    assert plan["network.block1.mlp.0"] == "colwise"
    assert plan["network.block1.mlp.2"] == "rowwise"
    assert plan["network.block2.mlp.up_proj"] == "colwise_gather"
    assert "network.head" not in plan


QKV = "block1.attention.qkv"
REFUSED: dict[str, tuple[str, Any, int]] = {
    "block*=columns is not a style; use one of col": ("gpt", {"block*": "columns"}, 2),
    "blok1.mlp.0 matches no module; use names": ("gpt", {"blok1.mlp.0": "colwise"}, 2),
    "cannot share the 2 heads of network.block2.attention evenly; use": ("gpt", None, 4),
    "cannot share the 2 heads of network.1.attention evenly": ("fused", None, 4),
    "cannot share the 32 output features of network.0 evenly": ("mlp", None, 3),
    "network.norm is LayerNorm, and rowwise is for Linear": ("gpt", {"norm": "rowwise"}, 2),
    f"network.{QKV} is fused, which is for one projection of q": ("gpt", {QKV: "fused"}, 2),
    "nothing to shard in Task": ("gpt", {}, 2),
    "are one weight, sharded in two ways (unsharded, colwise)": ("tied", {"head": "vocab"}, 2),
}


@pytest.mark.parametrize("line", REFUSED)
def test_it_is_refused_in_a_line(line: str) -> None:
    name, given, size = REFUSED[line]
    task = made("gpt", tied=True)[0] if name == "tied" else made(name)[0]
    with pytest.raises(UserError) as refused:
        check_plan(task, plan_of(task, given), size)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


class Capped(nn.Linear):
    """As in Gemma: the product of a shard would leave out what is done with it."""

    def forward(self, inputs: Any) -> Any:
        return super().forward(inputs).tanh()


def test_a_layer_with_a_forward_of_its_own_is_none_of_pytorchs() -> None:
    task = Task(nn.Sequential(Capped(8, 8), nn.Linear(8, 8)))
    assert plan_of(task) == {"network.1": "colwise_gather"}
    line = "network.0 is Capped, and vocab is for Linear or Embedding; leave it out"
    with pytest.raises(UserError, match=line):
        check_plan(task, plan_of(task, {"0": "vocab"}), 2)
    layer = nn.TransformerEncoderLayer(8, 2, 8)
    layer.register_module("linear1", Capped(8, 8))
    assert "colwise" not in plan_of(Task(layer)).values()


LEAST = {"mlp": 0.97, "gpt": 0.9, "fused": 0.95, "vit": 0.82}


def test_most_of_a_network_is_shared() -> None:
    for name, least in LEAST.items():
        task = made(name)[0]
        full = sum(parameter.numel() for parameter in task.parameters())
        assert sharded_parameters(task, plan_of(task)) / full > least
