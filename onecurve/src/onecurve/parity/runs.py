"""The runs that are compared: under the strategy, resumed under it, and by a plain Trainer."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy
from lightning.pytorch.utilities.seed import isolate_rng

from ..launch.in_ranks import launch
from ..machine import LIGHTNING_VARIABLES, unchanged_environment
from ..strategies.callback_api import CallbackAPI
from ..strategies.single import Single
from .result import TOLERANCE, Parity, kinds_of, row_of_resume, rows_of
from .watch import Log, Watch


class Comparison(NamedTuple):
    """The arguments of `parity`."""

    make_task: Callable[[], LightningModule]
    make_data: Callable[[], Any] | None
    strategy: Strategy
    options: dict[str, Any]
    steps: int
    tolerance: float
    seed: int


def parity(
    make_task: Callable[[], LightningModule],
    make_data: Callable[[], Any] | None = None,
    *,
    strategy: Strategy,
    devices: int | None = None,
    steps: int = 8,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    **options: Any,
) -> Parity:
    """Train some steps under a strategy and under a plain Trainer, in float64, and compare them.

    It compares each step's loss and gradient norm before clipping, all values logged in training
    and validation, the weights, and a resume in the middle. It starts the ranks, so it must be
    called like `launch`. If ranks exist already, only rank 0's result has rows.

    Args:
        make_task: Makes the task; called for each of the three runs, with the same seed.
        make_data: Makes a LightningDataModule, the training loader, or a tuple of training and
            validation loaders; None if the task has its own loaders.
        strategy: The strategy to compare with the plain Trainer.
        devices: The devices of the strategy; by default 2, or 1 for `Single`.
        steps: Optimizer steps, in two epochs or more.
        tolerance: The largest relative difference that counts as equal.
        seed: The seed of everything random.
        options: Options of both Trainers: ``accelerator="cpu"``, ``accumulate_grad_batches=2``, ...

    Raises:
        UserError: If the strategy rejects the task.
        RankFailed: If a rank failed.
    """
    options["devices"] = devices or (1 if type(strategy) is Single else 2)
    ranks = 1 if isinstance(strategy, SingleDeviceStrategy) else options["devices"]
    comparison = Comparison(make_task, make_data, strategy, options, steps, tolerance, seed)
    with isolate_rng():
        result: Parity = launch(compare_in_rank, comparison, devices=ranks)
    return result


def compare_in_rank(comparison: Comparison) -> Parity:
    """Run the comparison in one rank."""
    strategy, options = comparison.strategy, comparison.options
    with unchanged_environment(LIGHTNING_VARIABLES[:2]):
        save = Watch(max(1, comparison.steps * 3 // 4))  # inside the second epoch
        other = train_watched(comparison, save, {"strategy": copy.deepcopy(strategy)})
        again = None
        if other.checkpoint and (other.save_after or 0) < other.step:
            again = train_watched(comparison, Watch(), {"strategy": strategy}, other.checkpoint)
        name = getattr(strategy, "name", type(strategy).__name__)
        if dist.is_initialized():
            rank, ranks = dist.get_rank(), dist.get_world_size()
            name = f"{name} of {ranks} ranks"
            # Otherwise metrics of the plain run would synchronise with the other ranks.
            dist.destroy_process_group()
            if rank:
                return Parity(name)
        if other.checkpoint:
            shutil.rmtree(other.checkpoint.parent)
        devices = options["devices"][:1] if isinstance(options["devices"], list) else 1
        plain = train_watched(comparison, Watch(), plain_trainer(devices))
    rows = list(rows_of(plain, other, comparison.tolerance))
    rows += [row_of_resume(other, again, comparison.tolerance)] if again else []
    title = f"{name} beside a plain Trainer, in float64"
    return Parity(title, rows, kinds_of(rows, plain, other), plain.curves, other.curves)


def plain_trainer(devices: list[int] | int = 1) -> dict[str, Any]:
    """Options of a plain Trainer in one process, even if this process is a rank."""
    alone = {"devices": devices, "num_nodes": 1, "plugins": [LightningEnvironment()]}
    return {**alone, "strategy": "auto"}


def short_run(steps: int, options: dict[str, Any]) -> dict[str, Any]:
    """A Trainer's options, with defaults that limit the run to this number of steps."""
    return {
        "precision": "64-true",
        "max_steps": steps,
        "max_epochs": steps,  # an epoch may have one step
        "limit_train_batches": max(1, steps // 2) * (options.get("accumulate_grad_batches") or 1),
        "limit_val_batches": 2,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        **{f"enable_{what}": False for what in ("checkpointing", "progress_bar", "model_summary")},
        **options,
    }


def train_watched(
    comparison: Comparison, watch: Watch, options: dict[str, Any], checkpoint: Path | None = None
) -> Watch:
    """Train with the options of this run, and record the quantities to compare."""
    seed_everything(comparison.seed, workers=True, verbose=False)
    options = short_run(comparison.steps, comparison.options) | options
    callbacks = [watch, *copy.deepcopy(options.pop("callbacks", None) or [])]
    trainer = Trainer(**options, callbacks=callbacks, logger=Log(watch))
    if not isinstance(trainer.strategy, CallbackAPI):
        # Lightning's strategy, with the methods that tasks and callbacks may call on ours.
        kind = type(trainer.strategy)
        added = {name: what for name, what in vars(CallbackAPI).items() if not hasattr(kind, name)}
        trainer.strategy.__class__ = type(kind.__name__, (kind,), added)
    data = comparison.make_data() if comparison.make_data else None
    # The checkpoint is our own file, which may hold anything that a task puts there.
    resume: dict[str, Any] = {"ckpt_path": checkpoint, "weights_only": False} if checkpoint else {}
    if isinstance(data, LightningDataModule):
        trainer.fit(comparison.make_task(), datamodule=data, **resume)
    else:
        train, val = data if isinstance(data, tuple) else (data, None)
        trainer.fit(comparison.make_task(), train, val, **resume)
    return watch
