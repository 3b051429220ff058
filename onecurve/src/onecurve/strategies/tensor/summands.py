"""Modules of one's own that fall into parts, whose sum is what the whole makes.

An attention falls into its heads, a feed-forward network into hidden units: all of its Linear
layers are cut by their outputs, but for one, which is cut by its inputs and sums up. Whether a
module is such a one is not read from names: it is tried out.
"""

from math import gcd

import torch
from torch import Tensor, nn

from ..trial import evaluating

HEAD_COUNTS = (
    *("heads", "num_heads", "n_heads", "n_head", "nhead", "nheads", "num_attention_heads"),
    *("kv_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads"),
)
"""Attributes that say how many heads there are: on each rank, its own."""


def is_within(name: str, outer: str) -> bool:
    """Whether a dotted name is that of a module or of something in it."""
    return outer == "" or name == outer or name.startswith(f"{outer}.")


def head_counts(module: nn.Module) -> dict[str, int]:
    """How many heads a module says that it has, by attribute."""
    counts = {name: getattr(module, name, None) for name in HEAD_COUNTS}
    return {name: count for name, count in counts.items() if type(count) is int and count > 0}


def heads_of(module: nn.Module, summing: nn.Linear | None) -> int | None:
    """How many heads can be shared; None if nothing says so.

    Args:
        module: An attention.
        summing: Its Linear that reads the heads' outputs.
    """
    counts = head_counts(module)
    width = getattr(module, "head_dim", None)
    if counts:
        return gcd(*counts.values())
    if summing is not None and type(width) is int and width > 0:
        return summing.in_features // width
    return None


def linears(module: nn.Module) -> dict[str, nn.Linear]:
    """The Linear layers that a module holds itself."""
    return {name: part for name, part in module.named_children() if type(part) is nn.Linear}


def find_summing(module: nn.Module) -> str | None:
    """Try whether the parts of a module add up to the whole.

    It is run on numbers of its own, on the CPU, with weights drawn for it: neither the module nor
    the random numbers of the run change.

    Returns:
        The name of the Linear that sums up; None if none does, or if the module cannot be called
        with one tensor (N, T, features).
    """
    held = linears(module)
    ids = {id(weight) for layer in held.values() for weight in layer.parameters()}
    if len(held) < 2 or any(id(weight) not in ids for weight in module.parameters()):
        return None
    for last in reversed(held):
        heads = heads_of(module, held[last])
        size = next((number for number in (2, 3, 5, 7) if (heads or 2) % number == 0), None)
        if size is not None and _adds_up(module, held, last, size):
            return last
    return None


def _adds_up(module: nn.Module, held: dict[str, nn.Linear], last: str, size: int) -> bool:
    widths = {layer.in_features for name, layer in held.items() if name != last}
    out = held[last].out_features
    cut = [held[last].in_features, *(x.out_features for n, x in held.items() if n != last)]
    if widths != {out} or any(features % size for features in cut):
        return False
    draws = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, device="cpu")

    weights = {
        name: (
            drawn(layer.out_features, layer.in_features) / layer.in_features**0.5,
            None if layer.bias is None else drawn(layer.out_features),
        )
        for name, layer in held.items()
    }
    inputs = drawn(2, 5, out)

    def made(part: int, parts: int) -> Tensor:
        layers: dict[str, nn.Module] = {}
        for name, (weight, bias) in weights.items():
            if name == last:
                own = weight.chunk(parts, 1)[part], None if bias is None else bias / parts
            else:
                own = weight.chunk(parts)[part], None if bias is None else bias.chunk(parts)[part]
            layers[name] = _linear(*own)
        with evaluating(module):
            outputs: Tensor = _copy_of(module, layers, parts)(inputs)
        return outputs

    # It may be anything: a module that wants other inputs has not been shown to fall into parts.
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            whole = made(0, 1)
            total = torch.stack([made(part, size) for part in range(size)]).sum(0)
        return bool(whole.shape == inputs.shape and torch.dist(whole, total) <= 1e-4 * whole.norm())
    except Exception:
        return False


def _copy_of(module: nn.Module, layers: dict[str, nn.Module], parts: int) -> nn.Module:
    """The module with other Linear layers and its share of heads; hooks stay behind."""
    copy = object.__new__(type(module))
    empty = vars(nn.Module())
    copy.__dict__ = {**vars(module), **{key: empty[key] for key in empty if "hooks" in key}}
    copy.__dict__["_modules"] = {**module._modules, **layers}
    copy.__dict__ |= {name: count // parts for name, count in head_counts(module).items()}
    return copy


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight)
    layer.bias = None if bias is None else nn.Parameter(bias)  # type: ignore[assignment]
    return layer
