"""Modules as people write them: `Plain` keeps the task contract, others do one thing more."""

from typing import Any

import torch
from lightning.pytorch import Callback
from several_fits import Small
from torch import Tensor, nn
from torchmetrics import AUROC, MeanMetric, MeanSquaredError, MetricTracker, RunningMean, SumMetric

from onecurve import chunked_cross_entropy

WIDTH = 6
EACH_STEP: dict[str, Any] = {"on_step": True, "on_epoch": True}
EACH_EPOCH: dict[str, Any] = {"on_step": False, "on_epoch": True}


class Plain(Small):
    """With validation, and a network in order."""

    def network(self) -> nn.Module:
        layers = [nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))

    def parts(self, batch: Any) -> tuple[tuple[Any, ...], Any]:
        """What the network takes, and targets."""
        inputs, targets = batch
        return (inputs,), targets

    def of(self, batch: Any) -> Tensor:
        inputs, targets = self.parts(batch)
        return self.loss(self(*inputs), targets)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("val/loss", self.of(batch), batch_size=len(self.parts(batch)[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class MetricInTraining(Plain):
    """Also by metrics in none of its modules, by one copied for each epoch, and in a window."""

    logged = EACH_STEP

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.running = MeanMetric(), RunningMean(window=2)
        self.counts = {"samples": SumMetric()}
        self.tracker = MetricTracker(SumMetric(), maximize=True)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        targets = batch[1]
        self.mean.update(targets[:, 0])
        self.log("train/mean", self.mean, **EACH_EPOCH)
        self.log("train/samples", float(len(targets)), reduce_fx="sum", **EACH_STEP)
        self.log("train/largest", targets.max(), reduce_fx="max", **EACH_STEP)
        self.log("train/rate", 0.1)  # of the type that the step's precision gives it
        loss = super().training_step(batch, batch_idx)
        self.running(loss.detach())
        self.log("running", self.running)
        self.log("by position", loss, False, True, None, None, "mean", False, False)
        return loss

    def on_validation_epoch_start(self) -> None:
        self.tracker.increment()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)
        for metric in (self.counts["samples"], self.tracker):
            metric.update(float(len(batch[0])))

    def on_validation_epoch_end(self) -> None:
        self.log("samples", self.counts["samples"].compute())
        self.log("tracked", self.tracker.compute())
        self.counts["samples"].reset()


class LogsEpochs(Plain):
    logged = EACH_EPOCH


class Skips(Plain):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx == self.number else loss


class FreezesByTurns(Plain):
    """Its first layer is trained until the second epoch, all others but the last from then on."""

    def on_train_epoch_start(self) -> None:
        self.net[0].requires_grad_(self.current_epoch == 0)
        self.net[1:-1].requires_grad_(self.current_epoch == 1)


class Optimized(Plain):
    """Another optimizer."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.optimizer, self.options = name, {"lr": 0.01, **options}

    def configure_optimizers(self) -> Any:
        return getattr(torch.optim, self.optimizer)(self.parameters(), **self.options)


class Summed(Plain):
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return (outputs - targets).square().sum() * 0.01


class TwoLoaders(Plain):
    """A batch of each of two loaders in a step, and of one or two in validation."""

    def parts(self, batch: Any) -> tuple[tuple[Any, ...], Any]:
        pairs = filter(None, batch.values()) if isinstance(batch, dict) else [batch]
        return super().parts(map(torch.cat, zip(*pairs, strict=True)))


class Measured(Plain):
    """Metrics of each of several validation loaders, one of which keeps outputs and integers."""

    def __init__(self) -> None:
        super().__init__()
        self.errors = nn.ModuleList([MeanSquaredError().set_dtype(torch.float64) for _ in range(3)])
        self.areas = nn.ModuleList([AUROC("binary").set_dtype(torch.float64) for _ in range(3)])

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)
        inputs, targets = batch
        outputs, metric = self(inputs), self.errors[dataloader_idx]
        metric.update(outputs, targets)
        self.areas[dataloader_idx](outputs[:, 0].sigmoid(), (targets[:, 0] > 0).long())
        self.log("val/area", self.areas[dataloader_idx])
        self.log("val/error", metric)


class LogsInHooks(Plain):
    """Has a `log` of its own, and logs what its steps have returned, and by name."""

    def log(self, *args: Any, **options: Any) -> None:
        super().log(*args, **options)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.of(batch)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        first = batch[0][:, 0].mean()
        self.log(name="val/first", value=first, batch_size=len(batch[0]), **EACH_STEP)
        return self.of(batch)

    def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
        self.log("train/loss", outputs["loss"], **EACH_EPOCH)

    def on_validation_batch_end(self, outputs: Any, *_: Any) -> None:
        self.log("val/loss", outputs, **EACH_EPOCH)

    def on_validation_epoch_end(self) -> None:
        self.log_dict({"one": 1.0, "two": 2.0})
        self.log(name="three", value=3.0)


class LogsToo(Callback):
    def on_train_batch_end(self, trainer: Any, task: Any, outputs: Any, *_: Any) -> None:
        self.log("train", outputs["loss"], **EACH_STEP)

    def on_validation_batch_end(self, trainer: Any, task: Any, outputs: Any, *_: Any) -> None:
        self.log_dict({"val": outputs})


class OfSequences(Plain):
    """A network of padded sequences and their lengths."""

    def forward(self, sequences: Tensor, lengths: Tensor) -> Any:
        is_there = torch.arange(sequences.shape[1], device=lengths.device) < lengths[:, None]
        return (self.net(sequences) * is_there[..., None]).sum(1) / lengths[:, None]

    def parts(self, batch: Any) -> Any:
        return batch


class Unused(Plain):
    def network(self) -> nn.Module:
        return nn.Sequential(*super().network(), nn.Linear(2, 2))  # type: ignore[misc]

    def forward(self, inputs: Tensor) -> Any:
        return self.net[:-1](inputs)


class TimeMajor(Plain):
    """A GRU that begins with a state of its own."""

    def network(self) -> nn.Module:
        return nn.GRU(2, 2)

    def forward(self, inputs: Tensor) -> Any:
        start = next(self.parameters()).new_zeros(1, inputs.shape[1], 2)
        return self.net(inputs, start)[0][-1]

    def parts(self, batch: Any) -> tuple[tuple[Any, ...], Any]:
        inputs, targets = batch
        return (inputs.reshape(-1, 2, 2).transpose(0, 1),), targets


class Counting(Plain):
    """A network that counts its calls for training in a buffer, and uses the number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.ones(()))

    def forward(self, inputs: Tensor) -> Any:
        self.calls = self.calls + self.training
        return self.net(inputs) / self.calls


class LogsSometimes(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch[1].max() > 12:
            self.log("train/large", batch[1].max())
        return super().training_step(batch, batch_idx)


class NestedTargets(Plain):
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        if isinstance(targets, Tensor):
            return super().loss(outputs, targets)
        first, (second,) = targets["sum"], targets["more"]
        return nn.functional.mse_loss(outputs[:, 0], first) + (outputs[:, 1] - second).abs().mean()


class OfDictionaries(NestedTargets):
    """Batches that are dictionaries, a network that takes and returns them, and so its steps."""

    def forward(self, inputs: Any) -> Any:
        return {"y": self.net(inputs["x"])}

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return super().loss(outputs["y"], targets)

    def parts(self, batch: Any) -> tuple[tuple[Any, ...], Any]:
        return ({"x": batch["inputs"]},), batch["targets"]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": super().training_step(batch, batch_idx)}


class Padded(Plain):
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, ignore_index=-1)


class PaddedWeighed(Padded):
    """The same, which says what counts, and logs by it."""

    def weight(self, targets: Tensor) -> Tensor:
        return (targets >= 0).sum()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        loss = self.of(batch)
        self.log("val/loss", loss)
        self.log("val/counted", loss, batch_size=int(self.weight(batch[1])))


class PassesTargets(nn.Linear):
    """Passes targets on beside what it computes."""

    def forward(self, given: Any) -> Any:  # type: ignore[override]
        inputs, targets = given
        return super().forward(inputs).tanh(), targets


class HeadByChunks(nn.Linear):
    """Losses instead of logits."""

    def forward(self, given: Any) -> Tensor:  # type: ignore[override]
        return chunked_cross_entropy(given[0], self.weight, given[1], 4, self.bias)


class ByChunks(Plain):
    """The outputs for training are losses."""

    def network(self) -> nn.Module:
        layers = PassesTargets(4, WIDTH), PassesTargets(WIDTH, WIDTH), HeadByChunks(WIDTH, 2)
        return nn.Sequential(*layers)

    def prepare(self, batch: Any) -> Any:
        return (batch[0], batch[1].argmax(1)), batch[1].argmax(1)

    def forward(self, *inputs: Tensor) -> Any:
        return self.net(inputs)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return outputs.mean()

    def parts(self, batch: Any) -> Any:
        return self.prepare(batch)


class Denoising(Plain):
    """Inputs and targets that are drawn in the step, as diffusion has them."""

    def network(self) -> nn.Module:
        return nn.Sequential(Joined(5, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))

    def forward(self, *inputs: Tensor) -> Any:
        return self.net(inputs)

    def prepare(self, batch: Any) -> Any:
        clean = batch[0]
        noise = torch.randn_like(clean)
        time = torch.randint(1, 9, (len(clean), 1)).to(clean) / 10
        kept = torch.bernoulli(torch.full_like(clean, 0.9))
        shift = torch.empty_like(clean).uniform_()
        if self.training:
            shift += torch.rand(())
        return ((clean * (1 - time) + noise * time) * kept + shift, time), noise

    def parts(self, batch: Any) -> Any:
        return self.prepare(batch)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Draws nothing, so what training draws next is what it would draw without validation."""
        clean = batch[0]
        predicted = self(clean, torch.ones_like(clean[:, :1]))
        self.log("val/loss", self.loss(predicted, clean), batch_size=len(clean))


class PreparesNowAndThen(Denoising):
    """Calls `prepare` for one batch, twice for another, and not for a third."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = (batch[0], torch.ones_like(batch[0][:, :1])), batch[0]
        for _ in range((batch_idx + 1) % 3):
            inputs, targets = self.prepare(batch)
        loss = self.loss(self(*inputs), targets)
        self.log("train/loss", loss)
        return loss


class Joined(nn.Linear):
    """A layer of several inputs."""

    def forward(self, inputs: Any) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat(inputs, 1))


class Contrastive(Plain):
    """Each sample's target is told apart from those of the others in its batch."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        numbers = torch.arange(len(outputs), device=outputs.device)
        return nn.functional.cross_entropy(outputs @ targets.T, numbers)


class ContrastiveOfAll(Contrastive):
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        strategy: Any = self.trainer.strategy
        return super().loss(strategy.all_samples(outputs), strategy.all_samples(targets))


class OnPlateau(Plain):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        waits = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        scheduler = {"scheduler": waits, "monitor": "val/loss"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class ManyOptimizers(Plain):
    """A network for each optimizer of PyTorch that takes any parameters."""

    automatic_optimization = False
    kinds = ("Adadelta", "Adagrad", "Adam", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD")

    def network(self) -> nn.Module:
        return nn.ModuleList(nn.Linear(4, 2) for _ in self.kinds)

    def forward(self, inputs: Tensor) -> Any:
        return torch.stack([net(inputs) for net in self.net]).mean(0)

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizers: Any = self.optimizers()
        self.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self) -> Any:
        kinds = zip(self.kinds, self.net, strict=True)
        return [getattr(torch.optim, kind)(net.parameters(), lr=0.01) for kind, net in kinds]


class Normalized(Plain):
    """With BatchNorm, whose bias Adam would move by rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.net[1] = nn.BatchNorm1d(WIDTH)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class NormalizedInAllWays(Normalized, LogsEpochs):
    """With BatchNorm of all kinds; logs means over epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.net[3] = nn.BatchNorm1d(WIDTH, momentum=None, affine=False)  # type: ignore[arg-type]
        self.net[5] = nn.BatchNorm1d(WIDTH, track_running_stats=False)


class Dropped(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.net[1] = nn.Dropout(0.5)


class Tied(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.net[4].weight = self.net[2].weight
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs) * self.scale


class SharesOfGradients(nn.Module):
    """Weights whose gradients are not tensors of their own."""

    def __init__(self) -> None:
        super().__init__()
        square, row = torch.eye(WIDTH), torch.zeros(WIDTH)
        self.a, self.b, self.viewed, self.twice = (nn.Parameter(square.clone()) for _ in range(4))
        self.c, self.d, self.spread = (nn.Parameter(row.clone()) for _ in range(3))
        self.shift = nn.Parameter(row[None].clone())

    def forward(self, inputs: Tensor) -> Tensor:
        # Of each sum, both gradients are one tensor.
        inputs = inputs @ (self.a + self.b) / 2 + (self.c + self.d)
        # That of the input, where a micro-batch is one sample.
        inputs = inputs + self.shift
        # A view, and one number in many places.
        inputs = inputs @ self.viewed.t() + self.spread.sum()
        return (inputs @ self.twice).tanh() @ self.twice + self.twice.sum() / WIDTH


class SharesGradients(Plain):
    """Has such a layer in the middle of the network and at its end."""

    def network(self) -> nn.Module:
        layers = [nn.Linear(4, WIDTH), SharesOfGradients(), nn.Tanh(), SharesOfGradients()]
        return nn.Sequential(*layers, nn.Tanh(), nn.Linear(WIDTH, 2))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)
