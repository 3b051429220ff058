"""Private names of Lightning that we use, each with what would make it unnecessary.

Besides these, we override some methods that begin with an underscore, as Lightning's own
strategies, callbacks and loggers do: `_setup_model`, `_get_process_group_backend`,
`_register_ddp_hooks`, `_save_last_checkpoint`, `_summary` and `_create_experiment`.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, cast

import torch
from lightning.fabric.utilities.device_dtype_mixin import _update_properties as set_device_of
from lightning.fabric.utilities.optimizer import _optimizers_to_device as move_optimizers
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.core.optimizer import _MockOptimizer as MockOptimizer
from lightning.pytorch.overrides.distributed import (
    _IndexBatchSamplerWrapper as IndexBatchSamplerWrapper,
)
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
    _Sync,
)
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _ResultMetric as ResultMetric,
)
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_summary.model_summary import ModelSummary
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics import Metric, MetricCollection

from .of_torch import tree_unflatten
from .patches import replaced

# - set_device_of, move_optimizers: Lightning's strategies call them in their teardown.
# - ResultMetric: holds a value logged by `self.log`.
# - IndexBatchSamplerWrapper: the only class from which Lightning reads the predicted indices.
__all__ = [
    "IndexBatchSamplerWrapper",
    "ResultMetric",
    "move_optimizers",
    "set_device_of",
]


# Lightning: loops and their loaders


def sampler_seen(batches: IndexBatchSamplerWrapper) -> Any:
    """The batch sampler whose indices Lightning records in predictions."""
    return batches._batch_sampler


def loaders_of(loop: Any) -> CombinedLoader | None:
    """The combined loader of a loop; None before it is set up."""
    combined: CombinedLoader | None = loop._combined_loader
    return combined


def show_loaders(combined: CombinedLoader, loaders: list[Any]) -> None:
    """Let `Trainer.train_dataloader` be these loaders, in place of those that are iterated."""
    combined._iterables = tree_unflatten(loaders, combined._spec)


def mode_of(combined: CombinedLoader) -> Any:
    """How loaders are combined: the argument `mode` of CombinedLoader."""
    return combined._mode


def training_loaders(trainer: Trainer) -> CombinedLoader:
    """Ask the task or the data module for its training loaders again."""
    loaders: Any = trainer.fit_loop._data_source.dataloader()
    if isinstance(loaders, CombinedLoader):
        return loaders
    return CombinedLoader(loaders, "max_size_cycle")


def loaders_under_way(trainer: Trainer) -> CombinedLoader | None:
    """The combined loader of the current loop."""
    return getattr(trainer._active_loop, "_combined_loader", None)


def validation_is_due(trainer: Trainer) -> bool:
    """Whether a validation comes after the batch of now, in any fit: not by a clock, or a stop."""
    if trainer._val_check_time_interval is not None:  # type: ignore[attr-defined]
        return False
    with replaced(trainer, "should_stop", False):
        return _checks(trainer, trainer.fit_loop._data_fetcher)


def is_validation_over(trainer: Trainer) -> bool:
    """Whether the last hooks of a validation are running."""
    return trainer.lightning_module._current_fx_name == "on_validation_end"


def check_by_one_clock(trainer: Trainer, fetcher: Any) -> bool:
    """Whether to validate now; the first rank alone says when an interval of time is over.

    Every rank would read its own clock, and wait for those that do not validate yet.
    """
    is_due = _checks(trainer, fetcher)
    if trainer._val_check_time_interval is None:  # type: ignore[attr-defined]
        return is_due
    return bool(trainer.strategy.broadcast(is_due))


def _checks(trainer: Trainer, fetcher: Any) -> bool:
    loop = trainer.fit_loop.epoch_loop
    return bool(type(loop)._should_check_val_fx(loop, fetcher))


# Lightning: steps


def accumulates(trainer: Trainer) -> bool:
    """Whether the optimizer does not step after the current batch."""
    return trainer.fit_loop._should_accumulate()


def is_epoch_at_its_end(trainer: Trainer) -> bool:
    """Whether all batches of the epoch have been read."""
    return trainer.fit_loop.epoch_loop._num_ready_batches_reached()


def is_in_step(trainer: Trainer) -> bool:
    """Whether the last hooks of a training step are running."""
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(batches.processed > batches.completed)


def logged_steps(trainer: Trainer) -> int:
    """The step number that loggers get: the number of batches that ended in an optimizer step."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def ends_with_its_epoch(trainer: Trainer) -> AbstractContextManager[None]:
    """With max_steps, keep Lightning from resuming inside an epoch that had ended."""
    return replaced(trainer.fit_loop, "_iteration_based_training", lambda: False)


def monitored(trainer: Trainer) -> dict[str, Any]:
    """What ReduceLROnPlateau needs at the end of an epoch, for `resume_plateaus`."""
    metrics, progress = trainer.callback_metrics, cast(Any, trainer.fit_loop.epoch_progress.current)
    names = {str(each.monitor) for each in trainer.lr_scheduler_configs} & metrics.keys()
    # A checkpoint of `on_train_epoch_end` is written before they step.
    ended = progress.processed if progress.processed > progress.completed else 0
    return {"metrics": {name: float(metrics[name]) for name in names}, "ended": ended}


def resume_plateaus(trainer: Trainer, metrics: dict[str, float], ended: int) -> None:
    """Let ReduceLROnPlateau step for the epoch that a fit resumes in, or at the end of.

    Lightning leaves that out, because its checkpoints do not hold the metrics.
    """
    if any(each.reduce_on_plateau for each in trainer.lr_scheduler_configs):
        trainer.fit_loop._restarting = False
    values = {name: torch.tensor(value) for name, value in metrics.items()}
    trainer._logger_connector._callback_metrics.update(values)
    for each in trainer.lr_scheduler_configs if ended else ():
        steps = each.interval == "epoch" and ended % each.frequency == 0
        if each.reduce_on_plateau and steps and each.monitor in metrics:
            cast(ReduceLROnPlateau, each.scheduler).step(metrics[each.monitor])


def shares_no_samples(trainer: Trainer) -> None:
    """Set `Trainer(use_distributed_sampler=False)` after the Trainer has been created."""
    trainer._accelerator_connector.use_distributed_sampler = False


def restore_signal_handlers(trainer: Trainer) -> None:
    """Restore the handlers that Lightning has replaced, before its own teardown does."""
    trainer._signal_connector.teardown()


def loaded_checkpoint(trainer: Trainer) -> dict[str, Any]:
    """The checkpoint that a fit resumes from; empty if there is none or it has been restored."""
    return trainer._checkpoint_connector._loaded_checkpoint


def have_no_optimizer(optimizers: Iterable[Optimizer]) -> bool:
    """Whether `configure_optimizers` returned None."""
    return any(isinstance(each, MockOptimizer) for each in optimizers)


class LayersAlone(ModelSummary):
    """Lightning's summary of layers, which does not call the network."""

    def _forward_example_input(self) -> None:
        pass


def callbacks_of(trainer: Trainer, kind: type) -> list[Any]:
    """The callbacks of a class or protocol; Lightning declares no type of `Trainer.callbacks`."""
    return [each for each in trainer.callbacks if isinstance(each, kind)]  # type: ignore[attr-defined]


# Lightning: what is logged


def ends_batch(module: LightningModule) -> bool:
    """Whether a hook at the end of a batch is running."""
    hook = module._current_fx_name or ""
    return hook.startswith("on_") and hook.endswith("_batch_end")


def results_of(trainer: Trainer) -> Any:
    """The values that the current loop has collected from `self.log`; None between loops."""
    return trainer._results


def metrics_to_log(trainer: Trainer) -> dict[str, Any]:
    """The values that loggers get next."""
    metrics: dict[str, Any] = trainer._logger_connector.metrics["log"]
    return metrics


def initial_hyperparameters(module: Any) -> Any:
    """The hyperparameters that Lightning logs; None without ``save_hyperparameters``."""
    return getattr(module, "_hparams_initial", None)


def set_initial_hyperparameters(module: Any, values: Any) -> None:
    """Set what `initial_hyperparameters` returns."""
    module._hparams_initial = values


# Lightning: patches for speed, with the time that they save in an epoch of an MLP (60,000 images)


@contextmanager
def logging_in_place() -> Iterator[None]:
    """Make `self.log` move only metrics that are on another device: saves 8 % of the epoch.

    Lightning moves a metric to the device of each new value, which copies its attributes even if
    there is nothing to move.
    """
    to = ResultMetric.to

    def to_another_device(self: ResultMetric, *args: Any, **kwargs: Any) -> ResultMetric:
        # The value, its default and its number of samples are moved together.
        to_device = len(args) == 1 and isinstance(args[0], torch.device) and not kwargs
        if to_device and self.is_tensor and self.value.device == args[0]:
            return self
        return to(self, *args, **kwargs)

    with replaced(ResultMetric, "to", to_another_device):
        yield


BATCH_HOOKS = [
    *(
        f"on_{stage}_batch_{when}"
        for stage in ("train", "validation", "test", "predict")
        for when in ("start", "end")
    ),
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
]


@contextmanager
def empty_hooks_skipped(callbacks: Iterable[Callback]) -> Iterator[None]:
    """Make Lightning skip batch hooks that a callback does not override: saves 4 % of the epoch.

    It calls every hook of every callback, some fifty per step, and skips those that are None.
    """
    with ExitStack() as stack:
        for callback in callbacks:
            for name in BATCH_HOOKS:
                hook = getattr(callback, name)
                if getattr(hook, "__func__", None) is getattr(Callback, name):
                    stack.enter_context(replaced(callback, name, None))
        yield


# Lightning: what an epoch has logged so far, which its checkpoints do not hold, so that a resumed
# epoch would count its remaining batches alone


# How a value is logged, as plain data.
ARGUMENTS = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "metric_attribute")
Logged = dict[str, dict[str, Any]]


class _Resumed(_ResultCollection):
    """What an epoch logs after a resume, which is added to what it had logged before."""

    def __init__(self, earlier: Logged) -> None:
        super().__init__(training=True)
        self.earlier = earlier

    def __setitem__(self, key: str, metric: ResultMetric) -> None:
        super().__setitem__(key, metric)
        for name, value in self.earlier.pop(key, {}).get("state", {}).items():
            setattr(metric, name, value)


def logged_in_epoch(trainer: Trainer) -> Logged:
    """What this rank has logged for the current epoch of training, as plain data."""
    results = trainer.fit_loop.epoch_loop._results
    logged: Logged = dict(getattr(results, "earlier", {}))
    for key, metric in results.items():
        meta = metric.meta
        if metric.has_reset or not meta.on_epoch:
            continue
        names = metric._defaults if metric.is_tensor else ()
        logged[key] = {
            **{name: getattr(meta, name) for name in ARGUMENTS},
            "reduce_fx": meta.reduce_fx.__name__,
            "sync": [meta.sync.should, meta.sync.rank_zero_only],
            "state": {name: getattr(metric, name).detach().cpu() for name in names},
        }
    return logged


def log_after(trainer: Trainer, earlier: Logged) -> None:
    """Add what the epoch logs from now on to what it had logged before."""
    trainer.fit_loop.epoch_loop._results = _Resumed(earlier)


@contextmanager
def the_rest_logged(trainer: Trainer) -> Iterator[None]:
    """Log what only batches before the resume had logged, while a resumed epoch ends.

    Ranks have shares of it whatever the strategy of the run before, in which it was logged.
    """
    results: Any = trainer.fit_loop.epoch_loop._results
    shares = cast(Any, trainer.strategy).data_parallel_size > 1
    earlier = dict(getattr(results, "earlier", {}))
    for key, entry in earlier.items():
        options = {name: entry[name] for name in ("reduce_fx", *ARGUMENTS)}
        meta = _Metadata(**options)
        should, rank_zero_only = entry["sync"]
        reduce = trainer.strategy.reduce
        meta.sync = _Sync(_should=should or shares, fn=reduce, rank_zero_only=rank_zero_only)
        attribute = meta.metric_attribute
        results[key] = metric = ResultMetric(meta, is_tensor=attribute is None)
        if attribute is not None:
            metric.value = trainer.lightning_module.get_submodule(attribute)
        metric._update_count = 1
        metric.to(trainer.strategy.root_device)
    yield
    # The next epoch logs it as this run does.
    for key in earlier:
        results.pop(key, None)


def metrics_of(module: LightningModule) -> dict[str, Metric]:
    """The torchmetrics of a task with values, without those that Lightning resets next."""
    parts = dict(module.named_modules())
    for part in parts.values():
        if isinstance(part, MetricCollection):
            part.values(copy_state=False)  # metrics of one group have the states of their first
    validation = module.trainer.fit_loop.epoch_loop.val_loop._results.values()
    others = {id(each.value) for each in validation if not each.is_tensor}
    return {
        name: part
        for name, part in parts.items()
        if isinstance(part, Metric) and part.update_called and id(part) not in others
    }


def set_states(metric: Metric, states: dict[str, Tensor | list[Tensor]], updates: int) -> None:
    """Set a metric's states as after this number of updates."""
    for name, value in states.items():
        setattr(metric, name, _moved(value, metric.device))
    metric._update_count, metric._computed = updates, None


def _moved(value: Tensor | list[Tensor], device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else [each.to(device) for each in value]
