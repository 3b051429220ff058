"""Tasks as others write them: batches are dictionaries, there is no `loss`, and often no `forward`.

Each does one thing that this library did not expect, or that cannot be under some strategy.
"""

import warnings
from abc import ABC
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import BaseFinetuning, EMAWeightAveraging
from lightning.pytorch.utilities import grad_norm
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, prune, weight_norm
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate
from torch.utils.tensorboard import SummaryWriter
from torchmetrics import MeanAbsoluteError

WIDTH, LENGTH = 8, 6
PAGE = Path(__file__).parents[2] / "docs/your_network.md"
exec(PAGE.read_text(encoding="utf-8").split("```python\n")[2].split("```")[0], SHOWN := {})


class Samples(Dataset[Any]):
    """Vectors (LENGTH, WIDTH) and what is to come of them, in a dictionary; 29 of them."""

    def __len__(self) -> int:
        return 29

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        drawn = torch.Generator().manual_seed(index)
        inputs = torch.randn(LENGTH, WIDTH, generator=drawn, dtype=torch.float64)
        return {"inputs": inputs, "labels": inputs.sin().cumsum(0)}


class Gathered(Samples):
    """Takes the numbers of a batch."""

    def __getitem__(self, index: Any) -> Any:
        return default_collate([Samples()[each] for each in index])


def loaders(batch: int = 7) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Of batches that two ranks share unevenly in the end."""
    return DataLoader(Samples(), batch), DataLoader(Samples(), batch)


def pair() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))


class Stranger(LightningModule):
    """Calls its network by name, and has no `forward`; others say what that network is."""

    network: Callable[[], nn.Module] = staticmethod(pair)

    def __init__(self, network: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.model = (network or self.network)()

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
    network = OfHuggingFace

    def forward(self, **batch: Tensor) -> Any:
        return self.model(**batch)

    def outputs(self, batch: Any) -> Any:
        return self(**batch)["logits"]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        found = self(**batch)
        self.log("train", found["loss"])
        return found


class Forwards(Stranger):
    """Calls its network by `forward`."""

    def forward(self, inputs: Tensor) -> Any:
        return self.model(inputs)

    def outputs(self, batch: Any) -> Any:
        return self(batch["inputs"])


class OfABatch(Stranger):
    def forward(self, batch: Any) -> Any:
        return self.model(batch["inputs"])

    def outputs(self, batch: Any) -> Any:
        return self(batch)


class BetweenLayers(Stranger):
    """Also takes what is between the layers of its network, which it calls one by one."""

    def outputs(self, batch: Any) -> Any:
        hidden = self.model[:2](batch["inputs"])
        return self.model[2](hidden) + hidden.mean(-1, keepdim=True)


class Rows:
    """A batch of one's own class, as libraries of graphs have it; in single precision."""

    def __init__(self, samples: list[dict[str, Tensor]]) -> None:
        self.inputs = torch.stack([each["inputs"] for each in samples]).float()
        self.labels = torch.stack([each["labels"] for each in samples]).float()

    def to(self, device: torch.device, **_: Any) -> "Rows":
        self.inputs, self.labels = self.inputs.to(device), self.labels.to(device)
        return self

    def __getitem__(self, name: str) -> Tensor:
        return vars(self)[name]  # type: ignore[no-any-return]


def rows() -> DataLoader[Any]:
    return DataLoader(Samples(), batch_size=7, collate_fn=Rows)


class OfRows(Stranger):
    """Says how many there are, because Lightning cannot see it."""

    def log(self, name: str, value: Any, **options: Any) -> None:
        super().log(name, value, batch_size=self.size, **options)

    def outputs(self, batch: Any) -> Any:
        self.size = len(batch["inputs"])
        return super().outputs(batch)


class Scaled(Stranger):
    """Has parameters of its own, one of them without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(WIDTH))

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


class TemperedLate(Stranger):
    network = Tempered

    def on_train_batch_start(self, *_: Any) -> None:
        self.model.temperature.requires_grad_(self.global_step > 1)  # type: ignore[operator]


class ChangesInHooks(Stranger):
    """Reads a batch first, bounds weights, adds noise to them, and removes gradients as DINO does.

    A fit that resumes reads that batch, too.
    """

    def on_train_start(self) -> None:
        batch = next(iter(self.trainer.train_dataloader))  # type: ignore[arg-type]
        self.bound = 1.6 / batch["inputs"].shape[-1]

    def on_train_batch_start(self, *_: Any) -> None:
        for layer in (self.model[0], self.model[2]):  # type: ignore[index]
            layer.weight.data = layer.weight.data.clamp(-self.bound, self.bound)

    def on_after_backward(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter += 0.01 * torch.randn(()).to(parameter)
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
        return self.head.forward(self.model.encode(batch["inputs"]))

    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return super().training_step(batch, 0)

    def validation_step(self, batch: Any) -> None:  # type: ignore[override]
        super().validation_step(batch, 0)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.model(batch["inputs"])

    def configure_optimizers(self) -> Any:
        trained = [*self.model.trained(), *self.head.parameters()]
        return torch.optim.AdamW(trained, lr=0.01)


class CallsParts(Stranger):
    network = Encodes

    def outputs(self, batch: Any) -> Any:
        return self.model.layers(batch["inputs"]) + self.model.shift  # type: ignore[operator]


class FineTunes(LightningModule):
    """A language model, as tutorials of Hugging Face write it: a mean over labels that count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self.head(self.embed(batch["input_ids"]))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class FineTunesByWeight(FineTunes):
    """Says what counts in a batch, as docs/your_network.md does."""

    weight = SHOWN["weight"]


def texts() -> DataLoader[Any]:
    """Batches of 4 and 4 and 3 texts of many lengths."""
    ids = torch.arange(6)
    labels = [ids.where(ids < (2, 6, 4)[number % 3], -100) for number in range(11)]
    return DataLoader([{"input_ids": ids, "labels": each} for each in labels], 4)  # type: ignore[arg-type]


class HasNoOptimizer(Stranger):
    def configure_optimizers(self) -> None:
        return None


class PenaltyOnItsOwn(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.prompts = nn.ParameterDict({"first": torch.zeros(WIDTH)})

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        penalty = 0.1 * self.scale.square().sum() + (self.prompts["first"] - 1).square().sum()
        return super().training_step(batch, batch_idx) + penalty


class ByHand(Scaled):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


class BackwardByHand(ByHand):
    def manual_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        loss.backward()  # type: ignore[no-untyped-call]


class CriticFirst(LightningModule):
    """Two networks by turns within a step, an optimizer each, as in a Wasserstein GAN.

    The maker, frozen for the critic, is trained in the same step.
    """

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.critic = pair(), pair()

    def loss(self, batch: Any, of: str) -> Tensor:
        made = self.maker(batch["inputs"])
        return F.mse_loss(
            self.critic(made if of == "maker" else made.detach().cos()), batch["labels"]
        )

    def training_step(self, batch: Any, batch_idx: int) -> None:
        makers, critics = self.optimizers()  # type: ignore[misc]
        for name, optimizer in (("critic", critics), ("maker", makers)):
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


def follow(task: Any) -> None:
    """As in BYOL: moves a copy towards the network, by new values of `.data`."""
    for trained, ours in zip(task.model.parameters(), task.teacher.parameters(), strict=True):
        ours.data = 0.9 * ours.data + 0.1 * trained.data


class AssignedTeacher(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = deepcopy(self.model).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.mse_loss(self.model(batch["inputs"]), self.teacher(batch["labels"]))

    def on_train_batch_end(self, *_: Any) -> None:
        follow(self)


class Shadowed(Stranger):
    """Validates other weights, as the EMA class that many copy does."""

    def on_validation_start(self) -> None:
        self.backup = [each.data for each in self.parameters()]
        for each in self.parameters():
            each.data = 0.9 * each.data

    def on_validation_end(self) -> None:
        for each, before in zip(self.parameters(), self.backup, strict=True):
            each.data = before


class TeacherInStep(Stranger):
    """Its copy is not frozen, and is assigned within the step, before the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.head = deepcopy(self.model), nn.Linear(WIDTH, WIDTH)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = self.head(self.model(batch["inputs"]))
        with torch.no_grad():
            targets = self.teacher(batch["labels"])
        follow(self)
        return F.mse_loss(outputs, targets)


class LateTeacher(Stranger):
    """A copy of the network that is made in on_fit_start, where a checkpoint has been loaded."""

    def on_fit_start(self) -> None:
        self.teacher = deepcopy(self.model).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.mse_loss(self.model(batch["inputs"]), self.teacher(batch["labels"]))


class QueueOfRanks(Stranger):
    """Keeps a queue that is shorter the more ranks there are, as for a batch of each rank."""

    def setup(self, stage: str) -> None:
        self.register_buffer("queue", torch.zeros(8 // self.trainer.world_size, WIDTH).double())


class AdversariesOfPyTorch(CriticFirst):
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


class ClipsItself(ByHand):
    def manual_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        super().manual_backward(loss)
        other = nn.Parameter(torch.ones(3))  # what is of no task is clipped as usual
        other.grad = torch.full((3,), 100.0)
        norms = {
            "all": clip_grad_norm_(self.parameters(), 0.1),
            "largest": nn.utils.clip_grad_norm_(self.parameters(), 0.02, norm_type=torch.inf),
            "part": clip_grad_norm_(self.model[0].parameters(), 0.01),  # type: ignore[index]
            "other": clip_grad_norm_(other, 0.1),
            "other, clipped": other.grad.norm(),
        }
        self.log_dict(norms)


class OfSomeInputs(ByHand):
    def manual_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        super().manual_backward(loss, inputs=list(self.model.parameters()))


class OfItsOwn(ByHand):
    """Makes gradients without a backward pass that anybody else sees."""

    def manual_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        weights = list(self.parameters())
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient


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
    network = staticmethod(lambda: nn.Sequential(Centres(), *pair()))


class KeepsAQueue(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(WIDTH))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx:
            self.queue.copy_(batch["inputs"][0, 0])  # type: ignore[operator]
        return super().training_step(batch, batch_idx)


def spectral() -> nn.Module:
    """Changes buffers whenever it is called."""
    first = nn.utils.spectral_norm(nn.Linear(WIDTH, 8))
    return nn.Sequential(first, nn.Tanh(), nn.Linear(8, WIDTH))


def gathered(task: LightningModule, rows: Tensor) -> Any:
    return task.all_gather(rows, sync_grads=True)


def reduced(task: LightningModule, rows: Tensor) -> Any:
    return task.trainer.strategy.reduce(rows)


def gathered_by_pytorch(task: LightningModule, rows: Tensor) -> None:
    if dist.is_initialized():
        dist.all_gather([torch.empty_like(rows) for _ in range(dist.get_world_size())], rows)


class Gathers(Stranger):
    """Calls a collective with the outputs for its own samples."""

    def __init__(self, call: Callable[[LightningModule, Tensor], Any]) -> None:
        super().__init__()
        self.call = call

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.call(self, self.outputs(batch))
        return super().training_step(batch, batch_idx)


class LogsErrors(Stranger):
    def __init__(self, syncs: bool = False) -> None:
        super().__init__()
        self.error = MeanAbsoluteError(dist_sync_on_step=syncs).set_dtype(torch.float64)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.error(self.outputs(batch), batch["labels"])
        self.log("error", self.error)
        return super().training_step(batch, batch_idx)


class AddsNoise(Stranger):
    def outputs(self, batch: Any) -> Any:
        return self.model(batch["inputs"] + torch.randn_like(batch["inputs"]))


class MixesSamples(Stranger):
    def on_after_batch_transfer(self, batch: Any, _: int) -> Any:
        return {name: row.lerp(row[torch.randperm(len(row))], 0.3) for name, row in batch.items()}


class ComputesItsWeights(Stranger):
    """Has weights that are no parameters: each is computed at each call, of two, or of a mask."""

    def __init__(self) -> None:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            super().__init__(lambda: nn.Sequential(weight_norm(nn.Linear(WIDTH, WIDTH)), *pair()))
        prune.l1_unstructured(self.model[1], "weight", 0.5)  # type: ignore[index, no-untyped-call]


class Gaussian(nn.Linear):
    def forward(self, inputs: Tensor) -> Any:
        return torch.distributions.Normal(super().forward(inputs), 1.0)


# transformers looks up so what a network can return.
RETURNS = {str(Gaussian): "mean"}


class OfADistribution(Stranger):
    """What enters needs no gradient, and what is returned is no tensor."""

    network = staticmethod(partial(Gaussian, WIDTH, WIDTH))

    def outputs(self, batch: Any) -> Any:
        return getattr(self.model(batch["inputs"]), RETURNS[str(type(self.model))])


class KnowsItsWidth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output, self.num_heads = nn.Linear(WIDTH, WIDTH), 4

    def forward(self, inputs: Tensor) -> Any:
        layers = self.query, self.key, self.value
        heads = (layer(inputs).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in layers)
        seen = F.scaled_dot_product_attention(*heads).transpose(1, 2)
        return self.output(seen.reshape(inputs.shape))

    def tensor_plan(self) -> dict[str, str]:
        return {"": "heads"}


class Masked(nn.Linear):
    """Changes its weights each time that it is called, and then has another tensor of them."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.weight.data *= torch.ones_like(self.weight).tril()
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.3)
        return super().forward(inputs)


def masked() -> nn.Module:
    return nn.Sequential(*(Masked(WIDTH, WIDTH) for _ in range(2)))


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


class Then(nn.Linear):
    """Does something with what it has computed."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.then = then

    def forward(self, inputs: Tensor) -> Tensor:
        return self.then(super().forward(inputs))


def mean_over_positions(made: Tensor) -> Tensor:
    return made.mean(1, keepdim=True)


class Copies(Stranger):
    def outputs(self, batch: Any) -> Any:
        return deepcopy(self.model)(batch["inputs"])


class UsesAWeight(Stranger):
    def outputs(self, batch: Any) -> Tensor:
        return super().outputs(batch) @ self.model[0].weight.T[:, :WIDTH]


class LogsNorms(Stranger):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log_dict(grad_norm(self, 2))
        self.log("slope", self.model[0].weight.grad.abs().mean())


class Averaged(Stranger):
    def configure_callbacks(self) -> Any:
        return [EMAWeightAveraging()]


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


class ScalesRows(Stranger):
    """Looks up embeddings that are scaled, by numbers that it makes of its inputs."""

    def __init__(self, **scaling: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, **scaling or {"max_norm": 0.5})

    def outputs(self, batch: Any) -> Any:
        inputs = batch["inputs"]
        return self.model(inputs + self.table(inputs.sum(-1).abs().long() % 5))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Normalized(Forwards):
    """Has statistics of the sums of samples."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__(lambda: nn.Sequential(norm(WIDTH), pair()))

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.model(inputs.sum(1))
        return made[:, None].expand_as(inputs)


class NormalizedBefore(Normalized):
    """Trains behind a frozen network that it sets to eval(), as in Lightning's docs."""

    def __init__(self) -> None:
        super().__init__()
        self.model[0].requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.model[0].eval()
        return super().forward(inputs)


class CallsAlone(Stranger):
    def on_train_epoch_end(self) -> None:
        if self.trainer.is_global_zero:
            with torch.no_grad():
                self.model(torch.zeros(2, WIDTH, dtype=torch.float64))


class AbstractTask(ABC, Scaled):
    """Has parameters of its own, which the whole is to gather."""


def one_block() -> nn.Module:
    return nn.Sequential(KnowsItsWidth())


class LogsAWeight(Stranger):
    def on_train_epoch_end(self) -> None:
        self.log("size", self.model[0].weight.detach().abs().mean())  # type: ignore[index, union-attr]


class DrawsHistograms(Stranger):
    """As TensorBoard's logger, whose histogram of a tensor without numbers is a random one."""

    def on_train_epoch_end(self) -> None:
        with TemporaryDirectory() as folder, SummaryWriter(folder) as writer:  # type: ignore[no-untyped-call]
            for name, parameter in self.named_parameters():
                writer.add_histogram(name, parameter)  # type: ignore[no-untyped-call]


class InTurn(nn.Module):
    """Calls its blocks one after the other."""

    block: Callable[..., nn.Module] = nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.block(WIDTH, WIDTH) for _ in range(2))

    def call(self, block: nn.Module, inputs: Tensor) -> Any:
        return block(inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = self.call(block, inputs)
        return inputs


class PlacedBetween(InTurn):
    def call(self, block: nn.Module, inputs: Tensor) -> Any:
        return block(inputs) + torch.ones(LENGTH, WIDTH, dtype=inputs.dtype)


class Checkpointed(InTurn):
    def call(self, block: nn.Module, inputs: Tensor) -> Any:
        return checkpoint(block, inputs, use_reentrant=False)


class FillsACache(nn.Linear):
    def forward(self, inputs: Tensor, cache: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        cache["made"] = super().forward(inputs)
        return cache["made"]


class Cached(InTurn):
    block = FillsACache

    def call(self, block: nn.Module, inputs: Tensor) -> Any:
        return block(inputs, cache={})


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
    def train_dataloader(self) -> Any:
        return OwnLoader(divides=True)


class BatchesOfRank(DistributedSampler[Any]):
    """Yields batches, as that of scvi-tools does."""

    def __iter__(self) -> Any:
        indices = super().__iter__()
        while batch := list(islice(indices, 8)):
            yield batch


class LoadsByRank(Stranger):
    """Has a sampler for ranks where there are some, as libraries do."""

    def __init__(self, yields_batches: bool = False) -> None:
        super().__init__()
        self.yields_batches = yields_batches

    def train_dataloader(self) -> DataLoader[Any]:
        if not dist.is_initialized():
            return DataLoader(Samples(), 8, shuffle=not self.yields_batches)
        if self.yields_batches:
            batches = BatchesOfRank(Samples(), shuffle=False)
            return DataLoader(Gathered(), None, sampler=batches, collate_fn=None)
        return DataLoader(Samples(), 8, sampler=DistributedSampler(Samples()))


def four() -> nn.Sequential:
    return nn.Sequential(pair(), nn.GELU(), pair())


def full(task: Any) -> Any:
    """The context in which a task's weights are full; a plain Trainer needs none."""
    return getattr(task.trainer.strategy, "full_parameters", nullcontext)(task)


class Drawn(Stranger):
    """Draws its weights as training begins, and noise on gradients."""

    def on_train_start(self) -> None:
        for layer in self.model.modules():
            if isinstance(layer, nn.Linear) and not self.trainer.global_step:
                layer.reset_parameters()
                nn.init.normal_(layer.bias)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad += 0.1 * torch.randn_like(parameter.grad)


class ByFunctions(Stranger):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            with full(self), torch.no_grad():
                first, last = self.model[0].weight, self.model[2].weight
                nn.init.orthogonal_(first)
                first.fill_diagonal_(0.1)
                first[:3].normal_(0, 0.1)
                first.narrow(0, 6, 5)[1].zero_()
                half, other = torch.chunk(last, 2)
                half *= 2
                other.bernoulli_(0.5)
                last[1].copy_(torch.ones(last.shape[1], dtype=last.dtype))
                last.renorm_(2, 0, 0.5)


class OwnSlopes(Stranger):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs = batch["inputs"].clone().requires_grad_()
        made = self.model(inputs).square()
        for _ in range(2):
            (made,) = torch.autograd.grad(made.sum(), inputs, create_graph=True)
        return made.square().mean() + super().training_step(batch, batch_idx)


class OfABook(torch.optim.Optimizer):
    """Expects a gradient for every parameter, whose state it makes before its first step.

    Divides by the norm over all gradients.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["sum"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            norm = torch.stack([each.grad.norm() for each in group["params"]]).norm()
            for parameter in group["params"]:
                size = parameter.data.norm() / (1 + norm)
                sums = self.state[parameter]["sum"].add_(parameter.grad.data)
                parameter.data -= group["lr"] * size.item() * sums
        return loss


class Own(Stranger):
    """Has an optimizer of its own, and a scheduler whose state is its own."""

    network = staticmethod(four)

    def configure_optimizers(self) -> Any:
        optimizer = OfABook(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": Halving(optimizer)}

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step()


class OwnRates(Stranger):
    """Keeps a learning rate on a parameter, as S4 does."""

    def __init__(self) -> None:
        super().__init__()
        vars(self.model[0].weight)["optim"] = {"lr": 0.1}

    def configure_optimizers(self) -> Any:
        groups = [{"params": [each], **getattr(each, "optim", {})} for each in self.parameters()]
        return torch.optim.AdamW(groups, lr=0.01)


class OfASet(Stranger):
    """Gives its optimizer parameters in an order of the rank's own, as a set would."""

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([*self.parameters()][:: 1 - 2 * self.global_rank], lr=0.01)


class MadeEarly(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.early = torch.optim.AdamW(self.model.parameters(), 0.01)

    def configure_optimizers(self) -> Any:
        return self.early


class Taught(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = pair().requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.inference_mode():
            taught = self.teacher(batch["inputs"])
        return F.mse_loss(self.outputs(batch), taught.clone())


class Halving:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.epochs = optimizer, 0

    def step(self) -> None:
        self.epochs += 1
        self.optimizer.param_groups[0]["lr"] /= 2

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]


class Experts(nn.Module):
    """Calls a layer for the samples that are its own, if there are any."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        chosen, outputs = inputs[:, 0, 0].abs().long(), torch.zeros_like(inputs)
        for number, expert in enumerate(self.experts):
            if (of_it := chosen == number).any():
                outputs[of_it] = expert(inputs[of_it])
        return outputs


class Scales(nn.Linear):
    """Adds its part to a sum that it is given, as flows do with their determinants."""

    def forward(self, rows: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        scaled = super().forward(rows).tanh()
        sums += scaled.sum(-1)
        return scaled, sums


class Flows(nn.ModuleList):
    def __init__(self) -> None:
        super().__init__(Scales(WIDTH, WIDTH) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        sums = torch.zeros_like(rows[..., 0])
        for flow in self:
            rows, sums = flow(rows, sums)
        return rows + sums[..., None]


class Balanced(nn.Sequential):
    """Keeps a loss of its own for the step, as experts do so that all of them are used."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = super().forward(inputs)
        self.loss = outputs.square().mean()
        return outputs


class KeepsALoss(Forwards):
    network = staticmethod(lambda: Balanced(*pair()))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) + self.model.loss


class Spectrum(Stranger):
    """Scales frequencies by complex numbers, which no precision of Lightning's converts."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64))

    def outputs(self, batch: Any) -> Any:
        return self.model(torch.fft.irfft(torch.fft.rfft(batch["inputs"]) * self.scales))


class ReadsBatches(Stranger):
    """Centres by the samples of an epoch, which it reads in a step, as k-means and kNN do."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.random.fork_rng():  # a loader draws, and would change later epochs
            read = [each["inputs"] for each in self.trainer.train_dataloader]  # type: ignore[union-attr]
        centred = batch["inputs"] - torch.cat(read).mean(0)
        return super().training_step(batch | {"inputs": centred}, batch_idx)


class ReplacesLoaders(Stranger):
    """Puts loaders of its own into Lightning's loop, as masked diffusion models do."""

    def on_train_start(self) -> None:
        self.trainer.fit_loop._combined_loader.flattened = [loaders()[0]]  # type: ignore[union-attr]


class Hooked(Stranger):
    def __init__(self) -> None:
        super().__init__(four)
        self.kept: dict[str, Tensor] = {}
        self.model[0].register_forward_hook(lambda *given: self.kept.update(made=given[2]))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss + F.mse_loss(self.kept["made"], batch["labels"])


class Graphs(Samples):
    """Each sample is a batch: nodes, and which of them are neighbours."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return super().__getitem__(index) | {"near": torch.eye(LENGTH).double().roll(1, 0)}


class OfGraphs(Stranger):
    def outputs(self, batch: Any) -> Any:
        return self.model(batch["near"] @ batch["inputs"])


class KeepsAnAverage(Callback):
    """An average of weights as a callback of others keeps and saves it."""

    def __init__(self) -> None:
        self.average: dict[str, Tensor] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        for name, weight in pl_module.named_parameters():
            before = self.average.get(name, weight.detach())
            self.average[name] = 0.9 * before + 0.1 * weight.detach()

    def state_dict(self) -> dict[str, Any]:
        return self.average

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.average = state_dict
