"""Your network: preferably an nn.Sequential of named layers, which every strategy can split."""

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import nn


def mine(in_features: int, width: Annotated[int, Field(ge=1)]) -> nn.Sequential:
    """Build a network: inputs (N, in_features) to outputs (N, 1)."""
    return nn.Sequential(
        OrderedDict(
            first=nn.Linear(in_features, width),
            first_relu=nn.ReLU(),
            second=nn.Linear(width, width),
            second_relu=nn.ReLU(),
            output=nn.Linear(width, 1),
        )
    )
