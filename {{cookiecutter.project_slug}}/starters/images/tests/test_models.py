"""Every network and every initialization."""

from typing import Any

import pytest
import torch
from conftest import CONFIGS, composed
from hydra.utils import instantiate
from torchvision import models


def network(*overrides: str) -> Any:
    """The network of a command line, with its initial weights."""
    config = composed(*overrides)
    torch.manual_seed(config.seed)
    net: Any = instantiate(config.model)
    init: Any = instantiate(config.init)
    init(net)
    return net


MODELS = sorted(path.stem for path in (CONFIGS / "model").glob("*.yaml"))


@pytest.mark.parametrize("model", MODELS)
def test_every_weight_of_every_model_learns(model: str) -> None:
    data: Any = instantiate(composed(f"model={model}", "data.batch_size=4").data)
    data.prepare_data()
    data.setup("fit")
    inputs, _ = data.on_after_batch_transfer(next(iter(data.train_dataloader())), 0)
    net = network(f"model={model}")
    net(inputs).square().sum().backward()
    trained = {name: weight.grad for name, weight in net.named_parameters() if weight.requires_grad}
    assert [name for name, grad in trained.items() if grad is None or not grad.any()] == []


def test_lenet_has_the_shapes_and_parameters_of_the_paper() -> None:
    net, value = network("model=lenet"), torch.randn(2, 1, 32, 32)
    shapes, counts = {}, {}
    for name, layer in net.named_children():
        value = layer(value)
        shapes[name] = tuple(value.shape[1:])
        counts[name] = sum(weight.numel() for weight in layer.parameters())
    # Table I leaves 36 of C3's 96 pairs of maps out, with 25 weights each.
    loose = net.c3.mask.expand_as(net.c3.weight) == 0
    assert loose.sum() == 36 * 25
    counts["c3"] -= 36 * 25
    maps = {"c1": (6, 28, 28), "s2": (6, 14, 14), "c3": (16, 10, 10), "s4": (16, 5, 5)}
    assert shapes | maps == shapes
    counts = {name: count for name, count in counts.items() if count}
    assert counts.pop("output") == 850
    assert counts == {"c1": 156, "s2": 12, "c3": 1516, "s4": 32, "c5": 48120, "f6": 10164}
    assert sum(counts.values()) == 60_000


def test_lenet_sums_2x2_blocks_and_squashes() -> None:
    net = network("model=lenet", "init=kaiming")
    assert (net.s2.coefficient == 0.25).all(), "no initialization touches these"
    with torch.no_grad():
        net.s2.coefficient.fill_(2.0)
        net.s2.bias.fill_(0.5)
    assert torch.equal(net.s2(torch.ones(1, 6, 4, 4)), torch.full((1, 6, 2, 2), 8.5))
    # The paper chose the constants so that f(1) = 1 and f(-1) = -1.
    ends = torch.tensor([1.0, -1.0])
    assert net.c1_tanh(ends).tolist() == pytest.approx([1, -1], abs=1e-4)


def test_resnet_computes_what_torchvision_computes() -> None:
    net = network("model=resnet", "data.channels=3").eval()
    original = models.resnet18(num_classes=10).eval()
    names = zip(original.state_dict(), net.state_dict().values(), strict=True)
    original.load_state_dict(dict(names))
    inputs = torch.randn(2, 3, 64, 64)
    assert torch.equal(net(inputs), original(inputs))
    assert [name for name, _ in net.named_children()] == ["backbone", "head"]
    small = network("model=resnet", "model.small_images=true").backbone
    assert small.maxpool(small.bn1(small.conv1(torch.zeros(2, 1, 32, 32)))).shape[-1] == 32


VARIANCE = {"xavier": 1 / 512, "kaiming": 2 / 512, "orthogonal": 1 / 512}


@pytest.mark.parametrize("init", VARIANCE)
def test_every_initialization_has_its_variance(init: str) -> None:
    hidden = network("model=mlp", f"init={init}").hidden2
    assert not hidden.bias.any()
    assert hidden.weight.var().item() == pytest.approx(VARIANCE[init], rel=0.02)
