"""Infers the plan of a network that has none: only what can certainly be sharded."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ...compat.of_torch import has_one_projection
from .families import (
    calls_as,
    is_linear,
    is_within,
    known_styles,
    linears,
    out_features,
    plan_of_transformers,
)

ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign),
    *(nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Threshold),
    *(nn.Identity, nn.Dropout),
)
PER_POSITION = (nn.LayerNorm, nn.RMSNorm)
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.TransformerEncoder)


class InferredPlan:
    """Infers a plan from the classes of modules.

    These are sharded: pairs of Linear layers with only elementwise layers between them in one
    nn.Sequential, and a single Linear layer that is left over there; nn.MultiheadAttention, and the
    feed-forward networks of PyTorch's transformer layers; what transformers plans for its models;
    a few classes of timm and GPT-2 (`families.py`). If none of this applies, every Linear layer is
    sharded by itself. Blocks that hold an attention and norms can work on sharded sequences.

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
        parts = dict(module.named_modules())
        for name, part in parts.items():
            self._add_plan_of_transformers(name, part)
        self._add_known("", module)
        if not self.plan:
            for name, part in parts.items():
                self._add_single_linear(name, part)
        self._add_sequence_blocks("", module)

    def _may_shard(self, name: str, part: nn.Module) -> bool:
        if self._has_own_plan(name):
            return False
        return not any(id(weight) in self.tied for weight in part.parameters())

    def _has_own_plan(self, name: str) -> bool:
        return any(is_within(name, outer) for outer in self.with_own_plan)

    def _add_plan_of_transformers(self, name: str, part: nn.Module) -> None:
        for path, style in plan_of_transformers(part).items():
            full_name = _in(name, path)
            if self._may_shard(full_name, part.get_submodule(path)):
                self.plan.setdefault(full_name, style)

    def _add_known(self, name: str, part: nn.Module) -> None:
        if name in self.plan or self._has_own_plan(name):
            return
        styles = _styles_of(part)
        if styles and self._may_shard(name, part):
            self.plan |= {_in(name, path): style for path, style in styles.items()}
        if calls_as(part, nn.Sequential):
            self._pair((_in(name, child), layer) for child, layer in part.named_children())
        if name not in self.plan:
            for child, layer in part.named_children():
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

    def _add_single_linear(self, name: str, part: Any) -> None:
        is_free = type(part) is nn.Linear and is_linear(part) and self._may_shard(name, part)
        # A number of outputs that does not divide, such as classes, is left unsharded.
        if is_free and out_features(part) % (self.size or 1) == 0:
            self.plan[name] = "colwise_gather"

    def _add_sequence_blocks(self, name: str, layer: nn.Module) -> bool:
        """Add the innermost blocks that can work on sharded sequences; whether there are any."""
        children = [(_in(name, child), part) for child, part in layer.named_children()]
        found = [self._add_sequence_blocks(*child) for child in children]
        if any(found):
            return True
        within = {_in(name, path): part for path, part in layer.named_modules() if path}
        attends = any(self.plan.get(path) == "heads" for path in within)
        norms = any(isinstance(part, PER_POSITION) for part in within.values())
        if self._has_own_plan(name):
            return norms
        if not attends or not norms or isinstance(layer, CONTAINERS):
            return False
        for path, part in within.items():
            is_sharded = any(is_within(path, outer) for outer in self.plan)
            held = [*part.parameters(recurse=False)]
            if held and not is_sharded and not isinstance(part, PER_POSITION):
                return False
        if any(weight.ndim > 1 for weight in layer.parameters(recurse=False)):
            return False
        self.plan[name] = "sequence"
        return True


def _styles_of(part: nn.Module) -> dict[str, str]:
    """The styles within a module of a known class; none for others."""
    if isinstance(part, nn.MultiheadAttention):
        return {"": "heads"} if is_plain(part) else {}
    if calls_as(part, nn.TransformerEncoderLayer) or calls_as(part, nn.TransformerDecoderLayer):
        styles = {"linear1": "colwise", "linear2": "rowwise"}
        return styles if styles.keys() <= linears(part).keys() else {}  # not those of LoRA
    return known_styles(part)


def is_plain(layer: nn.MultiheadAttention) -> bool:
    """Whether queries, keys and values are projections of inputs of one width, and nothing else."""
    plain = calls_as(layer, nn.MultiheadAttention) and has_one_projection(layer)
    return plain and layer.bias_k is None and not layer.add_zero_attn


def _in(holder: str, child: str) -> str:
    return f"{holder}.{child}".strip(".")
