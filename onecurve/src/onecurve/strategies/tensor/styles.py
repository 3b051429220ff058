"""Styles of layers, the modules whose styles are known, and the plan of a network without one.

The output of an attention, or of a feed-forward network, is a sum over its heads, or over its
hidden units, so ranks can share them: all of its linear layers are sharded by their outputs, except
the last one, which is sharded by its inputs and whose outputs are summed. Linear layers are
PyTorch's, and transformers' Conv1D (GPT-2), whose weight is transposed. Of a network without a
plan only what can certainly be sharded is (`InferredPlan`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
}
KNOWN = {
    "timm.Attention": {"": "heads", "qkv": "fused", "proj": "rowwise"},
    "timm.Mlp": {"fc1": "colwise", "fc2": "rowwise"},
    "transformers.GPT2Attention": {"": "heads", "c_attn": "fused", "c_proj": "rowwise"},
    "transformers.GPT2MLP": {"c_fc": "colwise", "c_proj": "rowwise"},
    # nanoGPT; its attention reshapes by the width of its input, so a rank computes all heads.
    "CausalSelfAttention": dict.fromkeys(("c_attn", "c_proj"), "colwise_gather"),
    "MLP": {"c_fc": "colwise", "c_proj": "rowwise"},
}
"""Styles by path within a module, "" for itself, by the class that defines its `forward`.

A class without a package is that of anybody who has copied it.
"""
OF_TRANSFORMERS = {
    "colwise": "colwise",
    "rowwise": "rowwise",
    "colwise_gather_output": "colwise_gather",
    "rowwise_split_input": "colwise_gather",
}
"""What styles of transformers' plans are here; others (of embeddings, experts) are left out."""
COUNTS = (
    *("heads", "num_heads", "n_heads", "n_head", "nhead", "nheads", "num_attention_heads"),
    *("kv_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads"),
    *("split_size", "attn_dim"),  # GPT-2, timm
)
"""Attributes with numbers of heads, or of their features; each rank sets them to those it has."""


def known_styles(module: nn.Module) -> dict[str, str]:
    """The styles of a known class by path within it; none if it, or its release, is not known."""
    owner = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    of_package = f"{owner.__module__.partition('.')[0]}.{owner.__name__}"
    styles = KNOWN.get(of_package) or KNOWN.get(owner.__name__)
    layers = linears(module)
    if styles is None or layers.keys() != styles.keys() - {""}:
        return {}
    inside = {id(weight) for layer in layers.values() for weight in layer.parameters()}
    return styles if all(id(weight) in inside for weight in module.parameters()) else {}


def styles_within(module: nn.Module) -> dict[str, str]:
    """The styles of the Linear layers of a module whose heads or hidden units are shared, by name.

    Rowwise is the last layer that the module holds, unless its plan says otherwise.
    """
    layers = linears(module)
    return dict.fromkeys(layers, "colwise") | dict.fromkeys([*layers][-1:], "rowwise")


def heads_of(module: nn.Module, styles: Mapping[str, str] | None = None) -> int | None:
    """The number of heads that ranks can share; None if it cannot be determined.

    The styles are by path within the attention.
    """
    counts = [*counts_of(module).values()]
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
    layers = linears(module)
    summing = [layer for name, layer in layers.items() if styles.get(name) == "rowwise"]
    if fused not in layers or len(summing) != 1:
        return None
    number, used = out_features(layers[fused]), in_features(summing[0])
    if styles.get("") == "heads" and number > used and (number - used) % 2 == 0:
        return [used, (number - used) // 2, (number - used) // 2]
    return [used] * (number // used) if styles.get("") == "colwise" and number % used == 0 else None


def counts_of(module: nn.Module) -> dict[str, int]:
    """The numbers of heads or features that a module keeps, by attribute."""
    counts = {name: getattr(module, name, None) for name in COUNTS}
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
    for name, submodule in module.named_modules():
        style = next((style for glob, style in globs.items() if fnmatchcase(name, glob)), None)
        if is_linear(submodule) and style in OF_TRANSFORMERS:
            styles[name] = OF_TRANSFORMERS[style]
    for outer in {name.rpartition(".")[0] for name, style in styles.items() if style == "rowwise"}:
        submodule, inner = module.get_submodule(outer), within(styles, outer)
        if heads_of(submodule, inner | {"": "heads"}):
            styles[outer] = "heads"
        elif [*inner.values()].count("colwise") > 1:
            styles[outer] = "colwise"
    return styles


def linears(module: nn.Module) -> dict[str, nn.Linear]:
    """The Linear layers among a module's children."""
    children: Iterable[tuple[str, Any]] = module.named_children()
    return {
        name: child
        for name, child in children
        if is_linear(child) and (type(child) is nn.Linear or is_transposed(child))
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


def is_linear(module: Any) -> TypeGuard[nn.Linear]:
    """Whether a module computes as nn.Linear, or Conv1D of transformers, with its own weight.

    None whose weight is computed from other parameters, as by ``weight_norm``.
    """
    computes = calls_as(module, nn.Linear) or is_transposed(module)
    return computes and "weight" in dict(module.named_parameters(recurse=False))


def calls_as(module: Any, kind: type[nn.Module]) -> bool:
    """Whether a module is of a class, and none of a subclass with a `forward` of its own."""
    return isinstance(module, kind) and type(module).forward is kind.forward


def is_transposed(module: Any) -> bool:
    """Whether a module's weight is (in, out)."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def holds_parameters(module: nn.Module) -> bool:
    """Whether a style applies to the module's own parameters, not to those of its submodules."""
    return is_linear(module) or any(
        calls_as(module, kind) for kind in (nn.Embedding, nn.MultiheadAttention)
    )


def is_divided(part: nn.Module, style: str) -> bool:
    """Whether a style means that ranks share the module's heads or hidden units."""
    return not holds_parameters(part) and style in ("heads", "colwise") and len(linears(part)) > 1


def out_features(layer: nn.Linear) -> int:
    """Like the attribute, which Conv1D does not have."""
    return int(layer.weight.shape[1 if is_transposed(layer) else 0])


def in_features(layer: nn.Linear) -> int:
    """Like the attribute, which Conv1D does not have."""
    return int(layer.weight.shape[0 if is_transposed(layer) else 1])


ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign),
    *(nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Threshold),
    *(nn.Identity, nn.Dropout),
)


class InferredPlan:
    """Infers a plan from the classes of modules.

    These are sharded: pairs of Linear layers with only elementwise layers between them in one
    nn.Sequential, and a single Linear layer that is left over there; nn.MultiheadAttention, and the
    feed-forward networks of PyTorch's transformer layers; what transformers plans for its models;
    a few classes of timm and GPT-2 (`KNOWN`). If none of this applies, every Linear layer is
    sharded by itself.

    Attributes:
        plan: The styles by module name.
    """

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[str],
        with_own_plan: Sequence[str],
        plan: Mapping[str, str],
        size: int | None,
    ) -> None:
        self.with_own_plan = with_own_plan
        self.size = size
        self.plan = dict(plan)
        uses = Counter(id(weight) for _, weight in module.named_parameters(remove_duplicate=False))
        # A weight that is used in two places cannot be sharded for one of them.
        self.tied = {weight for weight, number in uses.items() if number > 1}
        self.layers = layers
        modules = dict(module.named_modules())
        for name, submodule in modules.items():
            self._add_plan_of_transformers(name, submodule)
        self._add_known("", module)
        if not self.plan:
            for name, submodule in modules.items():
                self._add_single_linear(name, submodule)

    def _may_shard(self, name: str, module: nn.Module) -> bool:
        if self._has_own_plan(name):
            return False
        return not any(id(weight) in self.tied for weight in module.parameters())

    def _has_own_plan(self, name: str) -> bool:
        return any(is_within(name, outer) for outer in self.with_own_plan)

    def _add_plan_of_transformers(self, name: str, module: nn.Module) -> None:
        for path, style in plan_of_transformers(module).items():
            full_name = _in(name, path)
            if self._may_shard(full_name, module.get_submodule(path)):
                self.plan.setdefault(full_name, style)

    def _add_known(self, name: str, module: nn.Module) -> None:
        if name in self.plan or self._has_own_plan(name):
            return
        styles = _styles_of(module)
        if styles and self._may_shard(name, module):
            self.plan |= {_in(name, path): style for path, style in styles.items()}
        if calls_as(module, nn.Sequential):
            self._pair((_in(name, child), layer) for child, layer in module.named_children())
        if name not in self.plan:
            for child, layer in module.named_children():
                self._add_known(_in(name, child), layer)

    def _pair(self, ordered: Iterable[tuple[str, nn.Module]]) -> None:
        waiting: tuple[str, nn.Module] | None = None
        for name, layer in ordered:
            if not any(is_within(name, outer) for outer in self.layers):
                continue  # a pair never spans two stages of a pipeline
            if type(layer) is nn.Linear and is_linear(layer) and self._may_shard(name, layer):
                if waiting is None:
                    waiting = name, layer
                else:
                    self.plan |= {waiting[0]: "colwise", name: "rowwise"}
                    waiting = None
            elif not isinstance(layer, ELEMENTWISE) and waiting is not None:
                self._add_single_linear(*waiting)
                waiting = None
        if waiting is not None:
            self._add_single_linear(*waiting)

    def _add_single_linear(self, name: str, layer: Any) -> None:
        is_free = type(layer) is nn.Linear and is_linear(layer) and self._may_shard(name, layer)
        # A number of outputs that does not divide, such as classes, is left unsharded.
        if is_free and out_features(layer) % (self.size or 1) == 0:
            self.plan[name] = "colwise_gather"


def _styles_of(module: nn.Module) -> dict[str, str]:
    """The styles within a module of a known class; none for others."""
    if isinstance(module, nn.MultiheadAttention):
        return {"": "heads"} if is_plain(module) else {}
    if calls_as(module, nn.TransformerEncoderLayer) or calls_as(module, nn.TransformerDecoderLayer):
        styles = {"linear1": "colwise", "linear2": "rowwise"}
        return styles if styles.keys() <= linears(module).keys() else {}  # not those of LoRA
    return known_styles(module)


def is_plain(layer: nn.MultiheadAttention) -> bool:
    """Whether queries, keys and values are projections of inputs of one width, and nothing else."""
    plain = calls_as(layer, nn.MultiheadAttention) and layer.in_proj_weight is not None
    return plain and layer.bias_k is None and not layer.add_zero_attn


def _in(holder: str, child: str) -> str:
    return f"{holder}.{child}".strip(".")
