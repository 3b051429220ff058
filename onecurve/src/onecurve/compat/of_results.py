"""Private names of Lightning and torchmetrics: what an epoch has logged so far.

Lightning's checkpoints do not hold it, so that a resumed epoch counts its remaining batches alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
    _ResultMetric,
    _Sync,
)
from torch import Tensor
from torchmetrics import Metric, MetricCollection

# How a value is logged, as plain data.
ARGUMENTS = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "metric_attribute")
Logged = dict[str, dict[str, Any]]


class _Resumed(_ResultCollection):
    """What an epoch logs after a resume, which is added to what it had logged before."""

    def __init__(self, earlier: Logged) -> None:
        super().__init__(training=True)
        self.earlier = earlier

    def __setitem__(self, key: str, metric: _ResultMetric) -> None:
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
        results[key] = metric = _ResultMetric(meta, is_tensor=attribute is None)
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
