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
    layers = [nn.Conv2d(in_channels, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Tanh()]
    layers += [nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Tanh()]
    layers += [nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, num_classes))


def initialize(network: nn.Module, weight: Callable[[Tensor], Tensor] | None = None) -> None:
    """Fill weights with a function of `torch.nn.init`; None leaves them as PyTorch made them."""
    for layer in network.modules():
        if weight is not None and isinstance(layer, nn.Linear | nn.Conv2d):
            weight(layer.weight)
