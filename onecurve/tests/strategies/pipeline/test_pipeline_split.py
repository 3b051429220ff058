"""strategy=pipeline: a network that is no sequence, split between its modules."""

from functools import partial
from typing import Any

import pytest
import torch
from conftest import PASSED_ON, ZBV, Shared
from several_fits import Case, Small, assert_equal, fits_alone, fits_in_ranks
from torch import Tensor, nn
from torch.nn import functional as F

import onecurve
from onecurve.errors import UserError
from onecurve.strategies.pipeline.network import find_networks
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


class Cnn(nn.Module):
    """As the network of PyTorch's MNIST example is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(1, 4, 3), nn.Conv1d(4, 4, 2)
        self.dropout = nn.Dropout(0.0)
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x.unsqueeze(1)))
        x = F.max_pool1d(F.relu(self.conv2(x)), 2)
        x = self.dropout(x.view(x.size(0), -1))[:, :4]
        return self.fc2(F.relu(self.fc1(x)))


class OfMnist(Small):
    def network(self) -> nn.Module:
        return Cnn()


class Branches(Small):
    """Code between modules that cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        del self.net
        self.one, self.two = Half(6, 6), Half(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.one(inputs)
        return self.two(-hidden if hidden.sum() > 0 else hidden)


class ByMode(Branches):
    """Does something else in evaluation."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.two(F.dropout(self.one(inputs), 0.5, self.training))


class Tokens(Branches):
    """Uses a parameter itself."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.two(self.one(inputs) + self.token)


SPLIT = (Skips, Inline, OfTheTask, OfMnist)
# Before torch 2.13 only gpipe: see torch_versions.py.
ALONE = {"schedule": "gpipe"} if too_old(PASSED_ON) else {}
SCHEDULES = ("gpipe",) if ALONE else ("gpipe", "interleaved_1f1b", ZBV)


def pipeline(**options: Any) -> onecurve.Pipeline:
    return onecurve.Pipeline(microbatches=2, timeout_seconds=60, **{**ALONE, **options})


@pytest.fixture(scope="session")
def single(shared: Shared) -> Any:
    return shared("split single", partial(fits_alone, *SPLIT))


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> Any:
    cases: dict[str, Case] = {each.__name__: (each, pipeline(), {}) for each in SPLIT}
    cases |= {name: (Skips, pipeline(schedule=name), {}) for name in SCHEDULES}
    return shared("split", partial(fits_in_ranks, cases))


MODULES = [module.__name__ for module in SPLIT]


@pytest.mark.compares
@pytest.mark.parametrize("case", [*MODULES, *SCHEDULES])
def test_a_split_network_trains_as_in_one_process(single: Any, outcomes: Any, case: str) -> None:
    assert_equal(outcomes[case], single[case if case in MODULES else "Skips"], epochs=2)


@pytest.mark.parametrize("module", [Branches, ByMode, Tokens])
def test_what_cannot_be_split_is_one_line(module: type[Small]) -> None:
    with pytest.raises(UserError, match=r"has no sequence of layers: .* a method layers\(\)"):
        find_networks(module(), 2)
