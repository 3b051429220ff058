"""Tasks as others write them, unchanged, where parameters or sequences are cut: as a plain Trainer.

What cannot work is said in one line that names the cause.
"""

import warnings
from abc import ABC
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from copy import deepcopy
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, Shared, unless_too_old
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning, EMAWeightAveraging
from lightning.pytorch.utilities import grad_norm
from several_fits import Case, SavesAtEnd, fits, fits_in_ranks, quiet_trainer
from sharded_networks import fused
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, prune, weight_norm
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch.utils.tensorboard import SummaryWriter
from torchmetrics import MeanAbsoluteError, MeanMetric, MetricTracker, RunningMean, SumMetric

import onecurve
from onecurve.errors import UserError
from onecurve.launch import agent
from onecurve.parity import result
from onecurve.strategies.tensor.families import ATTENTIONS, FEED_FORWARD
from onecurve.strategies.tensor.plan import find_plan
from onecurve.testing import assert_parity
from onecurve.wording import in_python

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

    def outputs(self, batch: Any) -> Any:
        return self.model(batch["inputs"])

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

    def outputs(self, batch: Any) -> Any:
        return self(**batch)["logits"]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        found = self(**batch)
        self.log("train", found["loss"])
        return found


class OfABatch(Stranger):
    """Its `forward` takes the batch as it is."""

    def forward(self, batch: Any) -> Any:
        return self.model(batch["inputs"])

    def outputs(self, batch: Any) -> Any:
        return self(batch)


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


class Tempered(nn.Module):
    """A network with a parameter that has no dimension, as that of a contrastive loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = pair()
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.layers(inputs)
        return made * self.temperature.exp()


class ScaledByANumber(Stranger):
    def __init__(self) -> None:
        super().__init__(Tempered)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def outputs(self, batch: Any) -> Tensor:
        return super().outputs(batch) * self.scale


class ScaledLate(ScaledByANumber):
    """By numbers that are frozen at first; one of them stays so."""

    def __init__(self) -> None:
        super().__init__()
        self.scale.requires_grad_(False)
        self.size = nn.Parameter(torch.tensor(2), requires_grad=False)

    def on_train_batch_start(self, *_: Any) -> None:
        self.scale.requires_grad_(self.global_step > 1)


class RemovesGradients(Stranger):
    """Those of its last layer in the first steps, as DINO does."""

    def on_after_backward(self) -> None:
        if self.global_step < 2:
            self.model[2].weight.grad = None  # type: ignore[index, union-attr]


class Encodes(nn.Module):
    """A network with parameters of its own, whose other methods a task calls."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.layers = nn.Parameter(torch.ones(WIDTH)), pair()

    def encode(self, inputs: Tensor) -> Any:
        return self.layers(inputs + self.shift)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.encode(inputs)

    def trained(self) -> list[nn.Parameter]:
        return [*self.parameters()]


class CallsAMethod(Stranger):
    def __init__(self) -> None:
        super().__init__(Encodes)
        self.head = nn.Linear(WIDTH, WIDTH)

    def outputs(self, batch: Any) -> Any:
        return self.head(self.model.encode(batch["inputs"]))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.model(batch["inputs"])

    def configure_optimizers(self) -> Any:
        trained = [*self.model.trained(), *self.head.parameters()]
        return torch.optim.AdamW(trained, lr=0.01)


class CallsByName(Scaled):
    """Its steps do not take a batch's number, and call `forward` by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Encodes()

    def outputs(self, batch: Any) -> Any:
        return self.model.forward(batch["inputs"]) * self.scale + self.shift

    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return super().training_step(batch, 0)

    def validation_step(self, batch: Any) -> None:  # type: ignore[override]
        super().validation_step(batch, 0)


class CallsParts(Stranger):
    """Of a module that it never calls, and reads a weight of it."""

    def __init__(self) -> None:
        super().__init__(Encodes)

    def outputs(self, batch: Any) -> Any:
        return self.model.layers(batch["inputs"]) + self.model.shift  # type: ignore[operator]


class Headed(nn.Module):
    """Its layers have no bias, as those of language models."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = pair()
        for layer in self.layers[::2]:
            layer.register_parameter("bias", None)

    def forward(self, inputs: Tensor) -> Any:
        return self.layers(inputs)


class CallsLayers(Stranger):
    """Past the module that holds them: what a rank has of their weights is all that it needs."""

    def __init__(self) -> None:
        super().__init__(Headed)

    def outputs(self, batch: Any) -> Any:
        return self.model.layers(batch["inputs"])  # type: ignore[operator]


class HasNoOptimizer(Stranger):
    """As a memory bank has none."""

    def configure_optimizers(self) -> None:
        return None


class FreezesInItsStep(Stranger):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_step == 2:
            self.model[0].requires_grad_(False)  # type: ignore[index]
        return super().training_step(batch, batch_idx)


class BoundsInItsStep(Stranger):
    @torch.no_grad()
    def bound(self) -> None:
        for parameter in self.parameters():
            parameter.clamp_(-0.1, 0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.bound()
        return super().training_step(batch, batch_idx)


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


class ZeroesByItself(ByHand):
    """By the method of the module, instead of the optimizer's."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.zero_grad()
        self.manual_backward(Scaled.training_step(self, batch, batch_idx))
        optimizer: Any = self.optimizers()
        optimizer.step()


class BackwardByHand(ByHand):
    """As code that comes from plain PyTorch has it, which asks no Trainer."""

    def manual_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        loss.backward()  # type: ignore[no-untyped-call]


class Adversaries(LightningModule):
    """Two networks with an optimizer each, which take turns within a step, as in a GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.critic = pair(), pair()

    def loss(self, batch: Any, of: str) -> Tensor:
        made = self.maker(batch["inputs"])
        return F.mse_loss(
            self.critic(made if of == "maker" else made.detach().cos()), batch["labels"]
        )

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        for name, optimizer in zip(("maker", "critic"), optimizers, strict=True):
            self.toggle_optimizer(optimizer)
            loss = self.loss(batch, name)
            self.log(name, loss)
            self.manual_backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss(batch, "maker"))

    def configure_optimizers(self) -> Any:
        return [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (self.maker, self.critic)]


class AdversariesOfPyTorch(Adversaries):
    """As code that comes from plain PyTorch: zeroes, freezes and bounds by the modules alone."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        for name, optimizer in zip(("maker", "critic"), optimizers, strict=True):
            with torch.no_grad():
                for parameter in self.critic.parameters():
                    parameter.clamp_(-0.1, 0.1)
            self.critic.requires_grad_(name == "critic")
            self.zero_grad()
            loss = self.loss(batch, name)
            self.manual_backward(loss)
            optimizer.step()
            self.log_dict({name: loss, f"{name} after": self.loss(batch, name)})


class ClipsItself(Stranger):
    """Clips in its own step, by what it has imported: all gradients, their largest, and a part."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        norms = {
            "all": clip_grad_norm_(self.parameters(), 0.1),
            "largest": nn.utils.clip_grad_norm_(self.parameters(), 0.02, norm_type=torch.inf),
            "part": clip_grad_norm_(self.model[0].parameters(), 0.01),  # type: ignore[index]
        }
        self.log_dict(norms)
        optimizer.step()


class OfSomeInputs(ByHand):
    """Asks for the gradients of some of its parameters, in either way of each of two kinds."""

    def manual_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        optimizer: Any = self.optimizers()
        updated = [each for group in optimizer.param_groups for each in group["params"]]
        if self.trainer.fit_loop.batch_idx % 2:
            super().manual_backward(loss, inputs=updated[::2])
        else:
            super().manual_backward(loss, inputs=list(self.model.parameters())[1:])


class OfItsOwn(ByHand):
    """Makes gradients without a backward pass that anybody else sees."""

    def manual_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        weights = list(self.parameters())
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = self.averaged(gradient)

    def averaged(self, gradient: Tensor) -> Tensor:
        return gradient


class OfItsOwnAveraged(OfItsOwn):
    def averaged(self, gradient: Tensor) -> Any:
        return self.trainer.strategy.reduce(gradient)


class Centres(nn.Module):
    """Sets a weight from the first batch that it sees, as ActNorm does."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.is_set = False

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and not self.is_set:
            self.shift.data.copy_(inputs.detach().mean((0, 1)))
            self.is_set = True
        return inputs - self.shift


class Centred(Stranger):
    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(Centres(), *pair()))


class KeepsAQueue(Stranger):
    """A buffer of a rank's own samples, from the second step on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(WIDTH))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx:
            self.queue.copy_(batch["inputs"][0, 0])  # type: ignore[operator]
        return super().training_step(batch, batch_idx)


def gathered(task: LightningModule, rows: Tensor) -> Any:
    return task.all_gather(rows, sync_grads=True)


def reduced(task: LightningModule, rows: Tensor) -> Any:
    return task.trainer.strategy.reduce(rows)


class Gathers(Stranger):
    """Calls a collective with the outputs for its own samples."""

    def __init__(self, call: Callable[[LightningModule, Tensor], Any]) -> None:
        super().__init__()
        self.call = call

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.call(self, self.outputs(batch))
        return super().training_step(batch, batch_idx)


class LogsErrors(Stranger):
    """Calls a metric and logs it by step, as Lightning's documentation does."""

    def __init__(self) -> None:
        super().__init__()
        self.error = MeanAbsoluteError()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.error(self.outputs(batch), batch["labels"])
        self.log("error", self.error)
        return super().training_step(batch, batch_idx)


class AddsNoise(Stranger):
    def outputs(self, batch: Any) -> Any:
        return self.model(batch["inputs"] + torch.randn_like(batch["inputs"]))


class Recurrent(Stranger):
    """Begins with a state that is made like a parameter."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.GRU(WIDTH, WIDTH, batch_first=True))

    def outputs(self, batch: Any) -> Any:
        inputs = batch["inputs"]
        start = next(self.parameters()).new_zeros(1, len(inputs), WIDTH)
        return self.model(inputs, start)[0]


class NormedByWeight(Stranger):
    """Has a weight that is no parameter: it is computed from two at each call."""

    def __init__(self) -> None:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            super().__init__(lambda: nn.Sequential(weight_norm(nn.Linear(WIDTH, WIDTH)), *pair()))


class Pruned(Stranger):
    """Has a weight that is computed from one with more numbers at each call."""

    def __init__(self) -> None:
        super().__init__()
        prune.l1_unstructured(self.model[0], "weight", 0.5)  # type: ignore[index, no-untyped-call]


class Gaussian(nn.Linear):
    def forward(self, inputs: Tensor) -> Any:
        return torch.distributions.Normal(super().forward(inputs), 1.0)


# transformers looks up so what a network can return.
RETURNS = {str(Gaussian): "mean"}


class OfADistribution(Stranger):
    """What enters needs no gradient, and what is returned is no tensor."""

    def __init__(self) -> None:
        super().__init__(partial(Gaussian, WIDTH, WIDTH))

    def outputs(self, batch: Any) -> Any:
        return getattr(self.model(batch["inputs"]), RETURNS[str(type(self.model))])


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

    def forward(self, inputs: Tensor) -> Any:
        first, *gates, last = (getattr(self, name) for name in self.names)
        hidden = F.silu(first(inputs))
        for gate in gates:
            hidden = hidden * gate(inputs)
        return last(hidden)


class Block(nn.Module):
    def __init__(self, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = attention, mlp

    def forward(self, inputs: Tensor) -> Any:
        inputs = inputs + self.attention(hidden_states=self.norm1(inputs))[0]
        return inputs + self.mlp(self.norm2(inputs))


def families() -> nn.Module:
    """All that are known by names."""
    pairs = zip((*ATTENTIONS, ATTENTIONS[0]), FEED_FORWARD, strict=True)
    return nn.Sequential(*(Block(Attention(names), FeedForward(of)) for names, of in pairs))


class AndItsInput(nn.Module):
    """Makes of what comes in something that it adds to that."""

    def forward(self, inputs: Tensor) -> Any:
        made = super().forward(F.layer_norm(inputs, (WIDTH,)))
        return inputs + (made[0] if isinstance(made, tuple) else made)


class AttentionAndItsInput(AndItsInput, Attention):
    """As many people write it, with the sum inside."""


class FeedForwardAndItsInput(AndItsInput, FeedForward):
    """As many people write it, with the sum inside."""


def with_sums_inside() -> nn.Module:
    attention = AttentionAndItsInput(ATTENTIONS[0])
    feed_forward = FeedForwardAndItsInput(FEED_FORWARD[0])
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), attention, feed_forward)


class OfOneProjection(Stranger):
    """Its attentions hold queries, keys and values in one weight each, of several orders."""

    def __init__(self) -> None:
        ends = partial(nn.Linear, WIDTH, 16), partial(nn.Linear, 16, WIDTH)
        super().__init__(lambda: nn.Sequential(ends[0](), *fused()[:3], ends[1]()).double())

    def configure_optimizers(self) -> Any:
        # The bias of keys has no gradient but for rounding, by whose size AdamW divides.
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3)


class Masked(nn.Linear):
    """Has no weight above the diagonal, each time that it is called."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(WIDTH, WIDTH).tril())

    def forward(self, inputs: Tensor) -> Tensor:
        self.weight.data *= self.mask
        return super().forward(inputs)


class MaskedWithoutGradients(Masked):
    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(self.mask)
        return nn.Linear.forward(self, inputs)


class Bounded(nn.Linear):
    """Has another tensor of weights each time that it is called."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.3)
        return super().forward(inputs)


class ChangesWeights(Stranger):
    """Its layers do, and its steps, with what is in no layer."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(Masked(), MaskedWithoutGradients(), Bounded()))
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def outputs(self, batch: Any) -> Tensor:
        self.scale.data.clamp_(0.95, 0.98)
        return super().outputs(batch) * self.scale


class AssignsWeights(Stranger):
    """Before each batch, with another tensor, as what bounds a norm or follows a teacher does."""

    def on_train_batch_start(self, *_: Any) -> None:
        for layer in (self.model[0], self.model[2]):  # type: ignore[index]
            layer.weight.data = layer.weight.data.clamp(-0.2, 0.2)


class Counts(Stranger):
    """By metrics in none of its modules, by one that is copied for each epoch, and in a window."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"samples": SumMetric()}
        self.tracker = MetricTracker(SumMetric(), maximize=True)
        self.running = RunningMean(window=2)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.running(loss.detach())
        self.log("running", self.running)
        self.log("by position", loss, False, True, None, None, "mean", False, False)
        return loss

    def on_validation_epoch_start(self) -> None:
        self.tracker.increment()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        for metric in (self.counts["samples"], self.tracker):
            metric.update(float(len(batch["inputs"])))

    def on_validation_epoch_end(self) -> None:
        self.log("samples", self.counts["samples"].compute())
        self.log("tracked", self.tracker.compute())
        self.counts["samples"].reset()


STRATEGIES: dict[str, Callable[[], Any]] = {
    "ddp": onecurve.DDP,
    "dp": onecurve.DP,
    "fsdp": onecurve.FSDP,
    "kept": partial(onecurve.FSDP, reshard_after_forward=False),
    "methods": partial(onecurve.FSDP, forward_methods=["encode"]),
    "finer": partial(onecurve.FSDP, wrap=["Sequential"]),
    "tensor": onecurve.Tensor,
    "tensor methods": partial(onecurve.Tensor, forward_methods=["encode"]),
    "tensor finer": partial(onecurve.Tensor, wrap=["Sequential"]),
    "sequence": partial(onecurve.Tensor, sequence=True),
    "context": partial(onecurve.mesh, context=2),
    "pipeline": onecurve.Pipeline,
}
# Of four ranks.
MESHES: dict[str, Callable[[], Any]] = {
    "replicas of shards": partial(onecurve.mesh, replicate=2, shard=2, min_params=1),
    "shards of tensor": partial(onecurve.mesh, shard=2, tensor=2, min_params=1),
    "pipeline of shards": partial(onecurve.mesh, pipeline=2, shard=2, min_params=1),
}


@pytest.fixture(autouse=True)
def _warm_ones(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(agent, "start_ranks", warm_ranks.start_ranks)
    monkeypatch.syspath_prepend(str(request.path.parent))


BY_HAND = unless_too_old("manual_backward with sharded parameters of the task itself")
EQUAL = [
    *((task, "tensor") for task in (Stranger, ByKeyword, NormedByWeight)),
    (partial(Stranger, with_sums_inside), "tensor"),
    (partial(Stranger, families), "sequence"),
    *((task, "fsdp") for task in (PenaltyOnItsOwn, Recurrent, ChangesWeights)),
    *((task, "fsdp") for task in (ScaledByANumber, ScaledLate)),
    (RemovesGradients, "ddp"),
    *((CallsAMethod, name) for name in ("methods", "tensor methods")),
    *((CallsByName, name) for name in ("fsdp", "tensor")),
    *((CallsParts, name) for name in ("finer", "tensor finer")),
    (OfABatch, "context"),
    *((OfADistribution, name) for name in ("fsdp", "kept")),
    *((ClipsItself, name) for name in ("pipeline", *MESHES)),
    *((task, "pipeline") for task in (Pruned, HasNoOptimizer)),
    *((AssignsWeights, name) for name in ("fsdp", "tensor")),
    *((Counts, name) for name in ("ddp", "pipeline", "tensor")),
    *((task, "tensor") for task in (FreezesInItsStep, BoundsInItsStep)),
    (OfItsOwnAveraged, "ddp"),
    *((Adversaries, name) for name in ("ddp", "fsdp", "pipeline", "tensor", "shards of tensor")),
    *((AdversariesOfPyTorch, name) for name in ("fsdp", "tensor")),
    *((ZeroesByItself, name) for name in ("fsdp", "tensor")),
    *(pytest.param(task, "fsdp", marks=BY_HAND) for task in (ByHand, OfSomeInputs)),
]


@pytest.mark.compares
@pytest.mark.parametrize(("task", "strategy"), EQUAL)
def test_an_unchanged_task_has_the_results_of_a_plain_trainer(task: Any, strategy: str) -> None:
    made = {**STRATEGIES, **MESHES}[strategy]()
    devices = 4 if strategy in MESHES else 2
    assert_parity(task, loaders, strategy=made, accelerator="cpu", devices=devices)


def test_all_families_are_sharded() -> None:
    task = Stranger(families)
    plan = find_plan(task, {"": task}, None, 2)
    layers = {name for name, part in task.named_modules() if isinstance(part, nn.Linear)}
    assert layers <= plan.keys()
    assert sum(style == "rowwise" for style in plan.values()) == 2 * len(FEED_FORWARD)


class Stacked(nn.Module):
    """All queries, then all keys, then all values: a half of the rows is no heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        qkv = self.qkv(inputs).unflatten(-1, (3, -1, 2)).permute(2, 0, 3, 1, 4)
        outputs: Tensor = self.output(
            F.scaled_dot_product_attention(*qkv).transpose(1, 2).flatten(2)
        )
        return outputs

    def tensor_plan(self) -> dict[str, str]:
        return {"": "heads"}


class Neighbours(nn.Conv1d):
    """Brings positions together that may lie in two pieces."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.transpose(1, 2)).transpose(1, 2)


class OfNeighbours(Stranger):
    def __init__(self) -> None:
        super().__init__(Neighbours)

    def forward(self, inputs: Tensor) -> Any:
        return self.model(inputs)

    def outputs(self, batch: Any) -> Any:
        return self(batch["inputs"])


APART = {
    "tensor": (partial(Stranger, Stacked), result.PLAN),
    "context": (OfNeighbours, result.POSITIONS),
}


@pytest.mark.compares
@pytest.mark.parametrize("strategy", APART)
def test_parity_reports_layers_that_cannot_be_shared(strategy: str) -> None:
    task, kind = APART[strategy]
    made = STRATEGIES[strategy]()
    found = onecurve.parity(task, loaders, strategy=made, accelerator="cpu", steps=4)
    assert found.kinds == [kind]
    assert f"Likely {kind}: {in_python(result.TO_DO[kind])}." in found.table()


class Flattens(Attention):
    """Knows the width by itself."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        samples, length, width = hidden_states.shape
        *three, output = (getattr(self, name) for name in self.names)
        seen = F.scaled_dot_product_attention(
            *(
                layer(hidden_states).view(samples, length, self.num_heads, -1).transpose(1, 2)
                for layer in three
            )
        )
        return output(seen.transpose(1, 2).reshape(samples, length, width)), None


class Copies(Stranger):
    def outputs(self, batch: Any) -> Any:
        return deepcopy(self.model)(batch["inputs"])


class PenalizedInPlace(Stranger):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        loss += self.model[0].weight.abs().sum()
        return loss


class UsesAWeight(Stranger):
    def outputs(self, batch: Any) -> Tensor:
        return super().outputs(batch) @ self.model[0].weight.T[:, :WIDTH]


class LogsNorms(Stranger):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log_dict(grad_norm(self, 2))


class Averaged(Stranger):
    def configure_callbacks(self) -> Any:
        return [EMAWeightAveraging()]


class PenalizesSlopes(Stranger):
    def outputs(self, batch: Any) -> Tensor:
        inputs = batch["inputs"].clone().requires_grad_()
        made = self.model(inputs)
        return torch.autograd.grad(made.sum(), inputs, create_graph=True)[0]


class Late(BaseFinetuning):
    def freeze_before_training(self, module: Any) -> None:
        self.freeze(module.scale_by)

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        if epoch:
            self.unfreeze_and_add_param_group(module.scale_by, optimizer)


class Unfreezes(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.scale_by = nn.LayerNorm(WIDTH)

    def outputs(self, batch: Any) -> Any:
        return self.scale_by(super().outputs(batch))

    def configure_callbacks(self) -> Any:
        return [Late()]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([each for each in self.parameters() if each.requires_grad], 0.01)


def test_groups_that_a_callback_added_are_resumed(tmp_path: Path) -> None:
    file = tmp_path / "unfrozen.ckpt"

    def fit_on(epochs: int, strategy: Any) -> Unfreezes:
        options = {"max_epochs": epochs, "num_sanity_val_steps": 0}
        trainer = quiet_trainer(strategy, precision="64-true", **options)
        task = Unfreezes()
        trainer.fit(task, *loaders(), ckpt_path=file if file.exists() else None)
        trainer.save_checkpoint(file) if not file.exists() else None
        return task

    fit_on(2, "auto")
    plain, single = fit_on(3, "auto"), fit_on(3, onecurve.Single())
    # Lightning reads a checkpoint into a network of float32, before it makes that float64.
    torch.testing.assert_close(plain.state_dict(), single.state_dict(), rtol=0, atol=1e-6)
    assert not torch.equal(plain.scale_by.weight, torch.ones_like(plain.scale_by.weight))


class CallsAlone(Stranger):
    def on_train_epoch_end(self) -> None:
        if self.trainer.is_global_zero:
            with torch.no_grad():
                self.model(torch.zeros(2, WIDTH, dtype=torch.float64))


class CallsSometimes(Stranger):
    """Unequally often on the ranks, as where it depends on what is in the samples."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        for _ in range(self.global_rank):
            self.outputs(batch)
        return super().training_step(batch, batch_idx)


class ChangesItsInput(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs += super().forward(inputs)
        return inputs


def changed_input() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), ChangesItsInput())


class ScalesRows(Stranger):
    """Looks up embeddings that are scaled, by numbers that it makes of its inputs."""

    def __init__(self, **scaling: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, **scaling or {"max_norm": 0.5})

    def forward(self, inputs: Tensor) -> Any:
        return self.model(inputs + self.table(inputs.sum(-1).abs().long() % 5))


class Normalized(Stranger):
    """Has statistics of the sums of samples."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__(lambda: nn.Sequential(norm(WIDTH), pair()))

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.model(inputs.sum(1))
        return made[:, None].expand_as(inputs)

    def outputs(self, batch: Any) -> Any:
        return self(batch["inputs"])


class UsesSome(Scaled):
    """Of its parameters, from the second step on."""

    def outputs(self, batch: Any) -> Tensor:
        made: Tensor = (
            super().outputs(batch) if self.global_step == 0 else self.model(batch["inputs"])
        )
        return made


class AbstractTask(ABC, Scaled):
    """Has parameters of its own, which the whole is to gather."""


def one_block() -> nn.Module:
    return nn.Sequential(Block(Flattens(ATTENTIONS[0]), pair()))


class LogsAWeight(Stranger):
    def on_train_epoch_end(self) -> None:
        self.log("size", self.model[0].weight.detach().abs().mean())  # type: ignore[index, union-attr]


class ReadsNumbers(Stranger):
    def on_train_epoch_end(self) -> None:
        for parameter in self.parameters():
            parameter.detach().numpy()


class DrawsHistograms(Stranger):
    """As TensorBoard's logger, whose histogram of a tensor without numbers is a random one."""

    def on_train_epoch_end(self) -> None:
        with TemporaryDirectory() as folder, SummaryWriter(folder) as writer:  # type: ignore[no-untyped-call]
            for name, parameter in self.named_parameters():
                writer.add_histogram(name, parameter)  # type: ignore[no-untyped-call]


class SetsWeights(Stranger):
    def on_train_start(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.set_(torch.zeros_like(parameter))  # type: ignore[no-untyped-call]


class DrawsParts(Stranger):
    def on_train_start(self) -> None:
        for part in self.model[2].weight.data.chunk(2):  # type: ignore[index, union-attr]
            nn.init.orthogonal_(part)


class PlacedBetween(nn.Module):
    """Adds positions after its first block, as YOLOS does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = block(inputs) + torch.ones(LENGTH, WIDTH, dtype=inputs.dtype)
        return inputs


class SkipsABatch(Stranger):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) if batch_idx == 0 else None


class ClampsByHooks(Stranger):
    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


class OwnLoader:
    """No DataLoader, as those of DALI and FFCV; it may divide the samples among ranks by itself."""

    def __init__(self, divides: bool = False) -> None:
        sampler = DistributedSampler(Samples(), shuffle=False) if divides else None  # type: ignore[arg-type, var-annotated]
        self.batches = DataLoader(Samples(), 8, sampler=sampler)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        yield from self.batches


class LoadsItself(Stranger):
    """Makes its loader once the ranks exist."""

    def __init__(self, divides: bool = False) -> None:
        super().__init__()
        self.divides = divides

    def train_dataloader(self) -> Any:
        return OwnLoader(self.divides)


# What one rank alone notices.
OF_ONE_RANK = ("one sample", "alone", "sometimes")
LINES: dict[str, Any] = {
    "one sample": (
        Normalized,
        "ddp",
        "strategy=ddp: BatchNorm cannot compute statistics of one sample",
        {"data": partial(DataLoader, Samples(), 3)},
    ),
    "a sample of all ranks": (
        Normalized,
        "ddp",
        "strategy=ddp: BatchNorm cannot compute statistics of one sample",
        {"data": partial(DataLoader, Samples(), 7), "sync_batchnorm": True}
        | {"limit_train_batches": 1.0},
    ),
    "synchronized by PyTorch's own layer": (
        partial(Normalized, nn.SyncBatchNorm),
        "ddp",
        "strategy=ddp: PyTorch's SyncBatchNorm is for GPUs alone; use BatchNorm, and",
        {},
    ),
    **{
        f"{name} of uneven shares": (
            partial(Gathers, call),
            "ddp",
            f"{name}: ranks pass tensors of different shapes, [4, 6, 8] and [3, 6, 8], as when "
            "they share a batch unevenly; self.trainer.strategy.all_samples(tensor) gathers a row",
            {"data": partial(DataLoader, Samples(), 7)},
        )
        for name, call in {"all_gather": gathered, "reduce": reduced}.items()
    },
    "some": (UsesSome, "ddp", "strategy=ddp: the step before used only some of the parameters"),
    "flattens": (
        partial(Stranger, one_block),
        "tensor",
        "strategy.plan: model.0.attention holds only some of its heads or features",
    ),
    "nothing": (OfNeighbours, "tensor", "nothing to shard in OfNeighbours: it has no Linear layer"),
    "copies": (
        Copies,
        "fsdp",
        "Copies, or a callback such as Lightning's averages of weights, copies a module",
    ),
    "copies layers": (Copies, "pipeline", "a module is copied whose layers are a pipeline"),
    "in place": (
        PenalizedInPlace,
        "fsdp",
        "PenalizedInPlace does with sharded weights",
    ),
    "weight": (UsesAWeight, "fsdp", "UsesAWeight does with sharded weights"),
    "method": (
        CallsAMethod,
        "fsdp",
        "strategy=fsdp: CallsAMethod calls model.encode (test_strangers.py:",
    ),
    "part": (CallsParts, "fsdp", "CallsParts calls model.layers (test_strangers.py:"),
    "part of tensor": (CallsLayers, "tensor", "CallsLayers calls model.layers (test_strangers.py:"),
    **{
        f"backward of {name}": (
            BackwardByHand,
            name,
            f"strategy={name}: BackwardByHand calls loss.backward(), which does not know this",
        )
        for name in ("ddp", "fsdp", "tensor", "pipeline")
    },
    "norms": (LogsNorms, "fsdp", "a norm by self.trainer.strategy.gradient_norm()"),
    **{
        f"averaged, {name}": (Averaged, name, "onecurve.ExponentialMovingAverage")
        for name in ("tensor", "pipeline")
    },
    "slopes": (
        PenalizesSlopes,
        "fsdp",
        "PenalizesSlopes does with sharded weights",
    ),
    "input": (
        partial(Stranger, changed_input),
        "fsdp",
        "Stranger does with sharded weights",
    ),
    "rows": (ScalesRows, "ddp", "strategy=ddp: table scales the rows that it looks up (max_norm)"),
    "rows of shards": (ScalesRows, "fsdp", "table scales the rows that it looks up (max_norm)"),
    **{
        f"gradients of rows, {name}": (
            partial(ScalesRows, scale_grad_by_freq=True),
            name,
            "table divides gradients by how often a batch looks up a row (scale_grad_by_freq)",
        )
        for name in ("ddp", "pipeline")
    },
    "abstract": (AbstractTask, "fsdp", "strategy=fsdp: a class has another base, such as ABC"),
    **{
        f"hooks, {name}": (ClampsByHooks, name, "and 1 more have hooks (register_hook)")
        for name in ("fsdp", "tensor")
    },
    "unfreezes": (Unfreezes, "tensor", "Unfreezes does with sharded weights"),
    "unfreezes layers": (
        Unfreezes,
        "pipeline",
        "compares a weight or a gradient that another",
    ),
    "logs": (LogsAWeight, "tensor", "LogsAWeight does with sharded weights"),
    "other memory": (
        SetsWeights,
        "tensor",
        "SetsWeights does with sharded weights",
    ),
    "parts": (DrawsParts, "tensor", "with self.trainer.strategy.full_parameters(self)"),
    "between": (
        partial(Stranger, PlacedBetween),
        "pipeline",
        "the blocks in model.blocks make the stages, and model.forward uses what passes between",
    ),
    "numbers": (ReadsNumbers, "fsdp", "ReadsNumbers does with sharded weights"),
    "histograms": (DrawsHistograms, "pipeline", "on_train_epoch_end (test_strangers.py:"),
    **{
        f"divided, {name}": (
            partial(LoadsItself, divides=True),
            name,
            "strategy: OwnLoader yields different samples on some ranks; let it yield the same",
            {"data": type(None)},
        )
        for name in ("ddp", "tensor")
    },
    "skips": (SkipsABatch, "ddp", "training_step of SkipsABatch returned None, which skips a"),
    "anomaly": (
        Stranger,
        "tensor",
        "strategy=tensor: Stranger does with sharded weights",
        {"detect_anomaly": True},
    ),
    "alone": (
        CallsAlone,
        "fsdp",
        "strategy=fsdp: rank 0 calls CallsAlone in on_train_epoch_end (test_strangers.py:",
    ),
    "sometimes": (CallsSometimes, "fsdp", "a part of CallsSometimes: call it as often on all"),
}


def case(name: str) -> Case:
    task, strategy, _, *options = LINES[name]
    short = {"data": partial(DataLoader, Samples(), 8), "limit_train_batches": 2, **dict(*options)}
    return task, STRATEGIES[strategy](timeout_seconds=8), short


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> Any:
    cases = {name: case(name) for name in LINES if name not in OF_ONE_RANK}
    return shared("strangers rejected", partial(fits_in_ranks, cases))


@pytest.mark.parametrize("name", LINES)
def test_what_cannot_work_is_rejected_in_one_line(
    name: str, outcomes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outcomes.get(name)
    if name in OF_ONE_RANK:
        monkeypatch.undo()  # ranks that fail are not to be warm
        task, strategy, options = case(name)
        with pytest.raises(UserError) as refused:
            onecurve.launch(fits, {"": (task, strategy, {**options, "is_alone": True})})
        found = str(refused.value)
    assert isinstance(found, str), "it was trained"
    assert LINES[name][2] in found
    assert "\n" not in found
    assert "strategy=" in found


def said_in_fit(task: Callable[[], LightningModule], data: Any = None, name: str = "ddp") -> str:
    case: Case = (task, STRATEGIES[name](), {"data": data or partial(DataLoader, Samples(), 8)})
    with redirect_stderr(StringIO()) as said:
        found = fits({"": case})
    assert not isinstance(found[""], str)
    return said.getvalue()


def said_in_fits(strategy: str, tasks: Sequence[Callable[[], LightningModule]]) -> list[str]:
    """What is printed in a fit of each, with a checkpoint at its end."""
    said = []
    for task in tasks:
        with redirect_stderr(StringIO()) as lines, TemporaryDirectory() as folder:
            options: dict[str, Any] = {"data": partial(DataLoader, Samples(), 8)}
            options["callbacks"] = [SavesAtEnd(Path(folder) / "end.ckpt")]
            found = fits({"": (task, STRATEGIES[strategy](), options)})
        assert not isinstance(found[""], str)
        said.append(
            "\n".join(line for line in lines.getvalue().splitlines() if "strategy=" in line)
        )
    return said


def test_what_differs_in_ddp_is_said_once() -> None:
    tasks = [OfItsOwn, Centred, KeepsAQueue, ClampsByHooks, AddsNoise, LogsErrors]
    right = [OfItsOwnAveraged, ByHand, Stranger]
    run = partial(warm_ranks.run, "test_strangers.said_in_fits", processes=2)
    by_itself, first, queue, hooks, noise, errors, *rest = run(("ddp", [*tasks, *right]))
    assert "scale, shift, model.0.weight and 3 more of OfItsOwn became" in by_itself
    assert "average gradients that a step computes by itself, p.grad =" in by_itself
    assert "strategy=ddp: model.0.shift of Centred became different ones on each rank" in first
    assert "strategy=ddp: queue of KeepsAQueue became different ones" in queue
    assert "see the gradient of a rank's own samples" in hooks
    assert "training_step of AddsNoise draws random numbers, different ones on each rank" in noise
    assert "strategy=ddp: error of a step is that of the first rank's samples, and of" in errors
    assert all(each.count("\n") == 0 for each in (by_itself, first, queue, hooks, noise, errors))
    assert not any(rest)


def test_so_is_that_ranks_do_not_share_the_batches_of_a_loader() -> None:
    run = partial(warm_ranks.run, "test_strangers.said_in_fit", processes=2)
    line = "strategy=ddp: every rank computes every batch of OwnLoader"
    assert run((Stranger, OwnLoader)).count(line) == 1
    assert "OwnLoader" not in run((Stranger, OwnLoader, "tensor"))


def test_a_weight_that_is_put_together_of_different_ones_is_named() -> None:
    asked = ("fsdp", [Centred, Stranger])
    first, nothing = warm_ranks.run("test_strangers.said_in_fits", asked, processes=2)
    assert first.count("strategy=fsdp: model.0.shift of Centred became different ones") == 1
    assert not nothing


def test_nothing_is_said_of_a_schedule_that_nobody_asked_for() -> None:
    run = partial(warm_ranks.run, "test_strangers.said_in_fit", processes=2)
    assert "schedule" not in run((Stranger, None, "pipeline"))


def test_batchnorm_on_a_single_sample_is_rejected() -> None:
    one: Case = (Normalized, onecurve.DP(), {"data": partial(DataLoader, Samples(), 3)})
    line = "strategy=dp: BatchNorm cannot compute statistics of one"
    assert line in onecurve.launch(fits, {"": one}, devices=1)[""]


def fit_of_the_other_package(trains: str) -> None:
    import pytorch_lightning as other

    class Task(other.LightningModule):
        pass

    trainer = other.Trainer if trains == "pytorch_lightning" else Trainer
    trainer(accelerator="cpu", devices=2, strategy=onecurve.DDP(), logger=False).fit(Task())


@pytest.mark.parametrize("trains", ["lightning", "pytorch_lightning"])
def test_modules_of_the_other_lightning_package_are_rejected(
    trains: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"write import lightning\.pytorch as pl instead"):
        onecurve.launch(fit_of_the_other_package, trains, devices=2)


class KeepsItsMetrics(Stranger):
    """Among its hyperparameters, and in a checkpoint, as pytorch-forecasting's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = MeanMetric()
        self.save_hyperparameters({"width": WIDTH, "deep": {"metrics": [self.metric]}})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["special"] = {"metric": self.metric}


def saved(
    path: Path,
    task: Callable[[], LightningModule],
    strategy: Any,
    epochs: int = 1,
    resumed: Path | None = None,
) -> None:
    devices = 1 if strategy == "auto" or strategy.name == "single" else 2
    options = {"devices": devices, "precision": "64-true", "max_epochs": epochs}
    trainer = quiet_trainer(strategy, **options)
    torch.manual_seed(0)
    trainer.fit(task(), loaders()[0], ckpt_path=resumed)
    trainer.save_checkpoint(path)


def test_a_metric_in_a_checkpoint_has_no_group_of_ranks(tmp_path: Path) -> None:
    onecurve.launch(saved, tmp_path / "one.ckpt", KeepsItsMetrics, onecurve.Tensor(), devices=2)
    checkpoint = torch.load(tmp_path / "one.ckpt", weights_only=False)
    assert checkpoint["special"]["metric"].process_group is None
    assert checkpoint["hyper_parameters"] == {"width": WIDTH}


def test_a_checkpoint_holds_one_projection_as_it_was(tmp_path: Path) -> None:
    """The rows in their own order; one process goes on where two were, and two where one was."""
    plain, half, single, two = (tmp_path / name for name in ("plain", "half", "single", "two"))
    saved(plain, OfOneProjection, "auto", 3)
    onecurve.launch(saved, half, OfOneProjection, onecurve.Tensor(), devices=2)
    saved(single, OfOneProjection, onecurve.Single(), 2, half)
    onecurve.launch(saved, two, OfOneProjection, onecurve.Tensor(), 3, single, devices=2)
    expected, found = (torch.load(file, weights_only=True) for file in (plain, two))
    assert [*found["state_dict"]] == [*expected["state_dict"]]
    torch.testing.assert_close(found["state_dict"], expected["state_dict"], rtol=0, atol=ROUNDING)
    of_adam, expected_of_adam = (each["optimizer_states"][0]["state"] for each in (found, expected))
    torch.testing.assert_close(of_adam, expected_of_adam, rtol=0, atol=ROUNDING)
