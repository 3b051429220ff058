"""Costs that a step avoids: garbage collection, an unused profiler, searching for GPUs."""

import gc
import random
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

from onecurve.batch.random import draw_from
from onecurve.compat.of_lightning import empty_hooks_skipped, logging_in_place

WAS_ON: list[bool] = []
PROFILERS: list[str] = []
CALLED: list[int] = []


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


@pytest.mark.parametrize(
    ("chosen", "used"), [("null", "PassThroughProfiler"), ("simple", "SimpleProfiler")]
)
def test_a_profiler_is_used_if_requested(train: Cli, chosen: str, used: str) -> None:
    """And Python collects garbage by itself, by default."""
    WAS_ON.clear()
    watch = "+callbacks.watch._target_=test_steps_cost.Watch"
    train(watch, "trainer.max_steps=1", "test=false", f"trainer.profiler={chosen}")
    assert PROFILERS[-1] == used
    assert WAS_ON == [True]


class Counts(Callback):
    """Notes how often a step calls a function."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = import_module(module), name

    def on_train_batch_start(self, *_: Any) -> None:
        self.function = getattr(self.module, self.name)
        setattr(self.module, self.name, self.counted)

    def counted(self, *arguments: Any, **options: Any) -> Any:
        CALLED.append(1)
        return self.function(*arguments, **options)

    def on_train_batch_end(self, *_: Any) -> None:
        setattr(self.module, self.name, self.function)
        CALLED.append(0)


@pytest.mark.parametrize(
    ("module", "name"),
    [("torch.cuda", "is_available"), ("lightning_utilities.core.apply_func", "deepcopy")],
)
def test_no_step_asks_for_a_gpu_or_copies_what_is_known_of_a_logged_value(
    train: Cli, module: str, name: str
) -> None:
    CALLED.clear()
    # As in a project: PyTorch's own optimizers ask for a GPU in each step.
    optimizer = (
        "optimizer._target_=onecurve.optim.optimizers.build_optimizer",
        *("+optimizer.algorithm=torch.optim.AdamW", "+optimizer.lr_scale={}"),
    )
    counts = ("_target_=test_steps_cost.Counts", f"module={module}", f"name={name}")
    callbacks = [f"+callbacks.counts.{each}" for each in counts]
    train("trainer.max_steps=2", "test=false", *optimizer, *callbacks)
    assert CALLED == [0, 0]


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


def test_logged_values_on_another_device_are_moved() -> None:
    results = _ResultCollection(training=True)
    with logging_in_place():
        for device in ("cpu", "meta"):
            results.log("f", "loss", torch.ones((), device=device), on_epoch=True, batch_size=2)
            kept = results["f.loss"]
            held = kept.value, kept.cumulated_batch_size, kept._defaults["value"]
            assert {tensor.device.type for tensor in held} == {device}


def test_an_empty_hook_of_a_step_is_not_called() -> None:
    ended: list[int] = []
    own, given = Watch(), LambdaCallback(on_train_batch_end=lambda *_: ended.append(1))
    WAS_ON.clear()
    with empty_hooks_skipped([own, given]):
        Trainer(max_steps=3, barebones=True, callbacks=[own, given]).fit(BoringModel())
        assert {callback.on_train_batch_start for callback in (own, given)} == {None}
    assert len(WAS_ON) == len(ended) == 3
    assert own.on_train_batch_start is not None
