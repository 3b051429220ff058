"""Tables of styles, and of attentions and feed-forward networks known by class or names.

The output of such a module is a sum over its heads, or over its hidden units, so ranks can share
them. All of its linear layers are sharded by their outputs, except the last one of the family,
which is sharded by its inputs and whose outputs are summed. No other submodule may hold
parameters. A module that is not in these tables can define a method `tensor_plan()`. Linear layers
are PyTorch's, and transformers' Conv1D (GPT-2), whose weight is transposed. Models of transformers
bring a plan of their own (`plan_of_transformers`), but for many (BERT, GPT-2, OPT, ViT, CLIP, BART,
T5): those are known by names, or each of their Linear layers is sharded by itself.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from math import gcd
from typing import Any, NamedTuple, TypeGuard

from torch import nn


class Style(NamedTuple):
    """How a module is sharded."""

    fits: str
    """The classes of modules that it is for, besides modules that hold some Linear layers."""
    dims: dict[str, int]
    """The dimension along which each parameter is sharded, by name within the module."""


STYLES = {
    "colwise": Style("Linear", {"weight": 0, "bias": 0}),
    "rowwise": Style("Linear", {"weight": 1}),
    "colwise_gather": Style("Linear", {"weight": 0, "bias": 0}),
    "fused": Style("Linear", {"weight": 0, "bias": 0}),
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
GATHERED = (
    ("qkv", "proj"),
    ("qkv_proj", "o_proj"),
    ("qkv_proj", "out_proj"),
    ("c_attn", "c_proj"),  # nanoGPT
)
"""Attentions with one projection of queries, keys and values, in an order that we cannot know.

Each rank holds a shard of both layers, but computes all heads.
"""
OF_TRANSFORMERS = {
    "colwise": "colwise",
    "rowwise": "rowwise",
    "colwise_gather_output": "colwise_gather",
    "rowwise_split_input": "colwise_gather",
}
"""What styles of transformers' plans are here; others (of embeddings, experts) are left out."""
HEAD_COUNTS = (
    *("heads", "num_heads", "n_heads", "n_head", "nhead", "nheads", "num_attention_heads"),
    *("kv_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads"),
)
"""Attributes with the number of heads; each rank sets them to the number of its own heads."""
HEADS_WIDTH = "all_head_size"
"""In transformers, the attribute with the features of all heads; set per rank like these."""


class Known(NamedTuple):
    """How a module of a certain class is sharded."""

    styles: dict[str, str]
    """Styles by path within the module, "" for the module itself."""
    counts: tuple[str, ...] = ()
    """Attributes with numbers of heads or features that `forward` uses; set per rank."""


CLASSES = {
    "transformers.GPT2Attention": Known(
        {"": "heads", "c_attn": "fused", "c_proj": "rowwise"}, ("num_heads", "split_size")
    ),
    "timm.Attention": Known(
        {"": "heads", "qkv": "fused", "proj": "rowwise"}, ("num_heads", "attn_dim")
    ),
    # minGPT, whose forward reads the width from its input.
    "CausalSelfAttention": Known(
        dict.fromkeys(("key", "query", "value", "proj"), "colwise_gather")
    ),
}
"""By package and class that defines `forward`; without a package for code that people copy."""


def family_of(module: nn.Module) -> dict[str, str] | None:
    """The styles of a known module by path within it, "" for itself; None if it is not known."""
    held = linears(module)
    own = {id(weight) for layer in held.values() for weight in layer.parameters()}
    if any(id(weight) not in own for weight in module.parameters()):
        return None
    if known := _known(module):
        return known.styles
    if any(held.keys() == set(family) for family in ATTENTIONS) and heads_of(module):
        return {"": "heads", **styles_within(module)}
    for family in FEED_FORWARD:
        if held.keys() == set(family):
            last, first = held[family[-1]], [held[name] for name in family[:-1]]
            shapes = {(out_features(layer), in_features(layer)) for layer in first}
            if shapes != {(in_features(last), out_features(last))}:
                return None
            # The input is read once for several layers.
            return ({"": "colwise"} if len(first) > 1 else {}) | styles_within(module)
    if any(held.keys() == set(family) for family in GATHERED):
        return dict.fromkeys(held, "colwise_gather")
    return None


def _known(module: nn.Module) -> Known | None:
    owner = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    package, name = owner.__module__.partition(".")[0], owner.__name__
    known = CLASSES.get(f"{package}.{name}") or CLASSES.get(name)
    # In another release the class may have other layers or attributes.
    if known is None or known.styles.keys() - {""} != linears(module).keys():
        return None
    return known if len(_numbers(module, known.counts)) == len(known.counts) else None


def styles_within(module: nn.Module) -> dict[str, str]:
    """The styles of the Linear layers of a module whose heads or hidden units are shared, by name.

    Rowwise is the last layer of its family, or else the last layer that the module holds.
    """
    held = linears(module)
    known = _known(module)
    if known and "rowwise" in known.styles.values():
        return {name: known.styles[name] for name in held}
    last = [family[-1] for family in ATTENTIONS + FEED_FORWARD if held.keys() == set(family)]
    summing = (last or [*held])[-1]
    return {name: "rowwise" if name == summing else "colwise" for name in held}


def heads_of(module: nn.Module, styles: Mapping[str, str] | None = None) -> int | None:
    """The number of heads that ranks can share; None if it cannot be determined.

    The styles are by path within the attention, by default those of its family.
    """
    counts = [count for name, count in counts_of(module).items() if name != HEADS_WIDTH]
    width = getattr(module, "head_dim", None)
    if type(width) is int and width > 0:
        styles = styles or {"": "heads", **styles_within(module)}
        for name, layer in linears(module).items():
            style = styles.get(name)
            if style == "fused":
                features = sections_of(module, styles, name) or []
            else:
                features = [in_features(layer) if style == "rowwise" else out_features(layer)]
            counts += [number // width for number in features]
    return gcd(*counts) if counts else None


def sections_of(module: nn.Module, styles: Mapping[str, str], fused: str) -> list[int] | None:
    """The sizes of the sections of a fused projection: queries, keys and values, for example.

    In a feed-forward network the sections are gates and hidden units. The rowwise layer reads as
    many features as there are queries, or hidden units; there may be fewer keys and values.

    Returns:
        None if the projection cannot be divided like that.
    """
    held = linears(module)
    summing = [layer for name, layer in held.items() if styles.get(name) == "rowwise"]
    if fused not in held or len(summing) != 1:
        return None
    number, used = out_features(held[fused]), in_features(summing[0])
    if styles.get("") == "heads" and number > used and (number - used) % 2 == 0:
        return [used, (number - used) // 2, (number - used) // 2]
    return [used] * (number // used) if styles.get("") == "colwise" and number % used == 0 else None


def counts_of(module: nn.Module) -> dict[str, int]:
    """The numbers of heads or features that a module keeps, by attribute."""
    known = _known(module)
    return _numbers(module, known.counts if known else (*HEAD_COUNTS, HEADS_WIDTH))


def _numbers(module: nn.Module, names: Iterable[str]) -> dict[str, int]:
    counts = {name: getattr(module, name, None) for name in names}
    return {name: count for name, count in counts.items() if type(count) is int and count > 0}


def share_counts(module: nn.Module, size: int) -> None:
    """Divide a module's numbers of heads or features by the number of ranks."""
    for name, count in counts_of(module).items():
        if count % size == 0:
            setattr(module, name, count // size)


def plan_of_transformers(module: nn.Module) -> dict[str, str]:
    """The styles that transformers plans for a model of its own, ``config.base_model_tp_plan``.

    Its attentions and gated feed-forward networks read their input once, for several layers. Empty
    for any other module, and for models that have no such plan (BERT, GPT-2, OPT, ViT, ...).
    """
    globs = getattr(getattr(module, "config", None), "base_model_tp_plan", None) or {}
    styles: dict[str, str] = {}
    for name, part in module.named_modules():
        found = [style for glob, style in globs.items() if fnmatchcase(name, glob)]
        if found and is_linear(part) and found[0] in OF_TRANSFORMERS:
            styles[name] = OF_TRANSFORMERS[found[0]]
    for outer in {name.rpartition(".")[0] for name, style in styles.items() if style == "rowwise"}:
        part, inner = module.get_submodule(outer), within(styles, outer)
        if heads_of(part, inner | {"": "heads"}):
            styles[outer] = "heads"
        elif [*inner.values()].count("colwise") > 1:
            styles[outer] = "colwise"
    return styles


def linears(module: nn.Module) -> dict[str, nn.Linear]:
    """The Linear layers among a module's children."""
    children: Iterable[tuple[str, Any]] = module.named_children()
    return {
        name: part
        for name, part in children
        if is_linear(part) and (type(part) is nn.Linear or is_transposed(part))
    }


def is_within(name: str, outer: str) -> bool:
    """Whether a dotted name is that of a module or of one of its submodules."""
    return outer == "" or name == outer or name.startswith(f"{outer}.")


def within(plan: Mapping[str, str], outer: str) -> dict[str, str]:
    """The styles of a module and its submodules, by path within it."""
    return {
        name[len(outer) :].lstrip("."): style
        for name, style in plan.items()
        if is_within(name, outer)
    }


def is_linear(part: Any) -> TypeGuard[nn.Linear]:
    """Whether a module computes as nn.Linear, or Conv1D of transformers, with its own weight.

    None whose weight is computed from other parameters, as by ``weight_norm``.
    """
    computes = calls_as(part, nn.Linear) or is_transposed(part)
    return computes and "weight" in dict(part.named_parameters(recurse=False))


def calls_as(part: Any, kind: type[nn.Module]) -> bool:
    """Whether a module is of a class, and none of a subclass with a `forward` of its own."""
    return isinstance(part, kind) and type(part).forward is kind.forward


def is_transposed(part: Any) -> bool:
    """Whether a module's weight is (in, out)."""
    kind = type(part)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def holds_parameters(part: nn.Module) -> bool:
    """Whether a style applies to the module's own parameters, not to those of its submodules."""
    return is_linear(part) or any(
        calls_as(part, kind) for kind in (nn.Embedding, nn.MultiheadAttention)
    )


def is_divided(part: nn.Module, style: str) -> bool:
    """Whether a style means that ranks share the module's heads or hidden units."""
    return not holds_parameters(part) and style in ("heads", "colwise") and len(linears(part)) > 1


def out_features(part: nn.Linear) -> int:
    """Like the attribute, which Conv1D does not have."""
    return int(part.weight.shape[1 if is_transposed(part) else 0])


def in_features(part: nn.Linear) -> int:
    """Like the attribute, which Conv1D does not have."""
    return int(part.weight.shape[0 if is_transposed(part) else 1])
