"""Every network."""

from typing import Any

import pytest
import torch
from conftest import CONFIGS, composed
from hydra.utils import instantiate
from torch import Tensor

from {{ cookiecutter.package_name }}.data.captions import encoded


def network(model: str, size: int, *overrides: str) -> Any:
    torch.manual_seed(0)
    chosen = (f"model={model}", f"data.image_size={size}", "data.channels=3", *overrides)
    return instantiate(composed(*chosen).model)


def inputs(size: int, *texts: str) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    images = torch.randn(len(texts), 3, size, size, generator=drawn)
    return images, torch.linspace(0.1, 0.9, len(texts)), encoded(texts, 24, "texts")


@pytest.mark.parametrize("size", [8, 28, 32])
@pytest.mark.parametrize(
    "model", [path.stem for path in sorted((CONFIGS / "model").glob("*.yaml"))]
)
def test_every_weight_of_every_model_learns(model: str, size: int) -> None:
    net, entering = network(model, size), inputs(size, "seven", "7")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    # At first blocks add nothing, so that what stands before their last layers has no gradient.
    for _ in range(2):
        optimizer.zero_grad()
        outputs = net(entering)
        assert outputs.shape == entering[0].shape
        (outputs - entering[0]).square().mean().backward()
        optimizer.step()
    assert [name for name, part in net.named_parameters() if not part.grad.any()] == []


def test_words_are_read_in_their_order_and_to_their_end() -> None:
    words = network("denoiser", 8)[0].condition.words.eval()
    one, turned, shorter, nothing = words(inputs(8, "one", "eno", "on", "")[2])
    for other in (turned, shorter, nothing):
        assert not torch.allclose(one, other, atol=0.01)
    assert nothing.isfinite().all()
    # What stands after the end is not read.
    longer = network("denoiser", 8, "data.caption_length=30")[0].condition.words.eval()
    with torch.no_grad():
        longer.load_state_dict({**words.state_dict(), "places": longer.places})
        longer.places[:24] = words.places
    again = longer(encoded(["one"], 30, "texts"))[0]
    torch.testing.assert_close(again, one, rtol=0, atol=1e-6)
