"""Any classifier of torchvision, split into a backbone and a head.

Source: https://docs.pytorch.org/vision/stable/models.html#classification
"""

from collections import OrderedDict
from difflib import get_close_matches

import torch
from onecurve.errors import UserError
from torch import nn
from torchvision import models
from torchvision.models import ResNet

EXAMPLES = "resnet18, resnet50, mobilenet_v3_small, efficientnet_b0, vit_b_16"


def torchvision_classifier(
    name: str, weights: str | None, small_images: bool, in_channels: int, num_classes: int
) -> nn.Sequential:
    """Build a network of two layers: `backbone`, and `head`, which is a new linear layer.

    The backbone of a ResNet is a sequence of layers. That of another network is the network itself
    without its last layer.

    Args:
        name: of the model, as `torchvision.models.list_models(module=torchvision.models)` gives it.
        weights: pretrained weights: `DEFAULT` or another name in the model's weights enum; null
            for random ones.
        small_images: replace a ResNet's first layers, made for 224 x 224 pixels, by a 3 x 3
            convolution of stride 1 without pooling, as in section 4.2 of "Deep residual learning
            for image recognition" (He et al., 2016).
        in_channels: channels of an image. Where it is not the model's, the first convolution is
            replaced; pretrained kernels are averaged over their channels.
        num_classes: number of outputs.

    Raises:
        UserError: a name that torchvision does not have, a model that does not end in a linear
            layer, weights that cannot be loaded.
    """
    network = _load(name, weights)
    for auxiliary in ("aux1", "aux2", "AuxLogits"):
        # GoogLeNet and Inception have more outputs in training, which would never get a loss.
        if hasattr(network, auxiliary):
            setattr(network, auxiliary, None)
            network.aux_logits = False  # type: ignore[assignment]
    if small_images:
        if not isinstance(network, ResNet):
            raise UserError(
                f"model.small_images=true: only for ResNets, not for model.name={name}; "
                "try model.name=resnet18"
            )
        network.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()
    _adapt_channels(network, name, in_channels)
    head = _take_head(network, name, num_classes)
    backbone = _layers(network) if isinstance(network, ResNet) else network
    classifier = nn.Sequential(OrderedDict(backbone=backbone, head=head))
    classifier.is_pretrained = weights is not None  # type: ignore[assignment]
    return classifier


def _load(name: str, weights: str | None) -> nn.Module:
    names = models.list_models(module=models)
    if name not in names:
        nearest = ", ".join(get_close_matches(name, names, n=3)) or EXAMPLES
        raise UserError(f"model.name={name}: torchvision has no such classifier; try {nearest}")
    if weights is None:
        network: nn.Module = models.get_model(name, weights=None)
        return network
    choices = models.get_model_weights(name)
    if weights not in choices.__members__:
        raise UserError(
            f"model.weights={weights}: {name} has {', '.join(choices.__members__)}; "
            "try model.weights=DEFAULT"
        )
    try:
        network = models.get_model(name, weights=choices[weights])
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"model.weights={weights}: cannot load {choices[weights].url} ({reason[:200]}); "
            f"put the file into {torch.hub.get_dir()}/checkpoints, or use model.weights=null"
        ) from error
    return network


def _adapt_channels(network: nn.Module, name: str, in_channels: int) -> None:
    path, old = next(
        (path, layer) for path, layer in network.named_modules() if isinstance(layer, nn.Conv2d)
    )
    if old.in_channels == in_channels:
        return
    if old.groups != 1:
        raise UserError(
            f"data.channels={in_channels}: model.name={name} takes {old.in_channels}; try resnet18"
        )
    new = nn.Conv2d(
        in_channels,
        old.out_channels,
        kernel_size=old.kernel_size,  # type: ignore[arg-type]
        stride=old.stride,  # type: ignore[arg-type]
        padding=old.padding,  # type: ignore[arg-type]
        bias=old.bias is not None,
    )
    with torch.no_grad():
        # Scaled, so that an image with the same values in every channel gives what it gave before.
        mean = old.weight.mean(dim=1, keepdim=True) * old.in_channels / in_channels
        new.weight.copy_(mean.expand_as(new.weight))
        if old.bias is not None and new.bias is not None:
            new.bias.copy_(old.bias)
    _replace(network, path, new)


def _take_head(network: nn.Module, name: str, num_classes: int) -> nn.Linear:
    """Replace the network's last layer by an identity, and return a new last layer."""
    path, last = list(network.named_modules())[-1]
    if not isinstance(last, nn.Linear):
        raise UserError(
            f"model.name={name}: does not end in a linear layer, so it gets no new head; "
            f"try {EXAMPLES}"
        )
    _replace(network, path, nn.Identity())
    return nn.Linear(last.in_features, num_classes)


def _replace(network: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, layer)


def _layers(network: ResNet) -> nn.Sequential:
    """Write out ResNet.forward as a sequence, its blocks one by one, under torchvision's names."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for name, layer in network.named_children():
        if name == "fc":
            layers["flatten"] = nn.Flatten()
        elif isinstance(layer, nn.Sequential):
            for number, block in enumerate(layer):
                layers[f"{name}_{number}"] = block
        else:
            layers[name] = layer
    return nn.Sequential(layers)
