"""Costs that a step avoids: garbage collection, an unused profiler, searching for GPUs."""

import gc
import random
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning_utilities.core import apply_func

from onecurve.batch.random import draw_from
from onecurve.compat.of_lightning import log_in_place, skip_empty_hooks

WAS_ON: list[bool] = []
PROFILERS: list[str] = []
COPIED: list[int] = []
ASKED: list[int] = []


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
        assert len(collected) >= 2 * 3  # each at its start and at its end
    gc.callbacks.remove(note)
    assert len(WAS_ON) == (5 if fail else 6)
    assert not any(WAS_ON)
    assert gc.isenabled()


def test_python_collects_by_itself_by_default(train: Cli) -> None:
    WAS_ON.clear()
    train("trainer.max_steps=1", "test=false", "+callbacks.watch._target_=test_steps_cost.Watch")
    assert WAS_ON == [True]


@pytest.mark.parametrize(
    ("chosen", "used"), [("null", "PassThroughProfiler"), ("simple", "SimpleProfiler")]
)
def test_a_profiler_is_used_if_requested(train: Cli, chosen: str, used: str) -> None:
    watch = "+callbacks.watch._target_=test_steps_cost.Watch"
    train(watch, "trainer.max_steps=1", "test=false", f"trainer.profiler={chosen}")
    assert PROFILERS[-1] == used


class AsksForGpu(Callback):
    """Notes how often a step asks whether there is a GPU."""

    def on_train_batch_start(self, *_: Any) -> None:
        self.asks = torch.cuda.is_available
        torch.cuda.is_available = self.asked

    def asked(self) -> bool:
        ASKED.append(1)
        return self.asks()

    def on_train_batch_end(self, *_: Any) -> None:
        torch.cuda.is_available = self.asks
        ASKED.append(0)


def test_no_step_asks_whether_there_is_a_gpu(train: Cli) -> None:
    ASKED.clear()
    train("trainer.max_steps=2", "test=false", "+callbacks.a._target_=test_steps_cost.AsksForGpu")
    assert ASKED == [0, 0]


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


class Copies(Callback):
    """Notes how often a step copies what Lightning knows of a logged value."""

    def on_train_batch_start(self, *_: Any) -> None:
        self.copy = apply_func.deepcopy
        apply_func.deepcopy = self.copying

    def copying(self, data: Any, **options: Any) -> Any:
        COPIED.append(1)
        return self.copy(data, **options)

    def on_train_batch_end(self, *_: Any) -> None:
        apply_func.deepcopy = self.copy
        COPIED.append(0)


def test_logged_values_are_not_moved_to_their_own_device(train: Cli) -> None:
    COPIED.clear()
    train("trainer.max_steps=2", "test=false", "+callbacks.c._target_=test_steps_cost.Copies")
    assert COPIED == [0, 0]


def test_logged_values_on_another_device_are_moved() -> None:
    log_in_place()
    results = _ResultCollection(training=True)
    for device in ("cpu", "meta"):
        results.log("f", "loss", torch.ones((), device=device), on_epoch=True, batch_size=2)
        kept = results["f.loss"]
        held = kept.value, kept.cumulated_batch_size, kept._defaults["value"]
        assert {tensor.device.type for tensor in held} == {device}


def test_an_empty_hook_of_a_step_is_not_called() -> None:
    ended: list[int] = []
    own, given = Watch(), LambdaCallback(on_train_batch_end=lambda *_: ended.append(1))
    skip_empty_hooks([own, given])
    WAS_ON.clear()
    Trainer(max_steps=3, barebones=True, callbacks=[own, given]).fit(BoringModel())
    assert len(WAS_ON) == len(ended) == 3
    assert {callback.on_train_batch_start for callback in (own, given)} == {None}
