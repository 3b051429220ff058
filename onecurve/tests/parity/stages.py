"""Tasks and networks whose layers are cut into stages, in all the ways that people write them."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from several_fits import Small
from torch import Tensor, nn
from torch.nn import functional as F

import onecurve


class Of(Small):
    """Has another network."""

    def __init__(self, network: Callable[[], nn.Module]) -> None:
        self.network = network  # type: ignore[method-assign]
        super().__init__()


class TwoViews(Small):
    def of(self, batch: Any) -> Tensor:
        first = self(batch[0])
        second = self(batch[0] * first.mean(1, keepdim=True))
        return (first - second).square().mean() + F.mse_loss(first, batch[1])


class OtherLoss(Small):
    """Has a method of that name which takes something else, as many tasks do."""

    def loss(self, batch: Any) -> Tensor:  # type: ignore[override]
        return F.mse_loss(self(batch[0]), batch[1]) + self(batch[0]).square().mean()

    def of(self, batch: Any) -> Tensor:
        return self.loss(batch)


class Attacked(Small):
    def of(self, batch: Any) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(self(inputs), batch[1]), inputs)
        return self.loss(self(batch[0] + 0.1 * gradient.sign()), batch[1])


class Sloped(Small):
    def of(self, batch: Any) -> Tensor:
        outputs = self(batch[0])
        loss = self.loss(outputs, batch[1])
        (slope,) = torch.autograd.grad(loss, outputs, retain_graph=True)
        return loss + slope.square().mean()


class OfAll(Small):
    """Compares all samples, in the loss that a schedule takes."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        strategy: Any = self.trainer.strategy
        return super().loss(strategy.all_samples(outputs), strategy.all_samples(targets))


class ParameterOutside(Small):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs) * self.temperature

    def layers(self) -> list[nn.Module]:
        return list(self.net)


class LayersOfAnother(Small):
    def layers(self) -> list[nn.Module]:
        return [*self.net, nn.Linear(2, 2)]


# Layers.


class TiedInside(nn.Module):
    """Uses one weight in two layers of its own, and one bias under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.bias = self.again = nn.Parameter(torch.zeros(6))
        self.register_buffer("scale", torch.full((6,), 0.5))
        self.register_buffer("same", self.scale)

    def forward(self, inputs: Tensor) -> Any:
        hidden = (self.first(inputs) + self.bias).tanh() * self.scale
        return self.second(hidden) + self.again


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


class Halve(nn.Module):
    """Like Dropout, a layer without parameters that does something in training alone."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / 2 if self.training else inputs


class Twice(nn.Module):
    """Returns a tuple, with a tensor that is not contiguous."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return inputs, (2 * inputs).view(len(inputs), 2, 4).transpose(1, 2)


class Join(nn.Module):
    """Takes a tuple, as nn.Sequential passes it on, and changes a tensor of it in place."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        first, second = pair
        return first.relu_() + second.flatten(1).tanh()


def tuples() -> nn.Module:
    halve = Halve()
    first = [nn.Flatten(), Draws(), halve, Twice(), Join()]
    return nn.Sequential(*first, nn.Linear(8, 8), halve, Twice(), Join(), nn.Linear(8, 2))


class Draws(nn.Linear):
    """Has a generator of its own, of which a copy is made where shapes are measured."""

    def __init__(self) -> None:
        super().__init__(6, 8)
        self.drawn = torch.Generator().manual_seed(0)

    def forward(self, inputs: Tensor) -> Tensor:
        noise = torch.rand(8, generator=self.drawn, dtype=self.weight.dtype, device="cpu")
        return super().forward(inputs) + 0 * noise.to(inputs.device)


class Branches(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.sum().item() > 0 else -inputs


def branching() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), Branches(), nn.Linear(6, 2))


class OfPositions(Small):
    """Has its layers take something else than what enters the task, with the samples second."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.TransformerEncoderLayer(6, 2, 8, 0.0) for _ in range(2)))

    def forward(self, inputs: Tensor) -> Tensor:
        positions = torch.stack([inputs, inputs.cos(), inputs.sin()])
        return self.net(self.blocks(positions).mean(0))


# Blocks in an nn.ModuleList, called one by one by code that nobody changed.


class Resized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 6))

    def forward(self, inputs: Tensor, size: tuple[int, ...]) -> Any:
        return self.layers(inputs.view(-1, *size))


class Remembering(Resized):
    @staticmethod
    @cache
    def positions(number: int) -> Tensor:
        return torch.arange(number).double()

    def forward(self, inputs: Tensor, size: tuple[int, ...]) -> Tensor:
        return super().forward(inputs + self.positions(*size), size)


class OfShapes(Small):
    def __init__(self, block: type[nn.Module] = Resized) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = block(inputs, inputs.shape[1:])
        return self.net(inputs)


class Placed(Resized):
    def forward(self, inputs: Tensor, table: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        outputs: Tensor = self.layers(torch.cat([inputs[:, :1], inputs[:, 1:] + table], 1))
        return outputs * mask


class OfTables(OfShapes):
    """Calls its blocks with a table of as many rows as a batch has samples, and with a mask."""

    def __init__(self) -> None:
        super().__init__(Placed)

    def forward(self, inputs: Tensor) -> Tensor:
        positions = inputs.unsqueeze(1).repeat(1, 9, 1)
        table = torch.arange(48).view(8, 6).cos().to(inputs)
        for block in self.blocks:
            positions = block(positions, table, inputs.sign().unsqueeze(1))
        return self.net(positions.mean(1))


class Block(nn.Module):
    """Mixes positions, where a mask lets it, and adds what a condition says."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.pass_on = nn.Linear(4, 4), nn.Linear(6, 6)

    def forward(self, hidden: Tensor, *, mask: Tensor, condition: Tensor | None = None) -> Tensor:
        mixed = self.mix((hidden * mask).transpose(1, 2)).transpose(1, 2)
        mixed = mixed if condition is None else mixed + condition
        return hidden + self.pass_on(mixed).tanh()


class Encoder(nn.Module):
    """Calls its blocks with a mask for each sample, and with positions that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 24)
        self.positions = nn.Parameter(torch.linspace(-1, 1, 24).view(1, 4, 6))
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs).view(-1, 4, 6)
        mask = (hidden.detach().sum(-1, keepdim=True) > 0).to(hidden.dtype)
        for block in self.each():
            hidden = block(hidden, mask=mask, condition=self.positions)
        return hidden.mean(1)

    def each(self) -> Any:
        return self.blocks


class KeyedEncoder(Encoder):
    """Has them in a dictionary within another."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"blocks": nn.ModuleDict(self.blocks.named_children())})
        del self.blocks

    def each(self) -> Any:
        return self.body["blocks"].values()  # type: ignore[operator]


class Named(Of):
    """Calls its network by name; the weight before the blocks is used behind them again."""

    def __init__(self, network: Callable[[], nn.Module] = Encoder) -> None:
        super().__init__(network)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(self.net(inputs), self.net.enter.weight[:2])


class Keyed(Named):
    def __init__(self) -> None:
        super().__init__(KeyedEncoder)
        self.net.enter.requires_grad_(False)


class BothStacks(Small):
    """Has an encoder and a decoder, of which each rank holds a part."""

    def network(self) -> nn.Module:
        return nn.Transformer(6, 2, 2, 3, 8, dropout=0.0, batch_first=True)

    def __init__(self) -> None:
        super().__init__()
        self.leave = nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        seen = torch.stack([inputs, inputs.cos(), inputs.sin(), -inputs], 1)
        return self.leave(self.net(seen, seen[:, :3].tanh()).mean(1))

    def on_train_start(self) -> None:
        for stack in (self.net.encoder, self.net.decoder):
            remote = [layer.linear1.weight.is_meta for layer in stack.layers]
            assert any(remote) == isinstance(self.trainer.strategy, onecurve.Pipeline)
            assert not all(remote)


MASK = torch.ones(4, 1)


class Otherwise(Named):
    def __init__(self, way: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        net = self.net
        net.forward = lambda inputs: way(net, net.enter(inputs).view(-1, 4, 6)).mean(1)


def one_after_the_other(blocks: Any, hidden: Tensor, **options: Any) -> Tensor:
    for block in blocks:
        hidden = block(hidden, mask=MASK, **options)
    return hidden


def skips(net: Any, hidden: Tensor) -> Tensor:
    return one_after_the_other([*net.blocks][::2], hidden)


def stops(net: Any, hidden: Tensor) -> Tensor:
    return one_after_the_other([*net.blocks][:2], hidden)


def gives_a_trained_number(net: Any, hidden: Tensor) -> Tensor:
    return one_after_the_other(net.blocks, hidden, condition=net.positions.sum())


# Networks that are no sequence, split between their modules.


class Half(nn.Module):
    """A block whose code could not be traced: it branches on values."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, out), nn.LayerNorm(out)

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
        both = both if mask is None else both * mask
        return self.head(both.reshape(-1, size))


class OfTheTask(Small):
    """Modules of the task, called as in PyTorch's MNIST example, with a size that is read first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(1, 4, 3), nn.Conv1d(4, 4, 2)
        self.dropout, self.fc1, self.net = nn.Dropout(0.0), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        samples = inputs.size(0)
        made = F.relu(self.conv1(inputs.unsqueeze(1)))
        made = F.max_pool1d(F.relu(self.conv2(made)), 2)
        made = self.dropout(made.view(made.size(0), -1))[:, :4]
        return self.net(F.relu(self.fc1(made))).view(samples, -1)


class Between(Small):
    def __init__(self, between: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        del self.net
        self.one, self.two = Half(6, 6), Half(6, 2)
        self.token = nn.Parameter(torch.randn(6))
        self.between = between

    def forward(self, inputs: Tensor) -> Tensor:
        return self.two(self.between(self, self.one(inputs)))


def branches(task: Any, hidden: Tensor) -> Tensor:
    """Cannot be traced."""
    return -hidden if hidden.sum() > 0 else hidden


def by_mode(task: Any, hidden: Tensor) -> Tensor:
    """Is another in evaluation."""
    return F.dropout(hidden, 0.5, task.training)


def with_a_token(task: Any, hidden: Tensor) -> Tensor:
    """Uses a parameter itself."""
    return hidden + task.token


# Hooks and optimizers.


class AsksTheStrategy(Small):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        sums = self.all_gather({"all": batch[1].sum()})["all"]
        self.log("sum", sums.sum(), batch_size=1)
        return super().training_step(batch, batch_idx)

    def on_after_backward(self) -> None:
        strategy: Any = self.trainer.strategy
        self.log("norm", strategy.gradient_norm(), batch_size=1)


class GoesBack(Small):
    def on_train_epoch_start(self) -> None:
        if self.trainer.global_step == 0:
            self.first = deepcopy(self.state_dict())
        if hasattr(self, "first"):
            self.load_state_dict(self.first)
