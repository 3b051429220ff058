"""Costs that a step avoids: an unused profiler, searching for GPUs."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli
from lightning.pytorch import Callback

from onecurve.batch.random import draw_from

PROFILERS: list[str] = []


class Watch(Callback):
    """Notes the profiler of every step."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        PROFILERS.append(type(trainer.profiler).__name__)


def test_a_profiler_is_used_if_requested(train: Cli) -> None:
    PROFILERS.clear()
    watch = "+callbacks.watch._target_=test_steps_cost.Watch"
    short = ("trainer.max_steps=1", "test=false")
    train(watch, *short)
    train(watch, *short, "trainer.profiler=simple")
    assert PROFILERS == ["PassThroughProfiler", "SimpleProfiler"]


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
