"""LeNet-5 as published.

Source: Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-based learning applied to document
recognition", Proceedings of the IEEE 86 (11), 1998, section II.B, figure 2 and table I.

One thing is not the paper's: its output layer of Euclidean radial basis functions is replaced by a
linear layer, to be trained with cross entropy. Up to there it has the paper's 60,000 parameters;
counting tensor elements gives 900 more: the weights of C3 that table I omits and a mask removes.
"""

from collections import OrderedDict

import torch
from onecurve.errors import UserError
from torch import Tensor, nn
from torch.nn import functional as F

# Table I: the maps of S2 (0..5) that each of the 16 maps of C3 is connected to.
C3_INPUTS = (
    *((0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5), (0, 4, 5), (0, 1, 5)),
    *((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (0, 3, 4, 5), (0, 1, 4, 5), (0, 1, 2, 5)),
    *((0, 1, 3, 4), (1, 2, 4, 5), (0, 2, 3, 5)),
    (0, 1, 2, 3, 4, 5),
)


class ScaledTanh(nn.Module):
    """The paper's squashing function, 1.7159 tanh(2/3 x)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Squash each value."""
        return 1.7159 * torch.tanh(inputs * (2 / 3))


class Subsampling(nn.Module):
    """Sum of each 2 x 2 block, times one trainable coefficient per map, plus one bias per map.

    It is initialized to the mean of the block.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.coefficient = nn.Parameter(torch.full((channels, 1, 1), 0.25))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C, H/2, W/2)."""
        # Sums by `divisor_override=1` would become means in ONNX; times 4 is exact.
        return F.avg_pool2d(inputs, 2) * (4.0 * self.coefficient) + self.bias


class PartialConv2d(nn.Conv2d):
    """A convolution in which an output map sees only some of the input maps.

    The weights between maps that are not connected are multiplied by zero: they have no effect and
    get no gradient.

    Args:
        inputs: for each output map, the input maps that it is connected to.
        kernel_size: height and width of the kernels.
    """

    mask: Tensor

    def __init__(self, inputs: tuple[tuple[int, ...], ...], kernel_size: int) -> None:
        in_channels = 1 + max(max(maps) for maps in inputs)
        super().__init__(in_channels, len(inputs), kernel_size)
        mask = torch.zeros(len(inputs), in_channels, 1, 1)
        for output, maps in enumerate(inputs):
            mask[output, list(maps)] = 1
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve (N, C, H, W)."""
        return F.conv2d(input, self.weight * self.mask, self.bias)


def lenet(in_channels: int, image_size: int, num_classes: int) -> nn.Sequential:
    """Build LeNet-5: (N, in_channels, 32, 32) to logits (N, num_classes).

    Raises:
        UserError: the images are not of 32 x 32 pixels.
    """
    if image_size != 32:
        raise UserError(
            f"data.image_size={image_size}: model=lenet takes images of 32 x 32 pixels only; "
            f"use data.image_size=32, or model=mlp, which takes any size"
        )
    return nn.Sequential(
        OrderedDict(
            c1=nn.Conv2d(in_channels, 6, 5),
            c1_tanh=ScaledTanh(),
            s2=Subsampling(6),
            s2_tanh=ScaledTanh(),
            c3=PartialConv2d(C3_INPUTS, 5),
            c3_tanh=ScaledTanh(),
            s4=Subsampling(16),
            s4_tanh=ScaledTanh(),
            c5=nn.Conv2d(16, 120, 5),
            c5_tanh=ScaledTanh(),
            flatten=nn.Flatten(),
            f6=nn.Linear(120, 84),
            f6_tanh=ScaledTanh(),
            output=nn.Linear(84, num_classes),
        )
    )
