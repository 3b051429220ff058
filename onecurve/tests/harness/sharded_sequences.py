"""Networks on sharded sequences in several ranks, compared with the same on full sequences."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import onecurve
from onecurve.strategies.context_parallel import run_on_shards

WIDTH, LENGTH = 16, 12


class Embedding(nn.Module):
    """Tokens and places, whose number is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(10, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, text: Tensor) -> Tensor:
        return self.tokens(text) + self.places(onecurve.positions(text))


class Attention(nn.Module):
    """With four heads, fewer of them for keys and values, and what attention takes beside them."""

    def __init__(self, groups: int = 4, **options: Any) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key_value = nn.Linear(WIDTH, 8 * groups)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.options = options | {"enable_gqa": groups != 4}

    def forward(self, inputs: Tensor, memory: Tensor | None = None, mask: Any = None) -> Tensor:
        memory = inputs if memory is None else memory
        mask = mask.unsqueeze(1) if mask is not None and mask.ndim == 3 else mask
        query = self.query(inputs).view(*inputs.shape[:2], -1, 4).transpose(1, 2)
        key, value = self.key_value(memory).view(*memory.shape[:2], -1, 2, 4).permute(3, 0, 2, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, mask, **self.options)
        return inputs + self.output(seen.transpose(1, 2).flatten(2))


class Checkpointed(nn.Module):
    def __init__(self, layer: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.reentrant = layer, reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.layer(inputs)
        return checkpoint(self.layer, inputs, use_reentrant=self.reentrant)


class Masked(Attention):
    """Makes the mask of what it is given."""

    def __init__(self, make: Callable[[Tensor], Tensor], **options: Any) -> None:
        super().__init__(**options)
        self.make = make

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs, mask=self.make(inputs))


class Biased(Attention):
    """Learns how far it looks, for each head and distance."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 2 * LENGTH))

    def forward(self, inputs: Tensor) -> Tensor:
        far = onecurve.positions(inputs)[:, None] - torch.arange(LENGTH)
        return super().forward(inputs, mask=self.bias[None, :, far + LENGTH])


class KeyBiased(Attention):
    """Says of each position how much it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.much = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs, mask=self.much(inputs).transpose(1, 2).unsqueeze(1))


class Encoder(nn.TransformerEncoder):
    """As nn has it, with its own way to say which positions are padding."""

    def __init__(self, **options: Any) -> None:
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
        super().__init__(layer, 2)
        self.options = options

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        options = dict(self.options)
        if options.pop("padded", False):
            options["src_key_padding_mask"] = inputs[..., 0] > 1
        if options.get("is_causal"):
            options["mask"] = self_mask(inputs)
        return super().forward(inputs, **options)


def self_mask(inputs: Tensor) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], dtype=inputs.dtype)


def some(*shape: int) -> Tensor:
    """True where a mask lets through, at least on the diagonal."""
    drawn = torch.rand(*shape, generator=torch.Generator().manual_seed(0)) < 0.5
    return drawn | torch.eye(*shape[-2:], dtype=torch.bool)


def _hidden() -> tuple[Tensor, ...]:
    return (torch.randn(3, LENGTH, WIDTH),)


def _text() -> tuple[Tensor, ...]:
    return (torch.randint(10, (3, LENGTH)),)


Case = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]
WHOLE = (LENGTH, LENGTH)
CASES: dict[str, Case] = {
    "embedding": (lambda: nn.Sequential(Embedding(), Attention(is_causal=True)), _text),
    "bidirectional": (lambda: nn.Sequential(Attention(), Attention(scale=0.3)), _hidden),
    "causal": (lambda: nn.Sequential(*(Attention(is_causal=True) for _ in range(2))), _hidden),
    "grouped": (lambda: Attention(2, is_causal=True), _hidden),
    "mask": (lambda: Masked(lambda _: some(*WHOLE)), _hidden),
    "mask of each head": (lambda: Masked(lambda _: some(1, 4, *WHOLE)), _hidden),
    "float mask": (lambda: Masked(lambda _: some(3, 1, *WHOLE).double().log()), _hidden),
    "mask that is cut": (Attention, lambda: (*_hidden(), _hidden()[0], some(3, *WHOLE))),
    "mask of a piece's keys": (
        lambda: Masked(lambda inputs: (inputs[..., 0] < 1)[:, None, None]),
        _hidden,
    ),
    "learned bias": (Biased, _hidden),
    "learned bias of keys": (KeyBiased, _hidden),
    "longer memory": (Attention, lambda: (*_hidden(), torch.randn(3, 2 * LENGTH, WIDTH))),
    "causal with a longer memory": (
        lambda: Attention(is_causal=True),
        lambda: (*_hidden(), torch.randn(3, 2 * LENGTH, WIDTH)),
    ),
    "encoder": (Encoder, _hidden),
    "causal encoder": (lambda: Encoder(is_causal=True), _hidden),
    "padded encoder": (lambda: Encoder(padded=True), _hidden),
    "torch's attention": (lambda: OfTorch(need_weights=False), _hidden),
    "recomputed": (lambda: nn.Sequential(Embedding(), *recomputed(False)), _text),
    "recomputed reentrantly": (lambda: nn.Sequential(Embedding(), *recomputed(True)), _text),
    "compiled": (lambda: compiled(Attention(is_causal=True)), _hidden),
}
"""A network and what enters it. A longer memory is not cut."""


class OfTorch(nn.MultiheadAttention):
    def __init__(self, **options: Any) -> None:
        super().__init__(WIDTH, 4, batch_first=True)
        self.options = options

    def forward(self, inputs: Tensor) -> Any:  # type: ignore[override]
        return super().forward(inputs, inputs, inputs, **self.options)[0]


def compiled(layer: nn.Module) -> nn.Module:
    layer.compile(backend="eager", fullgraph=True)
    return layer


def recomputed(reentrant: bool) -> list[nn.Module]:
    return [Checkpointed(Attention(is_causal=True), reentrant) for _ in range(2)]


def differences(names: Sequence[str]) -> dict[str, dict[str, float]]:
    """How far outputs and gradients of pieces are from those of the whole, on any rank."""
    group()
    torch.set_default_dtype(torch.float64)
    try:
        return {name: _difference(*CASES[name]) for name in names}
    finally:
        torch.set_default_dtype(torch.float32)


def in_a_tree() -> dict[str, Any]:
    """How far a network that takes and returns trees is from itself on the whole."""
    group()
    torch.manual_seed(0)
    attention = Attention(is_causal=True)

    def forward(given: dict[str, Any], name: str, *, more: Tensor) -> dict[str, Any]:
        seen = attention(given["inputs"] + more)
        return {name: (seen, 2 * seen[..., None]), "nothing": None}

    (inputs,) = _hidden()
    batch = {"inputs": inputs, "label": 3}
    whole = forward(batch, "seen", more=inputs)
    pieces = run_on_shards(forward, (batch, "seen"), dist.group.WORLD, more=inputs)
    assert pieces["nothing"] is None
    return {
        str(number): float((one - two).abs().max())
        for number, (one, two) in enumerate(zip(whole["seen"], pieces["seen"], strict=True))
    }


def group() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo")


def _difference(make: Any, given: Any) -> dict[str, float]:
    found: list[dict[str, Any]] = []
    for on in (None, dist.group.WORLD):
        torch.manual_seed(0)
        network, inputs = make(), given()
        entering = inputs[0].requires_grad_() if inputs[0].is_floating_point() else None
        found.append({})
        for mode in ("training", "evaluation"):
            network.train(mode == "training")
            with torch.set_grad_enabled(mode == "training"):
                outputs = run_on_shards(network, inputs, on) if on else network(*inputs)
            found[-1][mode] = outputs
            if mode == "training":
                _loss(outputs).backward()
                for path, parameter in network.named_parameters():
                    found[-1][path] = _averaged(parameter.grad) if on else parameter.grad
        if entering is not None:
            found[-1]["inputs"] = entering.grad
    return {
        what: max(
            float((a - b).detach().abs().max() / b.detach().abs().max())
            for a, b in zip(tree_leaves(found[1][what]), tree_leaves(value), strict=True)
        )
        for what, value in found[0].items()
    }


def _loss(outputs: Tensor) -> Tensor:
    """With attention of its own, that is computed again in the backward pass."""

    def seen(values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(values, values, values)

    return (outputs + checkpoint(seen, outputs, use_reentrant=False)).square().mean()


def _averaged(gradient: Tensor) -> Tensor:
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size()
