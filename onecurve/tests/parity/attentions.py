"""Networks on sequences, of which each rank of the axis `context` has a shard."""

from collections.abc import Callable
from typing import Any

import torch
from others import LENGTH, WIDTH, Stranger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import onecurve
from onecurve.torch_versions import installed


class Attends(Stranger):
    """Calls attention outside of its network, too, which is computed again in the backward pass."""

    def forward(self, inputs: Tensor, *others: Tensor) -> Any:
        return self.model(inputs, *others)

    def outputs(self, batch: Any) -> Any:
        def attend(values: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(values, values, values)

        made = self.of_network(batch["inputs"])
        return made + checkpoint(attend, made, use_reentrant=False)

    def of_network(self, inputs: Tensor) -> Any:
        return self(inputs)

    def configure_optimizers(self) -> Any:
        # The bias of keys has no gradient but for rounding, by whose size AdamW divides.
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Attention(nn.Module):
    """With four heads, fewer of them for keys and values, and what attention takes beside them."""

    def __init__(self, groups: int = 4, **options: Any) -> None:
        super().__init__()
        self.query, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key_value = nn.Linear(WIDTH, 4 * groups)
        self.options = options | {"enable_gqa": groups != 4}

    def forward(self, inputs: Tensor, memory: Tensor | None = None, mask: Any = None) -> Tensor:
        memory = inputs if memory is None else memory
        query = self.query(inputs).unflatten(-1, (-1, 2)).transpose(1, 2)
        key, value = self.key_value(memory).unflatten(-1, (-1, 2, 2)).permute(3, 0, 2, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, mask, **self.options)
        return inputs + self.output(seen.transpose(1, 2).flatten(2))


def compiled() -> nn.Module:
    """One graph, for which no code is generated."""
    layer = Attention(is_causal=True)
    layer.compile(backend="eager", fullgraph=installed() >= (2, 12))
    return layer


def some(*shape: int) -> Tensor:
    """True where a mask lets through, at least on the diagonal."""
    drawn = torch.rand(*shape, generator=torch.Generator().manual_seed(0)) < 0.5
    return drawn | torch.eye(*shape[-2:], dtype=torch.bool)


class Masked(Attention):
    """Makes the mask of what it is given."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(inputs, mask=self.make(inputs))


class Biased(Attention):
    """Learns how far each head looks, and how much each position is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 2 * LENGTH))
        self.much = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        far = onecurve.positions(inputs)[:, None] - torch.arange(LENGTH)
        inputs = super().forward(inputs, mask=self.bias[None, :, far + LENGTH])
        return super().forward(inputs, mask=self.much(inputs).transpose(1, 2).unsqueeze(1))


class Places(nn.Embedding):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + super().forward(onecurve.positions(inputs))


class Encoder(nn.TransformerEncoder):
    """As nn has it, with its own way to say which positions are padding."""

    def __init__(self, padded: bool = False) -> None:
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
        super().__init__(layer, 2)
        self.padded = padded

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        if self.padded:
            return super().forward(inputs, src_key_padding_mask=inputs[..., 0] > 1)
        causal = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], dtype=inputs.dtype)
        return super().forward(inputs, mask=causal, is_causal=True)


class OfTorch(nn.MultiheadAttention):
    def forward(self, inputs: Tensor) -> Any:  # type: ignore[override]
        return super().forward(inputs, inputs, inputs, need_weights=False)[0]


class Recomputed(Attention):
    def __init__(self, reentrant: bool) -> None:
        super().__init__(is_causal=True)
        self.reentrant = reentrant

    def forward(self, inputs: Tensor) -> Any:  # type: ignore[override]
        return checkpoint(super().forward, inputs, use_reentrant=self.reentrant)


def in_all_directions() -> nn.Module:
    layers = Attention(), Attention(is_causal=True), Attention(2, scale=0.3, is_causal=True)
    return nn.Sequential(Places(LENGTH, WIDTH), *layers)


def masked() -> nn.Module:
    shapes: list[tuple[int, ...]] = [(LENGTH, LENGTH), (1, 4, LENGTH, LENGTH)]
    layers = [Masked(lambda _, shape=shape: some(*shape)) for shape in shapes]  # type: ignore[misc]
    of_samples = Masked(lambda inputs: some(len(inputs), 1, LENGTH, LENGTH).double().log())
    of_own_keys = Masked(lambda inputs: (inputs[..., 0] < 1)[:, None, None])
    return nn.Sequential(*layers, of_samples, of_own_keys)
