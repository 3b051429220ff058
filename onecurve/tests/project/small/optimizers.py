"""PyTorch's optimizers."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field
from torch import nn
from torch.optim import SGD, AdamW

Rate = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


def adamw(
    parameters: Iterable[nn.Parameter],
    lr: Rate,
    betas: Sequence[float] = (0.9, 0.999),
    weight_decay: Decay = 0.01,
    **options: Any,
) -> AdamW:
    first, second = betas
    return AdamW(parameters, lr, (first, second), weight_decay=weight_decay, **options)


def sgd(parameters: Iterable[nn.Parameter], lr: Rate, momentum: Share = 0, **options: Any) -> SGD:
    return SGD(parameters, lr, momentum, **options)
