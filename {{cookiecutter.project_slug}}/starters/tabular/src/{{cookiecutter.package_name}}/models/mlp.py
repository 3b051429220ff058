"""Fully connected layers."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from torch import nn

Count = Annotated[int, Field(ge=1)]


def mlp(in_features: int, hidden: Sequence[Count]) -> nn.Sequential:
    """Build a multilayer perceptron: features (N, in_features) to one number each (N, 1).

    Args:
        in_features: numbers in a row.
        hidden: width of each hidden layer; empty for a linear model.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = in_features
    for number, next_width in enumerate(hidden, start=1):
        layers[f"hidden{number}"] = nn.Linear(width, next_width)
        layers[f"relu{number}"] = nn.ReLU()
        width = next_width
    layers["output"] = nn.Linear(width, 1)
    return nn.Sequential(layers)
