"""Two networks: fully connected, and convolutional in the manner of LeNet-5."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import Tensor, nn


def mlp(
    in_channels: int, image_size: int, num_classes: int, hidden: Sequence[int]
) -> nn.Sequential:
    """Images to logits (N, num_classes)."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = in_channels * image_size * image_size
    for number, next_width in enumerate(hidden, start=1):
        layers[f"hidden{number}"] = nn.Linear(width, next_width)
        layers[f"relu{number}"] = nn.ReLU()
        width = next_width
    layers["output"] = nn.Linear(width, num_classes)
    return nn.Sequential(layers)


def lenet(in_channels: int, image_size: int, num_classes: int) -> nn.Sequential:
    """Images of 32 x 32 pixels to logits (N, num_classes), in fourteen layers."""
    return nn.Sequential(
        OrderedDict(
            c1=nn.Conv2d(in_channels, 6, 5),
            c1_tanh=nn.Tanh(),
            s2=nn.AvgPool2d(2),
            s2_tanh=nn.Tanh(),
            c3=nn.Conv2d(6, 16, 5),
            c3_tanh=nn.Tanh(),
            s4=nn.AvgPool2d(2),
            s4_tanh=nn.Tanh(),
            c5=nn.Conv2d(16, 120, 5),
            c5_tanh=nn.Tanh(),
            flatten=nn.Flatten(),
            f6=nn.Linear(120, 84),
            f6_tanh=nn.Tanh(),
            output=nn.Linear(84, num_classes),
        )
    )


def initialize(network: nn.Module, weight: Callable[[Tensor], Tensor] | None = None) -> None:
    """Fill weights with a function of `torch.nn.init`; None leaves them as PyTorch made them."""
    for layer in network.modules():
        if weight is not None and isinstance(layer, nn.Linear | nn.Conv2d):
            weight(layer.weight)
