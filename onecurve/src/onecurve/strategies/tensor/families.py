"""Styles, and attentions and feed-forward networks of one's own that are known by name: tables.

Such a module falls into parts, an attention into its heads, a feed-forward network into hidden
units, whose sum is what the full one makes. All of its linear layers are sharded by their outputs,
but for the last one of its family, which is sharded by its inputs and sums up. Nothing else may
hold a parameter. What has other names, or one projection for queries, keys and values, says by a
method `tensor_plan()` how it is sharded. Linear layers are PyTorch's, and transformers' Conv1D
(GPT-2), whose weight is transposed.
"""

from collections.abc import Iterable
from math import gcd
from typing import Any, NamedTuple, TypeGuard

from torch import nn


class Style(NamedTuple):
    """How a module is sharded."""

    fits: str
    """The modules that it is for, beside those that hold some Linear layers."""
    dims: dict[str, int]
    """The parameters that are sharded, by name within the module, and along which dimension."""


STYLES = {
    "colwise": Style("Linear", {"weight": 0, "bias": 0}),
    "rowwise": Style("Linear", {"weight": 1}),
    "colwise_gather": Style("Linear", {"weight": 0, "bias": 0}),
    "vocab": Style("Linear or Embedding", {"weight": 0, "bias": 0}),
    "heads": Style(
        "MultiheadAttention", {"in_proj_weight": 0, "in_proj_bias": 0, "out_proj.weight": 1}
    ),
    "sequence": Style("", {}),
}
ATTENTIONS = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),  # Llama, Mistral, Qwen2, Gemma
    ("q_proj", "k_proj", "v_proj", "out_proj"),  # CLIP, OPT, BART, Whisper
    ("query", "key", "value", "output"),
    ("query", "key", "value", "out"),
    ("query", "key", "value", "proj"),
    ("q", "k", "v", "o"),  # T5
    ("q", "k", "v", "out"),
    ("q", "k", "v", "proj"),
    ("wq", "wk", "wv", "wo"),  # torchtitan, Meta's Llama
    ("q_lin", "k_lin", "v_lin", "out_lin"),  # DistilBERT
)
FEED_FORWARD = (
    ("gate_proj", "up_proj", "down_proj"),  # Llama
    ("gate", "up", "down"),
    ("w1", "w3", "w2"),  # torchtitan, Meta's Llama
    ("wi_0", "wi_1", "wo"),  # T5 1.1
    ("wi", "wo"),  # T5
    ("up_proj", "down_proj"),
    ("fc1", "fc2"),  # timm, CLIP, OPT
    ("c_fc", "c_proj"),  # nanoGPT
    ("lin1", "lin2"),  # DistilBERT
    ("linear1", "linear2"),
)
STRUCTURES: tuple[dict[str, str], ...] = (
    {  # BERT, RoBERTa, ELECTRA
        "attention.self": "heads",
        "attention.self.query": "colwise",
        "attention.self.key": "colwise",
        "attention.self.value": "colwise",
        "attention.output.dense": "rowwise",
        "intermediate.dense": "colwise",
        "output.dense": "rowwise",
    },
)
"""Blocks whose attention and feed-forward network lie in several modules, by all their layers."""
HEAD_COUNTS = (
    *("heads", "num_heads", "n_heads", "n_head", "nhead", "nheads", "num_attention_heads"),
    *("kv_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads"),
)
"""Attributes that say how many heads there are: on each rank, its own."""


def style_of(module: nn.Module) -> str | None:
    """The style of a module of one of the families; None for any other."""
    held = linears(module)
    own = {id(weight) for layer in held.values() for weight in layer.parameters()}
    if any(id(weight) not in own for weight in module.parameters()):
        return None
    if any(held.keys() == set(family) for family in ATTENTIONS) and heads_of(module):
        return "heads"
    for family in FEED_FORWARD:
        if held.keys() == set(family):
            last, first = held[family[-1]], [held[name] for name in family[:-1]]
            shapes = {(out_features(layer), in_features(layer)) for layer in first}
            return "colwise" if shapes == {(in_features(last), out_features(last))} else None
    return None


def styles_within(module: nn.Module) -> dict[str, str]:
    """Those of the Linear layers of a module that is cut as a whole, by name.

    The one that sums up is the last one of a family, else the last one that the module holds.
    """
    held = linears(module)
    known = [family[-1] for family in ATTENTIONS + FEED_FORWARD if held.keys() == set(family)]
    summing = (known or [*held])[-1]
    return {name: "rowwise" if name == summing else "colwise" for name in held}


def heads_of(module: nn.Module) -> int | None:
    """How many heads of an attention can be shared; None if nothing says so."""
    counts = [*head_counts(module).values()]
    width = getattr(module, "head_dim", None)
    if type(width) is int and width > 0:
        within = styles_within(module)
        counts += [
            (in_features if within[name] == "rowwise" else out_features)(layer) // width
            for name, layer in linears(module).items()
        ]
    return gcd(*counts) if counts else None


def head_counts(module: nn.Module) -> dict[str, int]:
    """How many heads a module says that it has, by attribute."""
    counts = {name: getattr(module, name, None) for name in HEAD_COUNTS}
    return {name: count for name, count in counts.items() if type(count) is int and count > 0}


def structure_of(module: nn.Module) -> dict[str, str] | None:
    """The styles within a module of a known structure; None for any other."""
    held = {name for name, part in module.named_modules() if is_linear(part)}
    for structure in STRUCTURES:
        if held == {name for name, style in structure.items() if style != "heads"}:
            return structure
    return None


def linears(module: nn.Module) -> dict[str, nn.Linear]:
    """The Linear layers that a module holds itself."""
    children: Iterable[tuple[str, Any]] = module.named_children()
    return {name: part for name, part in children if type(part) is nn.Linear or is_transposed(part)}


def is_within(name: str, outer: str) -> bool:
    """Whether a dotted name is that of a module or of something in it."""
    return outer == "" or name == outer or name.startswith(f"{outer}.")


def is_linear(part: Any) -> TypeGuard[nn.Linear]:
    """Whether a module is one: parameters ``weight`` and, it may be, ``bias``."""
    return isinstance(part, nn.Linear) or is_transposed(part)


def is_transposed(part: Any) -> bool:
    """Whether its weight is (in, out)."""
    kind = type(part)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def holds_parameters(part: nn.Module) -> bool:
    """Whether a style means the module's own parameters, and not those of layers within."""
    return is_linear(part) or isinstance(part, nn.Embedding | nn.MultiheadAttention)


def out_features(part: nn.Linear) -> int:
    """How many numbers leave it."""
    return int(part.weight.shape[1 if is_transposed(part) else 0])


def in_features(part: nn.Linear) -> int:
    """How many numbers enter it."""
    return int(part.weight.shape[0 if is_transposed(part) else 1])
