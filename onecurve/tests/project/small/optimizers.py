"""PyTorch's optimizers."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW


def adamw(parameters: Iterable[nn.Parameter], lr: float, **options: Any) -> AdamW:
    return AdamW(parameters, lr, **options)


def sgd(parameters: Iterable[nn.Parameter], lr: float, **options: Any) -> SGD:
    return SGD(parameters, lr, **options)
