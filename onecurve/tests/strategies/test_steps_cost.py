"""Costs that a step avoids: garbage collection, an unused profiler, searching for GPUs."""

import gc
import random
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli
from lightning.pytorch import Callback

from onecurve.batch.random import draw_from

WAS_ON: list[bool] = []
PROFILERS: list[str] = []


class Watch(Callback):
    """Notes whether Python collects by itself, and fails in the last step if asked to."""

    def __init__(self, fail: bool = False) -> None:
        self.fail = fail

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        PROFILERS.append(type(trainer.profiler).__name__)
        WAS_ON.append(gc.isenabled())
        if self.fail and trainer.global_step == 5:
            raise ValueError("as asked")


@pytest.mark.parametrize("fail", [False, True])
def test_garbage_collection_is_off_in_training_and_on_afterwards(
    cli: Cli, train: Cli, fail: bool
) -> None:
    WAS_ON.clear()
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collected.append(info["generation"])

    gc.callbacks.append(note)
    watch = ("+callbacks.watch._target_=test_steps_cost.Watch", f"+callbacks.watch.fail={fail}")
    short = ("trainer.max_steps=6", "test=false", "gc_every_n_steps=2")
    if fail:
        assert cli("train.py", "model=mlp", "data.image_size=8", *short, *watch).status == 1
    else:
        train(*short, *watch)
        assert PROFILERS[-1] == "PassThroughProfiler"
        assert len(collected) >= 2 * 3  # each at its start and at its end
    gc.callbacks.remove(note)
    assert len(WAS_ON) == (5 if fail else 6)
    assert not any(WAS_ON)
    assert gc.isenabled()


def test_a_profiler_is_used_if_requested(train: Cli) -> None:
    """And Python collects garbage by itself, by default."""
    WAS_ON.clear()
    watch = "+callbacks.watch._target_=test_steps_cost.Watch"
    train(watch, "trainer.max_steps=1", "test=false", "trainer.profiler=simple")
    assert PROFILERS[-1] == "SimpleProfiler"
    assert WAS_ON == [True]


COORDINATES = [(0,), (42, 7, 0, 1), (2**32 - 1, 0, 3), (2**32, 5), (1, 2**40, 2), (), (0, 0, 0, 0)]


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_seeds_of_random_streams_have_not_changed(coordinates: tuple[int, ...]) -> None:
    before = int(np.random.SeedSequence(coordinates).generate_state(1, np.uint64)[0]) % 2**63
    for _ in range(2):
        draw_from(*coordinates)
        assert torch.initial_seed() == before
        drawn = random.random(), np.random.random()
        random.seed(before)
        np.random.seed(before % 2**32)
        assert drawn == (random.random(), np.random.random())
