"""The network of this project."""

from typing import Any

import pytest
import torch
from conftest import composed
from hydra.utils import instantiate
from torch import nn


def network(*overrides: str) -> Any:
    torch.manual_seed(0)
    net: Any = instantiate(composed("model=gpt", *overrides).model)
    return net.double()


def test_a_byte_knows_nothing_of_those_after_it() -> None:
    net, text = network(), torch.randint(256, (2, 64))
    changed = text.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    difference = (net(text) - net(changed)).abs().amax(dim=(0, 2))
    assert difference.shape == (64,)
    assert difference[:40].max() <= 1e-14
    assert difference[40:].min() > 1e-6
    # Nor does it matter how many there are.
    torch.testing.assert_close(net(text[:, :40]), net(text)[:, :40], rtol=0, atol=1e-12)


def test_every_weight_learns() -> None:
    net = network()
    net(torch.randint(256, (2, 64))).square().sum().backward()
    assert [name for name, weight in net.named_parameters() if not weight.grad.any()] == []


def test_attention_can_be_cut_by_heads() -> None:
    """Two halves of the rows of `qkv`, and of the columns of `output`, add up to the whole."""
    whole = network().block1.attention
    nn.init.normal_(whole.output.bias)
    inputs, halves = torch.randn(2, 9, 64, dtype=torch.float64), []
    for rank in (0, 1):
        half = network().block1.attention
        half.qkv.weight = nn.Parameter(whole.qkv.weight.chunk(2)[rank])
        half.qkv.bias = nn.Parameter(whole.qkv.bias.chunk(2)[rank])
        half.output.weight = nn.Parameter(whole.output.weight.chunk(2, dim=1)[rank])
        half.output.bias = nn.Parameter(whole.output.bias / 2)
        halves.append(half(inputs))
    torch.testing.assert_close(sum(halves), whole(inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("depth", [1, 3])
def test_its_parameters_are_those_of_the_paper(depth: int) -> None:
    """12 width² and 13 width a block; embeddings, a last norm, and a head of its own."""
    counted = sum(weight.numel() for weight in network(f"model.depth={depth}").parameters())
    assert counted == depth * (12 * 64**2 + 13 * 64) + (256 + 64) * 64 + 2 * 64 + 256 * 64


def test_what_is_for_a_gpu_has_nearly_a_billion_weights() -> None:
    config = composed("experiment=gpt_gpu")
    with torch.device("meta"):
        net = instantiate(config.model)
    assert sum(weight.numel() for weight in net.parameters()) == 911_695_872
    assert (config.compile, config.trainer.precision) == ("layer", "bf16-mixed")
