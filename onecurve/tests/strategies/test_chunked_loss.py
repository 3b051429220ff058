"""Cross entropy chunk by chunk: exact, without the logits of all rows, under every strategy."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from conftest import FLOAT64, PASSED_ON, ROUNDING, STRATEGIES, Cli, column, largest_difference
from sequences import VOCABULARY
from small.task import Batch, Classification
from torch import Tensor, nn
from torch.nn import functional as F

from onecurve import chunked_cross_entropy
from onecurve.torch_versions import too_old

ROWS, CLASSES = 512, 2000


def of_all(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), targets)


def by_chunks(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor) -> Tensor:
    return chunked_cross_entropy(hidden, weight, targets, 7, bias).mean()


def test_losses_and_gradients_are_exact_without_all_logits() -> None:
    made: list[list[Tensor]] = []
    largest: list[int] = []
    for loss in (of_all, by_chunks):
        torch.manual_seed(0)
        shapes = ((ROWS, 8), (CLASSES, 8), (CLASSES,))
        inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        hidden, weight, bias = inputs
        targets = torch.randint(CLASSES, (ROWS,))
        with torch.profiler.profile(profile_memory=True) as profiler:
            value = loss(hidden, weight, targets, bias)
            value.backward()
        made.append([value.detach(), *(each.grad for each in inputs if each.grad is not None)])
        largest.append(peak(profiler))
    for one, other in zip(*made, strict=True):
        assert (one - other).abs().max() <= ROUNDING * one.abs().max()
    logits = ROWS * CLASSES * 8
    assert largest[0] > 2 * logits
    assert largest[1] < logits


def peak(profiler: Any) -> int:
    """The most bytes that were allocated at a time."""
    held = most = 0
    events = list(profiler.profiler.kineto_results.events())
    memory = [event for event in events if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


class Embed(nn.Embedding):
    """Tokens and targets to vectors and targets."""

    def forward(self, given: Any) -> Any:
        tokens, *targets = given if isinstance(given, tuple) else (given,)
        return (super().forward(tokens), *targets) if targets else super().forward(tokens)


class Hidden(nn.Linear):
    """Passes targets on beside what it computes."""

    def forward(self, given: Any) -> Any:
        vectors, *targets = given if isinstance(given, tuple) else (given,)
        vectors = super().forward(vectors).tanh()
        return (vectors, *targets) if targets else vectors


class Head(nn.Linear):
    """Logits; or, given targets, losses."""

    def forward(self, given: Any) -> Tensor:
        if not isinstance(given, tuple):
            return super().forward(given)
        return chunked_cross_entropy(given[0], self.weight, given[1], 4, self.bias)


def network(**_: Any) -> nn.Sequential:
    parts = {"embed": Embed(VOCABULARY, 8), "hidden": Hidden(8, 8), "head": Head(8, VOCABULARY)}
    return nn.Sequential(OrderedDict(parts))


class Next(Classification):
    """Which token comes next: training has the losses for outputs, the rest logits."""

    chunked = True

    def prepare(self, batch: Batch) -> tuple[Any, Tensor]:
        tokens, following = batch[0][:, :-1], batch[0][:, 1:].contiguous()
        return ((tokens, following) if self.chunked else tokens), following

    def forward(self, *inputs: Tensor) -> Any:
        return self.network(inputs if len(inputs) > 1 else inputs[0])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.chunked:
            return outputs.mean()
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        inputs, targets = self.prepare(batch)
        outputs = self(*inputs) if isinstance(inputs, tuple) else self(inputs)
        loss = self.loss(outputs, targets)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        pass


class OfAll(Next):
    chunked = False


@pytest.mark.compares
@pytest.mark.parametrize("strategy", ["dp", "fsdp", "pipeline"])
def test_every_strategy_trains_on_losses_by_chunks(train: Cli, trained: Cli, strategy: str) -> None:
    short = (
        FLOAT64, "model._target_=test_chunked_loss.network", "data._target_=sequences.Sequences",
        "data.samples=97", "data.batch_size=32", "test=false", "callbacks=[]", "scheduler=none",
        "trainer.max_epochs=1",
    )  # fmt: skip
    plain = trained(*short, "task._target_=test_chunked_loss.OfAll").run
    way = STRATEGIES[strategy]
    if strategy == "pipeline" and too_old(PASSED_ON):
        way = (*way, "strategy.schedule=gpipe")
    ours = train(*short, "task._target_=test_chunked_loss.Next", *way).run
    difference = largest_difference(column(plain, "train/loss"), column(ours, "train/loss"))
    assert difference <= ROUNDING
