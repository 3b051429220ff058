"""strategy=pipeline: a weight that is used in two places of one layer stays one weight."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROUNDING, largest_difference
from several_fits import Case, SavesAtEnd, Small, fits
from torch import Tensor, nn

import onecurve


class TiedInside(nn.Module):
    """Uses one weight in two layers of its own, and one bias under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.bias = self.again = nn.Parameter(torch.zeros(6))
        self.register_buffer("scale", torch.full((6,), 0.5))
        self.register_buffer("same", self.scale)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = (self.first(inputs) + self.bias).tanh() * self.scale
        outputs: Tensor = self.second(hidden) + self.again
        return outputs


class Tied(Small):
    """Has such a layer on either stage, and keeps the last one under another name, too."""

    def __init__(self) -> None:
        super().__init__()
        self.last = self.net[-2]
        self.weight = self.last.first.weight

    def network(self) -> nn.Module:
        return nn.Sequential(TiedInside(), nn.Tanh(), TiedInside(), nn.Linear(6, 2))

    def layers(self) -> nn.Module:
        return self.net

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def cases(strategy: Any, folder: Path, devices: int) -> dict[str, Case]:
    """Two epochs; two more from a file, and from a folder of shards."""
    file, shards = folder / "file.ckpt", folder / "shards.ckpt"
    sharded = {"plugins": [onecurve.ShardedFolders()]}
    options: dict[str, Any] = {
        "file": {"callbacks": [SavesAtEnd(file)]},
        "shards": {"callbacks": [SavesAtEnd(shards)], **sharded},
        "from the file": {"resume": file, "max_epochs": 4},
        "from the shards": {"resume": shards, "max_epochs": 4, **sharded},
    }
    return {
        name: (Tied, strategy(), {**each, "devices": devices}) for name, each in options.items()
    }


@pytest.mark.compares
def test_it_is_trained_saved_and_read_as_one(tmp_path: Path) -> None:
    strategy = partial(onecurve.Pipeline, timeout_seconds=20)
    pipeline = onecurve.launch(fits, cases(strategy, tmp_path / "pipeline", 2))
    whole: Case = (Tied, onecurve.Single(), {"devices": 1, "max_epochs": 4})
    expected = onecurve.launch(fits, {"whole": whole}, devices=1)["whole"]["train/loss"]
    for name in ("file", "shards"):
        assert largest_difference(pipeline[name]["train/loss"], expected[:6]) <= ROUNDING
        assert (
            largest_difference(pipeline[f"from the {name}"]["train/loss"], expected[6:]) <= ROUNDING
        )
    state = torch.load(tmp_path / "pipeline/file.ckpt", weights_only=True)["state_dict"]
    for layer in ("net.0", "net.2", "last"):
        assert torch.equal(state[f"{layer}.first.weight"], state[f"{layer}.second.weight"])
    assert torch.equal(state["weight"], state["net.2.first.weight"])
