"""Tasks as others write them, unchanged, where parameters or sequences are cut: as a plain Trainer.

What cannot work is said in one line that names the cause.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
import warm_ranks
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import onecurve
from onecurve.errors import UserError
from onecurve.launch import agent
from onecurve.parity import kinds
from onecurve.strategies.tensor.families import ATTENTIONS, FEED_FORWARD
from onecurve.testing import assert_parity

WIDTH, LENGTH = 8, 6


class Samples(Dataset[Any]):
    """Vectors (LENGTH, WIDTH) and what is to come of them, in a dictionary; 29 of them."""

    def __len__(self) -> int:
        return 29

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        drawn = torch.Generator().manual_seed(index)
        inputs = torch.randn(LENGTH, WIDTH, generator=drawn, dtype=torch.float64)
        return {"inputs": inputs, "labels": inputs.sin().cumsum(0)}


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Of batches that two ranks share unevenly in the end."""
    return DataLoader(Samples(), batch_size=8), DataLoader(Samples(), batch_size=8)


def pair() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))


class Stranger(LightningModule):
    """Calls its network by name, and has no `forward`."""

    def __init__(self, network: Callable[[], nn.Module] = pair) -> None:
        super().__init__()
        self.model = network()

    def outputs(self, batch: Any) -> Tensor:
        made: Tensor = self.model(batch["inputs"])
        return made

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.mse_loss(self.outputs(batch), batch["labels"])
        self.log("train", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", F.mse_loss(self.outputs(batch), batch["labels"]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class OfHuggingFace(nn.Module):
    """Takes keywords and returns its own loss, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = pair()

    def forward(self, *, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(inputs)
        return {"loss": F.mse_loss(logits, labels), "logits": logits}


class ByKeyword(Stranger):
    """Hands its batch on as keywords, and returns the whole of what comes."""

    def __init__(self) -> None:
        super().__init__(OfHuggingFace)

    def forward(self, **batch: Tensor) -> Any:
        return self.model(**batch)

    def outputs(self, batch: Any) -> Tensor:
        made: Tensor = self(**batch)["logits"]
        return made

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        found = self(**batch)
        self.log("train", found["loss"])
        return found


class OfABatch(Stranger):
    """Its `forward` takes the batch as it is."""

    def forward(self, batch: Any) -> Tensor:
        made: Tensor = self.model(batch["inputs"])
        return made

    def outputs(self, batch: Any) -> Tensor:
        made: Tensor = self(batch)
        return made


class Scaled(Stranger):
    """A parameter of its own, used before its network is called and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.ones(WIDTH)) for _ in range(2))

    def outputs(self, batch: Any) -> Tensor:
        made: Tensor = self.model(batch["inputs"] * self.shift)
        with torch.no_grad():
            self.model(batch["inputs"])
        return made * self.scale


class CallsItself(Scaled):
    """By name and by `self(...)`."""

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.model(inputs) * self.scale
        return made

    def outputs(self, batch: Any) -> Tensor:
        with torch.no_grad():
            self(batch["inputs"])
        return self.shift * self(batch["inputs"])


class PenaltyOnItsOwn(Scaled):
    """On what is in none of its parts."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) + 0.1 * self.scale.square().sum()


class ByHand(Scaled):
    """Starts its own backward pass, and a second one with a state like a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        optimizer.step()


class Recurrent(Stranger):
    """Begins with a state that is made like a parameter."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.GRU(WIDTH, WIDTH, batch_first=True))

    def outputs(self, batch: Any) -> Tensor:
        inputs = batch["inputs"]
        start = next(self.parameters()).new_zeros(1, len(inputs), WIDTH)
        made: Tensor = self.model(inputs, start)[0]
        return made


class Attention(nn.Module):
    """Of any names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names, self.num_heads = names, 4
        for name in names:
            setattr(self, name, nn.Linear(WIDTH, WIDTH))

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        heads = (hidden_states.shape[0], -1, self.num_heads, WIDTH // 4)
        *three, output = (getattr(self, name) for name in self.names)
        seen = F.scaled_dot_product_attention(
            *(layer(hidden_states).view(heads).transpose(1, 2) for layer in three), is_causal=True
        )
        return output(seen.transpose(1, 2).flatten(2)), None


class FeedForward(nn.Module):
    """Of any names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        for name in names[:-1]:
            setattr(self, name, nn.Linear(WIDTH, 2 * WIDTH))
        setattr(self, names[-1], nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        first, *gates, last = (getattr(self, name) for name in self.names)
        hidden = F.silu(first(inputs))
        for gate in gates:
            hidden = hidden * gate(inputs)
        outputs: Tensor = last(hidden)
        return outputs


class Block(nn.Module):
    def __init__(self, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = attention, mlp

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs + self.attention(hidden_states=self.norm1(inputs))[0]
        outputs: Tensor = inputs + self.mlp(self.norm2(inputs))
        return outputs


def families() -> nn.Module:
    """All that are known by names."""
    pairs = zip(ATTENTIONS, FEED_FORWARD, strict=True)
    return nn.Sequential(*(Block(Attention(names), FeedForward(of)) for names, of in pairs))


class AllFamilies(Stranger):
    def __init__(self) -> None:
        super().__init__(families)


STRATEGIES: dict[str, Callable[[], Any]] = {
    "fsdp": onecurve.FSDP,
    "tensor": onecurve.Tensor,
    "sequence": partial(onecurve.Tensor, sequence=True),
    "context": partial(onecurve.mesh, context=2),
}


@pytest.fixture(autouse=True)
def _warm_ones(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(agent, "start_ranks", warm_ranks.start_ranks)
    monkeypatch.syspath_prepend(str(request.path.parent))


EQUAL = [
    *((task, name) for task in (Stranger, ByKeyword, OfABatch) for name in ("fsdp", "tensor")),
    *((task, "fsdp") for task in (Scaled, CallsItself, PenaltyOnItsOwn, ByHand, Recurrent)),
    *((task, "tensor") for task in (Scaled, ByHand)),
    *((AllFamilies, name) for name in ("tensor", "sequence", "fsdp")),
    (OfABatch, "context"),
]


@pytest.mark.compares
@pytest.mark.parametrize(("task", "strategy"), EQUAL)
def test_a_strangers_task_has_the_numbers_of_a_plain_trainer(task: Any, strategy: str) -> None:
    assert_parity(task, loaders, strategy=STRATEGIES[strategy](), accelerator="cpu", steps=6)
