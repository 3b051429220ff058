"""PyTorch's optimizers, with limits for what they are given."""

from collections.abc import Iterable
from typing import Annotated, Any, TypedDict, Unpack

from torch import nn
from torch.optim import SGD, AdamW

from onecurve.limits import Number


class Options(TypedDict, total=False):
    """Arguments that have a limit; the others are passed on as they are."""

    weight_decay: Annotated[float, Number(least=0)]
    momentum: Annotated[float, Number(least=0, most=1)]


def adamw(
    parameters: Iterable[nn.Parameter],
    lr: Annotated[float, Number(above=0)],
    **options: Unpack[Options],
) -> AdamW:
    plain: dict[str, Any] = {**options}
    return AdamW(parameters, lr, **plain)


def sgd(
    parameters: Iterable[nn.Parameter],
    lr: Annotated[float, Number(above=0)],
    **options: Unpack[Options],
) -> SGD:
    plain: dict[str, Any] = {**options}
    return SGD(parameters, lr, **plain)
