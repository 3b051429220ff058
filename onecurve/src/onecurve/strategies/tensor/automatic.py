"""The plan of a network that has none: what can be cut for certain, and nothing else."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lightning.pytorch import LightningModule
from torch import nn

from ...compat.of_torch import has_one_projection
from ..layers import find_layers
from .families import family_of, is_linear, is_within

ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign),
    *(nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Threshold),
    *(nn.Identity, nn.Dropout),
)
PER_POSITION = (nn.LayerNorm, nn.RMSNorm)
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.TransformerEncoder)


class Automatic:
    """The plan that is found by looking at modules.

    Cut are: pairs of Linear layers with nothing but elementwise layers between them, in one
    nn.Sequential or in the sequence of the network's layers, and one that is left there over;
    nn.MultiheadAttention, and what PyTorch's transformer layers hold beside it; modules that are
    known by class or names (`families.py`). Blocks around an attention that hold norms besides
    work on pieces of a sequence, and so do norms behind them in an nn.Sequential. Where that is
    nothing, every Linear layer is cut, each by itself.

    Attributes:
        plan: All that is cut, and how.
    """

    def __init__(
        self,
        module: LightningModule,
        layers: Mapping[str, nn.Module],
        with_own_plan: Sequence[str],
        plan: Mapping[str, str],
        size: int | None,
    ) -> None:
        self.with_own_plan = with_own_plan
        self.size = size
        self.plan = dict(plan)
        self.modules = [*module.modules()]
        self.families: dict[type[nn.Module], bool] = {}
        uses = Counter(id(weight) for _, weight in module.named_parameters(remove_duplicate=False))
        # What is used in two places cannot be cut for one of them.
        self.tied = {weight for weight, number in uses.items() if number > 1}
        chain = find_layers(module) or {}
        again = Counter(id(layer) for layer in chain.values())
        for name, layer in layers.items():
            self._look(name, layer)
        if layers.keys() <= chain.keys():
            self._pair((name, layer) for name, layer in layers.items() if again[id(layer)] == 1)
        if not self.plan:
            for name, layer in layers.items():
                self._each(name, layer)
        for name, layer in layers.items():
            self._blocks(name, layer)
        self._norms_behind(dict(module.named_modules()))

    def _can(self, name: str, layer: nn.Module) -> bool:
        if self._has_own_plan(name):
            return False
        return not any(id(weight) in self.tied for weight in layer.parameters())

    def _has_own_plan(self, name: str) -> bool:
        return any(is_within(name, outer) for outer in self.with_own_plan)

    def _look(self, name: str, layer: nn.Module) -> None:
        if name in self.plan or self._has_own_plan(name):
            return
        if isinstance(layer, nn.MultiheadAttention):
            if self._can(name, layer) and is_plain(layer):
                self.plan[name] = "heads"
            return
        if isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            if self._can(name, layer):
                self.plan |= {_in(name, "linear1"): "colwise", _in(name, "linear2"): "rowwise"}
        elif type(layer) is nn.Sequential or isinstance(layer, nn.Sequential):
            if type(layer).forward is nn.Sequential.forward:
                self._pair((_in(name, child), part) for child, part in layer.named_children())
        elif (family := self._family(layer)) and self._can(name, layer):
            self.plan |= {_in(name, path).rstrip("."): style for path, style in family.items()}
        for child, part in layer.named_children():
            self._look(_in(name, child), part)

    def _family(self, layer: nn.Module) -> dict[str, str] | None:
        """Of a module whose kind has one wherever it is: T5's first attention makes all biases."""
        kind = type(layer)
        if kind not in self.families:
            alike = [family_of(other) for other in self.modules if type(other) is kind]
            self.families[kind] = all(alike)
        return family_of(layer) if self.families[kind] else None

    def _pair(self, ordered: Iterable[tuple[str, nn.Module]]) -> None:
        waiting: tuple[str, nn.Linear] | None = None
        for name, layer in ordered:
            if type(layer) is nn.Linear and is_linear(layer) and self._can(name, layer):
                if waiting is None:
                    waiting = name, layer
                else:
                    self.plan |= {waiting[0]: "colwise", name: "rowwise"}
                    waiting = None
            elif not isinstance(layer, ELEMENTWISE):
                self._left_over(waiting)
                waiting = None
        self._left_over(waiting)

    def _left_over(self, waiting: tuple[str, nn.Linear] | None) -> None:
        # Outputs of any number, such as classes: they need not be cut.
        if waiting and waiting[1].out_features % (self.size or 1) == 0:
            self.plan[waiting[0]] = "colwise_gather"

    def _each(self, name: str, layer: nn.Module) -> None:
        for path, part in layer.named_modules():
            within = _in(name, path).rstrip(".")
            if type(part) is nn.Linear and is_linear(part) and self._can(within, part):
                self._left_over((within, part))

    def _blocks(self, name: str, layer: nn.Module) -> bool:
        """Find the innermost blocks within; whether there are any."""
        found = [self._blocks(_in(name, child), part) for child, part in layer.named_children()]
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
            is_cut = any(is_within(path, cut) for cut in self.plan)
            held = [*part.parameters(recurse=False)]
            if held and not is_cut and not isinstance(part, PER_POSITION):
                return False
        if any(weight.ndim > 1 for weight in layer.parameters(recurse=False)):
            return False
        self.plan[name] = "sequence"
        return True

    def _norms_behind(self, parts: Mapping[str, nn.Module]) -> None:
        blocks = {name for name, style in self.plan.items() if style == "sequence"}
        for holder in {name.rpartition(".")[0] for name in blocks}:
            before = ""
            for child, part in parts[holder].named_children():
                name = _in(holder, child)
                follows = isinstance(parts[holder], nn.Sequential) and before in self.plan
                if follows and self.plan[before] == "sequence" and isinstance(part, PER_POSITION):
                    self.plan[name] = "sequence"
                before = name


def is_plain(layer: nn.MultiheadAttention) -> bool:
    """Whether queries, keys and values come from inputs of one width, and from nowhere else."""
    return has_one_projection(layer) and layer.bias_k is None and not layer.add_zero_attn


def _in(holder: str, child: str) -> str:
    return f"{holder}.{child}" if holder else child
