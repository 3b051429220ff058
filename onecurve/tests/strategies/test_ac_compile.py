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
)
from sequences import transformer
from sharded_networks import Task
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from onecurve.strategies.ac_compile import apply_ac_and_compile

# 97 samples: three batches of 32, and one of a single sample.
SEQUENCES = (
    FLOAT64, "model._target_=sequences.transformer", "+model.depth=2", "scheduler=none",
    "data._target_=sequences.Sequences", "data.samples=97", "data.batch_size=32", "test=false",
)  # fmt: skip


def measured(kept: Any = None) -> tuple[Tensor, int]:
    """Gradients of a step of a transformer with dropout, and its operations."""
    torch.manual_seed(0)
    task: Any = Task(transformer(width=32))
    for part in task.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.1
    if kept:
        apply_ac_and_compile(task, kept)
    tokens = torch.randint(32, (8, 12))
    with FlopCounterMode(display=False) as counter:
        task.loss(task(tokens), tokens[:, 0] % 4).backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in task.parameters()])
    return gradients, counter.get_total_flops()


def test_layers_are_recomputed_with_the_same_dropout_masks() -> None:
    """What that leaves in memory is compared with its plan in tests/planner."""
    expected, flops = measured()
    for kept, least, most in (("selective", 1, 1), ("full", 1.2, 1.5)):
        found, also = measured(kept)
        assert torch.equal(found, expected)
        assert least <= also / flops <= most


COMPILED = [("single", "whole"), ("fsdp", "layer"), ("pipeline", "layer")]


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "what"), one_of_a_kind(COMPILED, kept=COMPILED[:1]))
def test_compiling_changes_no_result(train: Cli, trained: Cli, strategy: str, what: str) -> None:
    """With a backend that traces but generates no code, which would take long; and a profiler."""
    made = (f"compile={what}", "compile_backend=eager", "trainer.profiler=simple")
    plain, compiled = trained(*SEQUENCES).run, train(*SEQUENCES, *STRATEGIES[strategy], *made).run
    for name in ("train/loss", "val/loss"):
        assert largest_difference(column(plain, name), column(compiled, name)) <= ROUNDING
    one, other = (
        list(torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"])
        for run in (plain, compiled)
    )
    assert one == other
    assert "Profiler Report" in (compiled / "logs/rank_0.log").read_text()


def test_a_missing_compiler_is_reported_before_torch_is_imported(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "compile=layer: needs a C++ compiler" in refused("train.py", *TINY, "compile=layer")
