"""strategy.split: a network that is no sequence, split before modules that are named."""

from functools import partial
from typing import Any

import pytest
import torch
from conftest import PASSED_ON, ZBV, Shared
from several_fits import Case, Small, assert_equal, fits_alone, fits_in_ranks
from torch import Tensor, nn

import onecurve
from onecurve.errors import UserError
from onecurve.strategies.pipeline.network import split_network
from onecurve.torch_versions import too_old


class Half(nn.Module):
    """A block whose code could not be traced: it branches on values."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.norm = nn.LayerNorm(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.linear(x)))


class UNet(nn.Module):
    """Skips from the way down to the way up, one of them across all stages."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = Half(6, 8), Half(8, 4), Half(4, 4)
        self.up1, self.up2, self.head = Half(8, 8), Half(16, 8), nn.Linear(14, 2)

    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
        a = self.down1(x)
        b = self.down2(a)
        c = self.middle(b)
        d = self.up1(torch.cat([c, b], dim=1))
        size = a.shape[1] + x.size(1)
        e = self.up2(torch.cat([d, a], dim=1))
        both = torch.cat([e * scale, x], dim=1)
        if mask is not None:
            both = both * mask
        return self.head(both.reshape(-1, size))


class Skips(Small):
    def __init__(self) -> None:
        super().__init__()
        self.net = UNet()


class OfTheTask(Small):
    """The modules are the task's own, and its forward is what is split."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Half(6, 6), Half(12, 6)
        self.net = nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs)
        return self.net(self.decoder(torch.cat([hidden, inputs], dim=1)))


class Inline(Skips):
    """Calls its network by name, by keyword, and has its loss in the step."""

    loss: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = (self.net(x=batch[0]) - batch[1]).square().mean()
        self.log("train/loss", loss)
        return loss


class Branches(Small):
    """Code around the named modules that cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Half(6, 6), Half(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.one(inputs)
        return self.two(-hidden if hidden.sum() > 0 else hidden)


class Tokens(Small):
    """As vision transformers are: the split code uses parameters and buffers itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Encoder()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 3))
        self.register_buffer("positions", torch.arange(9.0).reshape(1, 3, 3) / 9)
        self.scale = nn.Parameter(torch.ones(3))
        self.embed, self.mix, self.norm = nn.Linear(3, 3), Half(3, 3), nn.LayerNorm(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.dim() == 2, "takes rows")
        x = self.embed(x.reshape(x.shape[0], 2, 3))
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.mix(x + self.positions[:, : x.size(1)])
        return self.head(self.norm(x * self.scale)[:, 0])


NET = ["net.down2", "net.up1", "net.up2"]
SPLIT = {Skips: NET, Inline: NET, OfTheTask: ["decoder", "net"], Tokens: ["net.mix", "net.norm"]}
# Before torch 2.13 only gpipe: see torch_versions.py.
ALONE = {"schedule": "gpipe"} if too_old(PASSED_ON) else {}
SCHEDULES = ("gpipe",) if ALONE else ("gpipe", "interleaved_1f1b", ZBV)


def pipeline(split: list[str], **options: Any) -> onecurve.Pipeline:
    return onecurve.Pipeline(
        microbatches=2, timeout_seconds=60, split=split, **{**ALONE, **options}
    )


@pytest.fixture(scope="session")
def single(shared: Shared) -> Any:
    return shared("split single", partial(fits_alone, *SPLIT))


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> Any:
    cases: dict[str, Case] = {
        each.__name__: (each, pipeline(split), {}) for each, split in SPLIT.items()
    }
    cases["unnamed"] = Skips, pipeline([]), {}
    cases |= {name: (Skips, pipeline(NET, schedule=name), {}) for name in SCHEDULES}
    return shared("split", partial(fits_in_ranks, cases))


MODULES = [module.__name__ for module in SPLIT]


@pytest.mark.compares
@pytest.mark.parametrize("case", [*MODULES, *SCHEDULES, "unnamed"])
def test_a_split_network_trains_as_in_one_process(single: Any, outcomes: Any, case: str) -> None:
    """By any schedule, and split by itself where nothing is named."""
    assert_equal(outcomes[case], single[case if case in MODULES else "Skips"], epochs=2)


@pytest.mark.parametrize(
    ("module", "split", "words"),
    [
        (Skips, ["net.down3"], "Skips has no module net.down3, such as net.down2"),
        (Branches, ["two"], r"Branches.forward cannot be traced \(.*\); let no branch there"),
        (OfTheTask, ["net.weight"], "no module net.weight"),
        (Inline, ["loss"], "no module loss"),
    ],
)
def test_what_cannot_be_split_is_one_line(
    module: type[Small], split: list[str], words: str
) -> None:
    with pytest.raises(UserError, match=words) as refused:
        split_network(module(), split)
    assert str(refused.value).startswith("split=[")
