"""Activation checkpointing and torch.compile: the results stay the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (
    FLOAT64,
    ROUNDING,
    STRATEGIES,
    TINY,
    Cli,
    Refused,
    column,
    largest_difference,
    one_of_a_kind,
    unless_too_old,
)
from lightning.pytorch import LightningModule
from sequences import transformer
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.flop_counter import FlopCounterMode

from onecurve.app.config.commands import has_compiler
from onecurve.strategies.ac_compile import apply_ac_and_compile

# 97 samples: three batches of 32, and one of a single sample.
SEQUENCES = (
    FLOAT64, "model._target_=sequences.transformer", "+model.depth=2", "scheduler=none",
    "data._target_=sequences.Sequences", "data.samples=97", "data.batch_size=32", "test=false",
)  # fmt: skip


class Task(LightningModule):
    """A transformer with dropout."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = transformer(width=32)
        for part in self.network.modules():
            if isinstance(part, nn.Dropout):
                part.p = dropout

    def forward(self, tokens: Tensor) -> Any:
        return self.network(tokens)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)


def step(task: Task) -> tuple[list[Any], int, int]:
    """Gradients of a step, its operations, and the bytes kept for its backward pass."""
    torch.manual_seed(1)
    tokens = torch.randint(32, (8, 12))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = task.loss(task(tokens), tokens[:, 0] % 4)
        # Outside: what is computed again is not kept.
        loss.backward()
    own = {parameter.untyped_storage().data_ptr() for parameter in task.parameters()}
    size = sum(size for place, size in kept.items() if place not in own)
    return [parameter.grad for parameter in task.parameters()], counter.get_total_flops(), size


@pytest.mark.filterwarnings("ignore:A saved_tensors_hooks context:FutureWarning")
def test_layers_are_recomputed_with_the_same_dropout_masks() -> None:
    expected, flops, everything = step(Task())
    for kept in ("selective", "full"):
        task = Task()
        apply_ac_and_compile(task, kept)  # type: ignore[arg-type]
        found, also, size = step(task)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        if kept == "selective":
            assert also == flops
        else:
            assert also > 1.2 * flops
            assert size < everything / 4


def test_the_former_value_true_means_full_and_a_profiler_reports(train: Cli) -> None:
    recomputes = "strategy.activation_checkpointing=true"
    run = train(recomputes, "trainer.max_steps=1", "trainer.profiler=simple", "test=false").run
    assert "Profiler Report" in (run / "logs/rank_0.log").read_text()


COMPILED = [("single", "whole"), ("fsdp", "layer"), ("pipeline", "layer")]


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "what"), one_of_a_kind(COMPILED, kept=COMPILED[:1]))
def test_compiling_changes_no_result(train: Cli, trained: Cli, strategy: str, what: str) -> None:
    """With a backend that traces but generates no code, which would take long."""
    made = (f"compile={what}", "compile_backend=eager")
    runs = trained(*SEQUENCES).run, train(*SEQUENCES, *STRATEGIES[strategy], *made).run
    for name in ("train/loss", "val/loss"):
        assert largest_difference(*(column(run, name) for run in runs)) <= ROUNDING
    states = (torch.load(run / "checkpoints/last.ckpt", weights_only=True) for run in runs)
    one, other = (list(state["state_dict"]) for state in states)
    assert one == other


def test_blocks_of_one_class_share_compiled_code() -> None:
    counter, task = CompileCounter(), Task()
    apply_ac_and_compile(task, "none", "layer", backend=counter)
    seen = []
    for size in (8, 7, 5, 8, 3):
        tokens = torch.zeros(size, 12, dtype=torch.long)
        task.loss(task(tokens), tokens[:, 0])
        seen.append(counter.frame_count)
    # Embedding, block, head and loss; and once more for any size (the embedding's is unlike).
    assert seen[0] == 4
    assert seen[1:] == [seen[1]] * 4
    assert seen[1] <= 8
    assert list(task.state_dict()) == list(Task().state_dict())


@pytest.mark.long
@unless_too_old("activation_checkpointing=selective with compile in float64")
@pytest.mark.skipif(not has_compiler(), reason="torch.compile needs a C++ compiler: install g++")
def test_compiled_layers_have_the_gradients_of_eager_ones() -> None:
    """With dropout, whose masks are the same, and selective activation checkpointing."""
    gradients = []
    for compiled in ("none", "layer"):
        task = Task().double()
        apply_ac_and_compile(task, "selective", compiled, layers=task.network[1:2])  # type: ignore[arg-type]
        torch.manual_seed(1)
        tokens = torch.randint(32, (8, 12))
        task.loss(task(tokens), tokens[:, 0] % 4).backward()
        gradients.append(torch.cat([each.grad.flatten() for each in task.parameters()]))
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) <= ROUNDING


def test_a_missing_compiler_is_reported_before_torch_is_imported(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "compile=layer: needs a C++ compiler" in refused("train.py", *TINY, "compile=layer")
