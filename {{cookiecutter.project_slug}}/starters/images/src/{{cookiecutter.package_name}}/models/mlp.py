"""The network of PyTorch's quickstart: fully connected layers with ReLU.

Source: https://pytorch.org/tutorials/beginner/basics/quickstart_tutorial.html
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from torch import nn

Count = Annotated[int, Field(ge=1)]


def mlp(
    in_channels: int,
    image_size: int,
    num_classes: int,
    hidden: Sequence[Count],
) -> nn.Sequential:
    """Build a multilayer perceptron: images to logits (N, num_classes).

    Args:
        in_channels: channels of an image.
        image_size: height and width of an image.
        num_classes: number of outputs.
        hidden: width of each hidden layer; empty for a linear classifier.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = in_channels * image_size * image_size
    for number, next_width in enumerate(hidden, start=1):
        layers[f"hidden{number}"] = nn.Linear(width, next_width)
        layers[f"relu{number}"] = nn.ReLU()
        width = next_width
    layers["output"] = nn.Linear(width, num_classes)
    return nn.Sequential(layers)
