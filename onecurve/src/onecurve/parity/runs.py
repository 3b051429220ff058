"""The runs that are compared, under the strategy, resumed under it, and by a plain Trainer.

A callback and a logger record the quantities to compare.
"""

import copy
import logging
import random
import re
import shutil
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import (
    Callback,
    LightningDataModule,
    LightningModule,
    Trainer,
    seed_everything,
)
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..batch.stream import fingerprint
from ..checkpoint.callback import after_batch
from ..compat.of_torch import BatchNorm, tensor_leaves, tree_map
from ..launch.in_ranks import launch
from ..machine import LIGHTNING_VARIABLES, unchanged_environment
from ..strategies.batchnorm import is_exact
from ..strategies.callback_api import CallbackAPI
from ..strategies.dp import DP
from ..strategies.mesh.sizes import Sizes
from ..strategies.prepare import ignores_labels, weighs
from ..strategies.single import Single
from .result import (
    GRADIENT,
    LATE_PARTS,
    LOSS,
    TOLERANCE,
    Curve,
    Parity,
    Row,
    kinds_of,
    row_of_resume,
    rows_of,
)


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
    with unchanged_environment(LIGHTNING_VARIABLES[:2]), only_the_table():
        save = Watch(max(1, comparison.steps * 3 // 4))  # inside the second epoch
        other = train_watched(comparison, save, {"strategy": copy.deepcopy(strategy)})
        again, unloaded = None, ""
        if other.checkpoint and (other.save_after or 0) < other.step:
            try:
                again = train_watched(comparison, Watch(), {"strategy": strategy}, other.checkpoint)
            except (RuntimeError, AttributeError) as error:
                if not re.search("state_dict|has no attribute", str(error)):
                    raise  # of something else than what is made late
                unloaded = str(error).splitlines()[-1].strip()  # the same on every rank
                if dist.is_initialized():
                    dist.barrier()  # nobody ends while another rank is on its way to the error
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
    kinds = kinds_of(rows, plain, other)
    if unloaded:
        rows.append(
            Row(f"resumed after step {other.save_after}", inf, inf, other.save_after, unloaded)
        )
        kinds.append(LATE_PARTS)
    title = f"{name} beside a plain Trainer, in float64"
    return Parity(title, rows, kinds, plain.curves, other.curves)


@contextmanager
def only_the_table() -> Iterator[None]:
    """Silence what Lightning says of each of the runs, errors excepted."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"lightning\.")
        for logger in (logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield


def plain_trainer(devices: list[int] | int = 1) -> dict[str, Any]:
    """Options of a plain Trainer in one process, even if this process is a rank."""
    plugins = [LightningEnvironment()]
    return {"strategy": "auto", "devices": devices, "num_nodes": 1, "plugins": plugins}


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
    comparison: Comparison, watch: "Watch", options: dict[str, Any], checkpoint: Path | None = None
) -> "Watch":
    """Train with the options of this run, and record the quantities to compare."""
    seed_everything(comparison.seed, workers=True, verbose=False)
    options = short_run(comparison.steps, comparison.options) | options
    # The last one, so that it saves what the others have made of a step.
    callbacks = [*copy.deepcopy(options.pop("callbacks", None) or []), watch]
    trainer = Trainer(**options, callbacks=callbacks, logger=Log(watch))
    if not isinstance(trainer.strategy, CallbackAPI):
        # Lightning's strategy, with the methods that tasks and callbacks may call on ours.
        kind = type(trainer.strategy)
        added = {name: what for name, what in vars(CallbackAPI).items() if not hasattr(kind, name)}
        trainer.strategy.__class__ = type(kind.__name__, (kind,), added)
    convert, is_double = trainer.precision_plugin.convert_input, options["precision"] == "64-true"
    trainer.precision_plugin.convert_input = lambda data: watch.fetched(convert(data), is_double)  # type: ignore[method-assign]
    data = comparison.make_data() if comparison.make_data else None
    # The checkpoint is our own file, which may hold anything that a task puts there.
    resume: dict[str, Any] = {"ckpt_path": checkpoint, "weights_only": False} if checkpoint else {}
    if isinstance(data, LightningDataModule):
        trainer.fit(comparison.make_task(), datamodule=data, **resume)
    else:
        train, val = data if isinstance(data, tuple) else (data, None)
        trainer.fit(comparison.make_task(), train, val, **resume)
    return watch


def in_double(value: Any) -> Any:
    """The float64 tensors of a batch of one's own class, such as graphs; Lightning leaves it alone.

    Graphs of torch_geometric hold theirs in a store, and have `apply`.
    """
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if not hasattr(value, "to") or not hasattr(value, "__dict__"):
        return value
    if callable(getattr(value, "apply", None)):
        return value.apply(in_double)
    cast = copy.copy(value)
    vars(cast).update(tree_map(in_double, vars(value)))
    return cast


class Watch(Callback):
    """Records a run, and saves a checkpoint after step `save_after`, if given."""

    def __init__(self, save_after: int | None = None) -> None:
        self.save_after = save_after
        self.checkpoint: Path | None = None
        # Curves by quantity, and the sum of all numbers in each global batch.
        self.curves: dict[str, Curve] = defaultdict(list)
        self.sums: Curve = []
        # Names of values that were logged for an epoch of training.
        self.of_epochs: set[str] = set()
        # Unsharded states before the first step and after the last one, on rank 0.
        self.start: dict[str, Tensor] = {}
        self.end: dict[str, Tensor] = {}
        # The names of parameters among them; whole for a plain Trainer.
        self.parameters: set[str] = set()
        # Whether a step drew random numbers, and whether BatchNorm used statistics of one rank.
        self.draws, self.batchnorm, self._random = False, False, _random_state()
        self.draws_in_validation = False
        # Whether the loss had a lower precision than the run, and whether batches were accumulated.
        self.is_coarse, self.accumulates = False, False
        # Whether labels of a batch are ignored, and the task defines no `weight`.
        self.ignores = False
        # How many ranks see different samples, share layers, and share sequences.
        self.shares, self.tensor, self.context = 1, 1, 1
        # Whether one process splits each batch over devices.
        self.splits = False
        self.step, self.is_epoch_over = 0, False
        # Learning rates, and whether weights or buffers differ that ranks should hold alike.
        self.rates: Curve = []
        self.drifts = False
        # What a resume restored for ReduceLROnPlateau.
        self.restored: dict[str, Tensor] = {}

    def fetched(self, batch: Any, is_double: bool) -> Any:
        """A batch before its hooks: what they draw counts, and what the data set drew does not."""
        self._random = _random_state()
        return tree_map(in_double, batch) if is_double else batch

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        sizes = getattr(trainer.strategy, "sizes", Sizes())
        if not self.sums:  # after the task's own on_train_start
            self.start, self.restored = _state(trainer), dict(trainer.callback_metrics)
            self.parameters = {name for name, _ in pl_module.named_parameters()}
            self.shares = getattr(trainer.strategy, "data_parallel_size", trainer.world_size)
            self.tensor, self.context = sizes.tensor, sizes.context
            self.splits = isinstance(trainer.strategy, DP)
            self.is_coarse |= any(each.dtype == torch.complex64 for each in pl_module.parameters())
        exact = is_exact(getattr(trainer.strategy, "_layer_sync", None), sizes)
        self.batchnorm = not exact and any(
            isinstance(module, BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
            for module in pl_module.modules()
            if module.training
        )
        self.step, self.is_epoch_over = trainer.global_step + 1, False
        self.accumulates |= trainer.accumulate_grad_batches > 1
        # Computed now, because the step may change its batch in place.
        leaves = tensor_leaves(batch)
        numbers = torch.zeros((), dtype=torch.float64, device=pl_module.device)
        numbers += sum(leaf.detach().double().sum() for leaf in leaves)
        self.ignores |= not weighs(pl_module) and ignores_labels(batch)
        self._numbers = numbers

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: nn.Module, optimizer: Optimizer
    ) -> None:
        # Without gradients of other optimizers, which are not part of this step.
        norm = trainer.strategy.gradient_norm(optimizer)  # type: ignore[attr-defined]
        self.curves[GRADIENT].append((trainer.global_step + 1, float(norm)))
        rate = sum(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)
        self.rates.append((trainer.global_step + 1, rate))
        if self.shares > 1 and self.step <= 2:
            self.drifts |= _drifts(trainer, pl_module, are_new=self.step == 1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.draws |= _random_state() != self._random
        context = getattr(getattr(trainer.strategy, "steps", None), "current", None)
        if context is not None and not context.counts:  # the rows are another rank's
            self._numbers.zero_()
        total: Any = trainer.strategy.reduce(self._numbers, reduce_op="sum")
        self.sums.append((self.step, float(total)))
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            mean: Any = trainer.strategy.reduce(loss.detach(), reduce_op="mean")
            self.curves[LOSS].append((self.step, float(mean)))
            self.is_coarse |= loss.dtype != torch.float64
        if self.save_after and trainer.global_step >= self.save_after and not self.checkpoint:
            self.save_after = trainer.global_step
            folder = tempfile.mkdtemp(prefix="parity-") if trainer.is_global_zero else ""
            self.checkpoint = Path(trainer.strategy.broadcast(folder), "middle.ckpt")
            after_batch(trainer, partial(trainer.save_checkpoint, self.checkpoint))

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self.draws_in_validation |= _random_state() != self._random

    def on_train_epoch_end(self, *_: Any, **__: Any) -> None:
        self.is_epoch_over = True

    def on_train_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self.end = _state(trainer)
        for name, value in trainer.callback_metrics.items():
            # Values logged with logger=False. Names with both a step and an epoch value are known.
            is_known = self.curves.keys() & {logged(name), f"{name}_epoch"}
            if not is_known and self.restored.get(name) is not value:
                self.curves[logged(name)].append((self.step, float(value)))


class Log(DummyLogger):
    """Passes logged values to a `Watch`. Lightning calls it on the first rank only."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        # By training steps: evaluations count their own batches.
        for name in [name for name in metrics if name != "epoch"]:
            self.watch.curves[logged(name)].append((self.watch.step, float(metrics[name])))
            if self.watch.is_epoch_over:
                self.watch.of_epochs.add(logged(name))


def logged(name: str) -> str:
    """What a logged value is called beside the quantities that are watched in any case."""
    return f"{name}, logged" if name in (LOSS, GRADIENT) else name


def _state(trainer: Trainer) -> dict[str, Tensor]:
    state = trainer.strategy.lightning_module_state_dict()
    return {n: v.detach().cpu().clone() for n, v in state.items() if isinstance(v, Tensor)}


def _drifts(trainer: Trainer, task: nn.Module, are_new: bool) -> bool:
    """Whether ranks hold other buffers than each other, or weights that no optimizer has updated.

    Those of BatchNorm do not count.
    """
    alike = [
        tensor
        for module in task.modules()
        if not isinstance(module, BatchNorm)
        for kind in (module.parameters, module.buffers)[not are_new :]
        for tensor in kind(recurse=False)
        if tensor.is_floating_point() and not isinstance(tensor, DTensor) and not tensor.is_meta
    ]
    numbers = trainer.strategy.gather_from_replicas(fingerprint(alike))  # type: ignore[attr-defined]
    return len(set(numbers)) > 1


def _random_state() -> bytes:
    """The states of the generators that a step may draw from."""
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    drawn = b"".join(state.numpy().tobytes() for state in [torch.get_rng_state(), *states])
    return drawn + repr((random.getstate(), np.random.get_state(legacy=False))).encode()
