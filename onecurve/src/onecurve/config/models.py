"""Finds the model of a part of the configuration, by class, by group or by command.

A project can have a table of its own, ``MODELS`` in the module ``config_models`` of its package,
for classes to be validated before they are imported. The keys are dotted names in the package::

    MODELS = {"data.houses.Houses": Houses}
"""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from ..config_model import Config

PROJECTS = "config_models"

# Models by `_target_`. A module of models is imported when one of its targets is used.
TARGETS = {
    "lightning.pytorch.callbacks.LearningRateMonitor": "callbacks.LearningRateMonitor",
    "onecurve.averaging.ema.ExponentialMovingAverage": "callbacks.ExponentialMovingAverage",
    "onecurve.averaging.swa.StochasticWeightAveraging": "callbacks.StochasticWeightAveraging",
    "onecurve.callbacks.batch_size_finder.BatchSizeSearch": "callbacks.BatchSizeSearch",
    "onecurve.callbacks.device_stats.DeviceStats": "callbacks.EveryNSteps",
    "onecurve.callbacks.early_stopping.EarlyStopping": "callbacks.EarlyStopping",
    "onecurve.callbacks.gradient_accumulation.AccumulationSchedule": "callbacks.Accumulation",
    "onecurve.callbacks.katib.KatibMetrics": "callbacks.KatibMetrics",
    "onecurve.callbacks.lr_finder.LearningRateRangeTest": "callbacks.LearningRateRangeTest",
    "onecurve.callbacks.model_summary.LayerTable": "callbacks.LayerTable",
    "onecurve.callbacks.nan_guard.NanGuard": "callbacks.NanGuard",
    "onecurve.callbacks.progress.progress": "callbacks.Progress",
    "onecurve.callbacks.throughput.Throughput": "callbacks.EveryNSteps",
    "onecurve.callbacks.timer.StopAfter": "callbacks.StopAfter",
    "onecurve.checkpoint.callback.BestAndLast": "callbacks.BestAndLast",
    "onecurve.checkpoint.weights.load_weights": "optim.LoadWeights",
    "onecurve.data.augment.RandomCrop": "data.RandomCrop",
    "onecurve.data.augment.RandomHorizontalFlip": "data.RandomHorizontalFlip",
    "onecurve.data.digits.Digits": "data.Digits",
    "onecurve.data.torchvision_sets.TorchvisionImages": "data.TorchvisionImages",
    "onecurve.displays.callback.Displays": "callbacks.Displays",
    "onecurve.loggers.buffered.BufferedCSVLogger": "loggers.BufferedCSVLogger",
    "onecurve.loggers.buffered.BufferedTensorBoardLogger": "loggers.BufferedTensorBoardLogger",
    "onecurve.loggers.comet_run.SameRunCometLogger": "loggers.SameRunCometLogger",
    "onecurve.loggers.mlflow_run.SameRunMLFlowLogger": "loggers.SameRunMLFlowLogger",
    "onecurve.loggers.wandb_run.SameRunWandbLogger": "loggers.SameRunWandbLogger",
    "onecurve.optim.optimizers.build_optimizer": "optim.Optimizer",
    "onecurve.optim.schedulers.cosine": "optim.Cosine",
    "onecurve.optim.schedulers.no_scheduler": "optim.NoScheduler",
    "onecurve.optim.schedulers.one_cycle": "optim.OneCycle",
    "onecurve.optim.schedulers.plateau": "optim.Plateau",
    "onecurve.optim.schedulers.step": "optim.Step",
    "onecurve.strategies.ddp.DDP": "strategies.DDP",
    "onecurve.strategies.dp.DP": "strategies.DP",
    "onecurve.strategies.fsdp.strategy.FSDP": "strategies.FSDP",
    "onecurve.strategies.mesh.strategy.mesh": "strategies.Mesh",
    "onecurve.strategies.pipeline.strategy.Pipeline": "strategies.Pipeline",
    "onecurve.strategies.single.Single": "strategies.Single",
    "onecurve.strategies.tensor.strategy.Tensor": "strategies.Tensor",
}
# Models of groups without a class, by key.
GROUPS = {
    "checkpoint": "groups.Checkpoint",
    "data": "groups.EvaluatedData",
    "launch": "launch.Launch",
    "parity": "groups.Parity",
    "paths": "groups.Paths",
    "plan": "groups.Plan",
    "predict": "groups.Predict",
    "sweep": "groups.Sweep",
    "trainer": "trainer.Trainer",
}
COMMANDS = {
    "evaluate": "commands.Evaluate",
    "export": "commands.Export",
    "parity": "commands.Parity",
    "plan": "commands.Plan",
    "predict": "commands.Predict",
    "train": "commands.Train",
}
# Groups that hold one class or function, and groups that hold several by name.
OBJECTS = ("task", "data", "model", "init", "optimizer", "scheduler", "strategy")
COLLECTIONS = ("callbacks", "logger")


def model_of(place: str, node: Mapping[str, Any], command: str = "") -> type[Config] | None:
    """The model of what is at a dotted key of a command's configuration; the top has no key."""
    target = node.get("_target_")
    if isinstance(target, str):
        return of_target(target)
    if not place:
        return _model(COMMANDS.get(command, "commands.Command"))
    return _model(GROUPS[place]) if place in GROUPS else None


@cache
def of_target(target: str) -> type[Config] | None:
    """The model of a class or a function, from the library's table or the project's."""
    if target in TARGETS:
        return _model(TARGETS[target])
    package, _, name = target.partition(".")
    return of_project(package).get(name)


@cache
def of_project(package: str) -> dict[str, type[Config]]:
    """The table of a project's package; the package, which may import torch, is not imported."""
    name = f"{package}.{PROJECTS}"
    file = file_of(name)
    if file is None:
        return {}
    own = spec_from_file_location(name, file)
    assert own is not None
    assert own.loader is not None
    module = module_from_spec(own)
    own.loader.exec_module(module)
    found: dict[str, type[Config]] = module.MODELS
    return found


def _model(name: str) -> type[Config]:
    found: type[Config] = resolve_name(f"{__package__}.{name.replace('.', ':')}")
    return found


@cache
def folders_of(package: str) -> list[Path] | None:
    """The folders of a top-level package, or the file of a top-level module; None if missing."""
    try:
        spec = find_spec(package) if package else None
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    return [Path(folder) for folder in folders] if folders else [Path(spec.origin or "")]


@cache
def file_of(module: str) -> Path | None:
    """The file of a module; None if it is missing."""
    top, *rest = module.split(".")
    paths = [folder.joinpath(*rest) for folder in folders_of(top) or ()]
    files = [file for path in paths for file in (path / "__init__.py", path.with_suffix(".py"))]
    return next((file for file in files if file.is_file()), None)
